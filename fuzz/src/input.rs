//! Decisions made of the bytes of an input; when they have run out, every decision is the first one.
use arbitrary::Unstructured;

/// What is left of an input.
#[derive(Debug)]
pub struct Input<'a>(Unstructured<'a>);

impl<'a> Input<'a> {
    /// The whole of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(Unstructured::new(bytes))
    }

    /// Nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u32) -> u32 {
        self.0.int_in_range(0..=n - 1).unwrap_or(0)
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }

    #[allow(missing_docs)]
    pub fn byte(&mut self) -> u8 {
        self.0.arbitrary().unwrap_or(0)
    }

    #[allow(missing_docs)]
    pub fn word(&mut self) -> u32 {
        self.0.arbitrary().unwrap_or(0)
    }

    #[allow(missing_docs)]
    pub fn long(&mut self) -> u64 {
        self.0.arbitrary().unwrap_or(0)
    }

    /// Up to `n` bytes as they stand.
    pub fn bytes(&mut self, n: usize) -> &'a [u8] {
        let n = n.min(self.0.len());
        self.0.bytes(n).unwrap_or(&[])
    }
}
