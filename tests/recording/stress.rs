//! Recordings of programs that make it hard: many processes, killed ones, and one that writes
//! nonsense over all that it shares with the session.
//!
//! Promise: what was answered is in the recording or counted as lost, and everybody is named.

use super::recorded;
use super::seen::{counted, in_recording};
use crate::harness::command::Outcome;
use crate::harness::limits::count;
use crate::harness::victims::tool;
use crate::sessions::stage::{program, Stage};
use std::path::Path;
use synclater_recording::record::table::Table;

/// Runs `many`; how many syncs of its own and of its children were answered, and the recording.
fn many(how: &str, number: usize, options: &[&str]) -> (u64, u64, Table) {
    let stage = Stage::new("record_many");
    let (program, work) = (program("many"), stage.work());
    let number = number.to_string();
    let text = |path: &std::path::Path| path.to_str().expect("text").to_owned();
    let words = [&text(&program), how, &text(&work), &number];
    let (outcome, table) = recorded(&stage, options, &words);
    let outcome = outcome.must_succeed();
    let numbers: Vec<u64> = outcome
        .stdout
        .split_whitespace()
        .map(|n| n.parse().unwrap_or_else(|e| panic!("{e}: {outcome}")))
        .collect();
    assert!(table.is_whole(), "{outcome}");
    (numbers[0], numbers[1], table)
}

fn lost(table: &Table) -> u64 {
    table.lost.values().sum()
}

fn everybody_is_named(table: &Table) {
    let processes = table
        .rows
        .process
        .iter()
        .map(|p| &table.processes[*p as usize]);
    for process in processes {
        let named = process.pid.is_some() && process.exe.ends_with("/many");
        assert!(named && process.command.contains("/many "), "{process:?}");
    }
    let files = table.rows.file.iter().map(|f| &table.files[*f as usize]);
    for file in files {
        let folder = Path::new(&file.path).parent();
        let is_there = folder.is_some_and(|f| f.ends_with("work"));
        assert!(is_there && !file.path.contains("deleted"), "{file:?}");
    }
}

#[test]
fn soak_of_many_short_processes_none_is_missing_that_is_not_counted() {
    let number = count(500, 10_000);
    for until in ["now", "exit"] {
        let (_, children, table) = many("short", number, &["-u", until]);
        assert_eq!(children, number as u64);
        // Where the recorder gets no processor while 512 of them come and go, some find no ring.
        let have = table.rows.len();
        println!("{until}: {have} rows, {} lost", lost(&table));
        assert_eq!(have as u64 + lost(&table), children, "{until}");
        everybody_is_named(&table);
        let pids = counted(in_recording(&table).iter().map(|s| s.pid));
        // Numbers come round again among many.
        assert!(pids.len() > have * 9 / 10, "{} of {have}", pids.len());
    }
}

#[test]
fn of_300_processes_that_sync_at_the_same_moment_nothing_is_missing() {
    let (_, children, table) = many("alive", 300, &["-u", "never"]);
    assert_eq!(children, 1500);
    assert_eq!((table.rows.len(), lost(&table)), (1500, 0));
    everybody_is_named(&table);
    let each = counted(in_recording(&table).iter().map(|s| s.pid));
    assert_eq!(each.len(), 300);
    assert!(each.values().all(|n| *n == 5), "{each:?}");
}

#[test]
fn what_finds_no_ring_at_all_is_counted() {
    // There are 512.
    let (_, children, table) = many("alive", 600, &["-u", "never"]);
    assert_eq!(children, 3000);
    assert_eq!(table.rows.len() as u64 + lost(&table), 3000);
    assert!(lost(&table) > 0, "more processes than rings");
    everybody_is_named(&table);
}

#[test]
fn soak_children_of_a_program_with_threads_have_rows_of_their_own() {
    let number = count(40, 400);
    let (own, children, table) = many("threads", number, &["-u", "now"]);
    assert_eq!(children, 3 * number as u64);
    assert_eq!(lost(&table), 0);
    everybody_is_named(&table);
    let seen = in_recording(&table);
    let is_child = |path: &str| path.contains("/forked-");
    let of_children = seen.iter().filter(|s| is_child(&s.path)).count();
    assert_eq!(
        (of_children, seen.len()),
        (3 * number, own as usize + 3 * number)
    );
    // A child has the number of its only thread; a busy thread is never the first.
    let right = |s: &super::seen::Seen| (s.pid == s.tid) == is_child(&s.path);
    assert!(seen.iter().all(right));
}

#[test]
fn soak_of_processes_that_are_killed_while_they_write_what_was_answered_is_there() {
    let number = count(50, 1000);
    for until in ["never", "now"] {
        let (_, children, table) = many("killed", number, &["-u", until]);
        let have = table.rows.len() as u64;
        // One that was killed may have written an event whose answer it never got.
        let most = children + number as u64;
        let each = counted(in_recording(&table).iter().map(|s| s.pid));
        assert!(
            have + lost(&table) >= children,
            "{until}: {have} of {children}, {} of {number} processes: {each:?}, lost {:?}",
            each.len(),
            table.lost
        );
        assert!(have <= most, "{have} of {children}");
        everybody_is_named(&table);
    }
}

/// What such a handler leaves behind is lost to the process, until it makes do with its stack.
#[test]
fn of_a_program_whose_handlers_jump_out_of_syncs_nothing_is_missing_later() {
    for until in ["now", "1s"] {
        let (own, _, table) = many("jumps", 200, &["-u", until]);
        everybody_is_named(&table);
        let seen = in_recording(&table);
        let after = seen.iter().filter(|s| s.path.ends_with("/after-0"));
        let good = after.filter(|s| !s.failed).count() as u64;
        assert_eq!((own, good), (100, 100), "{until}");
    }
}

/// A session in which somebody scribbles while a child makes `number` syncs.
fn scribbled(how: &str, number: usize) -> (Outcome, Table) {
    let stage = Stage::new("record_scribble");
    let (program, work) = (tool("scribble"), stage.work());
    let text = |path: &std::path::Path| path.to_str().expect("text").to_owned();
    let words = [&text(&program), how, &text(&work), &number.to_string()];
    let (outcome, table) = recorded(&stage, &["-u", "never", "--ring", "64K"], &words);
    assert_eq!(outcome.status.code(), Some(7), "{outcome}");
    assert!(!outcome.stderr.contains("panicked"), "{outcome}");
    (outcome, table)
}

#[test]
fn soak_of_nonsense_over_a_ring_no_other_s_rows_are_spoiled() {
    let number = count(1000, 20_000);
    let (outcome, table) = scribbled("own", number);
    assert!(table.is_whole(), "{outcome}");
    let seen = in_recording(&table);
    let honest: Vec<_> = seen
        .iter()
        .filter(|s| Path::new(&s.path).ends_with("work/honest"))
        .collect();
    assert_eq!(honest.len(), number);
    let first = honest[0];
    let right = |s: &&super::seen::Seen| s.who() == first.who() && s.kind == "fsync" && !s.failed;
    assert!(honest.iter().all(right));
}

#[test]
fn soak_a_session_outlives_nonsense_in_all_that_its_processes_can_write() {
    let (outcome, table) = scribbled("all", count(300, 5000));
    assert!(table.is_whole(), "{outcome}");
}
