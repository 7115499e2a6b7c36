//! Programs that a seed has made up, attached and let go of again and again: each answer and each
//! time limit is what it is without us.

use super::*;
use crate::follow::in_go;
use crate::harness::limits::{count, is_root, seed};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::Mutex;
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
    for cycle in 0..count(12, 200) {
        let pid = number(victim.pid());
        let told = stage.ask(&["attach", "--json", "--pid", &pid, "-u", "1s"]);
        let is_done = told.status.success();
        assert!(
            is_done,
            "{what}, cycle {cycle}, {:?}: {told}",
            victim.has_ended()
        );
        stage.detach(&session_of(&told));
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

/// Has others begin no more where one has failed.
struct EndOfAll<'a>(&'a AtomicU64);

impl Drop for EndOfAll<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(u64::MAX / 2, SeqCst);
        }
    }
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
    // Most of the time it is waited for the kernel.
    let workers = std::thread::available_parallelism().map_or(1, |n| 2 * n.get());
    let (next, done) = (AtomicU64::new(0), Mutex::new((0, [0, 0, 0])));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| loop {
                let _end = EndOfAll(&next);
                let number = next.fetch_add(1, SeqCst);
                if number >= count(12, 1000) as u64 {
                    return;
                }
                let path = &kinds[usize::try_from(number).unwrap_or(0) % kinds.len()];
                let all = one(path, seed.wrapping_add(number));
                let mut done = done.lock().expect("none has failed");
                done.0 += 1;
                done.1 = std::array::from_fn(|k| done.1[k] + all[k]);
                if done.0 % 50 == 0 {
                    println!("{} programs, seed {seed}: {:?}", done.0, done.1);
                }
            });
        }
    });
    let (_, [late, alone, disturbed]) = *done.lock().expect("none has failed");
    println!("seed {seed}: {late} waits were late, {alone} alone; {disturbed} disturbed");
}
