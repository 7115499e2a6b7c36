//! A commit that fails for somebody else: behind it nothing is left to commit, and `syncfs` says 0.

use super::*;
use crate::sessions::stage::give_to_nobody;

/// What the session's program and its outsider met on a disk whose flush number `flush` fails, and
/// the session's exit status.
fn on_a_failing_disk(fs: &str, flush: u32, variable: &str) -> (bool, Option<i32>) {
    let stage = Stage::new("aborted");
    stage.open_to_others(0o755);
    let [program, script] = ["synclater", "aborted.py"].map(|name| stage.work().join(name));
    std::fs::copy(SYNCLATER, &program).expect("a copy");
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
                   \"$SYNCLATER\" run --quiet -- python3 -B \"$0\" \"$1\"; echo $? >\"$2\"; \
                   [ -z \"$READ_ONLY_FIRST\" ] || umount second";
    let mut command = stage.synclater(&["crash", "--no-rerun", "--json", "--fs", fs]);
    command.args(["--budget", "2", "--fail-flush", &flush.to_string()]);
    command.args(["--check", "true", "--", "env"]);
    command.arg(format!("SYNCLATER={}", program.display()));
    command.args(variable.split(' '));
    command.args(["sh", "-c", session]).arg(script);
    let outcome = run(command.arg(&out).arg(&status).arg(&nobodys));
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let (met, status) = (read(&out), read(&status).trim().parse().ok());
    eprintln!("{fs}, flush {flush}: {met} status {status:?}\n{outcome}");
    (met.trim() == "heard 20", status)
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
        // Which flush it is depends on how many requests were real.
        let met = [3, 4].map(|n| on_a_failing_disk(fs, n, variable));
        let heard: Vec<_> = met.iter().filter(|(heard, _)| *heard).collect();
        assert!(
            !heard.is_empty(),
            "{fs}, {variable}: no flush failed for the other: {met:?}"
        );
        let told = |(_, status): &&(bool, Option<i32>)| *status == Some(125);
        assert!(heard.iter().all(told), "{fs}, {variable}: {met:?}");
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
    std::fs::copy(SYNCLATER, &program).expect("a copy");
    let nobodys = stage.work().join("nobody");
    std::fs::create_dir(&nobodys).expect("a folder");
    give_to_nobody(&nobodys);
    let status = stage.file("status");
    let script = "unset LD_PRELOAD SYNCLATER_PAGE; chmod 1777 .; for n in 1 2 3 4 5 6; do \
                  echo $n >file-$n; sync -f . || break; done; \
                  export SYNCLATER_RUN_DIR=\"$1/run\" SYNCLATER_STATE_DIR=\"$1/state\"; \
                  setpriv --reuid=65534 --clear-groups \"$0\" settle .; echo $n $? >\"$2\"";
    let mut command = stage.synclater(&["crash", "--no-rerun", "--json", "--fs", "ext4"]);
    command.args(["--budget", "2", "--fail-flush", "4", "--check", "true"]);
    command.args(["--", "sh", "-c", script]);
    let outcome = run(command.arg(&program).arg(&nobodys).arg(&status));
    let told = std::fs::read_to_string(&status).unwrap_or_default();
    let (n, status) = told.trim().split_once(' ').expect("two numbers");
    assert_ne!(n, "6", "no flush failed: {outcome}");
    assert_eq!(status, "125", "{outcome}");
}
