//! The field's vocabulary as types. No C type here; numbers equal those of verbs.h and the IB specification where both have them.
use std::fmt;

/// A 24-bit queue pair number: a 12-bit slot that a process claims, and a 12-bit index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Qpn(pub u32);

impl Qpn {
    /// The multicast destination.
    pub const MULTICAST: Qpn = Qpn(0xff_ffff);

    /// From a claimed slot and an index in it.
    pub const fn new(slot: u16, index: u16) -> Self {
        Self((slot as u32 & 0xfff) << 12 | (index as u32 & 0xfff))
    }
    /// The slot, which names the owning process within the network namespace.
    pub const fn slot(self) -> u16 {
        (self.0 >> 12) as u16 & 0xfff
    }
    /// The index within the slot.
    pub const fn index(self) -> u16 {
        self.0 as u16 & 0xfff
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:06x}", self.0)
    }
}

/// A 24-bit packet sequence number; arithmetic wraps, comparison is by half window (IBA 9.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// Equal to no number: the next request may have any.
    pub const ANY: Psn = Psn(u32::MAX);
    /// The low 24 bits of `n`.
    pub const fn new(n: u32) -> Self {
        Self(n & 0xff_ffff)
    }
    /// The number, 0 to 2^24 - 1.
    pub const fn get(self) -> u32 {
        self.0
    }
    /// This number `n` packets later.
    pub const fn plus(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }
    /// How far `self` is ahead of `other`; negative when behind.
    pub const fn since(self, other: Psn) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// An lkey or rkey.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Key(pub u32);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08x}", self.0)
    }
}

/// A GID in network byte order; IPv4 addresses stand as `::ffff:a.b.c.d`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID of an IP address.
    pub fn from_ip(ip: std::net::IpAddr) -> Self {
        match ip {
            std::net::IpAddr::V4(a) => Self(a.to_ipv6_mapped().octets()),
            std::net::IpAddr::V6(a) => Self(a.octets()),
        }
    }
    /// The IP address that the GID stands for.
    pub fn ip(self) -> std::net::IpAddr {
        let v6 = std::net::Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(v6.into(), Into::into)
    }
    /// An empty slot of the GID table.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }
    /// `ff00::/8`, or an IPv4-mapped address of 224.0.0.0/4.
    pub fn is_multicast(self) -> bool {
        self.ip().is_multicast()
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ip())
    }
}

bitflags::bitflags! {
    /// `enum ibv_access_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Access: u32 {
        #[allow(missing_docs)] const LOCAL_WRITE = 1;
        #[allow(missing_docs)] const REMOTE_WRITE = 1 << 1;
        #[allow(missing_docs)] const REMOTE_READ = 1 << 2;
        #[allow(missing_docs)] const REMOTE_ATOMIC = 1 << 3;
        #[allow(missing_docs)] const MW_BIND = 1 << 4;
        #[allow(missing_docs)] const ZERO_BASED = 1 << 5;
        #[allow(missing_docs)] const ON_DEMAND = 1 << 6;
        #[allow(missing_docs)] const HUGETLB = 1 << 7;
        #[allow(missing_docs)] const FLUSH_GLOBAL = 1 << 8;
        #[allow(missing_docs)] const FLUSH_PERSISTENT = 1 << 9;
        #[allow(missing_docs)] const RELAXED_ORDERING = 1 << 20;
    }

    /// `enum ibv_send_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct SendFlags: u32 {
        #[allow(missing_docs)] const FENCE = 1;
        #[allow(missing_docs)] const SIGNALED = 1 << 1;
        #[allow(missing_docs)] const SOLICITED = 1 << 2;
        #[allow(missing_docs)] const INLINE = 1 << 3;
        #[allow(missing_docs)] const IP_CSUM = 1 << 4;
    }
}

/// The C spelling of a variant: `LocLenErr` is LOC_LEN_ERR.
fn upper_case(f: &mut std::fmt::Formatter<'_>, variant: &str) -> std::fmt::Result {
    use std::fmt::Write;
    for (i, c) in variant.chars().enumerate() {
        if i > 0 && c.is_ascii_uppercase() {
            f.write_char('_')?;
        }
        f.write_char(c.to_ascii_uppercase())?;
    }
    Ok(())
}

macro_rules! numbered {
    ($(#[$meta:meta])* $name:ident: $repr:ty { $($variant:ident = $value:expr),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr($repr)]
        pub enum $name { $(#[allow(missing_docs)] $variant = $value),* }
        impl $name {
            /// The variant of this number, if there is one.
            pub const fn from_raw(n: $repr) -> Option<Self> {
                match n { $($value => Some(Self::$variant),)* _ => None }
            }
            /// The number that verbs.h gives it.
            pub const fn raw(self) -> $repr { self as $repr }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                upper_case(f, match self { $(Self::$variant => stringify!($variant)),* })
            }
        }
    };
}

numbered! {
    /// `enum ibv_qp_type`: the transports that urxe has.
    QpType: u32 { Rc = 2, Uc = 3, Ud = 4, XrcSend = 9, XrcRecv = 10 }
}
numbered! {
    /// `enum ibv_qp_state`.
    QpState: u32 { Reset = 0, Init = 1, Rtr = 2, Rts = 3, Sqd = 4, Sqe = 5, Err = 6 }
}
numbered! {
    /// `enum ibv_wr_opcode`: the requests that urxe carries out.
    WrOpcode: u32 {
        Write = 0, WriteImm = 1, Send = 2, SendImm = 3, Read = 4, CmpSwap = 5, FetchAdd = 6, LocalInv = 7,
        BindMw = 8, SendInv = 9, Flush = 14, AtomicWrite = 15,
    }
}
numbered! {
    /// `enum ibv_wc_status`: the outcomes that urxe gives.
    WcStatus: u32 {
        Success = 0, LocLenErr = 1, LocQpOpErr = 2, LocProtErr = 4, WrFlushErr = 5, MwBindErr = 6, BadRespErr = 7,
        LocAccessErr = 8, RemInvReqErr = 9, RemAccessErr = 10, RemOpErr = 11, RetryExcErr = 12, RnrRetryExcErr = 13,
        FatalErr = 19, GeneralErr = 21,
    }
}
numbered! {
    /// `enum ibv_wc_opcode`.
    WcOpcode: u32 {
        Send = 0, Write = 1, Read = 2, CompSwap = 3, FetchAdd = 4, BindMw = 5, LocalInv = 6, Flush = 8, AtomicWrite = 9,
        Recv = 128, RecvWithImm = 129,
    }
}
numbered! {
    /// `enum ibv_event_type`: the asynchronous events that urxe raises.
    EventType: u32 {
        CqErr = 0, QpFatal = 1, QpReqErr = 2, QpAccessErr = 3, CommEst = 4, SqDrained = 5, DeviceFatal = 8,
        PortActive = 9, PortErr = 10, SrqErr = 14, SrqLimitReached = 15, QpLastWqeReached = 16, GidChange = 18,
    }
}
numbered! {
    /// `enum ibv_mtu`.
    Mtu: u32 { B256 = 1, B512 = 2, B1024 = 3, B2048 = 4, B4096 = 5 }
}

impl WrOpcode {
    /// It changes keys of this process and sends nothing.
    #[inline]
    pub const fn is_local(self) -> bool {
        matches!(self, Self::LocalInv | Self::BindMw)
    }

    /// Its payload may be inline (`ibv_post_send(3)`).
    #[inline]
    pub const fn may_be_inline(self) -> bool {
        matches!(
            self,
            Self::Send | Self::SendImm | Self::SendInv | Self::Write | Self::WriteImm | Self::AtomicWrite
        )
    }
}

impl EventType {
    /// The event is about a CQ, QP or SRQ, not about the port or the device.
    pub const fn names_an_object(self) -> bool {
        use EventType::*;
        !matches!(self, DeviceFatal | PortActive | PortErr | GidChange)
    }

    /// The event is about a QP.
    pub const fn names_a_qp(self) -> bool {
        use EventType::*;
        self.names_an_object() && !matches!(self, CqErr | SrqErr | SrqLimitReached)
    }
}

impl Mtu {
    /// Payload bytes of a full packet.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }
    /// The largest MTU whose payload fits in `bytes`, at least 256.
    pub const fn fitting(bytes: u32) -> Self {
        match bytes {
            4096.. => Self::B4096,
            2048.. => Self::B2048,
            1024.. => Self::B1024,
            512.. => Self::B512,
            _ => Self::B256,
        }
    }
}

/// One piece of registered memory named by a work request (`struct ibv_sge`, same layout).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Sge {
    /// Address in the region's own terms: host address, or an offset where the region is zero-based.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// The region's lkey.
    pub lkey: Key,
}

/// The most that one message may carry: 2^31 bytes (IBA 9.7.7).
pub const MAX_MESSAGE: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_compares_by_half_window() {
        assert_eq!(Psn::new(0).since(Psn::new(0xff_ffff)), 1);
        assert_eq!(Psn::new(0xff_fff0).since(Psn::new(0x10)), -0x20);
        assert_eq!(Psn::new(0xff_ffff).plus(2), Psn::new(1));
    }

    #[test]
    fn qpn_splits_into_slot_and_index() {
        let qpn = Qpn::new(0xabc, 0xdef);
        assert_eq!((qpn.0, qpn.slot(), qpn.index()), (0xabcdef, 0xabc, 0xdef));
    }

    #[test]
    fn gid_of_ipv4_is_mapped() {
        let gid = Gid::from_ip("10.9.0.1".parse().unwrap());
        assert_eq!(format!("{gid:?}"), "10.9.0.1");
        assert_eq!(&gid.0[10..12], &[0xff, 0xff]);
    }
}
