//! What members write where /proc does not show it: it hides them, or is gone.

use super::*;
use crate::harness::command::LIMIT;
use crate::harness::disk::Disk;
use crate::sessions::stage::{as_root, AS_NOBODY};
use crate::wait::until;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// A member that may be executed and not read is hidden by such a /proc from its own user.
#[test]
fn what_a_member_writes_that_proc_hides_is_settled_at_the_end() {
    if !as_root("what_a_member_writes_that_proc_hides_is_settled_at_the_end") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 320), Stage::for_nobody("hidden"));
    run(clean("chmod").arg("777").arg(disk.path())).must_succeed();
    crate::programs::let_others_in(disk.path());
    let [ours, its] = [Path::new(SYNCLATER), &tool("scribe")].map(|program| stage.copy_of(program));
    std::fs::set_permissions(&its, std::fs::Permissions::from_mode(0o711)).expect("chmod");
    let mut command = stage.with_folders("unshare");
    let script = "mount -t proc -o hidepid=2 proc /proc && exec \"$@\"";
    command.args([
        "-m",
        "--propagation",
        "slave",
        "sh",
        "-c",
        script,
        "sh",
        "env",
    ]);
    command
        .args(AS_NOBODY)
        .arg(ours)
        .args(["run", "--quiet", "--"])
        .arg(its);
    let mut scribe = Running::start(&stage, command);
    scribe.be_ready();
    let warm = disk.path().join("warm");
    let put_off = until(LIMIT, || {
        assert_eq!(does(&mut scribe, &format!("save {}", warm.display())), 0);
        stage.entries().len() == 1
    });
    assert!(put_off, "it owes nothing");
    for _ in 0..50 {
        assert_eq!(does(&mut scribe, &format!("save {}", warm.display())), 0);
    }
    let open = format!("stream {}", disk.path().join("log").display());
    for line in [&open, "flush"] {
        assert_eq!(does(&mut scribe, line), 0, "{line}");
    }
    let mut umount = clean("nsenter");
    umount.args(["-m", "-t", &scribe.pid().to_string(), "umount", "-l"]);
    run(umount.arg(disk.path())).must_succeed();
    // Nobody tells when the supervisor has let go of it, and it is not to.
    let mut blocks = 1;
    until(Duration::from_secs(1), || {
        assert_eq!(does(&mut scribe, "flush"), 0);
        blocks += 1;
        false
    });
    let end = scribe.end();
    assert_eq!(end.status.code(), Some(0), "{end}");
    let log = std::fs::metadata(disk.cut().path().join("log"));
    assert_eq!(log.map_or(0, |m| m.len()), blocks * 4096);
}

/// What cannot be read any more tells of nothing that it is gone.
#[test]
fn what_stdio_writes_behind_an_umount_of_proc_is_settled_at_the_end() {
    if !as_root("what_stdio_writes_behind_an_umount_of_proc_is_settled_at_the_end") {
        return;
    }
    for cover in ["umount -l /proc", "mount -t tmpfs none /proc"] {
        let (disk, stage) = (Disk::new("ext4", 320), Stage::new("no-proc"));
        let mut command = stage.with_folders("unshare");
        command.args(["-m", "--propagation", "private", SYNCLATER]);
        command.args(["run", "--quiet", "--"]).arg(tool("scribe"));
        let mut scribe = Running::start(&stage, command);
        scribe.be_ready();
        // None of those that are known by what they asked for lives on.
        let file = disk.path().join("a");
        let dd = format!("dd if=/dev/zero of={} count=8 conv=fsync", file.display());
        let mut dd = || assert_eq!(does(&mut scribe, &format!("tell {dd} status=none")), 0);
        let has_entry = until(LIMIT, || {
            dd();
            stage.entries().len() == 1
        });
        assert!(has_entry, "nothing is put off");
        (0..9).for_each(|_| dd());
        let mut other = Other::new(&stage, &mut scribe);
        other.does(&format!("stream {}", disk.path().join("log").display()));
        other.does("flush");
        assert_eq!(does(&mut scribe, &format!("tell {cover}")), 0);
        // Nobody tells when the supervisor has let go of it, and it is not to.
        let until_then = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until_then {
            stage.counted();
        }
        (0..9).for_each(|_| other.does("flush"));
        drop(other);
        let end = scribe.end();
        assert_eq!(end.status.code(), Some(0), "{cover}: {end}");
        let log = std::fs::metadata(disk.cut().path().join("log"));
        assert_eq!(log.map_or(0, |m| m.len()), 10 * 4096, "{cover}");
    }
}

#[test]
fn what_settles_an_xfs_is_not_taken_for_somebody_who_writes_there() {
    if !as_root("what_settles_an_xfs_is_not_taken_for_somebody_who_writes_there") {
        return;
    }
    let (disk, stage) = (Disk::new("xfs", 320), Stage::new("own-file"));
    umount(disk.path());
    let script = "cd /; for round in 1 2 3 4 5 6 7 8 9 10 11 12; do mount -o loop \"$0\" \"$1\"; \
        dd if=/dev/zero of=\"$1/o\" bs=4k count=200 oflag=sync status=none; \
        dd if=/dev/zero of=\"$1/f\" bs=4k count=9 conv=fsync status=none; \
        umount \"$1\" || { echo \"busy in $round\"; umount -l \"$1\"; exit 1; }; done";
    let mut command = session(&stage, &["--until", "5ms"]);
    command.args(["sh", "-c", script]);
    let outcome = run(command.arg(disk.image()).arg(disk.path())).must_succeed();
    assert_eq!(outcome.stdout, "", "{outcome}");
}

#[test]
fn without_proc_the_command_runs_as_it_is_said() {
    if !as_root("without_proc_the_command_runs_as_it_is_said") {
        return;
    }
    let stage = Stage::new("never-proc");
    let mut command = stage.with_folders("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c"]);
    command.args(["umount -l /proc && exec \"$@\"", "sh", SYNCLATER]);
    command.args(["run", "--", "sh", "-c", "echo runs; exit 7"]);
    let outcome = run(&mut command);
    assert_eq!(outcome.status.code(), Some(7), "{outcome}");
    assert_eq!(outcome.stdout, "runs\n", "{outcome}");
    assert!(outcome.stderr.contains("/proc is not mounted"), "{outcome}");
}

/// Another scribe, a child of the first one.
struct Other {
    to: std::fs::File,
    said: PathBuf,
    heard: usize,
}

impl Other {
    fn new(stage: &Stage, scribe: &mut Running) -> Other {
        let [fifo, said, script] = ["fifo", "said", "script"].map(|name| stage.work().join(name));
        run(clean("mkfifo").arg(&fifo)).must_succeed();
        let text = format!(
            "exec {} <{} >{} &",
            tool("scribe").display(),
            fifo.display(),
            said.display()
        );
        std::fs::write(&script, text).expect("a script");
        assert_eq!(does(scribe, &format!("tell sh {}", script.display())), 0);
        let to = std::fs::OpenOptions::new().write(true).open(fifo);
        let to = to.expect("it reads");
        let mut other = Other { to, said, heard: 0 };
        other.hears("ready");
        other
    }

    fn does(&mut self, line: &str) {
        use std::io::Write;
        writeln!(self.to, "{line}").expect("it lives");
        let verb = line.split(' ').next();
        self.hears(&format!("{} 0", verb.expect("a verb")));
    }

    fn hears(&mut self, words: &str) {
        let mut said = String::new();
        let told = until(LIMIT, || {
            said = std::fs::read_to_string(&self.said).unwrap_or_default();
            said.matches('\n').count() > self.heard
        });
        assert!(
            told && said.lines().last() == Some(words),
            "{words}: {said}"
        );
        self.heard += 1;
    }
}
