//! The gain on a disk whose flush takes 8 ms, beside libeatmydata's in the same run.
//!
//! The times are printed; only what holds on any machine is asserted.

use super::{can_run_daemons, directory, dovecot_config, free_port, imap_append, names_to_import};
use crate::harness::command::{clean, run};
use crate::harness::dir::Dir;
use crate::harness::disk::SlowDisk;
use crate::harness::limits::needs_root;
use crate::programs::{let_others_in, script, Place};
use crate::servers::daemon::Daemon;
use crate::servers::leftovers::Leftovers;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

const FLUSH_MS: u32 = 8;
/// How much faster than real syncs everything has to be.
const GAIN_MIN: f64 = 3.0;

/// Seconds of one workload, settled or synced at its end.
struct Times {
    real: f64,
    eatmydata: f64,
    synclater: f64,
}

impl Times {
    fn show_gain(&self, name: &str) {
        let Times {
            real,
            eatmydata,
            synclater,
        } = self;
        println!(
            "{name}: real {real:.3} s, eatmydata {eatmydata:.3} s, synclater {synclater:.3} s"
        );
        assert!(
            real / synclater >= GAIN_MIN,
            "{name}: {real} s, {synclater} s"
        );
    }

    /// Runs a command three times, each in a new directory of the disk that is its last word.
    fn of(disk: &Path, command: impl Fn(&mut Command, &Path)) -> Times {
        let place = Place::new("slow");
        let timed = |name: &str, mut prefix: Command| {
            let dir = directory(&disk.join(name), "root");
            command(&mut prefix, &dir);
            let begin = Instant::now();
            run(&mut prefix).must_succeed();
            if name == "eatmydata" {
                run(clean("sync").arg("-f").arg(&dir)).must_succeed();
            }
            begin.elapsed().as_secs_f64()
        };
        let mut session = place.synclater();
        session.args(["run", "--quiet", "--until", "exit", "--"]);
        Times {
            real: timed("real", clean("env")),
            eatmydata: timed("eatmydata", clean("eatmydata")),
            synclater: timed("synclater", session),
        }
    }
}

#[test]
fn sqlite_gains_on_a_slow_disk() {
    if !needs_root("sqlite_gains_on_a_slow_disk") {
        return;
    }
    let disk = SlowDisk::new("ext4", 256, FLUSH_MS);
    let script = r#"
        { echo 'create table t (x integer primary key);'
          seq 67 | sed 's/.*/insert into t values (&);/'
        } | sqlite3 "$1/database""#;
    let times = Times::of(&disk.path(), |command, dir| {
        command.args(["bash", "-c", script, "script"]).arg(dir);
    });
    times.show_gain("sqlite");
}

#[test]
fn dpkg_gains_on_a_slow_disk() {
    if !needs_root("dpkg_gains_on_a_slow_disk") {
        return;
    }
    let disk = SlowDisk::new("ext4", 512, FLUSH_MS);
    let packages = Dir::new("packages");
    let tool = script("packages.sh");
    run(clean(&tool).arg("build").arg(packages.path())).must_succeed();
    let times = Times::of(&disk.path(), |command, dir| {
        command
            .arg(&tool)
            .arg("install")
            .arg(packages.path())
            .arg(dir.join("root"));
    });
    times.show_gain("dpkg");
}

/// Seconds for messages over one connection, and for settling or syncing them.
fn dovecot(disk: &Path, name: &str, messages: usize) -> f64 {
    let place = Place::new(name);
    let mail = directory(&disk.join(name), "2000");
    let port = free_port();
    let mut command = match name {
        "synclater" => place.synclater(),
        "eatmydata" => clean("eatmydata"),
        _ => clean("env"),
    };
    if name == "synclater" {
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
    if name == "eatmydata" {
        run(clean("sync").arg("-f").arg(&mail)).must_succeed();
    }
    let synced = begin.elapsed().as_secs_f64();
    let stopped = daemon.stop();
    assert_eq!(stopped.status.code(), Some(0), "{}", stopped.output);
    load + synced + stopped.report["settle_s"].as_f64().unwrap_or(0.0)
}

#[test]
fn dovecot_gains_on_a_slow_disk() {
    if !can_run_daemons("dovecot-slow") {
        return;
    }
    let disk = SlowDisk::new("ext4", 256, FLUSH_MS);
    let_others_in(&disk.path());
    let _leftovers = Leftovers::of(&disk.path());
    let times = Times {
        real: dovecot(&disk.path(), "real", 67),
        eatmydata: dovecot(&disk.path(), "eatmydata", 67),
        synclater: dovecot(&disk.path(), "synclater", 67),
    };
    times.show_gain("dovecot");
}
