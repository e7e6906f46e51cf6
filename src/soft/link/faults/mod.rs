//! Faults on request: what `ANYVERBS_FAULTS`, and `anyverbs.h` at run time, have go wrong.
//!
//! `spec` is what users write, `chance` throws the dice. On the wire each packet that a queue pair sends is struck by itself
//! (`packets`); on the memory paths, where a message travels as a whole, a message is one packet (`messages`). RNR
//! refusals and the end of a queue pair are of all paths: the two halves of a queue pair ask [`Sending`] and [`Receiving`].
//! `docs/FAULTS.md` says what each fault means where.
pub mod chance;
pub mod messages;
pub mod packets;
pub mod spec;

use crate::soft::link;
use crate::soft::qp::Qp;
use crate::sys::errno::Errno;
use crate::sys::lock::Lock;
use crate::sys::log::explain;
use chance::{Chance, Counts, Tally};
pub use messages::Sending;
pub use spec::Spec;
use std::ffi::OsStr;
use std::sync::Arc;

/// What `ANYVERBS_FAULTS` says.
///
/// # Errors
/// EINVAL, explained: a test that believes in faults which are not there is worth nothing.
pub fn from_environment() -> Result<Spec, Errno> {
    let name = "ANYVERBS_FAULTS";
    match std::env::var_os(name).filter(|_| !crate::sys::is_setuid()) {
        None => Ok(Spec::default()),
        Some(text) => parse(name, &text),
    }
}

/// Reads a specification that `who` was given.
///
/// # Errors
/// EINVAL, explained.
pub fn parse(who: &str, text: &OsStr) -> Result<Spec, Errno> {
    text.to_string_lossy().parse().map_err(|bad| {
        explain(format_args!("{who}: {bad}"));
        Errno::EINVAL
    })
}

/// The faults of a context: those that its new queue pairs get, and what was done to all that it ever had.
#[derive(Debug)]
pub struct OfContext {
    spec: Lock<Spec>,
    /// What was done so far.
    pub counts: Arc<Counts>,
}

impl OfContext {
    /// A context whose queue pairs get these faults.
    pub fn new(spec: Spec) -> Self {
        Self { spec: Lock::new(spec), counts: Arc::default() }
    }

    /// A new queue pair, the process's number `ordinal`, gets the faults of the context.
    pub fn adopt(&self, qp: &Qp, ordinal: u64) {
        let tally = Tally([Arc::default(), self.counts.clone()]);
        if qp.faults.set(OfQp { ordinal, tally }).is_ok() {
            set(qp, &self.spec.lock());
        }
    }

    /// The queue pairs that come get these faults, and those among `qps` that are there.
    pub fn set<'a>(&self, spec: &Spec, qps: impl Iterator<Item = &'a Arc<Qp>>) {
        let mut own = self.spec.lock();
        *own = *spec;
        let ours = |qp: &&Arc<Qp>| qp.faults.get().is_some_and(|f| Arc::ptr_eq(&f.tally.0[1], &self.counts));
        qps.filter(ours).for_each(|qp| set(qp, spec));
    }
}

/// What a queue pair's faults are made of and counted in, whether it has some just now or not.
#[derive(Debug)]
pub struct OfQp {
    ordinal: u64,
    tally: Tally,
}

impl OfQp {
    /// What was done so far.
    pub fn counts(&self) -> &Counts {
        &self.tally.0[0]
    }
}

/// Gives a queue pair these faults from now on. Called with no lock of it held.
pub fn set(qp: &Qp, spec: &Spec) {
    let Some(of) = qp.faults.get() else { return };
    let wanted = !spec.is_nothing();
    let chance = |half| Chance::new(spec, of.ordinal, half, of.tally.clone());
    let mut sq = qp.sq.lock();
    let until = sq.wait_until;
    let waits = sq.faults.as_ref().is_some_and(|faults| faults.is_waiting(until));
    sq.faults = wanted.then(|| Box::new(Sending::new(chance(0), spec.kill_qp_after, sq.queue.head)));
    sq.watch();
    if waits {
        // What was to come later, or again, may come now.
        sq.wait_until = 0;
        link::pump(qp, &mut sq);
    }
    drop(sq);
    if !wanted {
        qp.node.udp.send_held(qp.node, u64::MAX);
    }
    qp.node.settle();
    qp.rq.lock().faults = wanted.then(|| Box::new(Receiving::new(chance(1), spec.kill_qp_after)));
}

/// The faults of a receive half.
#[derive(Debug)]
pub struct Receiving {
    /// What becomes of the answers that it sends on the wire.
    pub chance: Chance,
    kill_after: Option<u64>,
    taken: u64,
}

impl Receiving {
    /// From now on; `kill_after`: so many receives more.
    pub fn new(chance: Chance, kill_after: Option<u64>) -> Self {
        Self { chance, kill_after, taken: 0 }
    }

    /// One more receive request is taken; true where that is one too many.
    pub fn takes(&mut self) -> bool {
        self.taken += 1;
        let kills = self.kill_after.is_some_and(|n| self.taken > n);
        if kills {
            self.chance.tally.add(|c| &c.killed);
        }
        kills
    }

    /// The queue pair goes to RESET: it begins anew.
    pub fn restart(&mut self) {
        self.taken = 0;
    }
}
