//! What the memory room costs: the check in front of a copy, registration, and guarded copies by size beside `memcpy`.
use std::hint::black_box;
use std::time::Instant;

use ibverbs::soft::mem::{MemTable, PdTable};
use ibverbs::soft::types::{Access, Sge};
use ibverbs::sys::guard;

fn main() {
    checks();
    copies();
}

fn checks() {
    let (table, pd) = (MemTable::private(1 << 16).unwrap(), PdTable::new(8).alloc().unwrap());
    let memory = vec![0u8; 1 << 16];
    let at = memory.as_ptr() as u64;
    let register =
        || table.register(&pd, at, 1 << 16, at, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let mr = register();
    let sge = Sge { addr: at + 100, length: 64, lkey: mr.key };
    let check =
        time(1_000_000, || _ = black_box(table.local(pd.id(), black_box(&sge), true).unwrap().as_ptr()));
    let put =
        time(1_000_000, || table.local(pd.id(), black_box(&sge), true).unwrap().put(0, &[1; 64]).unwrap());
    let cycle = time(10_000, || table.deregister(register().key, |_| true).unwrap());
    println!(
        "check {check:.1} ns, check and put 64 bytes {put:.1} ns, register and deregister {cycle:.0} ns\n"
    );
}

fn copies() {
    guard::install();
    println!("{:>9} {:>12} {:>12}", "bytes", "guarded ns", "memcpy ns");
    for size in [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 65536, 1 << 20, 8 << 20] {
        let src = vec![1u8; size];
        let mut dst = vec![0u8; size];
        let rounds = ((64 << 20) / (size + 512)).clamp(20, 100_000);
        // SAFETY: both buffers are `size` bytes long.
        let guarded = time(rounds, || unsafe {
            guard::copy(black_box(dst.as_mut_ptr()), black_box(src.as_ptr()), black_box(size)).unwrap();
        });
        // SAFETY: as above.
        let plain = time(rounds, || unsafe {
            std::ptr::copy_nonoverlapping(
                black_box(src.as_ptr()),
                black_box(dst.as_mut_ptr()),
                black_box(size),
            );
        });
        println!("{size:>9} {guarded:>12.1} {plain:>12.1}");
    }
}

/// The best of five series, in nanoseconds a round.
fn time(rounds: usize, mut body: impl FnMut()) -> f64 {
    (0..5)
        .map(|_| {
            let start = Instant::now();
            (0..rounds).for_each(|_| body());
            start.elapsed().as_nanos() as f64 / rounds as f64
        })
        .fold(f64::INFINITY, f64::min)
}
