//! A commit that fails for somebody else: behind it nothing is left to commit, and `syncfs` says 0.

use super::*;
use crate::harness::command::copy_program;
use crate::sessions::stage::{as_root, give_to_nobody, AS_NOBODY};

/// On a disk whose flush number `flush` fails: whether that was a commit for which an outsider
/// waited, behind the session's requests, and the session's exit status.
fn on_a_failing_disk(fs: &str, flush: u32, variable: &str) -> (bool, Option<i32>) {
    let stage = Stage::new("aborted");
    stage.open_to_others(0o755);
    let [program, script] = ["synclater", "aborted.py"].map(|name| stage.work().join(name));
    copy_program(SYNCLATER, &program);
    let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/redteam/aborted.py");
    std::fs::copy(original, &script).expect("a copy");
    let nobodys = stage.work().join("nobody");
    std::fs::create_dir(&nobodys).expect("a folder");
    give_to_nobody(&nobodys);
    let (out, status) = (nobodys.join("out"), stage.file("status"));
    // Not within the laboratory's own session, whose dial is at `now`.
    let session = "unset LD_PRELOAD SYNCLATER_PAGE; \
                   if [ -n \"$NOBODY\" ]; then mkdir mine; chown \"$NOBODY\" mine; \
                   chmod \"${MODE:-755}\" .; cd mine; \
                   export SYNCLATER_RUN_DIR=\"$3/run\" SYNCLATER_STATE_DIR=\"$3/state\"; fi; \
                   ${NOBODY:+setpriv --reuid=$NOBODY --clear-groups} \
                   \"$SYNCLATER\" run --quiet -- python3 -B \"$0\" \"$1\"; s=$?; \
                   touch ${READ_ONLY_FIRST:+second/}probe || echo aborted >\"$4\"; \
                   echo $s >\"$2\"; \
                   [ -z \"$READ_ONLY_FIRST\" ] || umount second";
    let mut command = stage.synclater(&["crash", "--no-rerun", "--json", "--fs", fs]);
    command.args(["--budget", "2", "--fail-flush", &flush.to_string()]);
    command.args(["--check", "true", "--", "env"]);
    command.arg(format!("SYNCLATER={}", program.display()));
    command.args(variable.split(' '));
    command.args(["sh", "-c", session]).arg(script);
    let aborted = stage.file("aborted");
    let outcome = run(command.arg(&out).arg(&status).arg(&nobodys).arg(&aborted));
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let (met, status) = (read(&out), read(&status).trim().parse().ok());
    eprintln!("{fs}, flush {flush}: {met} status {status:?}\n{outcome}");
    (met.trim() == "heard 20" && aborted.exists(), status)
}

#[test]
fn a_commit_that_failed_for_somebody_else_fails_the_run() {
    if !crate::crash::can_cut("a_commit_that_failed_for_somebody_else_fails_the_run") {
        return;
    }
    let ways = [
        ("ext4", "NONE=1"),
        ("btrfs", "NONE=1"),
        ("ext4", "APPEND_ONLY=1"),
        ("ext4", "READ_ONLY_FIRST=1"),
        ("ext4", "NOBODY=65534"),
        ("ext4", "NOBODY=65534 MODE=1777"),
    ];
    for (fs, variable) in ways {
        // Which flush it is depends on how many requests were real, which may differ from one
        // number to the next: a search beside others has met it at none of them.
        let numbers = (0..3).flat_map(|_| 3..20);
        let mut met = numbers.map(|n| on_a_failing_disk(fs, n, variable));
        let heard = met.find(|(is_heard, _)| *is_heard);
        let (_, status) = heard.expect("a commit failed for the other");
        assert_eq!(status, Some(125), "{fs}, {variable}");
    }
}

/// By a user who may write to the folder that is mounted, and may change nothing about it.
#[test]
fn settle_asks_in_a_sticky_folder_too_what_somebody_else_has_lost() {
    if !crate::crash::can_cut("settle_asks_in_a_sticky_folder_too_what_somebody_else_has_lost") {
        return;
    }
    let stage = Stage::new("sticky");
    stage.open_to_others(0o755);
    let program = stage.work().join("synclater");
    copy_program(SYNCLATER, &program);
    let nobodys = stage.work().join("nobody");
    std::fs::create_dir(&nobodys).expect("a folder");
    give_to_nobody(&nobodys);
    let status = stage.file("status");
    let script = "unset LD_PRELOAD SYNCLATER_PAGE; chmod 1777 .; for n in 1 2 3; do \
                  echo $n >file-$n; sync -f . || break; done; \
                  export SYNCLATER_RUN_DIR=\"$1/run\" SYNCLATER_STATE_DIR=\"$1/state\"; \
                  setpriv --reuid=65534 --clear-groups \"$0\" settle .; s=$?; \
                  touch probe || echo $s >\"$2\"";
    let when_a_commit_failed = |flush: u32| {
        let mut command = stage.synclater(&["crash", "--no-rerun", "--json", "--fs", "ext4"]);
        command.args(["--budget", "2", "--fail-flush", &flush.to_string()]);
        command.args(["--check", "true", "--", "sh", "-c", script]);
        let outcome = run(command.arg(&program).arg(&nobodys).arg(&status));
        let told = std::fs::read_to_string(&status).ok()?;
        Some((told, outcome))
    };
    let told = (1..10).find_map(when_a_commit_failed);
    let (told, outcome) = told.expect("a commit failed");
    assert_eq!(told, "125\n", "{outcome}");
}

/// Asks for the durability of what nobody has changed, and closes it at once, until that is put
/// off; then lists what the session has open.
const ASKS_QUICKLY: &str = "\
import glob, os, sys, time
end = time.monotonic() + 30
def is_entered():
    names = glob.glob(os.environ['SYNCLATER_STATE_DIR'] + '/*.json')
    return any(sys.argv[1] in open(name).read() for name in names)
while not is_entered() and time.monotonic() < end:
    fd = os.open(sys.argv[2], os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
all = f'/proc/{os.getppid()}/fd/'
for fd in os.listdir(all):
    try:
        print(os.readlink(all + fd))
    except FileNotFoundError:
        pass
";

#[test]
fn nothing_of_an_ext4_is_put_off_before_a_user_can_ask_of_its_journal() {
    let name = "nothing_of_an_ext4_is_put_off_before_a_user_can_ask_of_its_journal";
    if !as_root(name) {
        return;
    }
    // A user's own folder; one of root's that takes a file of his, and no attribute, where the
    // folder that is mounted does not open for him; his own by a second mount, which is listed
    // behind one that takes nothing.
    for (mounted, mode, owner, bound) in [
        (0o755, 0o755, 65534, false),
        (0o1711, 0o1777, 0, false),
        (0o755, 0o755, 65534, true),
    ] {
        for _ in 0..5 {
            let (disk, stage) = (Disk::new("ext4", 64), Stage::for_nobody("asks"));
            crate::programs::let_others_in(disk.path().parent().expect("above"));
            let program = stage.work().join("synclater");
            copy_program(SYNCLATER, &program);
            let dir = disk.path().join("dir");
            let clean_file = dir.join("clean");
            std::fs::create_dir(&dir).expect("a folder");
            std::fs::write(&clean_file, "").expect("a file");
            std::os::unix::fs::chown(&dir, Some(owner), None).expect("chown");
            let set = |path: &Path, mode| {
                let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
                std::fs::set_permissions(path, mode).expect("chmod");
            };
            set(&dir, mode);
            set(disk.path(), mounted);
            run(clean("sync").arg("-f").arg(&clean_file)).must_succeed();
            let other = stage.work().join("other");
            std::fs::create_dir(&other).expect("a mount point");
            let dir = if bound { other } else { dir };
            if bound {
                mount(
                    &["--bind"],
                    &disk.path().join("dir").display().to_string(),
                    &dir,
                );
            }
            let clean_file = dir.join("clean");
            let mut command = stage.with_folders(AS_NOBODY[0]);
            command.args(&AS_NOBODY[1..]).arg(&program);
            command.args(["run", "--quiet", "--", "python3", "-c", ASKS_QUICKLY]);
            let held = run(command.arg(disk.path()).arg(&clean_file));
            if bound {
                umount(&dir);
            }
            let held = held.must_succeed();
            let is_ours = |link: &str| {
                let path = Path::new(link).strip_prefix(&dir);
                path.is_ok() && link.ends_with(" (deleted)")
            };
            assert!(held.stdout.lines().any(is_ours), "{held}");
        }
    }
}
