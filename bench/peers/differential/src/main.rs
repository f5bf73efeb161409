//! One workload per run: generate, time, and print one JSON line with seconds and a digest of the result.
//!
//!     tidemill-bench-peer WORKLOAD SEED [SIZES...]
//!
//! The digest is order-independent and computed outside the timed sections, so that both sides can be
//! compared before any time is reported.

mod graphs;
mod inputs;
mod reclock;
mod tables;

#[global_allocator]
static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What a workload reports: named figures in seconds (or bytes), and the digest of its result.
#[derive(Default)]
pub struct Report {
    pub figures: Vec<(String, f64)>,
    pub digest: inputs::Digest,
}

impl Report {
    pub fn figure(&mut self, name: &str, value: f64) { self.figures.push((name.to_string(), value)); }
    fn print(&self, workload: &str) {
        let figures: Vec<String> = self.figures.iter().map(|(n, v)| format!("\"{n}\": {v:.9}")).collect();
        println!("{{\"workload\": \"{workload}\", \"rows\": {}, \"digest\": \"{:016x}\", \"figures\": {{{}}}}}",
            self.digest.rows, self.digest.sum, figures.join(", "));
    }
}

/// The median of times in seconds.
pub fn percentile(times: &[f64], share: f64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).unwrap());
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

/// Resident memory of this process in bytes.
pub fn resident_bytes() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 4096.0
}

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
