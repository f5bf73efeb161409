//! One view on changes read from a file; prints the seconds and the digest of the changes of every step.
//!
//!     views VIEW FILE
//!
//! The file holds rows of six words of 64 bits: step, input, three columns, diff; steps ascend. The digest of a
//! step is the sum of its output rows, mixed, each as often as its diff says; adding it up is part of the
//! time here, which is a few nanoseconds for each row.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use differential_dataflow::input::{Input, InputSession};
use differential_dataflow::operators::*;
use differential_dataflow::VecCollection;
use timely::dataflow::operators::probe::Handle;

#[path = "../inputs.rs"]
#[allow(dead_code)]
mod inputs;

#[global_allocator]
static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Columns = (u64, u64, u64);
type Rows<'scope> = VecCollection<'scope, u64, Columns, isize>;

/// All pairs connected by a path.
fn closure(edges: Rows<'_>) -> Rows<'_> {
    let edges = edges.map(|(a, b, _)| (a, b)).distinct();
    edges
        .clone()
        .iterate(|scope, paths| {
            let edges = edges.enter(scope);
            paths.map(|(a, b)| (b, a)).join_map(edges.clone(), |_, a, c| (*a, *c)).concat(edges).distinct()
        })
        .map(|(a, b)| (a, b, 0))
}

/// All pairs as far below a common ancestor as each other, from rows of a child and its parent.
fn generations(parents: Rows<'_>) -> Rows<'_> {
    let children = parents.map(|(child, parent, _)| (parent, child)).distinct();
    let siblings = children.clone().join_map(children.clone(), |_, x, y| (*x, *y)).distinct();
    siblings
        .clone()
        .iterate(|scope, same| {
            let (children, siblings) = (children.enter(scope), siblings.enter(scope));
            same.join_map(children.clone(), |_, b, x| (*b, *x))
                .join_map(children, |_, x, y| (*x, *y))
                .concat(siblings)
                .distinct()
        })
        .map(|(x, y)| (x, y, 0))
}

/// The sum of each group, from rows of a group, an id and an amount.
fn sum(amounts: Rows<'_>) -> Rows<'_> {
    amounts.explode(|(group, _, amount)| Some((group, amount as isize))).count_total()
        .map(|(group, total)| (group, total as u64, 0))
}

/// Amounts with what the other input has of their ids.
fn join<'scope>(amounts: Rows<'scope>, others: Rows<'scope>) -> Rows<'scope> {
    let others = others.map(|(id, w, _)| (id, w));
    amounts.map(|(_, id, amount)| (id, amount)).join_map(others, |id, v, w| (*id, *v, *w))
}

/// How many amounts there are for each value that the other input has of their groups.
fn counted<'scope>(amounts: Rows<'scope>, others: Rows<'scope>) -> Rows<'scope> {
    let others = others.map(|(group, w, _)| (group, w));
    amounts.map(|(group, id, _)| (group, id)).join_map(others, |_, _, w| *w).count_total()
        .map(|(w, count)| (w, count as u64, 0))
}

/// Amounts of whose ids the other input has nothing.
fn absence<'scope>(amounts: Rows<'scope>, others: Rows<'scope>) -> Rows<'scope> {
    let others = others.map(|(id, _, _)| id).distinct();
    amounts.map(|(_, id, amount)| (id, amount)).antijoin(others).map(|(id, amount)| (id, amount, 0))
}

/// How many columns the rows of a view have.
fn width(view: &str) -> usize {
    if view == "join" { 3 } else { 2 }
}

fn words(file: &str) -> Vec<i64> {
    let bytes = std::fs::read(file).expect("the file of changes");
    bytes.chunks_exact(8).map(|word| i64::from_le_bytes(word.try_into().unwrap())).collect()
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (view, words) = (args[1].clone(), words(&args[2]));
    timely::execute_directly(move |worker| {
        let sums = Rc::new(RefCell::new(0u64));
        let (sink, columns) = (sums.clone(), width(&view));
        let probe = Handle::new();
        let (first, second) = worker.dataflow::<u64, _, _>(|scope| {
            let (first, a) = scope.new_collection::<Columns, isize>();
            let (second, b) = scope.new_collection::<Columns, isize>();
            let found = match view.as_str() {
                "closure" => closure(a),
                "generations" => generations(a),
                "sum" => sum(a),
                "join" => join(a, b),
                "counted" => counted(a, b),
                "absence" => absence(a, b),
                other => panic!("unknown view {other}"),
            };
            found
                .inspect(move |((x, y, z), _, diff)| {
                    let word = inputs::mix(&[*x, *y, *z][..columns]);
                    let mut sum = sink.borrow_mut();
                    *sum = sum.wrapping_add(word.wrapping_mul(*diff as i64 as u64));
                })
                .probe_with(&probe);
            (first, second)
        });
        let mut given: [InputSession<u64, Columns, isize>; 2] = [first, second];
        let (mut seconds, mut found, mut at) = (Vec::new(), Vec::new(), 0);
        while at < words.len() {
            let step = words[at];
            let timer = Instant::now();
            while at < words.len() && words[at] == step {
                let row = &words[at..at + 6];
                given[row[1] as usize].update((row[2] as u64, row[3] as u64, row[4] as u64), row[5] as isize);
                at += 6;
            }
            for input in &mut given {
                input.advance_to(step as u64 + 1);
                input.flush();
            }
            worker.step_while(|| probe.less_than(given[0].time()));
            seconds.push(format!("{:.9}", timer.elapsed().as_secs_f64()));
            found.push(format!("\"{:016x}\"", sums.take()));
        }
        println!("{{\"seconds\": [{}], \"sums\": [{}]}}", seconds.join(", "), found.join(", "));
    });
}
