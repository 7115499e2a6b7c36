//! Programs that gain rights keep them, whoever follows.

use super::*;
use std::os::unix::fs::PermissionsExt;

/// A program that is owned by root and gives its rights to everybody.
fn setuid(stage: &Stage, from: &Path) -> PathBuf {
    let into = stage.file("setuid");
    std::fs::create_dir_all(&into).expect("a folder");
    let to = into.join(from.file_name().expect("a name"));
    crate::harness::command::copy_program(from, &to);
    let mode = std::fs::Permissions::from_mode(0o4755);
    std::fs::set_permissions(&to, mode).expect("setuid");
    to
}

/// What setpriv(1) is told before a program of nobody's.
const AS_NOBODY: [&str; 4] = ["--reuid=65534", "--regid=65534", "--clear-groups", "--"];

fn nobody(stage: &Stage) -> Command {
    let mut command = stage.with_folders("setpriv");
    command.args(AS_NOBODY);
    command
}

#[test]
fn a_setuid_program_gains_its_rights_although_nobody_follows_as_root() {
    const NAME: &str = "a_setuid_program_gains_its_rights_although_nobody_follows_as_root";
    if !as_root(NAME) {
        return;
    }
    let stage = Stage::for_nobody("setuid");
    let id = setuid(&stage, Path::new("/usr/bin/id"));
    let alone = run(nobody(&stage).arg(&id).arg("-u")).must_succeed();
    if alone.stdout != "0\n" {
        return skip(NAME, "setuid has no effect in the folder of tests (nosuid)");
    }
    let by = |words: &[&str]| {
        let mut command = nobody(&stage);
        command
            .args([SYNCLATER, "run", "--follow", "--summary", "--"])
            .args(words);
        run(command.current_dir(id.parent().expect("above"))).must_succeed()
    };
    let path = id.display().to_string();
    let opened = "import os, sys; f = os.open(sys.argv[1], os.O_RDONLY | os.O_CLOEXEC); \
                  os.execve(f, ['id', '-u'], {})";
    for words in [
        &[path.as_str(), "-u"][..],
        &["./id", "-u"],
        &["env", "-i", "./id", "-u"],
        &["python3", "-c", opened, &path],
    ] {
        let outcome = by(words);
        assert_eq!(outcome.stdout, "0\n", "{outcome}");
        let told = outcome.stderr.replace("\n           ", " ");
        assert!(told.contains("escaped: id ("), "{outcome}");
        assert!(told.contains("it gains rights"), "{outcome}");
    }
}

#[test]
fn a_program_that_may_not_be_read_is_told_of() {
    if !as_root("a_program_that_may_not_be_read_is_told_of") {
        return;
    }
    let stage = Stage::for_nobody("unreadable");
    let id = setuid(&stage, Path::new("/usr/bin/id"));
    std::fs::set_permissions(&id, std::fs::Permissions::from_mode(0o4111)).expect("its mode");
    let mut command = nobody(&stage);
    command
        .args([SYNCLATER, "run", "--follow", "--summary", "--"])
        .arg(&id);
    let outcome = run(&mut command).must_succeed();
    let told = outcome.stderr.replace("\n           ", " ");
    assert!(
        told.contains("escaped: id (") && told.contains("it may not be read"),
        "{outcome}"
    );
}

#[test]
fn a_setuid_program_is_reached_by_root() {
    if !as_root("a_setuid_program_is_reached_by_root") {
        return;
    }
    for victim in ["hammer", "hammer_static", "hammer_32", "hammer_32_static"] {
        let stage = Stage::new("setuid-root");
        stage.open_to_others(0o755);
        let copy = setuid(&stage, &program(victim));
        let mut command = session(&stage, true);
        command.arg("setpriv").args(AS_NOBODY);
        command
            .arg(copy)
            .arg(stage.work())
            .args(["1", &requests().to_string()]);
        let outcome = run(&mut command);
        all_were_seen(&stage, &outcome, 1);
    }
}

#[test]
fn without_root_what_is_followed_is_not_said_to_have_escaped() {
    if !as_root("without_root_what_is_followed_is_not_said_to_have_escaped") {
        return;
    }
    let stage = Stage::for_nobody("followed");
    let mut command = nobody(&stage);
    command.args([SYNCLATER, "run", "--quiet", "--follow", "--"]);
    command.args(["env", "-i"]).arg(program("demand_static"));
    let mut victim = Running::start(&stage, {
        command.arg(stage.work());
        command
    });
    victim.be_ready();
    let shown = || {
        let outcome = run(nobody(&stage).args([SYNCLATER, "ps", "--json"])).must_succeed();
        let all: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
        all[0].clone()
    };
    let mut last = Value::Null;
    let reached = until(LIMIT, || {
        assert_eq!(victim.sync("file"), 0);
        last = shown();
        let rows = last["processes"].as_array().cloned().unwrap_or_default();
        let skips = |r: &Value| r["how"] != "launch" && r["skipped"].as_u64() > Some(0);
        rows.iter().any(skips)
    });
    assert!(reached, "{last:#}");
    assert_eq!(last["escaped"], json!([]), "{last:#}");
    victim.end().must_succeed();
}

#[test]
fn a_session_ends_with_its_command_also_where_that_is_another_users() {
    const NAME: &str = "a_session_ends_with_its_command_also_where_that_is_another_users";
    if !as_root(NAME) {
        return;
    }
    let stage = Stage::new("anothers");
    stage.open_to_others(0o777);
    let mut command = session(&stage, true);
    let victim = program("demand");
    command.arg("setpriv").args(AS_NOBODY);
    command.arg(&victim).arg(stage.work());
    let mut victim_runs = Running::start(&stage, command);
    victim_runs.be_ready();
    assert_eq!(victim_runs.sync("file"), 0);
    // Its program is asked for by a child of the supervisor, which is nobody's orphan.
    let is_named = || {
        let rows = stage.session()["processes"].as_array().cloned();
        let exe = |row: &Value| row["exe"] == json!(victim);
        rows.unwrap_or_default().iter().any(exe)
    };
    assert!(until(LIMIT, is_named), "{:#}", stage.session());
    victim_runs.end().must_succeed();
}
