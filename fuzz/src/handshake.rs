//! A stranger at our socket: its first message with descriptors of any kind, its doorbells, and the pages that it shows of
//! itself, which it changes as it likes. Nothing is kept of what it sent when it is gone.
use crate::input::Input;
use ibverbs::soft::link::shm::layout::{self, MRS, PRESENCE_BYTES, PUBLICATION_BYTES};
use ibverbs::soft::link::shm::peer::{Peer, State};
use ibverbs::soft::link::shm::{Own, What};
use ibverbs::soft::mem::{PdId, Via};
use ibverbs::soft::types::{Access, Key, Qpn};
use ibverbs::sys::{fork::ParentFd, map::Mapping, memfd, random, seqpacket};
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

const STEPS: usize = 64;
/// Inputs between two looks at the open descriptors.
const OFTEN: u64 = 256;

/// What all inputs of a thread share.
struct Stranger {
    own: Own,
    name: String,
    listener: ParentFd,
    /// Memory files that are stamped as they must be, and written by us.
    pages: [(Mapping, OwnedFd); 2],
    /// Other descriptors.
    odd: Vec<OwnedFd>,
    nonce: u64,
    inputs: AtomicU64,
}

thread_local! {
    static STRANGER: Stranger = Stranger::new();
}

impl Stranger {
    fn new() -> Self {
        let nonce = random::u64() | layout::NONCE_BIT;
        let name = format!("anyverbs-fuzz-{:016x}", random::u64());
        let page = |len| {
            let fd = memfd::sealed(c"anyverbs-fuzz", len).expect("a memory file");
            (Mapping::shared(fd.as_fd(), len, true).expect("a mapping"), fd)
        };
        let odd = vec![
            File::open("/dev/null").expect("/dev/null").into(),
            File::open("/proc/self/exe").expect("an ordinary file").into(),
            memfd::create(c"anyverbs-fuzz", PRESENCE_BYTES).expect("a memory file"),
            memfd::sealed(c"anyverbs-fuzz", 64 * 1024 + 4096).expect("a memory file"),
            memfd::sealed(c"anyverbs-fuzz", 0).expect("a memory file"),
        ];
        Self {
            own: Own::create().expect("what we show"),
            listener: seqpacket::listen(&name).expect("a name of our own"),
            name,
            pages: [page(PRESENCE_BYTES), page(PUBLICATION_BYTES)],
            odd,
            nonce,
            inputs: AtomicU64::new(0),
        }
    }

    /// A word of the page or of the publication.
    fn word(&self, which: usize, at: usize) -> &AtomicU64 {
        let map = &self.pages[which].0;
        let at = at % (map.len() / 8) * 8;
        // SAFETY: within the mapping, aligned, and only accessed atomically.
        unsafe { &*map.at(at).cast::<AtomicU64>() }
    }
}

/// Plays one input.
pub fn run(data: &[u8]) {
    STRANGER.with(|stranger| {
        play(stranger, &mut Input::new(data));
        let n = stranger.inputs.fetch_add(1, Ordering::Relaxed);
        if n.is_multiple_of(OFTEN) {
            let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
            assert!(open < 200, "{open} descriptors are open");
        }
    });
}

fn play(stranger: &Stranger, input: &mut Input<'_>) {
    let Ok(peer) = Peer::connect_to(&stranger.own, &stranger.name) else {
        panic!("no connection to ourselves")
    };
    // Others may knock at any name that they see.
    let is_ours = |sock: &ParentFd| {
        seqpacket::peer_cred(sock.as_fd()).is_ok_and(|cred| cred.pid == std::process::id() as i32)
    };
    let mut connections = std::iter::from_fn(|| seqpacket::accept(stranger.listener.as_fd()).ok());
    let bad = connections.find(is_ours).expect("the connection");
    // What the peer says is the best that a stranger can begin with.
    let mut message = [0; 64];
    let theirs = seqpacket::recv(bad.as_fd(), &mut message).expect("its first message");
    assert!(theirs.len == 32 && theirs.fds.len() == 3, "{theirs:?}");
    stranger.pages.iter().for_each(|(map, _)| layout::stamp(map, stranger.nonce));
    message[16..24].copy_from_slice(&stranger.nonce.to_ne_bytes());
    let mut touched = Vec::new();
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.below(8) {
            0 => {
                // As it must be.
                let fds = [theirs.fds[0].as_fd(), stranger.pages[0].1.as_fd(), stranger.pages[1].1.as_fd()];
                let _ = seqpacket::send(bad.as_fd(), &message[..32], &fds);
            }
            1 => {
                let fds: Vec<BorrowedFd<'_>> =
                    (0..input.below(5)).map(|_| pick_fd(stranger, &theirs.fds, input)).collect();
                let length = if input.below(2) == 0 { 32 } else { input.below(65) as usize };
                let _ = seqpacket::send(bad.as_fd(), &message[..length], &fds);
            }
            2 => {
                let at = input.below(32) as usize;
                message[at] = input.byte();
            }
            3 => {
                let bytes = input.below(3) as usize;
                let _ = seqpacket::send(bad.as_fd(), &message[..bytes], &[]);
            }
            4 => {
                let which = input.below(2) as usize;
                let at = match input.below(4) {
                    0 => input.below(64) as usize,
                    1 => 512 + input.below(512 + 64) as usize,
                    2 => (input.word() as usize % (2 * MRS)) * 8 + input.below(8) as usize,
                    _ => input.word() as usize,
                };
                let word = stranger.word(which, at);
                touched.push((which, at));
                word.store(
                    if input.below(2) == 0 { input.byte().into() } else { input.long() },
                    Ordering::Relaxed,
                );
            }
            5 => seqpacket::shutdown(bad.as_fd()),
            6 => ask(&peer, input),
            _ => match peer.hear() {
                Ok(heard) => assert!(!heard.came_up || peer.state() == State::Up),
                // As whoever drives it does.
                Err(_) => drop(peer.close()),
            },
        }
    }
    let _ = peer.hear();
    ask(&peer, input);
    touched.iter().for_each(|&(which, at)| stranger.word(which, at).store(0, Ordering::Relaxed));
}

fn pick_fd<'a>(stranger: &'a Stranger, theirs: &'a [OwnedFd], input: &mut Input<'_>) -> BorrowedFd<'a> {
    match input.below(3) {
        0 => theirs[input.below(theirs.len() as u32) as usize].as_fd(),
        1 => stranger.pages[input.below(2) as usize].1.as_fd(),
        _ => stranger.odd[input.below(stranger.odd.len() as u32) as usize].as_fd(),
    }
}

/// What is asked of a peer before anything is done with it.
fn ask(peer: &Peer, input: &mut Input<'_>) {
    let (qpn, rkey) = (Qpn(input.word() & 0xff_ffff), input.word());
    if peer.state() == State::Up {
        let mut rx = peer.rx.lock();
        if let Ok(Some(_)) = rx.peek() {
            rx.release();
        }
        drop(rx);
        peer.notify();
        peer.tx.lock().has_unconsumed();
    }
    peer.owns_slot(qpn.slot());
    let Some(remote) = peer.remote() else { return };
    remote.claims_slot(qpn.slot());
    remote.accesses(remote.nonce(), What::Rkey(rkey));
    remote.accesses(remote.nonce(), What::Qp(qpn));
    let pd = remote.qp(qpn).map_or(PdId(0), |qp| PdId(qp.pd));
    if let Some(region) = remote.region(rkey) {
        let (va, len) = (input.long(), u64::from(input.word()));
        let found = region.resolve(Key(rkey), pd, Via::Qp(qpn), va, len, Access::REMOTE_WRITE);
        let offset = va.wrapping_sub(region.iova);
        assert!(found.is_err() || offset.checked_add(len).is_some_and(|end| end <= region.length));
    }
}
