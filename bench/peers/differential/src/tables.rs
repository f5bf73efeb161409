//! Arrange, count and join over tables of whole numbers and text.

use std::time::Instant;

use differential_dataflow::input::Input;
use differential_dataflow::operators::CountTotal;
use differential_dataflow::trace::cursor::Cursor;
use differential_dataflow::trace::TraceReader;
use timely::dataflow::operators::probe::Handle;
use timely::dataflow::operators::Probe;
use timely::progress::frontier::AntichainRef;

use crate::inputs::{pairs, text_word, Digest, Xorshift};
use crate::{percentile, resident_bytes, Report};

fn one_worker<R: Send + 'static>(
    run: impl Fn(&mut timely::worker::Worker) -> R + Send + Sync + 'static,
) -> R {
    timely::execute_directly(move |worker| run(worker))
}

/// The whole contents of a trace of numbers, accumulated; each row once, as a relation has it.
macro_rules! digest_of {
    ($trace:expr, $word:expr, $val:expr) => {{
        let mut digest = Digest::default();
        let (mut cursor, storage) = $trace.cursor();
        while cursor.key_valid(&storage) {
            while cursor.val_valid(&storage) {
                let mut total = 0isize;
                cursor.map_times(&storage, |_, diff| total += *diff);
                if total != 0 {
                    digest.add(&[$word(cursor.key(&storage)), $val(cursor.val(&storage))], 1);
                }
                cursor.step_val(&storage);
            }
            cursor.step_key(&storage);
        }
        digest
    }};
}

/// Load `rows` pairs as one batch; keys below `keys`, vals below `vals`, 0 for the full range.
pub fn arrange(seed: u64, rows: usize, keys: u64, vals: u64) -> Report {
    one_worker(move |worker| {
        let data = pairs(&mut Xorshift::new(seed), rows, keys, vals);
        let mut report = Report::default();
        let before = resident_bytes();
        let probe = Handle::new();
        let (mut input, mut trace) = worker.dataflow::<u64, _, _>(|scope| {
            let (input, collection) = scope.new_collection::<(u64, u64), isize>();
            let arranged = collection.arrange_by_key();
            arranged.stream.probe_with(&probe);
            (input, arranged.trace)
        });
        let timer = Instant::now();
        for row in &data {
            input.insert(*row);
        }
        input.advance_to(1);
        input.flush();
        worker.step_while(|| probe.less_than(input.time()));
        report.figure("load_s", timer.elapsed().as_secs_f64());
        let time = [1u64];
        trace.set_logical_compaction(AntichainRef::new(&time));
        trace.set_physical_compaction(AntichainRef::new(&time));
        for _ in 0..1000 {
            worker.step();
        }
        report.figure("bytes", resident_bytes() - before);
        report.digest = digest_of!(trace, |k: &u64| *k, |v: &u64| *v);
        report
    })
}

/// Load `rows` texts, decimal numbers below `keys` after `before`, as keys without values.
pub fn arrange_text(before: &'static str, seed: u64, rows: usize, keys: u64) -> Report {
    one_worker(move |worker| {
        let mut rng = Xorshift::new(seed);
        let data: Vec<String> = (0..rows).map(|_| format!("{before}{}", rng.below(keys))).collect();
        let mut report = Report::default();
        let resident = resident_bytes();
        let probe = Handle::new();
        let (mut input, mut trace) = worker.dataflow::<u64, _, _>(|scope| {
            let (input, collection) = scope.new_collection::<String, isize>();
            let arranged = collection.arrange_by_self();
            arranged.stream.probe_with(&probe);
            (input, arranged.trace)
        });
        let timer = Instant::now();
        for row in &data {
            input.insert(row.clone());
        }
        input.advance_to(1);
        input.flush();
        worker.step_while(|| probe.less_than(input.time()));
        report.figure("load_s", timer.elapsed().as_secs_f64());
        report.figure("bytes", resident_bytes() - resident);
        report.digest = digest_of!(trace, |k: &String| text_word(k), |_: &()| 0u64);
        report
    })
}

/// Batches of `batch` rows into an arrangement that holds `held` rows of keys below one million.
pub fn arrange_stream(seed: u64, held: usize, batch: usize, batches: usize) -> Report {
    one_worker(move |worker| {
        let mut rng = Xorshift::new(seed);
        let mut report = Report::default();
        let probe = Handle::new();
        let (mut input, mut trace) = worker.dataflow::<u64, _, _>(|scope| {
            let (input, collection) = scope.new_collection::<(u64, u64), isize>();
            let arranged = collection.arrange_by_key();
            arranged.stream.probe_with(&probe);
            (input, arranged.trace)
        });
        for row in pairs(&mut rng, held, 1_000_000, 1_000_000) {
            input.insert(row);
        }
        input.advance_to(1);
        input.flush();
        worker.step_while(|| probe.less_than(input.time()));
        let rounds: Vec<Vec<(u64, u64)>> =
            (0..batches).map(|_| pairs(&mut rng, batch, 1_000_000, 1_000_000)).collect();
        let mut times = Vec::new();
        for (round, rows) in rounds.iter().enumerate() {
            let timer = Instant::now();
            for row in rows {
                input.insert(*row);
            }
            let next = round as u64 + 2;
            input.advance_to(next);
            input.flush();
            let frontier = [next];
            trace.set_logical_compaction(AntichainRef::new(&frontier));
            trace.set_physical_compaction(AntichainRef::new(&frontier));
            worker.step_while(|| probe.less_than(input.time()));
            times.push(timer.elapsed().as_secs_f64());
        }
        report.figure("batch_p50_s", percentile(&times, 0.5));
        report.figure("batch_mean_s", times.iter().sum::<f64>() / times.len() as f64);
        report.digest = digest_of!(trace, |k: &u64| *k, |v: &u64| *v);
        report
    })
}

/// Latency of each insert of `batch` rows until `rows` are held, merges amortised by fuel.
pub fn insert_latency(seed: u64, rows: usize, batch: usize) -> Report {
    one_worker(move |worker| {
        let mut rng = Xorshift::new(seed);
        let mut report = Report::default();
        let probe = Handle::new();
        let (mut input, mut trace) = worker.dataflow::<u64, _, _>(|scope| {
            let (input, collection) = scope.new_collection::<(u64, u64), isize>();
            let arranged = collection.arrange_by_key();
            arranged.stream.probe_with(&probe);
            (input, arranged.trace)
        });
        let mut times = Vec::new();
        for round in 0..rows / batch {
            let fresh = pairs(&mut rng, batch, 1_000_000, 0);
            let timer = Instant::now();
            for row in fresh {
                input.insert(row);
            }
            let next = round as u64 + 1;
            input.advance_to(next);
            input.flush();
            let frontier = [next];
            trace.set_logical_compaction(AntichainRef::new(&frontier));
            trace.set_physical_compaction(AntichainRef::new(&frontier));
            worker.step_while(|| probe.less_than(input.time()));
            times.push(timer.elapsed().as_secs_f64());
        }
        report.figure("p50_s", percentile(&times, 0.5));
        report.figure("p99_s", percentile(&times, 0.99));
        report.figure("max_s", percentile(&times, 1.0));
        report.digest = digest_of!(trace, |k: &u64| *k, |v: &u64| *v);
        report
    })
}

/// Count per key (keys below one million): load `rows`, then `batches` batches of `batch` inserts.
pub fn count(seed: u64, rows: usize, batch: usize, batches: usize) -> Report {
    one_worker(move |worker| {
        let mut rng = Xorshift::new(seed);
        let mut report = Report::default();
        let probe = Handle::new();
        let (mut input, mut trace) = worker.dataflow::<u64, _, _>(|scope| {
            let (input, collection) = scope.new_collection::<u64, isize>();
            let counts = collection.count_total().arrange_by_key();
            counts.stream.probe_with(&probe);
            (input, counts.trace)
        });
        let data: Vec<u64> = (0..rows).map(|_| rng.below(1_000_000)).collect();
        let timer = Instant::now();
        for row in &data {
            input.insert(*row);
        }
        input.advance_to(1);
        input.flush();
        worker.step_while(|| probe.less_than(input.time()));
        report.figure("load_s", timer.elapsed().as_secs_f64());
        let rounds: Vec<Vec<u64>> =
            (0..batches).map(|_| (0..batch).map(|_| rng.below(1_000_000)).collect()).collect();
        let mut times = Vec::new();
        for (round, rows) in rounds.iter().enumerate() {
            let timer = Instant::now();
            for row in rows {
                input.insert(*row);
            }
            let next = round as u64 + 2;
            input.advance_to(next);
            input.flush();
            let frontier = [next];
            trace.set_logical_compaction(AntichainRef::new(&frontier));
            trace.set_physical_compaction(AntichainRef::new(&frontier));
            worker.step_while(|| probe.less_than(input.time()));
            times.push(timer.elapsed().as_secs_f64());
        }
        report.figure("batch_p50_s", percentile(&times, 0.5));
        report.digest = digest_of!(trace, |k: &u64| *k, |v: &isize| *v as u64);
        report
    })
}

/// Random keys, each with the number of its row.
fn numbered(rng: &mut Xorshift, rows: usize, keys: u64, first: u64) -> Vec<(u64, u64)> {
    (0..rows as u64).map(|row| (rng.below(keys), first + row)).collect()
}

/// Join two arrangements of `rows` rows each on keys below `rows`; then batches into the left side.
pub fn join(seed: u64, rows: usize, batch: usize, batches: usize) -> Report {
    one_worker(move |worker| {
        let mut rng = Xorshift::new(seed);
        let mut report = Report::default();
        let probe = Handle::new();
        let collected = std::rc::Rc::new(std::cell::RefCell::new((0u64, 0u64)));
        let sink = collected.clone();
        let (mut left, mut right) = worker.dataflow::<u64, _, _>(|scope| {
            let (left, lefts) = scope.new_collection::<(u64, u64), isize>();
            let (right, rights) = scope.new_collection::<(u64, u64), isize>();
            // The digest is added up as matches appear: three words of arithmetic for each.
            lefts
                .arrange_by_key()
                .join_core(rights.arrange_by_key(), |k, v, w| Some((*k, *v, *w)))
                .inspect(move |((k, v, w), _, diff)| {
                    let mut sink = sink.borrow_mut();
                    sink.0 = sink.0.wrapping_add(crate::inputs::mix(&[*k, *v, *w]).wrapping_mul(*diff as i64 as u64));
                    sink.1 += 1;
                })
                .probe_with(&probe);
            (left, right)
        });
        let first = numbered(&mut rng, rows, rows as u64, 0);
        let second = numbered(&mut rng, rows, rows as u64, 0);
        let timer = Instant::now();
        for row in &first {
            left.insert(*row);
        }
        for row in &second {
            right.insert(*row);
        }
        left.advance_to(1);
        left.flush();
        right.advance_to(1);
        right.flush();
        worker.step_while(|| probe.less_than(left.time()));
        report.figure("load_s", timer.elapsed().as_secs_f64());
        let rounds: Vec<Vec<(u64, u64)>> = (0..batches)
            .map(|round| numbered(&mut rng, batch, rows as u64, (rows + round * batch) as u64))
            .collect();
        let mut times = Vec::new();
        for (round, fresh) in rounds.iter().enumerate() {
            let timer = Instant::now();
            for row in fresh {
                left.insert(*row);
            }
            let next = round as u64 + 2;
            left.advance_to(next);
            left.flush();
            right.advance_to(next);
            right.flush();
            worker.step_while(|| probe.less_than(left.time()));
            times.push(timer.elapsed().as_secs_f64());
        }
        report.figure("batch_p50_s", percentile(&times, 0.5));
        let (sum, rows) = *collected.borrow();
        report.digest = Digest { sum, rows };
        report
    })
}
