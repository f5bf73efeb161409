//! The run-to-completion reclock operator, row by row: deferred rows in chains, a binding at a time.

use std::collections::VecDeque;
use std::time::Instant;

use crate::inputs::{Digest, Xorshift};
use crate::Report;

/// A run of updates whose source times are pairwise comparable and ascending.
type Chain = VecDeque<((u64, u64), u64)>;

/// Rows sorted by (partition, offset), cut where the next one is not beyond the one before.
fn chains(mut rows: Vec<((u64, u64), u64)>) -> Vec<Chain> {
    rows.sort();
    let mut chains: Vec<Chain> = Vec::new();
    for row in rows {
        match chains.last_mut() {
            Some(chain) if chain.back().unwrap().0 .0 == row.0 .0 => chain.push_back(row),
            _ => chains.push(VecDeque::from(vec![row])),
        }
    }
    chains
}

/// `rows` updates over `partitions`, mapped by `bindings` bindings that arrive one at a time.
pub fn reclock(seed: u64, rows: usize, partitions: usize, bindings: usize) -> Report {
    let mut rng = Xorshift::new(seed);
    let mut next = vec![0u64; partitions];
    let data: Vec<((u64, u64), u64)> = (0..rows)
        .map(|_| {
            let partition = rng.below(partitions as u64);
            let offset = next[partition as usize];
            next[partition as usize] += 1;
            ((partition, offset), rng.below(1_000_000))
        })
        .collect();
    let frontiers: Vec<Vec<u64>> = (1..=bindings as u64)
        .map(|b| next.iter().map(|high| high * b / bindings as u64).collect())
        .collect();
    let mut report = Report::default();
    let mut out: Vec<(u64, u64)> = Vec::with_capacity(rows);
    let timer = Instant::now();
    let mut deferred = chains(data);
    for (index, frontier) in frontiers.iter().enumerate() {
        let time = index as u64 + 1;
        for chain in deferred.iter_mut() {
            while let Some(((partition, offset), _)) = chain.front() {
                if frontier[*partition as usize] <= *offset {
                    break;
                }
                let (_, value) = chain.pop_front().unwrap();
                out.push((value, time));
            }
        }
    }
    report.figure("load_s", timer.elapsed().as_secs_f64());
    let mut digest = Digest::default();
    for (value, time) in &out {
        digest.add(&[*value, *time], 1);
    }
    report.digest = digest;
    report
}
