//! Connections between two ends in one process, to forked processes that die, and from peers that break the rules.
use super::*;
use crate::soft::link::shm::ring::{Ext, Header};
use crate::soft::link::shm::slot::Slot;
use crate::soft::link::shm::{layout, ring};
use crate::sys::{memfd, pidfd};

/// Waits for the socket to become readable, then reads it.
pub(in crate::soft::link::shm) fn hear(peer: &Peer) -> Result<Heard, Corrupt> {
    assert!(epoll::poll(peer.socket(), epoll::IN, 10_000) != 0, "nothing came");
    peer.hear()
}

pub(in crate::soft::link::shm) struct Pair {
    pub a: Own,
    pub b: Own,
    pub slot: Slot,
    /// From `a` to `b`, and what `b` accepted.
    pub ab: Arc<Peer>,
    pub ba: Arc<Peer>,
}

/// Two ends in this process, neither of which has heard the other yet.
pub(in crate::soft::link::shm) fn connecting() -> Pair {
    let (a, b) = (Own::create().unwrap(), Own::create().unwrap());
    let slot = Slot::claim().unwrap();
    b.add_slot(slot.number()).unwrap();
    let ab = Peer::connect(&a, slot.number()).unwrap();
    let ba = Peer::accept(&b, slot.as_fd()).unwrap();
    Pair { a, b, slot, ab, ba }
}

pub(in crate::soft::link::shm) fn up() -> Pair {
    let pair = connecting();
    assert!(hear(&pair.ba).unwrap().came_up && hear(&pair.ab).unwrap().came_up);
    pair
}

fn send(peer: &Peer, imm: u32) {
    let header = Header { imm, ..Header::default() };
    peer.tx.lock().try_reserve(&Ext::None, 0).unwrap().commit(&header, 0);
    peer.notify();
}

fn take(peer: &Peer) -> Option<u32> {
    let mut rx = peer.rx.lock();
    let entry = rx.peek().unwrap()?;
    rx.release();
    Some(entry.header.imm)
}

#[test]
fn a_file_that_nobody_asked_for_and_an_unknown_message_are_against_the_rules() {
    for (kind, number) in [(FILE, 1), (4, 1)] {
        let p = up();
        assert!(p.ab.tell(kind, number, None));
        assert_eq!(hear(&p.ba), Err(Corrupt));
    }
    let p = up();
    assert!(p.ab.tell(WANTED, 1, Some(p.a.presence_fd())));
    assert_eq!(hear(&p.ba), Err(Corrupt), "a descriptor with a question");
}

#[test]
fn files_that_a_peer_asks_for_without_end_are_not_remembered_without_end() {
    let p = up();
    for number in 0..MOST_WANTED as u32 + 100 {
        assert!(p.ab.tell(WANTED, number, None));
        assert!(hear(&p.ba).unwrap().wants);
    }
    assert_eq!(p.ba.wanted.lock().len(), MOST_WANTED);
}

#[test]
fn what_is_sent_before_the_peer_answers_arrives() {
    let p = connecting();
    send(&p.ab, 7);
    assert_eq!((p.ab.state(), p.ba.state(), p.ba.rx_ready()), (State::Connecting, State::Connecting, false));
    assert_eq!(hear(&p.ba), Ok(Heard { came_up: true, ..Heard::default() }));
    assert!(p.ba.rx_ready());
    assert_eq!((take(&p.ba), take(&p.ba)), (Some(7), None));
    assert!(!p.ba.rx_ready());
    send(&p.ba, 8);
    assert!(hear(&p.ab).unwrap().came_up);
    assert_eq!(take(&p.ab), Some(8));
    assert_eq!((p.ab.nonce(), p.ba.nonce()), (Some(p.b.nonce()), Some(p.a.nonce())));
    assert_eq!(p.ab.cred().pid, std::process::id() as i32);
    assert!(p.ab.is_same_user() && p.ab.remote().unwrap().is_published());
}

#[test]
fn a_message_sent_between_hello_and_sleep_is_rung_for() {
    let p = connecting();
    assert!(hear(&p.ba).unwrap().came_up);
    assert_eq!(take(&p.ba), None);
    send(&p.ab, 1);
    assert_eq!(p.ba.hear(), Ok(Heard::default()));
    assert!(hear(&p.ab).unwrap().came_up);
    assert!(hear(&p.ba).unwrap().doorbell);
    assert_eq!(take(&p.ba), Some(1));
}

#[test]
fn doorbells_ring_for_sleepers_only_and_once_until_heard() {
    let p = up();
    p.b.set_asleep(false);
    send(&p.ab, 1);
    assert_eq!(p.ba.hear(), Ok(Heard::default()));
    p.b.set_asleep(true);
    send(&p.ab, 2);
    send(&p.ab, 3);
    let mut bytes = 0;
    let mut byte = [0; 2];
    while seqpacket::recv(p.ba.socket(), &mut byte).is_ok() {
        bytes += 1;
    }
    assert_eq!(bytes, 1);
    p.ba.rx_ring.get().unwrap().stop_ringing();
    send(&p.ab, 4);
    assert!(hear(&p.ba).unwrap().doorbell);
    assert_eq!([1, 2, 3, 4].map(Some), std::array::from_fn(|_| take(&p.ba)));
}

#[test]
fn a_starved_producer_is_found_by_the_consumer() {
    let p = up();
    let mut sent = 0;
    while let Some(slot) = p.ab.tx.lock().try_reserve(&Ext::None, ring::MAX_PAYLOAD) {
        slot.commit(&Header::default(), ring::MAX_PAYLOAD);
        sent += 1;
    }
    while take(&p.ba).is_some() {
        sent -= 1;
    }
    assert_eq!(sent, 0);
    assert!(p.ba.rx.lock().take_starved());
    p.ba.ring_doorbell();
    assert!(hear(&p.ab).unwrap().doorbell);
    assert!(p.ab.tx.lock().try_reserve(&Ext::None, ring::MAX_PAYLOAD).is_some());
}

#[test]
fn messages_of_a_peer_that_left_are_still_there() {
    let p = up();
    send(&p.ab, 1);
    drop(p.ab);
    let heard = hear(&p.ba).unwrap();
    assert!(heard.hung_up && p.ba.fate() == Fate { hung_up: true, exited: false });
    assert_eq!((take(&p.ba), take(&p.ba)), (Some(1), None));
    assert!(p.ba.close() && !p.ba.close());
    assert_eq!(p.ba.state(), State::Dead);
    p.ba.notify();
}

#[test]
fn a_peer_that_left_before_it_was_accepted_is_heard_all_the_same() {
    let (a, b, slot) = (Own::create().unwrap(), Own::create().unwrap(), Slot::claim().unwrap());
    let ab = Peer::connect(&a, slot.number()).unwrap();
    send(&ab, 5);
    drop(ab);
    let ba = Peer::accept(&b, slot.as_fd()).unwrap();
    let heard = hear(&ba).unwrap();
    assert!(heard.came_up && heard.hung_up);
    assert_eq!(take(&ba), Some(5));
}

#[test]
fn nobody_at_a_slot_is_refused() {
    let number = Slot::claim().unwrap().number();
    assert_eq!(Peer::connect(&Own::create().unwrap(), number).unwrap_err(), Errno::ECONNREFUSED);
}

#[test]
fn slots_are_believed_from_our_own_user() {
    let p = up();
    let other = Slot::claim().unwrap();
    assert!(p.ab.owns_slot(p.slot.number()) && !p.ab.owns_slot(other.number()) && !p.ba.owns_slot(0));
    p.b.add_slot(other.number()).unwrap();
    assert!(p.ab.owns_slot(other.number()) && !p.ba.owns_slot(other.number()));
}

/// Forks; the child runs `child` and is then killed if it has not left.
fn in_child(child: impl FnOnce()) -> i32 {
    // SAFETY: glibc's allocator survives fork; the child leaves by _exit.
    match unsafe { libc::fork() } {
        0 => {
            child();
            // SAFETY: _exit never returns and runs no handlers.
            unsafe { libc::_exit(0) }
        }
        pid => pid,
    }
}

/// Sleeps until killed; bounded, should nobody do that.
fn wait_to_be_killed() {
    for _ in 0..60 {
        // SAFETY: sleeping touches nothing.
        unsafe { libc::sleep(1) };
    }
}

fn kill(pid: i32) {
    // SAFETY: `pid` is a child of this test that has not been waited for.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Accepts the child's connection, hears it out, and returns what came up.
fn accept(own: &Own, slot: &Slot) -> Arc<Peer> {
    assert!(epoll::is_ready(slot.as_fd(), epoll::IN, 10_000));
    let peer = Peer::accept(own, slot.as_fd()).unwrap();
    assert!(hear(&peer).unwrap().came_up);
    peer
}

#[test]
fn a_killed_process_hangs_up_and_has_exited_and_its_messages_are_there() {
    let (own, slot) = (Own::create().unwrap(), Slot::claim().unwrap());
    let number = slot.number();
    let pid = in_child(|| {
        let own = Own::create().unwrap();
        let peer = Peer::connect(&own, number).unwrap();
        send(&peer, 42);
        wait_to_be_killed();
    });
    let peer = accept(&own, &slot);
    assert_eq!(peer.cred().pid, pid);
    assert_eq!(peer.fate(), Fate::default());
    while !peer.rx_ready() {
        std::thread::yield_now();
    }
    kill(pid);
    if let Some(pidfd) = peer.pidfd() {
        assert!(epoll::is_ready(pidfd, epoll::IN, 10_000) && peer.has_exited());
    }
    while !hear(&peer).unwrap().hung_up {}
    assert!(peer.fate().hung_up);
    assert_eq!((take(&peer), take(&peer)), (Some(42), None));
    assert_eq!(pidfd::wait_exit(pid), None);
}

#[test]
fn a_killed_process_that_has_forked_hangs_up_too() {
    let (own, slot) = (Own::create().unwrap(), Slot::claim().unwrap());
    let number = slot.number();
    let pid = in_child(|| {
        let own = Own::create().unwrap();
        let peer = Peer::connect(&own, number).unwrap();
        send(&peer, in_child(wait_to_be_killed) as u32);
        wait_to_be_killed();
    });
    let peer = accept(&own, &slot);
    let grandchild = loop {
        match take(&peer) {
            Some(pid) => break pid as i32,
            None => std::thread::yield_now(),
        }
    };
    kill(pid);
    while !hear(&peer).unwrap().hung_up {}
    assert_eq!(pidfd::wait_exit(pid), None);
    assert!(grandchild > 0);
    kill(grandchild);
}

#[test]
fn a_peer_of_another_user_gets_messages_but_no_publication() {
    // SAFETY: geteuid only asks.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: becoming another user needs root");
        return;
    }
    let (own, slot) = (Own::create().unwrap(), Slot::claim().unwrap());
    let number = slot.number();
    let pid = in_child(|| {
        // SAFETY: only the child changes.
        assert_eq!(unsafe { libc::setuid(65534) }, 0);
        let own = Own::create().unwrap();
        let held = Slot::claim().unwrap();
        let peer = Peer::connect(&own, number).unwrap();
        send(&peer, u32::from(held.number()));
        assert!(hear(&peer).unwrap().came_up && !peer.remote().unwrap().is_published());
        assert!(!peer.may_copy(Way::Write) && !peer.is_same_user());
        wait_to_be_killed();
    });
    let peer = accept(&own, &slot);
    assert!(!peer.is_same_user() && !peer.remote().unwrap().is_published() && !peer.may_copy(Way::Read));
    let held = loop {
        match take(&peer) {
            Some(slot) => break slot as u16,
            None => std::thread::yield_now(),
        }
    };
    assert!(peer.owns_slot(held) && peer.owns_slot(held) && !peer.owns_slot(number));
    kill(pid);
    assert_eq!(pidfd::wait_exit(pid), None);
}

#[test]
fn a_forked_child_leaves_the_parents_connection_alone() {
    let p = up();
    let pid = in_child(|| drop((p.ab.clone(), p.ba.close())));
    assert_eq!(pidfd::wait_exit(pid), Some(0));
    assert_eq!(p.ab.fate(), Fate::default());
    send(&p.ab, 3);
    assert!(hear(&p.ba).unwrap().doorbell);
    assert_eq!(take(&p.ba), Some(3));
}

/// A correct hello as bytes, from somebody with the nonce of `own`.
fn hello(own: &Own) -> [u8; 32] {
    let mut m = [0; 32];
    m[..8].copy_from_slice(&layout::MAGIC.to_ne_bytes());
    m[8..12].copy_from_slice(&layout::VERSION.to_ne_bytes());
    m[12..16].copy_from_slice(&32u32.to_ne_bytes());
    m[16..24].copy_from_slice(&own.nonce().to_ne_bytes());
    m[28..].copy_from_slice(&(RING_BYTES as u32).to_ne_bytes());
    m
}

/// What the acceptor makes of a first message.
fn answer(bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Heard, Corrupt> {
    let (own, slot) = (Own::create().unwrap(), Slot::claim().unwrap());
    let sock = seqpacket::connect(&slot::name(slot.number())).unwrap();
    seqpacket::send(sock.as_fd(), bytes, fds).unwrap();
    let peer = Peer::accept(&own, slot.as_fd()).unwrap();
    let heard = hear(&peer);
    assert_eq!(peer.state() == State::Up, heard.is_ok_and(|h| h.came_up));
    assert!(peer.state() == State::Up || !peer.rx_ready());
    heard
}

#[test]
fn a_wrong_first_message_is_dropped() {
    let own = Own::create().unwrap();
    let (_, ring) = Ring::create(RING_BYTES).unwrap();
    let good = hello(&own);
    let fds = [ring.as_fd(), own.presence_fd(), own.publication_fd()];
    assert!(answer(&good, &fds).unwrap().came_up);
    for at in [0, 8, 12, 16, 23, 28, 31] {
        let mut bad = good;
        bad[at] ^= 0x80;
        assert_eq!(answer(&bad, &fds), Err(Corrupt), "byte {at}");
    }
    assert_eq!(answer(&good[..31], &fds), Err(Corrupt));
    assert_eq!(answer(&[good, good].concat(), &fds), Err(Corrupt));
    assert_eq!(answer(&[1], &[]), Err(Corrupt));
    assert_eq!(answer(&good, &[]), Err(Corrupt));
    assert_eq!(answer(&good, &fds[..2]), Err(Corrupt));
    assert_eq!(answer(&good, &[fds[0], fds[1], fds[2], fds[2]]), Err(Corrupt));
    assert_eq!(answer(&good, &[fds[1], fds[0], fds[2]]), Err(Corrupt));
    assert_eq!(answer(&good, &[fds[0], fds[2], fds[1]]), Err(Corrupt));
    let null = std::fs::File::open("/dev/zero").unwrap();
    assert_eq!(answer(&good, &[null.as_fd(), fds[1], fds[2]]), Err(Corrupt));
    let unsealed = memfd::create(c"test", 4096 + RING_BYTES).unwrap();
    assert_eq!(answer(&good, &[unsealed.as_fd(), fds[1], fds[2]]), Err(Corrupt));
    let blank = memfd::sealed(c"test", layout::PRESENCE_BYTES).unwrap();
    assert_eq!(answer(&good, &[fds[0], blank.as_fd(), fds[2]]), Err(Corrupt));
}

/// Runs in a process of its own, whose limit it lowers; in the test run itself it does nothing.
#[test]
fn child_without_descriptors() {
    if std::env::var_os("SHM_TEST_NO_DESCRIPTORS").is_none() {
        return;
    }
    let p = connecting();
    // SAFETY: a limit of this process, which serves this test only.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = 0;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
    assert_eq!(handshake::receive(p.ba.socket(), true).unwrap_err(), Errno::EMFILE);
}

#[test]
fn descriptors_that_ran_out_are_not_the_peers_fault() {
    let name = "soft::link::shm::peer::tests::child_without_descriptors";
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env("SHM_TEST_NO_DESCRIPTORS", "1")
        .env("ANYVERBS_EXPLAIN", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && said.contains("RLIMIT_NOFILE"), "{child:?}");
}

#[test]
fn anything_but_a_doorbell_afterwards_is_dropped() {
    for (bytes, with_fd) in [(&b"xx"[..], false), (&[0; 4096], false), (b"x", true)] {
        let p = up();
        let fds: &[BorrowedFd<'_>] = if with_fd { &[p.slot.as_fd()] } else { &[] };
        seqpacket::send(p.ab.socket(), bytes, fds).unwrap();
        assert_eq!(hear(&p.ba), Err(Corrupt));
    }
}

#[test]
fn garbage_in_the_ring_is_corrupt_and_nothing_more() {
    let p = up();
    p.ab.tx_ring.scribble(0xdead_beef);
    assert!(p.ba.rx_ready());
    assert_eq!(p.ba.rx.lock().peek().unwrap_err(), Corrupt);
    p.ba.close();
    while !hear(&p.ab).unwrap().hung_up {}
}

#[test]
fn a_file_that_comes_when_nobody_needs_it_any_more_breaks_nothing() {
    let p = up();
    assert!(p.ab.view(77).is_none());
    // The file is not in use any more, as the doorbell makes the peer find out.
    p.ba.ring_doorbell();
    assert!(hear(&p.ab).unwrap().doorbell);
    assert!(hear(&p.ba).unwrap().wants);
    p.ba.give(|_| None);
    assert!(hear(&p.ab).is_ok());
    // It is asked for anew.
    p.ba.ring_doorbell();
    assert!(hear(&p.ab).unwrap().doorbell && p.ab.view(77).is_none());
    assert!(hear(&p.ba).unwrap().wants);
    let file = memfd::sealed(c"test", 4096).unwrap();
    p.ba.give(|_| crate::sys::inode::Inode::of(&file).unwrap().handle());
    assert!(hear(&p.ab).is_ok() && p.ab.view(77).is_some());
    p.ba.ring_doorbell();
    assert!(hear(&p.ab).unwrap().view_went);
}
