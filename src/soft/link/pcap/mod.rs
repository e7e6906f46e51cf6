//! What goes over every path, written to a file as RoCEv2 frames that Wireshark reads: `ANYVERBS_PCAP`, and
//! `anyverbs_start_trace` at run time.
//!
//! `file` is the file, `memory` makes of messages on the memory paths the packets that they stand for. On the wire each
//! packet is written as it leaves for the socket, faults done, and as it comes.
mod file;
pub mod memory;

pub use file::Via;

use crate::soft::link::udp;
use crate::soft::node::Node;
use crate::soft::transport::Outbox;
use crate::soft::wire::{IpUdp, icrc};
use crate::sys::clock;
use crate::sys::errno::Errno;
use crate::sys::lock::Lock;
use crate::sys::log::explain;
use file::File;
use memory::Flows;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Some node of this process, or of one that it was forked from, writes a trace.
static TRACING: AtomicBool = AtomicBool::new(false);

/// Somebody may be writing a trace: look closer.
#[inline]
pub fn is_on() -> bool {
    TRACING.load(Ordering::Relaxed)
}

/// The trace of a process.
#[derive(Debug, Default)]
pub struct Trace {
    file: Lock<Option<File>>,
    /// How messages on the memory paths are numbered as packets.
    flows: Lock<Flows>,
}

/// The headers around the packets of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Addresses and ports.
    pub ip: IpUdp,
    #[allow(missing_docs)]
    pub traffic_class: u8,
    #[allow(missing_docs)]
    pub hop_limit: u8,
}

impl Route {
    /// The way back.
    pub fn reversed(self) -> Self {
        let IpUdp { src, dst, src_port, dst_port } = self.ip;
        Self { ip: IpUdp { src: dst, dst: src, src_port, dst_port }, ..self }
    }
}

impl From<&udp::Path> for Route {
    fn from(path: &udp::Path) -> Self {
        Self { ip: path.ip_udp(), traffic_class: path.traffic_class, hop_limit: path.hop_limit }
    }
}

impl Trace {
    fn open(&self, who: &str, name: &OsStr) -> Result<(), Errno> {
        let file = File::open(name).inspect_err(|e| {
            let why = if *e == Errno::EEXIST { ": it is there, and no pcapng file" } else { "" };
            explain(format_args!("{who}={}: no trace ({e:?}){why}", name.display()));
        })?;
        *self.file.lock() = Some(file);
        TRACING.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Ends the trace.
    pub fn stop(&self) {
        TRACING.store(false, Ordering::SeqCst);
        *self.file.lock() = None;
        *self.flows.lock() = Flows::default();
    }

    /// Writes packets that were sealed for `route`, each with its IPv4 id.
    fn write<'a>(
        &self,
        via: Via,
        inbound: bool,
        route: &Route,
        packets: impl Iterator<Item = (u16, &'a [u8])>,
    ) {
        let mut place = self.file.lock();
        let Some(file) = &mut *place else { return };
        let time = clock::to_wallclock(clock::now_ns());
        let (mut blocks, mut frame) = (Vec::new(), Vec::new());
        for (id, datagram) in packets {
            frame.clear();
            route.ip.frame(id, route.traffic_class, route.hop_limit, datagram, &mut frame);
            file::packet(&mut blocks, via, inbound, time, &frame);
        }
        if let Err(e) = file.append(&blocks) {
            *place = None;
            TRACING.store(false, Ordering::SeqCst);
            explain(format_args!("the trace ends here: {e:?}"));
        }
    }

    /// Packets leave for another host, sealed with IPv4 id 0.
    pub fn sent(&self, path: &udp::Path, out: &Outbox) {
        self.write(Via::Udp, false, &path.into(), out.iter().map(|datagram| (0, datagram)));
    }

    /// A packet has come from another host.
    pub fn received(&self, received: &udp::Received<'_>) {
        let id = match icrc::check(&received.ip, received.datagram) {
            icrc::Verdict::WithId(id) => id,
            icrc::Verdict::Exact | icrc::Verdict::Bad => 0,
        };
        let (traffic_class, hop_limit) = (received.traffic_class, received.hop_limit);
        let route = Route { ip: received.ip, traffic_class, hop_limit };
        self.write(Via::Udp, true, &route, std::iter::once((id, received.datagram)));
    }
}

impl Node {
    /// Begins a trace where the environment asks for one. Where it cannot be, one line says why, and traffic goes on.
    pub fn trace_by_environment(&self) {
        let name = std::env::var_os("ANYVERBS_PCAP").filter(|_| !crate::sys::is_setuid());
        if name.is_some_and(|name| self.trace.open("ANYVERBS_PCAP", &name).is_ok()) {
            self.watch_all();
        }
    }

    /// Begins a trace of this process, in place of one that goes on.
    ///
    /// # Errors
    /// Those of opening the file, explained; an older trace goes on then.
    pub fn start_trace(&'static self, name: &OsStr) -> Result<(), Errno> {
        self.trace.open("anyverbs_start_trace", name)?;
        self.watch_all();
        self.wires.ask_again();
        Ok(())
    }

    /// Ends it; all that was seen is in the file.
    pub fn stop_trace(&'static self) {
        self.trace.stop();
        self.watch_all();
    }

    fn watch_all(&self) {
        self.all_qps().iter().for_each(|qp| qp.sq.lock().watch());
    }
}
