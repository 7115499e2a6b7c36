//! Recordings of 32-bit programs and of programs with musl: the threads' numbers, the paths and the
//! callers are as right as those of 64-bit programs with glibc.

use super::recorded;
use super::seen::{difference, in_recording, in_strace, strace, Seen};
use crate::harness::command::{clean, run};
use crate::harness::victims::{victim, Class, CLASSES};
use crate::sessions::stage::Stage;
use std::path::Path;
use synclater_recording::record::table::Table;

/// A recording of a victim, and strace's log of the same run.
fn both(name: &str, class: Class) -> (Table, super::seen::Straced) {
    let stage = Stage::new("record_class");
    let log = stage.file("strace");
    let mut traced = clean("true");
    strace(&mut traced, &log);
    let words: Vec<String> = traced
        .get_args()
        .map(|w| w.to_str().expect("text").to_owned())
        .chain([victim(name, class), stage.work()].map(|p| p.to_str().expect("text").to_owned()))
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (_, table) = recorded(&stage, &["-u", "now"], &words);
    assert!(
        table.is_whole() && table.lost.is_empty(),
        "{:?}",
        table.lost
    );
    (table, in_strace(&log))
}

/// Without hints: a victim makes some that ask for nothing.
fn durable(seen: Vec<Seen>) -> Vec<Seen> {
    seen.into_iter()
        .filter(|s| s.kind != "sync_file_range")
        .collect()
}

#[test]
fn a_recording_of_any_class_of_program_has_what_strace_sees() {
    for class in CLASSES {
        for name in [
            "fsync",
            "fdatasync",
            "syncfs",
            "msync",
            "threads",
            "fork_tree",
        ] {
            let (table, mut seen) = both(name, class);
            seen.requests = durable(seen.requests);
            let recorded = durable(in_recording(&table));
            assert!(!recorded.is_empty(), "{name} {class:?}");
            let (ours, theirs) = (seen.by_file(&recorded), seen.by_file(&seen.requests));
            let apart = difference(&ours, &theirs);
            assert!(
                apart.is_empty(),
                "{name} {class:?}: only in the recording +, in strace -: {apart:#?}"
            );
        }
    }
}

#[test]
fn a_ring_of_any_class_of_program_is_found_while_the_supervisor_stands_still() {
    for class in CLASSES {
        let stage = Stage::new("record_alone");
        let tree = victim("fork_tree", class);
        let line = "kill -STOP $PPID; \"$0\" \"$1\"; kill -CONT $PPID";
        let work = stage.work();
        let [tree, work] = [tree, work].map(|p| p.to_str().expect("text").to_owned());
        let (outcome, table) = recorded(&stage, &["-u", "now"], &["sh", "-c", line, &tree, &work]);
        assert!(
            table.lost.is_empty(),
            "{class:?}: {:?} {outcome}",
            table.lost
        );
        assert!(table.rows.kind.len() > 900, "{class:?}: {outcome}");
    }
}

/// What addr2line says about the callers of a recording.
fn places(table: &Table) -> Vec<String> {
    let of_caller = |caller: &String| {
        let (module, offset) = caller.rsplit_once('+').expect("a plus");
        let outcome = run(clean("addr2line").args(["-f", "-e", module, offset])).must_succeed();
        outcome.stdout.replace('\n', " ")
    };
    table
        .callers
        .iter()
        .filter(|c| !c.is_empty())
        .map(of_caller)
        .collect()
}

#[test]
fn the_callers_of_any_class_of_program_are_found_in_its_source() {
    for class in CLASSES {
        for name in ["fsync", "threads", "msync"] {
            let (table, _) = both(name, class);
            let places = places(&table);
            let source = format!("{name}.c:");
            let found = places.iter().filter(|p| p.contains(&source)).count();
            // fork_tree and the like may call from the header that all share.
            let shared = places.iter().filter(|p| p.contains("victim.h:")).count();
            assert!(
                found > 0,
                "{name} {class:?}: {:?} {places:?}",
                table.callers
            );
            assert_eq!(found + shared, places.len(), "{name} {class:?}: {places:?}");
        }
    }
}

#[test]
fn what_a_mapping_is_of_is_told_in_any_class_of_program() {
    for class in CLASSES {
        let (table, _) = both("msync", class);
        let seen = in_recording(&table);
        let good = seen.iter().filter(|s| s.kind == "msync" && !s.failed);
        let paths: Vec<&str> = good.map(|s| s.path.as_str()).collect();
        let named = paths.iter().filter(|p| Path::new(p).is_absolute()).count();
        assert!(named > 0, "{class:?}: {paths:?}");
    }
}
