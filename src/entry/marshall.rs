//! Between the kernel's structures and ours, for librdmacm and other users of the kernel's connection manager.
//!
//! Fields that the other side lacks stay as they are: `qp_state` and `rate_limit` of a QP, reserved bytes.
use crate::abi::*;

export!(ibv_copy_ah_attr_from_kern => "ibv_copy_ah_attr_from_kern" @@ "IBVERBS_1.1");
export!(ibv_copy_qp_attr_from_kern => "ibv_copy_qp_attr_from_kern" @@ "IBVERBS_1.0");
export!(ibv_copy_path_rec_from_kern => "ibv_copy_path_rec_from_kern" @@ "IBVERBS_1.0");
export!(ibv_copy_path_rec_to_kern => "ibv_copy_path_rec_to_kern" @@ "IBVERBS_1.0");

macro_rules! copy_fields {
    ($dst:expr, $src:expr; $($f:ident)*) => { $($dst.$f = $src.$f;)* };
}

/// The kernel's address vector as ours.
unsafe extern "C" fn ibv_copy_ah_attr_from_kern(dst: *mut ibv_ah_attr, src: *const ib_uverbs_ah_attr) {
    // SAFETY: the caller gives two valid structures that do not overlap.
    let (dst, src) = unsafe { (&mut *dst, &*src) };
    copy_ah(dst, src);
}

/// The kernel's QP attributes as ours, but for `qp_state`, which the caller has chosen.
unsafe extern "C" fn ibv_copy_qp_attr_from_kern(dst: *mut ibv_qp_attr, src: *const ib_uverbs_qp_attr) {
    // SAFETY: the caller gives two valid structures that do not overlap.
    let (dst, src) = unsafe { (&mut *dst, &*src) };
    copy_fields!(dst, src;
        cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num qp_access_flags pkey_index alt_pkey_index
        en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt
        rnr_retry alt_port_num alt_timeout);
    copy_fields!(dst.cap, src; max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data);
    copy_ah(&mut dst.ah_attr, &src.ah_attr);
    copy_ah(&mut dst.alt_ah_attr, &src.alt_ah_attr);
}

/// The kernel's path record as that of `infiniband/sa.h`.
unsafe extern "C" fn ibv_copy_path_rec_from_kern(dst: *mut ibv_sa_path_rec, src: *const ib_user_path_rec) {
    // SAFETY: the caller gives two valid structures that do not overlap.
    let (dst, src) = unsafe { (&mut *dst, &*src) };
    dst.dgid.raw = src.dgid;
    dst.sgid.raw = src.sgid;
    dst.raw_traffic = src.raw_traffic as i32;
    dst.reversible = src.reversible as i32;
    dst.mtu = src.mtu as u8;
    copy_fields!(dst, src;
        dlid slid flow_label hop_limit traffic_class numb_path pkey sl mtu_selector rate_selector rate
        packet_life_time_selector packet_life_time preference);
}

/// A path record of `infiniband/sa.h` as the kernel's.
unsafe extern "C" fn ibv_copy_path_rec_to_kern(dst: *mut ib_user_path_rec, src: *const ibv_sa_path_rec) {
    // SAFETY: the caller gives two valid structures that do not overlap.
    let (dst, src) = unsafe { (&mut *dst, &*src) };
    dst.dgid = src.dgid.raw;
    dst.sgid = src.sgid.raw;
    dst.raw_traffic = src.raw_traffic as u32;
    dst.reversible = src.reversible as u32;
    dst.mtu = src.mtu.into();
    copy_fields!(dst, src;
        dlid slid flow_label hop_limit traffic_class numb_path pkey sl mtu_selector rate_selector rate
        packet_life_time_selector packet_life_time preference);
}

fn copy_ah(dst: &mut ibv_ah_attr, src: &ib_uverbs_ah_attr) {
    dst.grh.dgid.raw = src.grh.dgid;
    copy_fields!(dst.grh, src.grh; flow_label sgid_index hop_limit traffic_class);
    copy_fields!(dst, src; dlid sl src_path_bits static_rate is_global port_num);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value whose every byte is its own offset plus one.
    fn numbered<T>() -> T {
        let mut value = std::mem::MaybeUninit::<T>::zeroed();
        for i in 0..size_of::<T>() {
            // SAFETY: within the value, which is made of integers only.
            unsafe { value.as_mut_ptr().cast::<u8>().add(i).write(i as u8 + 1) };
        }
        // SAFETY: every byte is written, and every bit pattern is a value.
        unsafe { value.assume_init() }
    }

    fn bytes<T>(value: &T) -> &[u8] {
        // SAFETY: the compared structures were zeroed whole before, so that padding is written too.
        unsafe { std::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) }
    }

    #[test]
    fn path_record_returns_from_the_kernel_as_it_went() {
        let sent = ibv_sa_path_rec { mtu: 4, ..numbered() };
        let (mut kernel, mut back) = (ib_user_path_rec::zeroed(), ibv_sa_path_rec::zeroed());
        // SAFETY: all three are valid and distinct.
        unsafe {
            ibv_copy_path_rec_to_kern(&mut kernel, &sent);
            ibv_copy_path_rec_from_kern(&mut back, &kernel);
        }
        assert_eq!(kernel.mtu, 4);
        assert_eq!(bytes(&kernel)[54..58], [45, 46, 53, 57]);
        assert_eq!((back.dgid, back.sgid, back.pkey), (sent.dgid, sent.sgid, sent.pkey));
        assert_eq!((back.preference, back.reversible), (sent.preference, sent.reversible));
    }

    #[test]
    fn qp_attributes_keep_state_and_rate_limit() {
        let kernel: ib_uverbs_qp_attr = numbered();
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, rate_limit: 77, ..ibv_qp_attr::zeroed() };
        // SAFETY: both are valid and distinct.
        unsafe { ibv_copy_qp_attr_from_kern(&mut attr, &kernel) };
        assert_eq!((attr.qp_state, attr.rate_limit), (IBV_QPS_INIT, 77));
        assert_eq!(bytes(&attr)[36], 105);
        assert_eq!(bytes(&attr)[56..79], bytes(&kernel)[40..63]);
        assert_eq!(bytes(&attr)[120..135], bytes(&kernel)[124..139]);
    }
}
