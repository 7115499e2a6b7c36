//! Programs that a seed has made up, attached and let go of again and again: each answer and each
//! time limit is what it is without us.

use super::*;
use crate::follow::in_go;
use crate::harness::limits::{count, is_root, seed};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What a program said at its end: rounds, wrong answers, waits that took too long, those that said
/// EINTR without a handler.
fn said(outcome: &Outcome) -> [u64; 4] {
    let last = outcome.stdout.lines().last().unwrap_or_default();
    let numbers = last.split(' ').filter_map(|word| word.parse().ok());
    let all: Vec<u64> = numbers.collect();
    all.try_into().unwrap_or_else(|_| panic!("{outcome}"))
}

fn random(stage: &Stage, path: &Path, seed: u64) -> Running {
    let mut command = clean(path);
    command.arg(stage.work()).arg(seed.to_string());
    if !is_root() {
        // Limits of disturbed waits begin anew (docs/LIMITS.md).
        command.arg("anew");
    }
    started(stage, command)
}

/// Whether the threads of a program make processes, or send each other signals, as its seed says.
fn has_children(seed: u64) -> bool {
    const MOST_THREADS: u64 = 6;
    seed / MOST_THREADS % 2 == 1
}

/// One program; then alone for as long as it was attached, for comparison: how many waits took too
/// long, of the one and of the other, and how many were disturbed.
fn one(path: &Path, seed: u64) -> [u64; 3] {
    let stage = Stage::new("random");
    let what = format!("{}, seed {seed}", path.display());
    let mut victim = random(&stage, path, seed);
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
    let _ = std::fs::remove_dir_all(stage.work());
    std::fs::create_dir(stage.work()).expect("a folder");
    let mut bare = random(&stage, path, seed);
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
    let stage = Stage::new("made-up");
    let mut kinds: Vec<PathBuf> = names.iter().map(|name| program(name)).collect();
    match in_go(&stage, "tests/attach/random.go") {
        Some(path) => kinds.push(path),
        None => println!("no Go compiler (go) is installed: C alone"),
    }
    let mut sums = [0, 0, 0];
    for number in 0..count(10, 1000) as u64 {
        let path = &kinds[usize::try_from(number).unwrap_or(0) % kinds.len()];
        let all = one(path, seed.wrapping_add(number));
        sums = std::array::from_fn(|k| sums[k] + all[k]);
        if number % 50 == 49 {
            println!("{} programs, seed {seed}: {sums:?}", number + 1);
        }
    }
    let [late, alone, disturbed] = sums;
    println!("seed {seed}: {late} waits were late, {alone} alone; {disturbed} disturbed");
}
