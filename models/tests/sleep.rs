//! A process that falls asleep leaves nothing behind: neither an acknowledgement that waits, nor a message that nobody rings for.
use anyverbs_models::soft::link::udp::{Owed, flow::Flow};
use anyverbs_models::soft::{node::Node, qp::Qp};
use loom::sync::Notify;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;
use std::sync::Arc;

fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(test);
}

/// As `engine::fall_asleep` and the look for packets that follows it, while another thread has received.
#[test]
fn an_acknowledgement_does_not_wait_while_the_process_sleeps() {
    model(3, || {
        let (node, owed) = (Arc::new(Node::default()), Arc::new(Owed::default()));
        let (flow, qp) = (Arc::new(Flow::default()), Arc::new(Qp));
        node.wires.own().set_asleep(false);
        owed.settle_for_good();
        assert_eq!(flow.paid(), 0);
        let (receiving, waits, to) = (node.clone(), owed.clone(), flow.clone());
        let receiver = thread::spawn(move || {
            if !waits.wait(&receiving, &qp, &to) {
                to.pay(&qp);
            }
        });
        node.wires.own().set_asleep(true);
        owed.settle();
        receiver.join().unwrap();
        assert_eq!(flow.paid(), 1);
    });
}

/// `engine::live` on one side, `engine::count_armed` and `engine::expect_doorbells` on another, written again: a poller that
/// ends the doorbells does not end them for who has just come to rely on them.
#[test]
fn a_poller_does_not_end_the_doorbells_of_who_waits() {
    struct Engine {
        node: Node,
        armed: AtomicU32,
        arms: AtomicU32,
        /// A message in a ring, and the doorbell.
        message: AtomicU32,
        bell: Notify,
    }
    fn expect_doorbells(e: &Engine) -> bool {
        e.arms.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        e.node.wires.own().set_asleep(true);
        e.message.load(Ordering::Acquire) != 0
    }
    model(2, || {
        let e = Arc::new(Engine {
            node: Node::default(),
            armed: AtomicU32::new(0),
            arms: AtomicU32::new(0),
            message: AtomicU32::new(0),
            bell: Notify::new(),
        });
        e.node.wires.own().set_asleep(true);
        let (polling, sending) = (e.clone(), e.clone());
        let poller = thread::spawn(move || {
            let e = polling;
            let (own, arms) = (e.node.wires.own(), e.arms.load(Ordering::SeqCst));
            if own.is_asleep() && e.armed.load(Ordering::SeqCst) == 0 {
                own.set_asleep(false);
                fence(Ordering::SeqCst);
                let others = e.arms.load(Ordering::SeqCst) != arms || e.armed.load(Ordering::SeqCst) != 0;
                if others && expect_doorbells(&e) {
                    e.bell.notify();
                }
            }
        });
        // As `Peer::notify`.
        let sender = thread::spawn(move || {
            sending.message.store(1, Ordering::Release);
            fence(Ordering::SeqCst);
            if sending.node.wires.own().is_asleep() {
                sending.bell.notify();
            }
        });
        e.armed.fetch_add(1, Ordering::SeqCst);
        if !expect_doorbells(&e) {
            e.bell.wait();
        }
        poller.join().unwrap();
        sender.join().unwrap();
    });
}
