//! Programs that a seed has made up, attached and let go of again and again: each answer and each
//! time limit is what it is without us.

use super::*;
use crate::harness::limits::{count, seed};
use std::time::{Duration, Instant};

/// What a program said at its end: rounds, wrong answers, waits that took too long, those that said
/// EINTR without a handler.
fn said(outcome: &Outcome) -> [u64; 4] {
    let last = outcome.stdout.lines().last().unwrap_or_default();
    let numbers = last.split(' ').filter_map(|word| word.parse().ok());
    let all: Vec<u64> = numbers.collect();
    all.try_into().unwrap_or_else(|_| panic!("{outcome}"))
}

fn random(stage: &Stage, name: &str, seed: u64) -> Running {
    let mut command = clean(program(name));
    command.arg(stage.work()).arg(seed.to_string());
    started(stage, command)
}

/// Whether the threads of a program make processes, or send each other signals, as its seed says.
fn has_children(seed: u64) -> bool {
    const MOST_THREADS: u64 = 6;
    seed / MOST_THREADS % 2 == 1
}

/// One program; then alone for as long as it was attached, for comparison: how many waits took too
/// long, of the one and of the other, and how many were disturbed.
fn one(name: &str, seed: u64) -> [u64; 3] {
    let stage = Stage::new("random");
    let what = format!("{name}, seed {seed}");
    let mut victim = random(&stage, name, seed);
    let begun = Instant::now();
    for _ in 0..count(12, 200) {
        let session = stage.attach_to(&victim, "1s");
        stage.detach(&session);
    }
    let took = begun.elapsed();
    must_run(victim.pid());
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new(), "{what}");
    let outcome = victim.end().must_succeed();
    let [rounds, wrong, late, disturbed] = said(&outcome);
    assert_eq!(wrong, 0, "{what}: {outcome}");
    assert!(rounds > 0, "{what}: {outcome}");
    // An ignored signal (SIGCHLD) may do that (docs/LIMITS.md).
    assert!(disturbed == 0 || has_children(seed), "{what}: {outcome}");
    let mut bare = random(&stage, name, seed);
    crate::sessions::stage::pass(took.min(Duration::from_secs(2)));
    let outcome = bare.end().must_succeed();
    let [_, wrong, late_alone, disturbed_alone] = said(&outcome);
    assert_eq!([wrong, disturbed_alone], [0, 0], "{what}, alone: {outcome}");
    [late, late_alone, disturbed]
}

#[test]
fn soak_programs_that_a_seed_has_made_up_notice_nothing() {
    let seed = seed();
    let names = ["random", "random_static", "random_32", "random_musl"];
    let mut sums = [0, 0, 0];
    for program in 0..count(8, 1000) as u64 {
        let name = names[usize::try_from(program).unwrap_or(0) % names.len()];
        let all = one(name, seed.wrapping_add(program));
        sums = std::array::from_fn(|k| sums[k] + all[k]);
    }
    let [late, alone, disturbed] = sums;
    println!("seed {seed}: {late} waits were late, {alone} alone; {disturbed} disturbed");
}
