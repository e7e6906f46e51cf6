//! What happens to the port while contexts are open: it goes down and comes up with its main interface, and its GIDs
//! change with the addresses of all interfaces. Each context hears of it by an asynchronous event.
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};

use super::channel::AsyncQueue;
use super::gid::GidTable;
use super::types::EventType;
use crate::sys::lock::Lock;
use crate::sys::log::{Level, log};

/// The only port, which events name.
const PORT: usize = 1;

/// Who hears of the port, and what they have been told.
#[derive(Debug, Default)]
pub struct PortEvents {
    state: Lock<State>,
}

#[derive(Debug, Default)]
struct State {
    contexts: Vec<Weak<AsyncQueue>>,
    is_down: bool,
}

impl PortEvents {
    /// A context that is open until its queue is gone.
    pub fn add(&self, context: &Arc<AsyncQueue>) {
        let mut state = self.state.lock();
        state.contexts.retain(|c| c.strong_count() > 0);
        state.contexts.push(Arc::downgrade(context));
    }

    /// Looks what has become of the port since the last call, and tells the contexts.
    pub fn look(&self, gids: &GidTable) {
        let (gids_changed, is_up) = gids.rescan();
        let mut state = self.state.lock();
        let turned = is_up == state.is_down;
        state.is_down = !is_up;
        let port = if is_up { EventType::PortActive } else { EventType::PortErr };
        let events = [turned.then_some(port), gids_changed.then_some(EventType::GidChange)];
        for event in events.into_iter().flatten() {
            log(Level::Info, format_args!("port 1: {event:?}"));
            let port = AtomicUsize::new(PORT);
            state.contexts.iter().filter_map(Weak::upgrade).for_each(|c| c.push(event, &port));
        }
    }
}
