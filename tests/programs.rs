//! Unmodified programs: what they ask of the kernel by themselves and at the dial `exit`, and that
//! they do the same work.
//!
//! Each runs three times in fresh directories: alone under strace, in a session under strace, and
//! in a session as it is, with a report. In the traced session a victim first makes requests until
//! the ledger entry is on disk, and marks the place; behind it nothing may reach the kernel.

use crate::harness::backend::{Backend, Scene};
use crate::harness::command::{clean, run, Outcome};
use crate::harness::dir::Dir;
use crate::harness::limits::{is_root, skip};
use crate::harness::trace::Trace;
use crate::harness::victims::{directory, victim, Class};
use crate::servers::leftovers::Leftovers;
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The only reason for which a request may be kept real here.
const NOT_YET: &str = "the session was still starting on that file system";

/// In front of each script: $1 is the victim that warms the session up, $2 the directory to work
/// in.
const PROLOGUE: &str = r#"
    if [ -n "${WARM-}" ]; then
        mkdir "$2/warm" && "$1" "$2/warm" >/dev/null && rm -r "$2/warm" || exit 98
        unset WARM
    fi
    # In a session with a report, only until the entry is there; a few more until it is in force.
    if [ -n "${LEDGER-}" ]; then
        echo bytes >"$2/../warm"; after=40
        while [ "$after" -gt 0 ]; do
            sync "$2/../warm"; [ "$SECONDS" -lt 60 ] || exit 97
            [ -z "$(ls "$LEDGER")" ] || after=$((after - 1))
        done
        unset LEDGER
    fi
    shift; cd "$1"; set -eu
"#;

/// What a script did, with and without synclater.
struct Runs {
    name: String,
    alone: Trace,
    traced: Trace,
    whole: Outcome,
    report: Value,
}

impl Runs {
    /// Runs a shell script with its directory as $1 and `arguments` behind it.
    fn of(name: &str, script: &str, arguments: &[&Path]) -> Runs {
        let trace = |backend| {
            let place = Place::new(name);
            let words = words(script, &place.scene.work(), arguments);
            let words: Vec<&Path> = words.iter().map(PathBuf::as_path).collect();
            Trace::of(&place.scene, backend, &words)
        };
        let (alone, traced) = (trace(Backend::None), trace(Backend::Run("exit")));
        let (whole, report) = reported(name, Start::Warm, script, arguments);
        Runs {
            name: name.to_owned(),
            alone,
            traced,
            whole,
            report,
        }
    }

    /// The same output, the same errors, exit status 0; nothing from the loader on stderr.
    fn do_the_same_work(&self) {
        let told = |o: &Outcome| (o.stdout.clone(), o.stderr.replace("WARM\n", ""));
        let expected = &self.alone.outcome;
        for got in [expected, &self.traced.outcome, &self.whole] {
            assert_eq!(got.status.code(), Some(0), "{}: {got}", self.name);
            assert_eq!(told(got), told(expected), "{}: {got}", self.name);
            assert!(!got.stderr.contains("ld.so"), "{}: {got}", self.name);
        }
    }

    /// `asked` requests or more without synclater, none behind the ledger entry with it.
    fn sync_nothing(&self, asked: usize) {
        let count = |t: &Trace| -> Vec<(String, usize)> {
            let io = t.io().into_iter();
            io.map(|(name, calls)| (name, calls.len())).collect()
        };
        let (before, after) = (count(&self.alone), count(&self.traced));
        println!("{}: {before:?} before, {after:?} after", self.name);
        let total: usize = before.iter().map(|(_, n)| n).sum();
        assert!(total >= asked, "{}: only {before:?}", self.name);
        let reached = self.traced.io();
        assert!(
            reached.is_empty(),
            "{}: these reached the kernel: {reached:?}",
            self.name
        );
    }

    /// What the session says of itself: every request is counted, none was kept without reason.
    fn report_no_escape(&self, asked: usize) {
        let (report, name) = (&self.report, &self.name);
        let number = |key: &str| {
            report[key]
                .as_u64()
                .unwrap_or_else(|| panic!("{key}: {report}"))
        };
        let kept = report["kept_real"].as_object();
        let reasons: Vec<&String> = kept.iter().flat_map(|k| k.keys()).collect();
        assert!(reasons.iter().all(|r| *r == NOT_YET), "{name}: {report:#}");
        let kept: u64 = kept
            .iter()
            .flat_map(|k| k.values())
            .filter_map(Value::as_u64)
            .sum();
        assert_eq!(number("real"), kept, "{name}: {report:#}");
        assert!(number("requests") >= asked as u64, "{name}: {report:#}");
        assert!(number("skipped") > 0, "{name}: {report:#}");
        assert_eq!(number("settled"), number("skipped"), "{name}: {report:#}");
        assert_eq!(
            report["escaped"],
            serde_json::json!([]),
            "{name}: {report:#}"
        );
        assert_eq!(report["exit_status"], 0, "{name}: {report:#}");
    }

    fn are_as_promised(&self, asked: usize) {
        self.do_the_same_work();
        self.sync_nothing(asked);
        self.report_no_escape(asked);
    }
}

/// A scene that other users can enter, since servers give up root.
pub struct Place {
    // In this order: what a failed test left running ends before its directory goes.
    pub leftovers: Leftovers,
    pub scene: Scene,
}

impl Place {
    pub fn new(name: &str) -> Place {
        let scene = Scene::new(name);
        let work = scene.work();
        let_others_in(&work);
        let leftovers = Leftovers::of(work.parent().expect("the scene's directory"));
        Place { leftovers, scene }
    }

    /// `synclater` with this place's sessions and ledger, without a verb.
    pub fn synclater(&self) -> Command {
        let mut command = clean(env!("CARGO_BIN_EXE_synclater"));
        command.env("SYNCLATER_RUN_DIR", self.scene.file("run"));
        command.env("SYNCLATER_STATE_DIR", self.scene.state());
        command
    }
}

/// Lets other users pass through a directory, and through those above it that belong to this run.
pub fn let_others_in(dir: &Path) {
    let top = std::env::temp_dir();
    let ours = |p: &&Path| p.starts_with(&top) || p.starts_with("/var/tmp");
    for above in dir.ancestors().filter(ours) {
        let mode = above.metadata().expect("metadata").permissions().mode();
        if mode & 0o011 != 0o011 {
            let wider = Permissions::from_mode(mode | 0o011);
            std::fs::set_permissions(above, wider).expect("chmod");
        }
    }
}

fn words(script: &str, work: &Path, arguments: &[&Path]) -> Vec<PathBuf> {
    let warm = victim("fsync", Class::Native);
    let mut words: Vec<PathBuf> = vec!["bash".into(), "-c".into()];
    words.push(format!("{PROLOGUE}{script}").into());
    words.push("script".into());
    words.extend([warm, work.to_owned()]);
    words.extend(arguments.iter().map(|&a| a.to_owned()));
    words
}

/// Whether a session's ledger entry is on disk when the script begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    Cold,
    Warm,
}

/// Runs a script in a session as it is.
fn reported(name: &str, start: Start, script: &str, arguments: &[&Path]) -> (Outcome, Value) {
    let place = Place::new(name);
    let file = place.scene.file("report.json");
    let mut command = place.synclater();
    if start == Start::Warm {
        command.env("LEDGER", place.scene.state());
    }
    command
        .args(["run", "--quiet", "-u", "exit", "--json"])
        .arg(&file)
        .arg("--");
    let outcome = run(command.args(words(script, &place.scene.work(), arguments)));
    let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{e}: {outcome}"));
    let report = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    (outcome, report)
}

/// A script in `tests/servers`.
pub fn script(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("tests/servers").join(name)
}

/// Runs a script of `tests/servers` in its directory.
fn server(name: &str, asked: usize) {
    if !is_root() {
        skip(name, "changing to the server's user needs root");
        return;
    }
    let script = script(&format!("{name}.sh"));
    Runs::of(name, r#""$2" "$1""#, &[&script]).are_as_promised(asked);
}

#[test]
fn sqlite_with_a_rollback_journal_syncs_later() {
    let script = r#"
        { echo 'create table t (x integer primary key, y text);'
          seq 131 | sed "s/.*/insert into t values (&, 'row &');/"
          echo 'select count(*), sum(x), sum(length(y)) from t; pragma integrity_check;'
        } | sqlite3 database"#;
    Runs::of("sqlite", script, &[]).are_as_promised(3 * 131);
}

#[test]
fn sqlite_with_a_write_ahead_log_syncs_later() {
    let script = r#"
        { echo 'pragma journal_mode = wal; pragma synchronous = full;'
          echo 'create table t (x integer primary key, y text);'
          seq 131 | sed "s/.*/insert into t values (&, 'row &');/"
          echo 'select count(*), sum(x), sum(length(y)) from t; pragma integrity_check;'
        } | sqlite3 database"#;
    Runs::of("sqlite-wal", script, &[]).are_as_promised(131);
}

#[test]
fn python_opens_with_o_sync_below_a_directory_and_writes_with_rwf_dsync() {
    let script = r#"/usr/bin/python3 - <<'END'
import fcntl, os
here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
flagged = os.open("vector", os.O_RDWR | os.O_CREAT, dir_fd=here)
print(sum(os.pwritev(flagged, [b"one", b"two"], 6 * i, os.RWF_DSYNC) for i in range(131)))
synced = os.open("synced", os.O_WRONLY | os.O_CREAT | os.O_SYNC, dir_fd=here)
print(sum(os.write(synced, b"bytes") for i in range(131)))
print(fcntl.fcntl(synced, fcntl.F_GETFL) & os.O_SYNC == os.O_SYNC)
os.fsync(here)
print(os.stat("vector").st_size, os.stat("synced").st_size)
END"#;
    Runs::of("python", script, &[]).are_as_promised(2 * 131 + 1);
}

#[test]
fn dd_with_oflag_sync_syncs_later() {
    let script = "dd if=/dev/zero of=a bs=4k count=1009 oflag=sync status=none; stat -c %s a";
    Runs::of("dd-sync", script, &[]).are_as_promised(1009);
}

#[test]
fn what_dd_writes_before_the_ledger_entry_is_on_disk_is_counted() {
    let script = "dd if=/dev/zero of=a bs=4k count=1009 oflag=sync status=none; stat -c %s a";
    let (outcome, report) = reported("dd-cold", Start::Cold, script, &[]);
    assert_eq!(outcome.must_succeed().stdout, "4132864\n");
    let number = |key: &str| {
        report[key]
            .as_u64()
            .unwrap_or_else(|| panic!("{key}: {report}"))
    };
    let kept = report["kept_real"].as_object();
    let kept: u64 = kept
        .iter()
        .flat_map(|k| k.values())
        .filter_map(Value::as_u64)
        .sum();
    assert!(number("requests") >= 1009, "{report:#}");
    assert_eq!(number("skipped") + kept, number("requests"), "{report:#}");
}

#[test]
fn dd_with_oflag_dsync_and_a_last_fsync_syncs_later() {
    let script = "
        dd if=/dev/zero of=a bs=4k count=1009 oflag=dsync conv=fsync status=none; stat -c %s a";
    Runs::of("dd-dsync", script, &[]).are_as_promised(1009 + 1);
}

#[test]
fn tar_extracts_and_sync_is_answered() {
    let script = r#"
        mkdir tree out; for i in $(seq 31); do seq "$i" >"tree/$i"; ln -s "$i" "tree/link$i"; done
        tar -cf a.tar tree; tar -C out -xf a.tar; diff -r tree out/tree
        sync out/tree/?; sync -d out/tree/??; sync out/tree; sync -f out
        cat out/tree/* | md5sum; tar -C out -xf a.tar --overwrite"#;
    Runs::of("tar", script, &[]).are_as_promised(31 + 2);
}

#[test]
fn dpkg_unpacks_into_a_root_of_its_own_and_syncs_later() {
    if !is_root() {
        skip("dpkg", "chroot needs root");
        return;
    }
    let packages = Dir::new("packages");
    let tool = script("packages.sh");
    run(clean(&tool).arg("build").arg(packages.path())).must_succeed();
    let install = r#"
        "$2" install "$3" "$PWD/root"
        (cd root && find . ! -path './var/*' -type f -print0 | sort -z | xargs -0 md5sum | md5sum)
        grep -c '^Status: install ok installed' root/var/lib/dpkg/status"#;
    let runs = Runs::of("dpkg", install, &[&tool, packages.path()]);
    runs.are_as_promised(400);
    assert!(
        runs.whole.stderr.contains("dash: configure in /"),
        "{}",
        runs.whole
    );
}

#[test]
fn postgresql_makes_a_cluster_and_commits_later() {
    server("postgresql", 134);
}

#[test]
fn mariadb_makes_its_tables_and_commits_later() {
    server("mariadb", 131);
}

#[test]
fn redis_that_syncs_at_every_set_syncs_later() {
    let script = script("redis.sh");
    Runs::of("redis", r#""$2" "$1""#, &[&script]).are_as_promised(229);
}

#[test]
fn a_32_bit_program_of_a_64_bit_shell_syncs_later() {
    let program = victim("fork_tree", Class::Small);
    Runs::of("small", r#""$2" "$1""#, &[&program]).are_as_promised(1);
}

#[test]
fn a_musl_program_of_a_glibc_shell_syncs_later() {
    let program = victim("fork_tree", Class::Musl);
    Runs::of("musl", r#""$2" "$1""#, &[&program]).are_as_promised(1);
}

/// A victim linked in another way.
fn built(dir: &Dir, flags: &[&str]) -> PathBuf {
    let program = dir.join("program");
    let mut command = clean("gcc");
    command.args(["-std=gnu11", "-g", "-D_GNU_SOURCE", "-pthread", "-w", "-o"]);
    command
        .arg(&program)
        .arg(directory().join("threads.c"))
        .args(flags);
    run(&mut command).must_succeed();
    program
}

#[test]
fn a_program_with_jemalloc_syncs_later() {
    let dir = Dir::new("jemalloc");
    let program = built(&dir, &["-Wl,--no-as-needed", "-ljemalloc"]);
    Runs::of("jemalloc", r#""$2" "$1""#, &[&program]).are_as_promised(1);
}

#[test]
fn a_program_with_address_sanitizer_syncs_later() {
    let dir = Dir::new("asan");
    let program = built(&dir, &["-fsanitize=address"]);
    // Its search for leaks wants to trace the program, which strace does already.
    let script = r#"
        export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"; "$2" "$1""#;
    Runs::of("asan", script, &[&program]).are_as_promised(1);
}
