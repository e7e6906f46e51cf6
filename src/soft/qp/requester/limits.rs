//! How often and how long a requester tries.

/// Retry attributes as `ibv_modify_qp` takes them.
#[derive(Clone, Copy, Debug, Default)]
pub struct RetryLimits {
    /// Retries after a timeout or a sequence error, 0 to 7.
    pub retry_cnt: u8,
    /// Retries after RNR, 0 to 6; 7 never gives up.
    pub rnr_retry: u8,
    /// The local ACK timeout is 4.096 us * 2^timeout; 0 is infinite.
    pub timeout: u8,
}

impl RetryLimits {
    /// The local ACK timeout in nanoseconds.
    pub fn timeout_ns(&self) -> Option<u64> {
        (self.timeout != 0).then(|| 4096u64 << self.timeout.min(31))
    }
}
