//! The gain on a disk whose flush takes 8 ms, beside libeatmydata's in the same run.
//!
//! Real syncs are timed on little work and the other two on more, so that neither start nor end
//! counts much; those two take turns. The times are printed (`make soak`, docs/SOAK.md); only what
//! holds on any machine is asserted.

use super::{can_run_daemons, directory, dovecot_config, free_port, imap_append, names_to_import};
use crate::harness::command::{clean, run};
use crate::harness::dir::Dir;
use crate::harness::disk::SlowDisk;
use crate::harness::limits::{count, needs_root};
use crate::programs::{let_others_in, script, Place};
use crate::servers::daemon::Daemon;
use crate::servers::leftovers::Leftovers;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

const FLUSH_MS: u32 = 8;
/// How much faster than real syncs everything has to be.
const GAIN_MIN: f64 = 3.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Real,
    Eatmydata,
    Synclater,
}

/// How often the two fast ways take turns, and how much more they do than the real syncs.
fn rounds_and_factor() -> (usize, usize) {
    (count(1, 7), count(10, 100))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Compares seconds of work, settled or synced at its end; `timed` has a new name for each run and
/// the amount of work. Prints the gains.
fn compare(what: &str, amount: usize, factor: usize, timed: impl Fn(How, &str, usize) -> f64) {
    let (rounds, _) = rounds_and_factor();
    let real = timed(How::Real, "real", amount) * factor as f64;
    let (mut eatmydata, mut synclater) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let mut both = [
            (How::Eatmydata, &mut eatmydata),
            (How::Synclater, &mut synclater),
        ];
        both.rotate_left(round % 2);
        for (how, into) in both {
            into.push(timed(how, &format!("{how:?}{round}"), amount * factor));
        }
    }
    let share = eatmydata.iter().zip(&synclater).map(|(e, s)| e / s);
    let share = median(share.collect());
    let (eatmydata, synclater) = (median(eatmydata), median(synclater));
    println!(
        "{what} x {}, {rounds} rounds: eatmydata {eatmydata:.3} s, gain {:.1}; \
         synclater {synclater:.3} s, gain {:.1}, {share:.2} of eatmydata's",
        amount * factor,
        real / eatmydata,
        real / synclater
    );
    assert!(
        real / synclater >= GAIN_MIN,
        "{what}: {real} s, {synclater} s"
    );
}

/// Seconds of a command in a new directory, which is its last word.
fn timed(how: How, disk: &Path, name: &str, add: impl FnOnce(&mut Command, &Path)) -> f64 {
    let place = Place::new("slow");
    let mut command = match how {
        How::Real => clean("env"),
        How::Eatmydata => clean("eatmydata"),
        How::Synclater => place.synclater(),
    };
    if how == How::Synclater {
        command.args(["run", "--quiet", "--until", "exit", "--"]);
    }
    let dir = directory(&disk.join(name), "root");
    add(&mut command, &dir);
    let begin = Instant::now();
    run(&mut command).must_succeed();
    if how == How::Eatmydata {
        run(clean("sync").arg("-f").arg(&dir)).must_succeed();
    }
    begin.elapsed().as_secs_f64()
}

#[test]
fn soak_sqlite_gains_on_a_slow_disk() {
    if !needs_root("soak_sqlite_gains_on_a_slow_disk") {
        return;
    }
    let disk = SlowDisk::new("ext4", 256, FLUSH_MS);
    let (_, factor) = rounds_and_factor();
    let script = r#"
        { echo 'create table t (x integer primary key);'
          seq "$1" | sed 's/.*/insert into t values (&);/'
        } | sqlite3 "$2/database""#;
    compare("sqlite, rows", 67, factor, |how, name, rows| {
        timed(how, &disk.path(), name, |command, dir| {
            command.args(["bash", "-c", script, "script"]);
            command.arg(rows.to_string()).arg(dir);
        })
    });
}

#[test]
fn soak_dpkg_gains_on_a_slow_disk() {
    if !needs_root("soak_dpkg_gains_on_a_slow_disk") {
        return;
    }
    let disk = SlowDisk::new("ext4", 1024, FLUSH_MS);
    let packages = Dir::new("packages");
    let tool = script("packages.sh");
    run(clean(&tool).arg("build").arg(packages.path())).must_succeed();
    compare("dpkg, installations", 1, 1, |how, name, _| {
        timed(how, &disk.path(), name, |command, dir| {
            let (debs, root) = (packages.path(), dir.join("root"));
            command.arg(&tool).arg("install").arg(debs).arg(root);
        })
    });
}

/// Seconds for messages over one connection, and for settling or syncing them.
fn dovecot(how: How, disk: &Path, name: &str, messages: usize) -> f64 {
    let place = Place::new(name);
    let mail = directory(&disk.join(name), "2000");
    let port = free_port();
    let mut command = match how {
        How::Real => clean("env"),
        How::Eatmydata => clean("eatmydata"),
        How::Synclater => place.synclater(),
    };
    if how == How::Synclater {
        command.args(["run", "--quiet", "--only", "exe=imap", "--json"]);
        command.arg(place.scene.file("report.json")).arg("--");
    }
    let import = names_to_import(&place);
    let config = dovecot_config(&place.scene.work(), &mail, port, &import);
    command.args(["dovecot", "-F", "-c"]).arg(config);
    let mut daemon = Daemon::start(place, &mut command);
    daemon.wait_until("an answer at its port", || super::answers(port));
    imap_append(port, 7);
    let load = imap_append(port, messages);
    let begin = Instant::now();
    if how == How::Eatmydata {
        run(clean("sync").arg("-f").arg(&mail)).must_succeed();
    }
    let synced = begin.elapsed().as_secs_f64();
    let stopped = daemon.stop();
    assert_eq!(stopped.status.code(), Some(0), "{}", stopped.output);
    load + synced + stopped.report["settle_s"].as_f64().unwrap_or(0.0)
}

#[test]
fn soak_dovecot_gains_on_a_slow_disk() {
    if !can_run_daemons("dovecot-slow") {
        return;
    }
    let disk = SlowDisk::new("ext4", 512, FLUSH_MS);
    let_others_in(&disk.path());
    let _leftovers = Leftovers::of(&disk.path());
    let factor = count(10, 30);
    compare("dovecot, messages", 67, factor, |how, name, messages| {
        dovecot(how, &disk.path(), name, messages)
    });
}
