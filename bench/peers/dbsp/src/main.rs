//! One workload per run on one thread of dbsp: generate, time, and print one JSON line.
//!
//!     tidemill-bench-dbsp WORKLOAD SEED HELD BATCH ROUNDS
//!
//! `HELD` rows are loaded as one batch. Each round replaces the oldest `BATCH` rows by fresh ones.
//! The digest is added up from all changes that the circuit gives, within the timed sections.

#[allow(dead_code)] // another peer uses all of it
#[path = "../../differential/src/inputs.rs"]
mod inputs;
#[allow(dead_code)] // another peer uses all of it
#[path = "../../differential/src/figures.rs"]
mod figures;

use std::time::Instant;

use dbsp::circuit::DBSPHandle;
use dbsp::typed_batch::{IndexedZSetReader, SpineSnapshot};
use dbsp::utils::Tup2;
use dbsp::{IndexedZSetHandle, OrdIndexedZSet, OrdZSet, OutputHandle, RootCircuit, Runtime, Stream};

use inputs::{mix, Digest, Xorshift};
use figures::{percentile, Report};

#[global_allocator]
static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CUSTOMERS: u64 = 100_000;
const REGIONS: u64 = 1_000;
const GROUPS: u64 = 100_000;
const NODES: u64 = 1_000_000;
const NEAR: u64 = 10;

type Pair = (u64, u64);
type Input = IndexedZSetHandle<u64, u64>;

fn push(input: &Input, rows: &[Pair], weight: i64) {
    let mut rows: Vec<_> = rows.iter().map(|(k, v)| Tup2(*k, Tup2(*v, weight))).collect();
    input.append(&mut rows);
}

/// Load, then replace; `told` adds what changed to the digest.
fn replaced(
    circuit: &mut DBSPHandle, input: &Input, rows: &[Pair], held: usize, batch: usize, rounds: usize,
    mut told: impl FnMut(&mut Digest),
) -> Report {
    let mut report = Report::default();
    let timer = Instant::now();
    push(input, &rows[..held], 1);
    circuit.transaction().unwrap();
    told(&mut report.digest);
    report.figure("load_s", timer.elapsed().as_secs_f64());
    let mut times = Vec::new();
    for round in 0..rounds {
        let timer = Instant::now();
        let (old, new) = (round * batch, held + round * batch);
        push(input, &rows[old..old + batch], -1);
        push(input, &rows[new..new + batch], 1);
        circuit.transaction().unwrap();
        told(&mut report.digest);
        times.push(timer.elapsed().as_secs_f64());
    }
    report.figure("batch_p50_s", percentile(&times, 0.5));
    report
}

fn add(digest: &mut Digest, words: &[u64], weight: i64) {
    digest.sum = digest.sum.wrapping_add(mix(words).wrapping_mul(weight as u64));
    digest.rows = digest.rows.wrapping_add(weight as u64);
}

fn groups_told(output: OutputHandle<SpineSnapshot<OrdIndexedZSet<u64, i64>>>) -> impl FnMut(&mut Digest) {
    move |digest| {
        for (key, value, weight) in output.concat().consolidate().iter() {
            add(digest, &[key, value as u64], weight);
        }
    }
}

/// The number of orders of each region: orders (customer, order) with customers (customer, region).
fn join_count(seed: u64, held: usize, batch: usize, rounds: usize) -> Report {
    let mut rng = Xorshift::new(seed);
    let customers: Vec<Pair> = (0..CUSTOMERS).map(|c| (c, rng.below(REGIONS))).collect();
    let total = (held + batch * rounds) as u64;
    let orders: Vec<Pair> = (0..total).map(|order| (rng.below(CUSTOMERS), order)).collect();
    let (mut circuit, (order, customer, output)) = Runtime::init_circuit(1, |root| {
        let (orders, order) = root.add_input_indexed_zset::<u64, u64>();
        let (customers, customer) = root.add_input_indexed_zset::<u64, u64>();
        let counts = orders.join(&customers, |_, _, region| *region).weighted_count();
        Ok((order, customer, counts.accumulate_output()))
    })
    .unwrap();
    push(&customer, &customers, 1);
    replaced(&mut circuit, &order, &orders, held, batch, rounds, groups_told(output))
}

/// The sum of the values of each group.
fn sum(seed: u64, held: usize, batch: usize, rounds: usize) -> Report {
    let mut rng = Xorshift::new(seed);
    let mut rows = inputs::pairs(&mut rng, held + batch * rounds, GROUPS, 1_000);
    rows.iter_mut().for_each(|(_, value)| *value += 1); // a sum of nothing is no group to dbsp
    let (mut circuit, (input, output)) = Runtime::init_circuit(1, |root| {
        let (rows, input) = root.add_input_indexed_zset::<u64, u64>();
        Ok((input, rows.aggregate_linear(|value| *value as i64).accumulate_output()))
    })
    .unwrap();
    replaced(&mut circuit, &input, &rows, held, batch, rounds, groups_told(output))
}

/// All pairs connected by a path, in a graph of many small parts.
fn closure(seed: u64, held: usize, batch: usize, rounds: usize) -> Report {
    let mut rng = Xorshift::new(seed);
    let near = |(from, to): Pair| (from, from - from % NEAR + to);
    let rows: Vec<Pair> =
        inputs::pairs(&mut rng, held + batch * rounds, NODES, NEAR).into_iter().map(near).collect();
    let (mut circuit, (input, output)) = Runtime::init_circuit(1, |root: &mut RootCircuit| {
        let (edges, input) = root.add_input_indexed_zset::<u64, u64>();
        let pairs = edges.map(|(from, to)| Tup2(*from, *to));
        let paths = root.recursive(|child, paths: Stream<_, OrdZSet<Tup2<u64, u64>>>| {
            let longer = paths
                .map_index(|Tup2(from, to)| (*to, *from))
                .join(&edges.delta0(child), |_, from, to| Tup2(*from, *to));
            Ok(longer.plus(&pairs.delta0(child)))
        })?;
        Ok((input, paths.accumulate_output()))
    })
    .unwrap();
    replaced(&mut circuit, &input, &rows, held, batch, rounds, |digest| {
        for (Tup2(from, to), (), weight) in output.concat().consolidate().iter() {
            add(digest, &[from, to], weight);
        }
    })
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let sizes: Vec<usize> = args[3..].iter().map(|size| size.parse().unwrap()).collect();
    let (seed, held, batch, rounds) = (args[2].parse().unwrap(), sizes[0], sizes[1], sizes[2]);
    let report = match args[1].as_str() {
        "join-count" => join_count(seed, held, batch, rounds),
        "sum" => sum(seed, held, batch, rounds),
        "closure" => closure(seed, held, batch, rounds),
        other => panic!("unknown workload {other}"),
    };
    report.print(&args[1]);
}
