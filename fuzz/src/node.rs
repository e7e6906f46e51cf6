//! Datagrams that another host sends to a real node: queue pairs of RC, UC and UD with memory, counters and events, under the
//! port that hands packets on. Each datagram is counted once, nothing outside of the registered memory changes, receives and
//! sends complete once and in order, and nothing is kept of an input.
//!
//! The node lives on a thread with a network namespace of its own; without the right to make one there is nothing to see.
use crate::datagram;
use crate::input::Input;
use crate::meter;
use ibverbs::soft::ah::{Address, Ah};
use ibverbs::soft::channel::AsyncQueue;
use ibverbs::soft::cq::{Cq, CqConfig};
use ibverbs::soft::link;
use ibverbs::soft::link::udp::Received;
use ibverbs::soft::mem::{Mr, Pd};
use ibverbs::soft::modify::{self, Wanted, WantedAddress};
use ibverbs::soft::node::{self, Node};
use ibverbs::soft::qp::Qp;
use ibverbs::soft::qp::recvq::RecvQueue;
use ibverbs::soft::qp::requester::Requester;
use ibverbs::soft::qp::responder::Responder;
use ibverbs::soft::qp::sendq::SendQueue;
use ibverbs::soft::stats::Counter;
use ibverbs::soft::types::{Access, Gid, Key, Psn, QpType, Qpn, SendFlags, Sge, WcStatus, WrOpcode};
use ibverbs::soft::wire::{Bth, Deth, IpUdp, Opcode, Reth, Syndrome, cnp, icrc};
use std::fmt;
use std::net::IpAddr;
use std::panic::{self, AssertUnwindSafe};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;

const OWN: &str = "10.79.5.1";
const PEER: &str = "10.79.5.2";
const OTHER: &str = "10.79.5.3";
const GROUP: &str = "239.79.5.1";
const FOREIGN: &str = "239.79.5.2";
/// Bytes of the region, and of those around it that nobody may touch.
const MEMORY: usize = 16384;
const GUARD: usize = 4096;
const GUARDED: u8 = 0xa5;
const MTU: u32 = 1024;
const QKEY: u32 = 0x1234567;
const DEPTH: u32 = 8;
/// Where both directions begin to count.
const FIRST: u32 = 0xff_fffc;
const DATAGRAMS: usize = 48;
/// Bytes of the heap that all inputs together may leave: tables that grow to their full size.
const KEPT: isize = 1 << 20;

/// The thread that has the node: inputs go there, and what came of them comes back.
struct Host {
    inputs: Sender<Vec<u8>>,
    results: Receiver<thread::Result<()>>,
}

static HOST: LazyLock<Mutex<Host>> = LazyLock::new(|| {
    let (inputs, work) = channel::<Vec<u8>>();
    let (done, results) = channel();
    thread::spawn(move || {
        let Some(mut world) = World::new() else { return };
        for input in work {
            let play = AssertUnwindSafe(|| world.play(&mut Input::new(&input)));
            if done.send(panic::catch_unwind(play)).is_err() {
                return;
            }
        }
    });
    Mutex::new(Host { inputs, results })
});

/// Plays one input.
pub fn run(data: &[u8]) {
    let host = HOST.lock().unwrap_or_else(|e| e.into_inner());
    // Without a node nobody is there.
    let Ok(()) = host.inputs.send(data.to_vec()) else { return };
    if let Ok(Err(why)) = host.results.recv() {
        drop(host);
        panic::resume_unwind(why);
    }
}

/// What all inputs share.
struct World {
    node: &'static Node,
    /// Guard, region, guard.
    memory: Box<[u8]>,
    region: Mr,
    cq: Arc<Cq>,
    /// RC, UC, UD.
    qps: [Arc<Qp>; 3],
    ah: Arc<Ah>,
    held: isize,
    _pd: Pd,
}

fn ip(arguments: &str) -> bool {
    Command::new("ip").args(arguments.split(' ')).status().is_ok_and(|status| status.success())
}

fn gid(address: &str) -> Gid {
    Gid::from_ip(address.parse().expect("an address"))
}

impl World {
    fn new() -> Option<Self> {
        // SAFETY: only this thread's namespace changes, and that of threads that it starts.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 || !ip("link add w0 type veth peer name w1") {
            return None;
        }
        let made = ip(&format!("addr add {OWN}/24 dev w0"))
            && ip("link set lo up")
            && ip("link set w0 mtu 9000 up")
            && ip("link set w1 mtu 9000 up")
            && ip(&format!("neigh add {PEER} lladdr 02:00:00:00:00:01 dev w0"));
        assert!(made, "an interface");
        let node = node::node().expect("a node");
        let memory = vec![GUARDED; MEMORY + 2 * GUARD].into_boxed_slice();
        let pd = node.pds.alloc().expect("a PD");
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let at = memory.as_ptr() as u64 + GUARD as u64;
        let region = node.mem.register(&pd, at, MEMORY as u64, at, all).expect("a region");
        let events = Arc::new(AsyncQueue::new().expect("a queue of events"));
        let config = CqConfig { depth: 256, timestamps: false, ignore_overrun: false, allocator: None };
        let cq = Cq::new(&config, None, events.clone()).expect("a CQ");
        let make = |kind| {
            let sq = SendQueue::new_in(DEPTH, 1, 0, None).expect("a send queue");
            let rq = RecvQueue::new_in(DEPTH, 1, None).expect("a receive queue");
            let (sq, rq) = (
                Requester::new(sq, Some(cq.clone()), true),
                Responder::new(Some(rq), None, Some(cq.clone())),
            );
            let num = node.wires.claim_qpn(node).expect("a number");
            let qp = Qp::new(num, kind, pd.id(), node, None, events.clone(), sq, rq);
            node.add_qp(&qp);
            qp
        };
        let qps = [QpType::Rc, QpType::Uc, QpType::Ud].map(make);
        node.groups.attach(&qps[2], gid(GROUP), 0).expect("a group");
        let call = format_args!("a test");
        let address: Address = modify::resolve(node, &to_peer(node), call, "ah").expect("an address");
        let ah = Arc::new(Ah { pd: pd.id(), address });
        Some(Self { node, memory, region, cq, qps, ah, held: 0, _pd: pd })
    }

    fn play(&mut self, input: &mut Input<'_>) {
        let mut held = self.held;
        meter::count_into(&mut held, || self.exchange(input));
        self.held = held;
        assert!(held < KEPT, "{held} bytes are kept");
    }

    fn exchange(&mut self, input: &mut Input<'_>) {
        let mut ends = Vec::new();
        for (n, qp) in self.qps.iter().enumerate() {
            let mut end = End { qp: qp.clone(), receives: 0, sends: 0, done: [0; 2], failed: [false; 2] };
            let access = [0, 0x0e][usize::from(input.below(4) > 0)];
            end.connect(&self.wanted(access));
            for _ in 0..input.below(DEPTH + 1) {
                end.post_receive(&self.region, input);
            }
            for _ in 0..input.below(if n == 0 { 4 } else { 2 }) {
                end.post_send(&self.region, &self.ah, input);
            }
            ends.push(end);
        }
        let mut count = 0;
        while count < DATAGRAMS && !input.is_empty() {
            let burst = 1 + input.below(4) as usize;
            let made: Vec<Datagram> = (0..burst).map(|_| self.datagram(input)).collect();
            count += made.len();
            let was = self.node.stats.port(0)[Counter::PortRcvPackets];
            self.node.udp.take(self.node, made.iter().map(Datagram::received));
            self.node.settle();
            let grown = self.node.stats.port(0)[Counter::PortRcvPackets] - was;
            assert_eq!(grown, made.len() as u64, "each datagram counts once: {made:?}");
            self.collect(&mut ends);
        }
        // What is left is flushed, and then there is nothing.
        for end in &ends {
            end.modify(&self.wanted(0), 6, 1);
        }
        self.node.settle();
        self.collect(&mut ends);
        for end in &ends {
            assert_eq!(
                (end.done[0], end.done[1]),
                (end.receives, end.sends),
                "{:?} receives and sends",
                end.qp.kind
            );
            end.modify(&self.wanted(0), 0, 1);
            self.node.udp.disconnect(&end.qp);
        }
        let (first, rest) = self.memory.split_at(GUARD);
        let untouched = |bytes: &[u8]| bytes.iter().all(|b| *b == GUARDED);
        assert!(untouched(first) && untouched(&rest[MEMORY..]), "memory outside of the region has changed");
    }

    /// Takes what has completed: in order, once, and after a failure only flushed requests.
    fn collect(&self, ends: &mut [End]) {
        let mut all = Vec::new();
        self.cq.poll(usize::MAX, |cqe, _| all.push(*cqe));
        for cqe in all {
            let end = ends.iter_mut().find(|end| end.qp.num.0 == cqe.qp_num).expect("a queue pair of ours");
            let half = usize::from(cqe.wr_id >> 32 == 1);
            assert_eq!(
                cqe.wr_id & 0xffff_ffff,
                end.done[half].into(),
                "{:?}: in order, and once",
                end.qp.kind
            );
            end.done[half] += 1;
            let flushed = cqe.status == WcStatus::WrFlushErr.raw();
            assert!(flushed || !end.failed[half], "{:?}: nothing goes on after a failure", end.qp.kind);
            end.failed[half] |= flushed || cqe.status != WcStatus::Success.raw();
        }
    }

    fn wanted(&self, access: u32) -> Wanted {
        Wanted {
            state: 0,
            cur_state: 0,
            path_mtu: 3,
            path_mig_state: 0,
            qkey: QKEY,
            rq_psn: FIRST,
            sq_psn: FIRST,
            dest_qpn: 0x123,
            access,
            pkey_index: 0,
            port: 1,
            av: to_peer(self.node),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            // None of ours runs out meanwhile: what happens depends on the input alone.
            timeout: 0,
            retry_cnt: 7,
            rnr_retry: 7,
            en_sqd_async_notify: false,
            rate_limit: 0,
        }
    }

    /// A datagram, mostly of a right form, with numbers near those in use.
    fn datagram(&self, input: &mut Input<'_>) -> Datagram {
        let qp = &self.qps[input.below(3) as usize];
        let src = if input.below(16) == 15 { OTHER } else { PEER };
        let (dst, to) = match input.below(16) {
            15 => (FOREIGN, Qpn::MULTICAST),
            14 => (GROUP, Qpn::MULTICAST),
            13 => (GROUP, qp.num),
            12 => (OWN, Qpn(input.word() & 0xff_ffff)),
            11 => (OWN, Qpn::MULTICAST),
            _ => (OWN, qp.num),
        };
        let ip = IpUdp::new(address(src), address(dst), 0xc000);
        let mut bytes = match input.below(16) {
            15 => input.bytes(96).to_vec(),
            14 => cnp::emit(to).to_vec(),
            _ => self.packet(qp, to, input),
        };
        if input.below(8) == 7 {
            match input.below(3) {
                0 => bytes.truncate(input.below(bytes.len() as u32 + 1) as usize),
                1 => bytes.extend(input.bytes(8)),
                _ if !bytes.is_empty() => {
                    let at = input.below(60.min(bytes.len() as u32)) as usize;
                    bytes[at] = input.byte();
                }
                _ => {}
            }
        }
        if bytes.len() >= 16 && input.below(16) < 15 {
            icrc::seal(&ip, &mut bytes);
        }
        Datagram { ip, traffic_class: input.pick(&[0, 2, 3]), bytes }
    }

    fn packet(&self, qp: &Qp, to: Qpn, input: &mut Input<'_>) -> Vec<u8> {
        let transport = match qp.kind {
            _ if input.below(16) == 15 => input.byte() & 0xe0,
            QpType::Rc => 0,
            QpType::Uc => 0x20,
            _ => 0x60,
        };
        let Some(opcode) = Opcode::from_raw(transport | input.below(32) as u8) else {
            return vec![transport; 16];
        };
        let base = if input.below(4) == 3 { input.word() } else { FIRST };
        let bth = Bth {
            ack_req: input.below(2) == 1,
            solicited: input.below(2) == 1,
            ..Bth::new(opcode, to, Psn::new(base).plus(input.below(24).wrapping_sub(4)))
        };
        let va = self.region.addr.wrapping_add(match input.below(4) {
            0 => 0,
            1 => input.below(MEMORY as u32).into(),
            2 => MEMORY as u64 - 8,
            _ => (input.below(2 * GUARD as u32) as u64).wrapping_sub(GUARD as u64),
        });
        let length = match input.below(6) {
            0 => 0,
            1 => 8,
            2 => MTU,
            3 => MTU + 1,
            4 => input.below(MEMORY as u32 + 64),
            _ => u32::MAX - input.below(4096),
        };
        let rkey = if input.below(16) == 15 { Key(input.word()) } else { self.region.key };
        let syndrome = Syndrome::from_raw(input.byte()).unwrap_or(Syndrome::Ack);
        let qkey = if input.below(8) == 7 { input.word() } else { QKEY };
        let deth = Deth { qkey, src_qpn: Qpn(0x123) };
        datagram::of(input, bth, deth, Reth { va, rkey, length }, syndrome, MTU)
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn to_peer(node: &Node) -> WantedAddress {
    WantedAddress {
        is_global: true,
        dlid: 0,
        dgid: gid(PEER),
        sgid_index: node.gids().index_of(gid(OWN)).expect("our address") as u8,
        flow_label: 0,
        hop_limit: 8,
        traffic_class: 0,
        sl: 0,
        port: 1,
    }
}

struct Datagram {
    ip: IpUdp,
    traffic_class: u8,
    bytes: Vec<u8>,
}

impl fmt::Debug for Datagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = &self.bytes[..self.bytes.len().min(48)];
        write!(f, "{} bytes, {} to {}: {head:02x?}", self.bytes.len(), self.ip.src, self.ip.dst)
    }
}

impl Datagram {
    fn received(&self) -> Received<'_> {
        let Datagram { ip, traffic_class, ref bytes } = *self;
        Received { ip, traffic_class, hop_limit: 64, index: 0, datagram: bytes }
    }
}

/// A queue pair during an input: receives and then sends, how many have been posted and completed, and whether one has failed.
struct End {
    qp: Arc<Qp>,
    receives: u32,
    sends: u32,
    done: [u32; 2],
    failed: [bool; 2],
}

impl End {
    /// By the numbers of verbs.h.
    fn modify(&self, wanted: &Wanted, state: u32, mask: u32) {
        modify::modify(&self.qp, &Wanted { state, ..*wanted }, mask)
            .unwrap_or_else(|e| panic!("{:?} to state {state}: {e:?}", self.qp.kind));
    }

    fn connect(&self, wanted: &Wanted) {
        const STATE: u32 = 1;
        const INIT: u32 = STATE | 1 << 4 | 1 << 5;
        const CONNECTED: u32 = STATE | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 20;
        let (init, rtr, rts) = match self.qp.kind {
            QpType::Rc => (
                INIT | 1 << 3,
                CONNECTED | 1 << 15 | 1 << 17,
                STATE | 1 << 16 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13,
            ),
            QpType::Uc => (INIT | 1 << 3, CONNECTED, STATE | 1 << 16),
            _ => (INIT | 1 << 6, STATE, STATE | 1 << 16),
        };
        for (state, mask) in [(1, init), (2, rtr), (3, rts)] {
            self.modify(wanted, state, mask);
        }
    }

    fn sge(&self, region: &Mr, input: &mut Input<'_>) -> Sge {
        let at = input.below(MEMORY as u32);
        let length = input.below(MEMORY as u32 - at + 1);
        Sge { addr: region.addr + u64::from(at), length, lkey: region.key }
    }

    fn post_receive(&mut self, region: &Mr, input: &mut Input<'_>) {
        let sge = self.sge(region, input);
        let mut rq = self.qp.rq.lock();
        let queue = rq.queue().expect("a queue of its own");
        if queue.post(self.receives.into(), [sge].into_iter()).is_ok() {
            self.receives += 1;
        }
    }

    fn post_send(&mut self, region: &Mr, ah: &Arc<Ah>, input: &mut Input<'_>) {
        let ops = [WrOpcode::Send, WrOpcode::SendImm, WrOpcode::Write, WrOpcode::Read, WrOpcode::FetchAdd];
        let (opcode, mut sge) =
            (input.pick(&ops[..if self.qp.kind == QpType::Rc { 5 } else { 2 }]), self.sge(region, input));
        match opcode {
            WrOpcode::FetchAdd => sge = Sge { addr: region.addr, length: 8, lkey: region.key },
            _ if self.qp.kind == QpType::Ud => sge.length = sge.length.min(MTU),
            _ => {}
        }
        let qp = &self.qp;
        let mut sq = qp.sq.lock();
        let at = sq.draft(qp).expect("room");
        sq.queue.sge_places(at)[0] = sge;
        let wqe = sq.queue.wqe_mut(at);
        (wqe.wr_id, wqe.opcode, wqe.flags) = (1 << 32 | u64::from(self.sends), opcode, SendFlags::SIGNALED);
        (wqe.num_sge, wqe.length) = (1, sge.length);
        (wqe.remote_addr, wqe.rkey) = (region.addr, region.key);
        if qp.kind == QpType::Ud {
            (wqe.ah, wqe.remote_qpn, wqe.qkey) = (Some(ah.clone()), Qpn(0x123), QKEY);
        }
        sq.publish(qp);
        link::pump(qp, &mut sq);
        drop(sq);
        qp.node.settle();
        self.sends += 1;
    }
}
