//! One workload per run: generate, time, and print one JSON line with seconds and a digest of the result.
//!
//!     tidemill-bench-peer WORKLOAD SEED [SIZES...]
//!
//! The digest is order-independent and computed outside the timed sections, so that both sides can be
//! compared before any time is reported.

mod graphs;
mod inputs;
mod reclock;
mod figures;
mod tables;

use figures::{percentile, resident_bytes, Report};

#[global_allocator]
static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let workload = args[1].clone();
    let seed: u64 = args[2].parse().unwrap();
    let sizes: Vec<usize> = args[3..].iter().map(|s| s.parse().unwrap()).collect();
    let report = match workload.as_str() {
        "arrange" => tables::arrange(seed, sizes[0], sizes[1] as u64, sizes[2] as u64),
        "arrange-text" => tables::arrange_text("", seed, sizes[0], sizes[1] as u64),
        "arrange-long-text" => tables::arrange_text("https://example.org/item/", seed, sizes[0], sizes[1] as u64),
        "arrange-stream" => tables::arrange_stream(seed, sizes[0], sizes[1], sizes[2]),
        "insert-latency" => tables::insert_latency(seed, sizes[0], sizes[1]),
        "count" => tables::count(seed, sizes[0], sizes[1], sizes[2]),
        "join" => tables::join(seed, sizes[0], sizes[1], sizes[2]),
        "closure" => graphs::closure(seed, sizes[0] as u64, sizes[1], sizes[2]),
        "bfs" => graphs::bfs(seed, sizes[0] as u64, sizes[1], sizes[2], sizes[3]),
        "scc" => graphs::scc(seed, sizes[0] as u64, sizes[1], sizes[2], sizes[3]),
        "reclock" => reclock::reclock(seed, sizes[0], sizes[1], sizes[2]),
        other => panic!("unknown workload {other}"),
    };
    report.print(&workload);
}
