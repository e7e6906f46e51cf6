//! Nothing forks.
#[allow(missing_docs)]
pub fn generation() -> u32 {
    1
}
