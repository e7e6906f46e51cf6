//! Memory of queues: the heap's, or what the allocator of a parent domain gives.
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::sys::errno::Errno;

/// What a queue's memory is for; the lower half of the `resource_type` that allocators of parent domains are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// Completions of a CQ.
    Cq = 1,
    /// SGEs of a send queue.
    SendQueue = 2,
    /// SGEs of a QP's receive queue.
    RecvQueue = 3,
    /// SGEs of an SRQ.
    Srq = 4,
}

/// What an allocator answers.
#[derive(Clone, Copy, Debug)]
pub enum Grant {
    /// Memory of the size and alignment asked for, nobody else's until it is given back.
    Memory(NonNull<u8>),
    /// The heap shall serve.
    Default,
    /// There is none.
    None,
}

/// An allocator of queue memory.
pub trait Allocator: Send + Sync + fmt::Debug {
    /// Gives memory.
    fn take(&self, size: usize, align: usize, purpose: Purpose) -> Grant;
    /// Takes it back.
    fn give_back(&self, at: NonNull<u8>, purpose: Purpose);
}

/// A fixed number of plain values.
pub struct Area<T: Copy> {
    at: NonNull<T>,
    len: usize,
    owner: Option<(Arc<dyn Allocator>, Purpose)>,
}

impl<T: Copy> Area<T> {
    /// `len` values `fill` on the heap.
    pub fn heap(len: usize, fill: T) -> Self {
        let at = Box::leak(vec![fill; len].into_boxed_slice());
        Self { at: NonNull::from(at).cast(), len, owner: None }
    }

    /// The same from an allocator, if there is one.
    ///
    /// # Errors
    /// ENOMEM where it has none.
    pub fn new(
        len: usize,
        fill: T,
        allocator: Option<&Arc<dyn Allocator>>,
        purpose: Purpose,
    ) -> Result<Self, Errno> {
        let size = len * size_of::<T>();
        let Some(allocator) = allocator.filter(|_| size > 0) else { return Ok(Self::heap(len, fill)) };
        let at = match allocator.take(size, align_of::<T>().max(64), purpose) {
            Grant::Default => return Ok(Self::heap(len, fill)),
            Grant::None => return Err(Errno::ENOMEM),
            Grant::Memory(at) => at.cast::<T>(),
        };
        for i in 0..len {
            // SAFETY: the allocator gave room for `len` values, aligned, which are ours alone.
            unsafe { at.add(i).write(fill) };
        }
        Ok(Self { at, len, owner: Some((allocator.clone(), purpose)) })
    }
}

impl<T: Copy> Drop for Area<T> {
    fn drop(&mut self) {
        match &self.owner {
            Some((allocator, purpose)) => allocator.give_back(self.at.cast(), *purpose),
            // SAFETY: `heap` leaked a boxed slice of this length.
            None => drop(unsafe { Box::from_raw(NonNull::slice_from_raw_parts(self.at, self.len).as_ptr()) }),
        }
    }
}

impl<T: Copy> Deref for Area<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` values lie there, initialised by the constructors, and are ours alone.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl<T: Copy> DerefMut for Area<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl<T: Copy> fmt::Debug for Area<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Area({} values)", self.len)
    }
}

// SAFETY: an area owns its plain values as a box does; allocators are Send and Sync.
unsafe impl<T: Copy + Send> Send for Area<T> {}
// SAFETY: as above; shared references only read.
unsafe impl<T: Copy + Sync> Sync for Area<T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[derive(Debug, Default)]
    struct Counting {
        out: AtomicU32,
        empty: bool,
    }

    impl Allocator for Counting {
        fn take(&self, size: usize, align: usize, _: Purpose) -> Grant {
            if self.empty {
                return Grant::None;
            }
            self.out.fetch_add(1, Ordering::Relaxed);
            let layout = std::alloc::Layout::from_size_align(size, align).unwrap();
            assert_eq!(layout, std::alloc::Layout::from_size_align(80, 64).unwrap());
            // SAFETY: the layout is not empty.
            Grant::Memory(NonNull::new(unsafe { std::alloc::alloc(layout) }).unwrap())
        }
        fn give_back(&self, at: NonNull<u8>, _: Purpose) {
            self.out.fetch_sub(1, Ordering::Relaxed);
            // SAFETY: `take` made it with this layout.
            unsafe { std::alloc::dealloc(at.as_ptr(), std::alloc::Layout::from_size_align(80, 64).unwrap()) };
        }
    }

    #[test]
    fn an_allocators_memory_goes_back_to_it() {
        let counting = Arc::new(Counting::default());
        let allocator: Arc<dyn Allocator> = counting.clone();
        let mut area = Area::new(10, 7u64, Some(&allocator), Purpose::Cq).unwrap();
        assert_eq!((counting.out.load(Ordering::Relaxed), &area[..]), (1, &[7; 10][..]));
        area[9] = 8;
        drop(area);
        assert_eq!((counting.out.load(Ordering::Relaxed), Arc::strong_count(&allocator)), (0, 2));
    }

    #[test]
    fn an_allocator_without_memory_is_enomem_and_none_is_the_heap() {
        let allocator: Arc<dyn Allocator> = Arc::new(Counting { empty: true, ..Counting::default() });
        assert_eq!(Area::new(1, 0u8, Some(&allocator), Purpose::Srq).unwrap_err(), Errno::ENOMEM);
        assert!(Area::new(0, 0u8, Some(&allocator), Purpose::Srq).unwrap().is_empty());
        assert_eq!(Area::new(3, 1u8, None, Purpose::Srq).unwrap()[..], [1; 3]);
    }
}
