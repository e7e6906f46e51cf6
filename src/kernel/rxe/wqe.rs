//! Work queue entries as the kernel's rxe reads them (`rdma/rdma_user_rxe.h`), written field by field: an entry lies in
//! memory that the kernel maps as well.
use super::AhObject;
use crate::abi::*;
use crate::sys::errno::Errno;
use std::ffi::c_void;
use std::ptr;

const WR_ID: usize = 0;
const OPCODE: usize = 12;
const SEND_FLAGS: usize = 16;
const EX: usize = 20;
/// What depends on the opcode.
const WR: usize = 24;
const UD_QKEY: usize = WR + 4;
const UD_AH_NUM: usize = WR + 12;
const UD_AV: usize = WR + 32;
const IOVA: usize = 152;
const SSN: usize = 176;
/// `struct rxe_dma_info` of a send.
const SEND_DMA: usize = 184;
/// The same of a receive.
const RECV_DMA: usize = 16;
/// Bytes of `struct rxe_dma_info`, behind which SGEs or inline data lie.
const DMA: usize = 24;

/// Bytes of a send entry before its SGEs.
pub const SEND_HEAD: usize = SEND_DMA + DMA;
/// Bytes of a receive entry before its SGEs.
pub const RECV_HEAD: usize = RECV_DMA + DMA;

/// One entry.
#[derive(Clone, Copy)]
pub struct Wqe(*mut u8);

impl Wqe {
    /// A cleared send entry.
    ///
    /// # Safety
    /// `at` must be an entry of at least [`SEND_HEAD`] bytes that is ours to write.
    pub unsafe fn send(at: *mut u8, wr_id: u64, opcode: u32, flags: u32, ssn: u32) -> Self {
        let wqe = Self(at);
        // SAFETY: the caller vouches for the entry.
        unsafe {
            at.write_bytes(0, SEND_HEAD);
            wqe.put(WR_ID, wr_id);
            wqe.put(OPCODE, opcode);
            wqe.put(SEND_FLAGS, flags);
            wqe.put(SSN, ssn);
        }
        wqe
    }

    /// # Safety
    /// The entry must be ours and have room for `T` at this offset.
    unsafe fn put<T>(self, offset: usize, value: T) {
        // SAFETY: the caller vouches for it; entries are aligned to cache lines, offsets to their types.
        unsafe { self.0.add(offset).cast::<T>().write(value) };
    }

    /// Immediate data in network byte order, or the key to invalidate.
    ///
    /// # Safety
    /// A send entry that is ours, as for all of these.
    pub unsafe fn ex(self, value: u32) {
        // SAFETY: the caller vouches for it.
        unsafe { self.put(EX, value) };
    }

    /// # Safety
    /// As `ex`.
    pub unsafe fn rdma(self, addr: u64, rkey: u32) {
        // SAFETY: the caller vouches for it.
        unsafe {
            self.put(WR, addr);
            self.put(WR + 8, rkey);
            self.put(IOVA, addr);
        }
    }

    /// # Safety
    /// As `ex`.
    pub unsafe fn atomic(self, addr: u64, rkey: u32, compare_add: u64, swap: u64) {
        // SAFETY: the caller vouches for it.
        unsafe {
            self.put(WR, addr);
            self.put(WR + 8, compare_add);
            self.put(WR + 16, swap);
            self.put(WR + 24, rkey);
            self.put(IOVA, addr);
        }
    }

    /// # Safety
    /// As `ex`; `ah` live.
    pub unsafe fn datagram(self, ah: &AhObject, qpn: u32, qkey: u32) {
        // SAFETY: the caller vouches for it.
        unsafe {
            self.put(WR, qpn);
            self.put(UD_QKEY, qkey);
            self.put(UD_AH_NUM, ah.number);
            self.put(UD_AV, ah.av);
        }
    }

    /// # Safety
    /// As `ex`; the region of `info`, where there is one, live.
    pub unsafe fn bind(self, window: u32, rkey: u32, info: &ibv_mw_bind_info) {
        // SAFETY: the caller vouches for it.
        unsafe {
            self.put(WR, info.addr);
            self.put(WR + 8, info.length);
            self.put(WR + 16, info.mr.as_ref().map_or(0, |mr| mr.lkey));
            self.put(WR + 20, window);
            self.put(WR + 24, rkey);
            self.put(WR + 28, info.mw_access_flags);
        }
    }

    /// Length, what is left of it, and the number of SGEs.
    ///
    /// # Safety
    /// As `ex`, with the offset of the entry's kind.
    unsafe fn dma(self, at: usize, length: u32, num_sge: u32) {
        // SAFETY: the caller vouches for it.
        unsafe {
            self.put(at, length);
            self.put(at + 4, length);
            self.put(at + 8, 0u32);
            self.put(at + 12, num_sge);
            self.put(at + 16, 0u64);
        }
    }

    /// The SGEs of a send; what they hold together, or EINVAL above 4 GiB.
    ///
    /// # Safety
    /// As `ex`, with room for `count` SGEs; `list` readable for as many.
    pub unsafe fn send_sges(self, list: *const ibv_sge, count: usize) -> Result<u32, Errno> {
        // SAFETY: the caller's promises are this function's.
        unsafe { self.sges(SEND_DMA, list, count) }
    }

    /// # Safety
    /// As `send_sges`, with the offset of the entry's kind.
    unsafe fn sges(self, dma: usize, list: *const ibv_sge, count: usize) -> Result<u32, Errno> {
        let mut total = 0u64;
        for i in 0..count {
            // SAFETY: the caller vouches for the list and the room; an SGE is laid out as the kernel's.
            unsafe {
                let sge = list.add(i).read();
                total += u64::from(sge.length);
                self.put(dma + DMA + i * size_of::<ibv_sge>(), sge);
            }
        }
        let total = u32::try_from(total).map_err(|_| Errno::EINVAL)?;
        // SAFETY: the caller vouches for the entry.
        unsafe { self.dma(dma, total, count as u32) };
        Ok(total)
    }

    /// Copies inline data behind what is there already; `filled` counts it.
    ///
    /// # Safety
    /// As `ex`, with room for `filled + len` bytes; `from` readable for `len`.
    pub unsafe fn inline(self, filled: &mut usize, from: *const c_void, len: usize) {
        // SAFETY: the caller vouches for both.
        unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), self.0.add(SEND_HEAD + *filled), len) };
        *filled += len;
    }

    /// Tells how much inline data there is.
    ///
    /// # Safety
    /// As `ex`.
    pub unsafe fn end_inline(self, filled: usize) {
        // SAFETY: the caller vouches for it.
        unsafe { self.dma(SEND_DMA, filled as u32, 0) };
    }

    /// Eight bytes that a peer's memory gets at once; they lie where inline data would.
    ///
    /// # Safety
    /// As `ex`; `bytes` readable for eight.
    pub unsafe fn atomic_write(self, addr: u64, rkey: u32, bytes: *const c_void) {
        let mut filled = 0;
        // SAFETY: the caller vouches for both; the smallest entry has room for eight bytes behind its head.
        unsafe {
            self.rdma(addr, rkey);
            self.inline(&mut filled, bytes, 8);
            self.end_inline(filled);
        }
    }

    /// What of a peer's memory its earlier requests must have reached, and how far.
    ///
    /// # Safety
    /// As `ex`.
    pub unsafe fn flush(self, addr: u64, length: u32, rkey: u32, kind: u8, level: u8) {
        // SAFETY: the caller vouches for it.
        unsafe {
            self.put(WR, addr);
            self.put(WR + 8, length);
            self.put(WR + 12, rkey);
            self.put(WR + 16, kind);
            self.put(WR + 17, level);
            self.put(IOVA, addr);
            // The kernel's packet takes the length from here.
            self.dma(SEND_DMA, length, 0);
        }
    }

    /// Sets the flag that says so, for callers who need not have given it.
    ///
    /// # Safety
    /// As `ex`.
    pub unsafe fn mark_inline(self) {
        // SAFETY: the caller vouches for it.
        unsafe {
            let flags = self.0.add(SEND_FLAGS).cast::<u32>();
            flags.write(flags.read() | IBV_SEND_INLINE);
        }
    }

    /// A whole receive entry.
    ///
    /// # Safety
    /// `at` must be an entry that is ours, with room for `count` SGEs; `list` readable for as many.
    pub unsafe fn receive(at: *mut u8, wr_id: u64, list: *const ibv_sge, count: usize) -> Result<(), Errno> {
        let wqe = Self(at);
        // SAFETY: the caller vouches for both.
        unsafe {
            at.write_bytes(0, RECV_HEAD);
            wqe.put(WR_ID, wr_id);
            wqe.sges(RECV_DMA, list, count).map(drop)
        }
    }
}

/// `struct rxe_av` of an address, for kernels that take it from the entry.
pub fn av(attr: &ibv_ah_attr, own: &ibv_gid) -> [u8; 88] {
    const IPV4: u8 = 1;
    const IPV6: u8 = 2;
    let mut av = [0u8; 88];
    let peer = attr.grh.dgid.raw;
    let v4 = peer[..10] == [0; 10] && peer[10..12] == [0xff; 2];
    av[0] = attr.port_num;
    av[1] = if v4 { IPV4 } else { IPV6 };
    av[8..24].copy_from_slice(&peer);
    av[24..28].copy_from_slice(&attr.grh.flow_label.to_ne_bytes());
    av[28..31].copy_from_slice(&[attr.grh.sgid_index, attr.grh.hop_limit, attr.grh.traffic_class]);
    for (at, gid) in [(32, &own.raw), (60, &peer)] {
        let (family, address) = if v4 { (libc::AF_INET, &gid[12..]) } else { (libc::AF_INET6, &gid[..]) };
        av[at..at + 2].copy_from_slice(&(family as u16).to_ne_bytes());
        // Behind the port; IPv6 has its flow label first.
        let start = at + if v4 { 4 } else { 8 };
        av[start..start + address.len()].copy_from_slice(address);
    }
    av
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(bytes: &[u64], at: usize) -> u32 {
        // SAFETY: within the array.
        unsafe { bytes.as_ptr().cast::<u8>().add(at).cast::<u32>().read() }
    }

    #[test]
    fn fields_stand_where_the_kernel_reads_them() {
        let mut entry = [u64::MAX; 64];
        let sges = [ibv_sge { addr: 1, length: 100, lkey: 7 }, ibv_sge { addr: 2, length: 28, lkey: 8 }];
        // SAFETY: 512 bytes, of which two SGEs end at 240.
        let total = unsafe {
            let wqe = Wqe::send(entry.as_mut_ptr().cast(), 0x1234, IBV_WR_RDMA_WRITE, 2, 9);
            wqe.rdma(0x5000, 0x77);
            wqe.send_sges(sges.as_ptr(), 2)
        };
        assert_eq!(total, Ok(128));
        assert_eq!((entry[0], word(&entry, 12), word(&entry, 16)), (0x1234, IBV_WR_RDMA_WRITE, 2));
        assert_eq!((entry[3], word(&entry, 32), entry[19], word(&entry, 176)), (0x5000, 0x77, 0x5000, 9));
        let dma = [184, 188, 192, 196, 200, 204].map(|at| word(&entry, at));
        assert_eq!(dma, [128, 128, 0, 2, 0, 0]);
        assert_eq!((entry[26], word(&entry, 216), word(&entry, 220), entry[28]), (1, 100, 7, 2));
        assert_eq!(entry[30], u64::MAX);
    }

    #[test]
    fn inline_pieces_are_joined() {
        let mut entry = [0u64; 64];
        let mut filled = 0;
        // SAFETY: the entry has room for six bytes behind its head.
        unsafe {
            let wqe = Wqe::send(entry.as_mut_ptr().cast(), 1, IBV_WR_SEND, IBV_SEND_INLINE, 1);
            wqe.inline(&mut filled, c"ab".as_ptr().cast(), 2);
            wqe.inline(&mut filled, c"cdef".as_ptr().cast(), 4);
            wqe.end_inline(filled);
        }
        assert_eq!((word(&entry, 184), word(&entry, 188), word(&entry, 196)), (6, 6, 0));
        assert_eq!(entry[26].to_ne_bytes(), *b"abcdef\0\0");
    }

    #[test]
    fn an_atomic_write_has_its_bytes_in_the_entry() {
        let mut entry = [0u64; 64];
        // SAFETY: the entry has room for eight bytes behind its head.
        unsafe {
            let wqe = Wqe::send(entry.as_mut_ptr().cast(), 1, IBV_WR_ATOMIC_WRITE, 0, 1);
            wqe.atomic_write(0x5000, 0x77, c"eightly".as_ptr().cast());
        }
        assert_eq!((entry[3], word(&entry, 32), entry[19]), (0x5000, 0x77, 0x5000));
        assert_eq!((word(&entry, 184), word(&entry, 188), word(&entry, 196)), (8, 8, 0));
        assert_eq!(entry[26].to_ne_bytes(), *b"eightly\0");
    }

    #[test]
    fn a_flush_names_what_and_how_far() {
        let mut entry = [0u64; 64];
        // SAFETY: the entry has room for its head.
        unsafe {
            let wqe = Wqe::send(entry.as_mut_ptr().cast(), 1, IBV_WR_FLUSH, 0, 1);
            wqe.flush(0x5000, 64, 0x77, IBV_FLUSH_PERSISTENT as u8, IBV_FLUSH_MR as u8);
        }
        assert_eq!(
            (entry[3], word(&entry, 32), word(&entry, 36), word(&entry, 40)),
            (0x5000, 64, 0x77, 0x0102)
        );
        assert_eq!([184, 188, 196].map(|at| word(&entry, at)), [64, 64, 0]);
        assert_eq!(entry[19], 0x5000);
    }

    #[test]
    fn more_than_four_gigabytes_are_refused() {
        let mut entry = [0u64; 64];
        let sges = [ibv_sge { addr: 1, length: u32::MAX, lkey: 7 }; 2];
        // SAFETY: room for two SGEs.
        let received = unsafe { Wqe::receive(entry.as_mut_ptr().cast(), 1, sges.as_ptr(), 2) };
        assert_eq!(received, Err(Errno::EINVAL));
    }

    #[test]
    fn an_address_has_the_family_of_its_gid() {
        let mut attr = ibv_ah_attr::zeroed();
        attr.grh.dgid.raw = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 2];
        let mut own = attr.grh.dgid;
        own.raw[15] = 1;
        let v4 = av(&attr, &own);
        assert_eq!((v4[1], &v4[36..40], &v4[64..68]), (1, &[10, 9, 0, 1][..], &[10, 9, 0, 2][..]));
        attr.grh.dgid.raw[0] = 0xfd;
        let v6 = av(&attr, &own);
        assert_eq!((v6[1], &v6[68..84]), (2, &attr.grh.dgid.raw[..]));
    }
}
