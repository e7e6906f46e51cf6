//! Memory of queues: the heap's, or what the allocator of a parent domain gives.
use std::alloc::{Layout, alloc_zeroed};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::soft::types::Sge;
use crate::sys::errno::Errno;
use crate::sys::log::explain;
use crate::sys::map::Mapping;

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

/// `len` values `fill` on the heap; ENOMEM where there is no memory, which must not end the application.
pub fn filled<T: Clone>(len: usize, fill: T) -> Result<Box<[T]>, Errno> {
    let mut values = Vec::new();
    values.try_reserve_exact(len).map_err(|_| short_of(len * size_of::<T>()))?;
    values.resize(len, fill);
    Ok(values.into_boxed_slice())
}

/// Numbers, for which memory of zeros is zero.
///
/// # Safety
/// Only for types that have a value for every pattern of bits.
pub unsafe trait Number: Copy {}
// SAFETY: an integer.
unsafe impl Number for u8 {}
// SAFETY: an integer.
unsafe impl Number for u32 {}
// SAFETY: an integer.
unsafe impl Number for u64 {}
// SAFETY: integers.
unsafe impl Number for Sge {}

/// `len` zeros on the heap, whose pages are not touched yet; ENOMEM where there is no memory.
pub fn zeros<T: Number>(len: usize) -> Result<Box<[T]>, Errno> {
    let layout = Layout::array::<T>(len).map_err(|_| Errno::ENOMEM)?;
    if layout.size() == 0 {
        return Ok(Box::default());
    }
    // SAFETY: the layout is not empty.
    let at = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| short_of(layout.size()))?;
    // SAFETY: the global allocator gave memory of the layout of such a slice, and zeros are numbers.
    Ok(unsafe { Box::from_raw(NonNull::slice_from_raw_parts(at.cast::<T>(), len).as_ptr()) })
}

#[cold]
fn short_of(bytes: usize) -> Errno {
    explain(format_args!(
        "no memory for a queue: {bytes} bytes were refused (RLIMIT_AS, or a limit of the system)"
    ));
    Errno::ENOMEM
}

/// An area of this many bytes or more is mapped: what of it is never used then takes no memory.
const WORTH_MAPPING: usize = 8192;

/// A fixed number of plain values.
pub struct Area<T: Copy> {
    at: NonNull<T>,
    len: usize,
    owner: Owner,
}

/// Where an area's memory goes back to.
enum Owner {
    Heap,
    Mapped(#[allow(dead_code, reason = "kept for its drop")] Mapping),
    Given(Arc<dyn Allocator>, Purpose),
}

impl<T: Copy> Area<T> {
    /// Of no values.
    pub fn none() -> Self {
        Self { at: NonNull::dangling(), len: 0, owner: Owner::Heap }
    }

    fn heap(len: usize, fill: T) -> Result<Self, Errno> {
        let at = Box::leak(filled(len, fill)?);
        Ok(Self { at: NonNull::from(at).cast(), len, owner: Owner::Heap })
    }

    /// `len` zeros, from an allocator if there is one, else mapped or on the heap.
    ///
    /// # Errors
    /// ENOMEM where there is no memory.
    pub fn zeros(len: usize, allocator: Option<&Arc<dyn Allocator>>, purpose: Purpose) -> Result<Self, Errno>
    where
        T: Number + Default,
    {
        let size = len * size_of::<T>();
        if size < WORTH_MAPPING || allocator.is_some() {
            return Self::new(len, T::default(), allocator, purpose);
        }
        let mapping = Mapping::anonymous(size).map_err(|_| short_of(size))?;
        let at = NonNull::new(mapping.base().cast::<T>()).ok_or(Errno::ENOMEM)?;
        Ok(Self { at, len, owner: Owner::Mapped(mapping) })
    }

    /// `len` values `fill`, from an allocator if there is one, else on the heap.
    ///
    /// # Errors
    /// ENOMEM where there is no memory.
    pub fn new(
        len: usize,
        fill: T,
        allocator: Option<&Arc<dyn Allocator>>,
        purpose: Purpose,
    ) -> Result<Self, Errno> {
        let size = len * size_of::<T>();
        let Some(allocator) = allocator.filter(|_| size > 0) else { return Self::heap(len, fill) };
        let at = match allocator.take(size, align_of::<T>().max(64), purpose) {
            Grant::Default => return Self::heap(len, fill),
            Grant::None => {
                explain(format_args!(
                    "the parent domain's allocator gave no memory for {size} bytes of {purpose:?}"
                ));
                return Err(Errno::ENOMEM);
            }
            Grant::Memory(at) => at.cast::<T>(),
        };
        for i in 0..len {
            // SAFETY: the allocator gave room for `len` values, aligned, which are ours alone.
            unsafe { at.add(i).write(fill) };
        }
        Ok(Self { at, len, owner: Owner::Given(allocator.clone(), purpose) })
    }
}

impl<T: Copy> Drop for Area<T> {
    fn drop(&mut self) {
        match &self.owner {
            Owner::Given(allocator, purpose) => allocator.give_back(self.at.cast(), *purpose),
            Owner::Mapped(_) => {}
            Owner::Heap => {
                let slice = NonNull::slice_from_raw_parts(self.at, self.len);
                // SAFETY: `heap` leaked a boxed slice of this length, and one of none needs no memory.
                drop(unsafe { Box::from_raw(slice.as_ptr()) });
            }
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
        assert!(Area::<u64>::none().is_empty());
    }

    #[test]
    fn large_areas_are_zero_and_need_no_memory_of_the_heap() {
        let mut area = Area::<u64>::zeros(1 << 20, None, Purpose::Cq).unwrap();
        assert!(matches!(area.owner, Owner::Mapped(_)) && area.len() == 1 << 20);
        area[(1 << 20) - 1] = 3;
        assert_eq!((area[0], area[(1 << 20) - 1]), (0, 3));
        let small = Area::<u8>::zeros(100, None, Purpose::Cq).unwrap();
        assert!(matches!(small.owner, Owner::Heap) && small[..] == [0; 100]);
        assert_eq!(Area::<u64>::zeros(1 << 50, None, Purpose::Cq).unwrap_err(), Errno::ENOMEM);
    }

    #[test]
    fn a_heap_without_memory_is_enomem() {
        let too_many = isize::MAX as usize / 16;
        assert_eq!(Area::new(too_many, 0u64, None, Purpose::Cq).unwrap_err(), Errno::ENOMEM);
        assert_eq!(filled(too_many, [0u64; 2]).unwrap_err(), Errno::ENOMEM);
        assert_eq!(zeros::<u64>(too_many).unwrap_err(), Errno::ENOMEM);
        assert_eq!((zeros::<u32>(0).unwrap().len(), &zeros::<u32>(3).unwrap()[..]), (0, &[0; 3][..]));
    }
}
