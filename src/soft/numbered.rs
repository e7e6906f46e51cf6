//! Tables by a number that this process has given: nobody else can choose numbers that collide, and a lookup comes with every packet.
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Objects by their number.
pub type Numbered<T> = HashMap<u32, T, BuildHasherDefault<Spread>>;

/// Spreads numbers of which few bits differ over both ends of the hash; the table takes it by its low bits and tells entries apart by
/// its highest.
#[derive(Debug, Default)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, n: u32) {
        // The golden ratio, as an odd number.
        let spread = (self.0 ^ u64::from(n)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ spread >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::types::Qpn;
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    /// Slots that processes claim, each with its first indices or all of them: 65536 numbers.
    #[test]
    fn numbers_of_many_queue_pairs_fill_a_table_evenly() {
        for (slots, indices) in [(16, 4096), (4096, 16)] {
            let mut buckets = vec![0; 4096];
            let mut tags = HashSet::new();
            for (slot, index) in (0..slots).flat_map(|s| (0..indices).map(move |i| (s, i))) {
                let hash = BuildHasherDefault::<Spread>::default().hash_one(Qpn::new(slot, index).0);
                buckets[hash as usize % 4096] += 1;
                tags.insert(hash >> 57);
            }
            let most = *buckets.iter().max().unwrap();
            assert!(most <= 64, "{most} in one bucket where 16 are the mean");
            assert_eq!(tags.len(), 128);
        }
    }
}
