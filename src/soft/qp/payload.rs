//! The payload of send requests: gathered from SGEs or inline bytes, and answers scattered to where they belong.
use super::Qp;
use super::requester::Requester;
use crate::soft::mem::gather;
use crate::soft::mem::run::{Run, RunMut};
use crate::soft::types::{SendFlags, Sge, WcStatus, WrOpcode};
use crate::sys::guard::Folded;
use crate::sys::process_vm::Iovec;

impl Requester {
    /// Hands the payload bytes `from..from+len` of request `at` to `take`, piece by piece.
    #[inline]
    pub fn pieces<E: From<WcStatus>>(
        &self,
        qp: &Qp,
        at: u64,
        from: u32,
        len: u32,
        mut take: impl FnMut(Run<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.queue.wqe(at).flags.contains(SendFlags::INLINE) {
            let bytes = &self.queue.inline(at)[from as usize..(from + len) as usize];
            return if bytes.is_empty() { Ok(()) } else { take(Run::of(bytes)) };
        }
        gather::pieces(
            &qp.node.mem,
            qp.pd,
            self.queue.sges(at),
            from as u64,
            len as u64,
            WcStatus::LocProtErr,
            take,
        )
    }

    /// Copies the payload bytes `from..` of request `at` to `to`, as many as it has room for.
    #[inline]
    pub fn gather(&self, qp: &Qp, at: u64, from: u32, mut to: RunMut<'_>) -> Result<(), WcStatus> {
        let len = to.len() as u32;
        self.pieces(qp, at, from, len, |run| to.fill(run).map_err(|_| WcStatus::LocProtErr))
    }

    /// As [`gather`](Self::gather); true if all of it was one piece, for which `folded` has been filled.
    #[inline]
    pub fn gather_folding(
        &self,
        qp: &Qp,
        at: u64,
        from: u32,
        mut to: RunMut<'_>,
        folded: &mut Folded,
    ) -> Result<bool, WcStatus> {
        let (len, mut is_folded) = (to.len(), false);
        self.pieces(qp, at, from, len as u32, |run| {
            let is_all = run.len() == len;
            let part = if is_all { to.fill_folding(run, folded) } else { to.fill(run).map(|()| false) };
            is_folded = part.map_err(|_| WcStatus::LocProtErr)?;
            Ok(())
        })?;
        Ok(is_folded)
    }

    /// The operands of request `at`, as they travel: those of atomics, the bytes of an ATOMIC WRITE, the range of a FLUSH.
    ///
    /// # Errors
    /// LOC_PROT_ERR where the bytes are not there.
    pub fn operands(&self, qp: &Qp, at: u64) -> Result<(u64, u64), WcStatus> {
        let wqe = self.queue.wqe(at);
        if wqe.opcode != WrOpcode::AtomicWrite || wqe.holds_value() {
            return Ok((wqe.compare_add, wqe.swap));
        }
        let mut bytes = [0u8; 8];
        self.gather(qp, at, 0, RunMut::of(&mut bytes))?;
        Ok((u64::from_ne_bytes(bytes), 0))
    }

    /// Copies a piece of the answer to READ `at` to where the application wants it.
    pub fn scatter(&self, qp: &Qp, at: u64, offset: u32, bytes: Run<'_>) -> Result<(), WcStatus> {
        gather::scatter(&qp.node.mem, qp.pd, self.queue.sges(at), offset as u64, bytes)
            .map_err(|_| WcStatus::LocProtErr)
    }

    /// Hands the memory of request `at`'s payload, or of where its answer goes, to `use_them` for a system call; nothing
    /// where part of it is a null region.
    pub fn with_pieces<R>(
        &self,
        qp: &Qp,
        at: u64,
        write: bool,
        use_them: impl FnOnce(&[Iovec]) -> R,
    ) -> Result<Option<R>, WcStatus> {
        if self.queue.wqe(at).flags.contains(SendFlags::INLINE) {
            let bytes = self.queue.inline(at);
            return Ok(Some(use_them(&[piece(bytes.as_ptr(), bytes.len())])));
        }
        let span = |sge: &Sge| qp.node.mem.local(qp.pd, sge, write).map_err(|_| WcStatus::LocProtErr);
        match self.queue.sges(at) {
            [sge] => {
                let span = span(sge)?;
                Ok((!span.is_null()).then(|| use_them(&[piece(span.as_ptr(), span.len())])))
            }
            list => {
                let filled = list.iter().filter(|sge| sge.length > 0);
                let spans = filled.map(span).collect::<Result<Vec<_>, _>>()?;
                if spans.iter().any(|s| s.is_null()) {
                    return Ok(None);
                }
                let pieces: Vec<Iovec> = spans.iter().map(|s| piece(s.as_ptr(), s.len())).collect();
                Ok(Some(use_them(&pieces)))
            }
        }
    }

    /// Checks the memory where the answer to request `at` goes.
    pub fn check_places(&self, qp: &Qp, at: u64) -> Result<(), WcStatus> {
        for sge in self.queue.sges(at).iter().filter(|sge| sge.length > 0) {
            qp.node.mem.local(qp.pd, sge, true).map_err(|_| WcStatus::LocProtErr)?;
        }
        Ok(())
    }

    /// Checks the payload of request `at` as sending it would.
    pub fn gather_nothing(&self, qp: &Qp, at: u64) -> Result<(), WcStatus> {
        self.pieces(qp, at, 0, self.queue.wqe(at).length, |_| Ok(()))
    }
}

fn piece(start: *const u8, len: usize) -> Iovec {
    Iovec { iov_base: start.cast_mut().cast(), iov_len: len }
}
