//! What is measured between two processes of this host, in the order of a repetition, and the rows that show it.
use super::{
    client::{self, Device},
    own, peers,
    table::{Limit, Row, Samples, row},
};
use crate::place::Place;

/// One run of a program, or of two.
pub enum Measure {
    /// One of ours: what stands before the names that it prints, program, arguments.
    Own(&'static str, &'static str, &'static str),
    /// perftest over our device: figure, program, arguments.
    Client(&'static str, &'static str, &'static str),
    /// UCX: figure, transports, arguments.
    Ucx(&'static str, &'static str, &'static str),
    /// libfabric: figure, bytes, iterations.
    Fabric(&'static str, u32, u32),
}

use Measure::{Client, Fabric, Own, Ucx};

/// A figure stands close to what it is compared with, since both drift.
pub const MEASURES: &[Measure] = &[
    Own("", "bench", "1"),
    Client("pt_send8_ns", "send_lat", "-s 8 -n 100000"),
    Ucx("ucx_posix_tag8_ns", "posix", "-t tag_lat -s 8 -n 200000"),
    Ucx("ucx_sysv_tag8_ns", "sysv", "-t tag_lat -s 8 -n 200000"),
    Fabric("fabric_shm8_ns", 8, 20000),
    Client("pt_send4k_ns", "send_lat", "-s 4096 -n 50000"),
    Ucx("ucx_posix_tag4k_ns", "posix", "-t tag_lat -s 4096 -n 100000"),
    Ucx("ucx_sysv_tag4k_ns", "sysv", "-t tag_lat -s 4096 -n 100000"),
    Fabric("fabric_shm4k_ns", 4096, 20000),
    Client("pt_write8_ns", "write_lat", "-s 8 -n 50000"),
    Own("", "mapped", "1 100"),
    Ucx("ucx_posix_put8_ns", "posix", "-t put_lat -x posix -d memory -s 8 -n 500000"),
    Ucx("ucp_posix_put8_ns", "posix", "-t ucp_put_lat -s 8 -n 200000"),
    Client("pt_read8_ns", "read_lat", "-s 8 -n 50000"),
    Own("", "floors", "1 100"),
    Own("", "atomics", "1 100"),
    Client("pt_fadd_idle_ns", "atomic_lat", "-n 5000"),
    Client("pt_write64k_gbs", "write_bw", "-s 65536 -m 4096 -n 20000"),
    Ucx("ucx_cma_put64k_gbs", "posix,cma", "-t put_bw -x cma -d memory -D zcopy -s 65536 -n 20000 -w 100"),
    Client("pt_write1m_gbs", "write_bw", "-s 1048576 -m 4096 -n 2000"),
    Ucx("ucx_cma_put1m_gbs", "posix,cma", "-t put_bw -x cma -d memory -D zcopy -s 1048576 -n 2000 -w 100"),
    Client("pt_read64k_gbs", "read_bw", "-s 65536 -m 4096 -n 20000"),
    Ucx("ucx_cma_get64k_gbs", "posix,cma", "-t get -x cma -d memory -D zcopy -s 65536 -n 20000 -w 100"),
    Client("pt_read1m_gbs", "read_bw", "-s 1048576 -m 4096 -n 2000"),
    Ucx("ucx_cma_get1m_gbs", "posix,cma", "-t get -x cma -d memory -D zcopy -s 1048576 -n 2000 -w 100"),
    Client("pt_send64k_gbs", "send_bw", "-s 65536 -m 4096 -n 20000"),
    Ucx("ucx_tag64k_gbs", "posix,cma", "-t tag_bw -s 65536 -n 20000 -w 100"),
    Client("pt_send1m_gbs", "send_bw", "-s 1048576 -m 4096 -n 2000"),
    Ucx("ucx_tag1m_gbs", "posix,cma", "-t tag_bw -s 1048576 -n 2000 -w 100"),
    Own("rate1_", "rate", "1 200 1 polls"),
    Ucx("ucx_posix_am8_mps", "posix", "-t am_bw -x posix -d memory -s 8 -n 2000000"),
    Ucx("ucp_posix_am8_mps", "posix", "-t ucp_am_bw -s 8 -n 1000000"),
    Own("rate32_", "rate", "1 1000 32 polls"),
    Own("rate1_waits_", "rate", "1 200 1 waits"),
    Own("rate32_waits_", "rate", "1 1000 32 waits"),
    Client("pt_events8_ns", "send_lat", "-e -s 8 -n 5000"),
    Own("", "many", "1 100"),
    Own("", "setup", "1000 10000"),
];

/// Runs it once more where it fails.
pub fn twice<T>(mut run: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    run().or_else(|why| {
        eprintln!("once more: {why}");
        run()
    })
}

impl Measure {
    /// Adds what it gives.
    pub fn run(
        &self,
        ours: &Place,
        theirs: &Place,
        device: &Device,
        samples: &mut Samples,
    ) -> Result<(), String> {
        twice(|| self.once(ours, theirs, device, samples))
    }

    fn once(
        &self,
        ours: &Place,
        theirs: &Place,
        device: &Device,
        samples: &mut Samples,
    ) -> Result<(), String> {
        let (figure, value) = match *self {
            Own(prefix, program, args) => return own::measure(ours, prefix, program, args, samples),
            Client(figure, program, args) => (figure, client::measure(ours, device, figure, program, args)?),
            Ucx(figure, transports, args) => (figure, peers::ucx(theirs, figure, transports, args)?),
            Fabric(figure, bytes, iterations) => (figure, peers::fabric(theirs, bytes, iterations)?),
        };
        samples.add(figure.into(), value);
        Ok(())
    }
}

const fn most(limit: f64) -> Option<Limit> {
    Some(Limit::Most(limit))
}

const fn least(limit: f64) -> Option<Limit> {
    Some(Limit::Least(limit))
}

/// What "flat per unit" means here.
const FLAT: Option<Limit> = most(1.25);

/// The number that a row begins with is that of its goal.
pub const ROWS: &[Row<'_>] = &[
    row("1 SEND 8 B", "pt_send8_ns", "ucx_posix_tag8_ns", "UCX posix tag_lat", most(0.85)),
    row("1 SEND 8 B, in hops", "pt_send8_ns", "hop_ns", "cache-line hop", most(2.2)),
    row("1 SEND 8 B, sysv", "pt_send8_ns", "ucx_sysv_tag8_ns", "UCX sysv tag_lat", None),
    row("1 SEND 8 B, libfabric", "pt_send8_ns", "fabric_shm8_ns", "libfabric shm fi_pingpong", None),
    row("2 SEND 4 KiB", "pt_send4k_ns", "ucx_posix_tag4k_ns", "UCX posix tag_lat", most(0.8)),
    row("2 SEND 4 KiB, sysv", "pt_send4k_ns", "ucx_sysv_tag4k_ns", "UCX sysv tag_lat", None),
    row("2 SEND 4 KiB, libfabric", "pt_send4k_ns", "fabric_shm4k_ns", "libfabric shm fi_pingpong", None),
    row("3 WRITE 8 B", "pt_write8_ns", "pvw8_ns", "process_vm_writev", most(1.15)),
    row("4 WRITE 8 B, memfd", "memfd_write8_ns", "ucx_posix_put8_ns", "UCX posix put_lat", most(1.2)),
    row(
        "4 WRITE 8 B, ibv_alloc_buf",
        "buffer_write8_ns",
        "ucx_posix_put8_ns",
        "UCX posix put_lat",
        most(1.2),
    ),
    row("4 WRITE 8 B, ibv_alloc_dm", "dm_write8_ns", "ucx_posix_put8_ns", "UCX posix put_lat", most(1.2)),
    row("4 WRITE 8 B, memfd, UCP", "memfd_write8_ns", "ucp_posix_put8_ns", "UCX posix ucp_put_lat", None),
    row("5 READ 8 B", "pt_read8_ns", "pvr8_ns", "process_vm_readv", most(1.15)),
    row("6 fetch-and-add, target polls", "fadd_polling_ns", "round_ns", "cache line and back", most(2.5)),
    row("6 fetch-and-add, target idle", "pt_fadd_idle_ns", "round_ns", "cache line and back", None),
    row("7 WRITE 64 KiB", "pt_write64k_gbs", "pvw64k_whole_gbs", "process_vm_writev", least(0.95)),
    row("7 WRITE 64 KiB, UCX", "pt_write64k_gbs", "ucx_cma_put64k_gbs", "UCX cma put_bw", least(1.0)),
    row("7 WRITE 1 MiB", "pt_write1m_gbs", "pvw1m_whole_gbs", "process_vm_writev", least(0.95)),
    row("7 WRITE 1 MiB, UCX", "pt_write1m_gbs", "ucx_cma_put1m_gbs", "UCX cma put_bw", least(1.0)),
    row("7 READ 64 KiB", "pt_read64k_gbs", "pvr64k_whole_gbs", "process_vm_readv", least(0.95)),
    row("7 READ 64 KiB, UCX", "pt_read64k_gbs", "ucx_cma_get64k_gbs", "UCX cma get", least(1.0)),
    row("7 READ 1 MiB", "pt_read1m_gbs", "pvr1m_whole_gbs", "process_vm_readv", least(0.95)),
    row("7 READ 1 MiB, UCX", "pt_read1m_gbs", "ucx_cma_get1m_gbs", "UCX cma get", least(1.0)),
    row("8 SEND 64 KiB", "pt_send64k_gbs", "ucx_tag64k_gbs", "UCX posix,cma tag_bw", least(1.0)),
    row("8 SEND 1 MiB", "pt_send1m_gbs", "ucx_tag1m_gbs", "UCX posix,cma tag_bw", least(1.0)),
    row("9 WRITE 1 MiB, memfd", "memfd_write1m_gbs", "memcpy1m_gbs", "memcpy", least(0.95)),
    row("9 WRITE 1 MiB, ibv_alloc_buf", "buffer_write1m_gbs", "memcpy1m_gbs", "memcpy", least(0.95)),
    row("9 WRITE 1 MiB, ibv_alloc_dm", "dm_write1m_gbs", "memcpy1m_gbs", "memcpy", least(0.95)),
    row(
        "9 WRITE 1 MiB, memfd, both mapped",
        "memfd_write1m_gbs",
        "shared1m_gbs",
        "memcpy into a memfd",
        None,
    ),
    row("10 SEND 8 B, lists of 32", "rate1_mps", "ucx_posix_am8_mps", "UCX posix am_bw", least(1.5)),
    row("10 SEND 8 B, lists of 32, UCP", "rate1_mps", "ucp_posix_am8_mps", "UCX posix ucp_am_bw", None),
    row("11 post and poll, instructions", "post_poll_ir", "", "", most(400.0)),
    row("12 SEND 8 B, receiver sleeps", "pt_events8_ns", "eventfd_ns", "eventfd ping-pong", most(1.3)),
    row("13 SEND 8 B, 256 QPs in one CQ", "qp256_ns", "qp1_ns", "the same with 1 QP", most(1.2)),
    row("14 rate, 32 pairs that poll", "rate32_mps", "rate1_mps", "1 pair", least(0.9)),
    row("14 rate, 32 pairs that wait", "rate32_waits_mps", "rate1_waits_mps", "1 pair that waits", None),
    row("16 MR of 1 MiB, 10,000 at a time", "reg1m_many_ns", "reg1m_few_ns", "1,000 at a time", FLAT),
    row("16 CQ, 10,000 at a time", "cq_many_ns", "cq_few_ns", "1,000 at a time", FLAT),
    row("16 QP, 10,000 at a time", "qp_many_ns", "qp_few_ns", "1,000 at a time", FLAT),
    row("16 connecting 10,000 QPs", "connect_many_ns", "connect_few_ns", "1,000 QPs", FLAT),
    row("16 first SEND of 10,000 QPs", "first_many_ns", "first_few_ns", "1,000 QPs", FLAT),
    row("SEND 8 B, few completions", "send8_few_ns", "hop_ns", "cache-line hop", None),
    row("SEND 8 B, all complete", "send8_ns", "hop_ns", "cache-line hop", most(3.0)),
    row("WRITE 8 B, post to completion", "write8_ns", "pvw8_ns", "process_vm_writev", most(1.5)),
    row("READ 8 B, post to completion", "read8_ns", "pvr8_ns", "process_vm_readv", None),
    row("WRITE 64 KiB, window of 16", "write64k_gbs", "pvw64k_gbs", "process_vm_writev", None),
    row("READ 64 KiB, window of 16", "read64k_gbs", "pvr64k_gbs", "process_vm_readv", None),
    row("SEND 64 KiB, window of 16", "send64k_gbs", "memcpy64k_gbs", "memcpy", None),
    row("WRITE 1 MiB, window of 16", "write1m_gbs", "pvw1m_gbs", "process_vm_writev", least(0.8)),
    row("READ 1 MiB, window of 16", "read1m_gbs", "pvr1m_gbs", "process_vm_readv", least(0.8)),
    row("SEND 1 MiB, window of 16", "send1m_gbs", "memcpy1m_gbs", "memcpy", None),
];
