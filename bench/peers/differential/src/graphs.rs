//! Transitive closure, breadth-first search and strongly connected components under change.

use std::time::Instant;

use differential_dataflow::algorithms::graphs::{bfs, scc};
use differential_dataflow::input::Input;
use differential_dataflow::operators::*;
use timely::dataflow::operators::probe::Handle;

use crate::inputs::{mix, Digest, Xorshift};
use crate::{percentile, resident_bytes, Report};

fn edges(rng: &mut Xorshift, nodes: u64, count: usize) -> Vec<(u64, u64)> {
    (0..count).map(|_| { let a = rng.below(nodes); let b = rng.below(nodes); (a, b) }).collect()
}

type Sums = std::rc::Rc<std::cell::RefCell<(u64, i64)>>;

fn add(sums: &Sums, words: &[u64], diff: isize) {
    let mut sums = sums.borrow_mut();
    sums.0 = sums.0.wrapping_add(mix(words).wrapping_mul(diff as i64 as u64));
    sums.1 += diff as i64;
}

macro_rules! drive {
    ($worker:expr, $input:expr, $probe:expr, $report:expr, $rng:expr, $nodes:expr, $count:expr, $batch:expr, $rounds:expr) => {{
        let mut live = edges($rng, $nodes, $count);
        let before = resident_bytes();
        let timer = Instant::now();
        for edge in &live {
            $input.insert(*edge);
        }
        $input.advance_to(1);
        $input.flush();
        $worker.step_while(|| $probe.less_than($input.time()));
        $report.figure("load_s", timer.elapsed().as_secs_f64());
        let mut times = Vec::new();
        for round in 0..$rounds {
            let fresh = edges($rng, $nodes, $batch);
            let timer = Instant::now();
            for (index, edge) in fresh.iter().enumerate() {
                let place = (round * $batch + index) % $count;
                $input.remove(live[place]);
                $input.insert(*edge);
                live[place] = *edge;
            }
            $input.advance_to(round as u64 + 2);
            $input.flush();
            $worker.step_while(|| $probe.less_than($input.time()));
            times.push(timer.elapsed().as_secs_f64());
        }
        if !times.is_empty() {
            $report.figure("round_p50_s", percentile(&times, 0.5));
            $report.figure("round_p99_s", percentile(&times, 0.99));
        }
        $report.figure("bytes", resident_bytes() - before);
    }};
}

/// All pairs connected by a path; then `rounds` times one edge is replaced.
pub fn closure(seed: u64, nodes: u64, count: usize, rounds: usize) -> Report {
    timely::execute_directly(move |worker| {
        let mut report = Report::default();
        let sums = Sums::default();
        let sink = sums.clone();
        let probe = Handle::new();
        let mut input = worker.dataflow::<u64, _, _>(|scope| {
            let (input, edges) = scope.new_collection::<(u64, u64), isize>();
            let edges = edges.distinct();
            edges
                .clone()
                .iterate(|scope, paths| {
                    let edges = edges.enter(scope);
                    paths
                        .map(|(a, b)| (b, a))
                        .join_map(edges.clone(), |_, a, c| (*a, *c))
                        .concat(edges)
                        .distinct()
                })
                .inspect(move |((a, b), _, diff)| add(&sink, &[*a, *b], *diff))
                .probe_with(&probe);
            input
        });
        let mut rng = Xorshift::new(seed);
        drive!(worker, input, probe, report, &mut rng, nodes, count, 1, rounds);
        report.digest = Digest { sum: sums.borrow().0, rows: sums.borrow().1 as u64 };
        report
    })
}

/// Distances from node 0; then `rounds` rounds that replace `batch` edges each.
pub fn bfs(seed: u64, nodes: u64, count: usize, batch: usize, rounds: usize) -> Report {
    timely::execute_directly(move |worker| {
        let mut report = Report::default();
        let sums = Sums::default();
        let sink = sums.clone();
        let probe = Handle::new();
        let mut input = worker.dataflow::<u64, _, _>(|scope| {
            let (mut roots, root) = scope.new_collection::<u64, isize>();
            let (input, edges) = scope.new_collection::<(u64, u64), isize>();
            roots.insert(0);
            bfs::bfs(edges.distinct(), root)
                .inspect(move |((n, d), _, diff)| add(&sink, &[*n, *d as u64], *diff))
                .probe_with(&probe);
            input
        });
        let mut rng = Xorshift::new(seed);
        drive!(worker, input, probe, report, &mut rng, nodes, count, batch, rounds);
        report.digest = Digest { sum: sums.borrow().0, rows: sums.borrow().1 as u64 };
        report
    })
}

/// Edges inside strongly connected components; then rounds as in `bfs`.
pub fn scc(seed: u64, nodes: u64, count: usize, batch: usize, rounds: usize) -> Report {
    timely::execute_directly(move |worker| {
        let mut report = Report::default();
        let sums = Sums::default();
        let sink = sums.clone();
        let probe = Handle::new();
        let mut input = worker.dataflow::<u64, _, _>(|scope| {
            let (input, edges) = scope.new_collection::<(u64, u64), isize>();
            scc::strongly_connected(edges.distinct())
                .inspect(move |((a, b), _, diff)| add(&sink, &[*a, *b], *diff))
                .probe_with(&probe);
            input
        });
        let mut rng = Xorshift::new(seed);
        drive!(worker, input, probe, report, &mut rng, nodes, count, batch, rounds);
        report.digest = Digest { sum: sums.borrow().0, rows: sums.borrow().1 as u64 };
        report
    })
}
