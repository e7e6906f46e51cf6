//! Lists of SGEs as one stretch of bytes.
use super::run::Run;
use super::{MemTable, PdId};
use crate::soft::types::Sge;

/// An SGE that cannot be used: unknown lkey, wrong PD, out of bounds, not writable, or unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSge;

/// Copies `bytes` to where the stretch has offset `at`; the stretch is long enough.
#[inline]
pub fn scatter(mem: &MemTable, pd: PdId, sges: &[Sge], at: u64, bytes: Run<'_>) -> Result<(), BadSge> {
    let mut rest = bytes;
    walk(sges, at, bytes.len() as u64, |part| {
        let (now, later) = rest.split(part.length as usize);
        rest = later;
        let span = mem.local(pd, &part, true).map_err(|_| BadSge)?;
        if span.is_null() {
            return Ok(());
        }
        span.run_mut().fill(now).map_err(|_| BadSge)
    })
}

/// Hands the bytes `from..from+len` of the stretch to `take`, piece by piece; `bad` is the error for a bad SGE.
#[inline]
pub fn pieces<S: Copy, E: From<S>>(
    mem: &MemTable,
    pd: PdId,
    sges: &[Sge],
    from: u64,
    len: u64,
    bad: S,
    mut take: impl FnMut(Run<'_>) -> Result<(), E>,
) -> Result<(), E> {
    walk(sges, from, len, |part| {
        let span = mem.local(pd, &part, false).map_err(|_| bad)?;
        if span.is_null() {
            return zeros(span.len(), &mut take);
        }
        take(span.run())
    })
}

/// What a null region holds.
#[cold]
fn zeros<E>(mut len: usize, take: &mut impl FnMut(Run<'_>) -> Result<(), E>) -> Result<(), E> {
    static ZEROS: [u8; 4096] = [0; 4096];
    while len > 0 {
        let n = len.min(ZEROS.len());
        take(Run::of(&ZEROS[..n]))?;
        len -= n;
    }
    Ok(())
}

/// The parts of the SGEs that lie in `from..from+len`, empty ones left out.
#[inline]
fn walk<E>(sges: &[Sge], from: u64, len: u64, mut each: impl FnMut(Sge) -> Result<(), E>) -> Result<(), E> {
    let (mut skip, mut left) = (from, len);
    for sge in sges {
        if left == 0 {
            break;
        }
        let length = sge.length as u64;
        if skip >= length {
            skip -= length;
            continue;
        }
        let n = (length - skip).min(left);
        each(Sge { addr: sge.addr.wrapping_add(skip), length: n as u32, lkey: sge.lkey })?;
        (skip, left) = (0, left - n);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::types::Key;

    #[test]
    fn walk_cuts_the_first_and_the_last_part() {
        let sge = |addr, length| Sge { addr, length, lkey: Key(1) };
        let sges = [sge(100, 10), sge(200, 0), sge(300, 20), sge(400, 5)];
        let mut parts = Vec::new();
        walk(&sges, 4, 24, |s| {
            parts.push((s.addr, s.length));
            Ok::<_, ()>(())
        })
        .unwrap();
        assert_eq!(parts, [(104, 6), (300, 18)]);
    }
}
