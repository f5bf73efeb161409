//! The figures and the digest of one run, for all peers in Rust.

use crate::inputs::Digest;

/// What a workload reports: named figures in seconds (or bytes), and the digest of its result.
#[derive(Default)]
pub struct Report {
    pub figures: Vec<(String, f64)>,
    pub digest: Digest,
}

impl Report {
    pub fn figure(&mut self, name: &str, value: f64) { self.figures.push((name.to_string(), value)); }
    pub fn print(&self, workload: &str) {
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
