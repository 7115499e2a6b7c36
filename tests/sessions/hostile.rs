//! Members of one session that are several users: what one of them can do to another, who means
//! harm. A member of the session's own user can do anything to it.

use super::stage::{as_root, Running, Stage, NOBODY};
use crate::harness::command::{clean, run, LIMIT};
use crate::wait::until;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Far more than 300 ms and a settle take, and far less than never.
const SOON: Duration = Duration::from_secs(10);

/// A session with `options` of a member that others of its stage are users beside.
fn member(stage: &Stage, options: &[&str]) -> Running {
    stage.open_to_others(0o777);
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sessions");
    // Where any user can read them.
    for name in ["member.py", "besieger.py"] {
        std::fs::copy(scripts.join(name), stage.file(name)).expect("a copy");
    }
    let run_dir: PathBuf = stage.run_dir();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(run_dir, mode).expect("chmod");
    let mut command = stage.synclater(&["run", "--quiet"]);
    command.args(options).args(["--", "/usr/bin/python3"]);
    command.arg(stage.file("member.py")).arg(stage.work());
    Running::start(stage, command)
}

/// Has a process of `user` do something; what it says.
fn does(member: &mut Running, user: &str, what: &str) -> String {
    member.be_ready();
    member.tell(&format!("as {user} {what}"));
    member.hear()
}

#[test]
fn a_member_of_another_user_cannot_cut_the_slots_short() {
    if !as_root("a_member_of_another_user_cannot_cut_the_slots_short") {
        return;
    }
    let stage = Stage::new("cut");
    let mut root = member(&stage, &["-u", "1h"]);
    stage.warm(&mut root);
    assert_eq!(does(&mut root, NOBODY, "cut"), "EPERM");
    assert!(stage.is_later(&mut root));
    root.end().must_succeed();
}

#[test]
fn a_debt_that_is_noted_in_the_future_falls_due_at_once() {
    if !as_root("a_debt_that_is_noted_in_the_future_falls_due_at_once") {
        return;
    }
    for user in [NOBODY, "0"] {
        let stage = Stage::new("future");
        let json = stage.json();
        let mut root = member(&stage, &["-u", "300ms", &json[0], &json[1]]);
        stage.warm(&mut root);
        assert!(until(LIMIT, || stage.session()["debt"] == 0));
        assert_eq!(does(&mut root, user, "future"), "done");
        assert_eq!(root.sync("file"), 0);
        let paid = until(SOON, || stage.session()["debt"] == 0);
        assert!(paid, "by {user}: {:#}", stage.session());
        root.end().must_succeed();
        let report = stage.report();
        assert_eq!(
            report["settled"], report["skipped"],
            "by {user}: {report:#}"
        );
    }
}

#[test]
fn a_member_of_another_user_that_owes_without_a_pause_keeps_no_session_from_its_end() {
    if !as_root("a_member_of_another_user_that_owes_without_a_pause_keeps_no_session_from_its_end")
    {
        return;
    }
    let stage = Stage::new("owes");
    let mut root = member(&stage, &["-u", "50ms"]);
    stage.warm(&mut root);
    assert_eq!(does(&mut root, NOBODY, "owe"), "done");
    let began = Instant::now();
    let end = root.end();
    let took = began.elapsed();
    std::fs::write(stage.work().join("stop"), "").expect("they end");
    end.must_succeed();
    assert!(took < SOON, "{took:?}");
}

#[test]
fn a_member_of_another_user_has_nothing_let_go_of() {
    if !as_root("a_member_of_another_user_has_nothing_let_go_of") {
        return;
    }
    let stage = Stage::new("claimed");
    let mut root = member(&stage, &["-u", "1h"]);
    stage.warm(&mut root);
    let what = format!("unmount {}", stage.work().display());
    assert_eq!(does(&mut root, NOBODY, &what), "done");
    assert!(stage.is_later(&mut root), "{:#}", stage.session());
    root.end().must_succeed();
}

#[test]
fn a_member_of_another_user_cannot_clear_what_is_owed() {
    if !as_root("a_member_of_another_user_cannot_clear_what_is_owed") {
        return;
    }
    let stage = Stage::new("cleared");
    let mut root = member(&stage, &["-u", "1h"]);
    stage.warm(&mut root);
    assert!(
        stage.session()["oldest_s"].is_f64(),
        "{:#}",
        stage.session()
    );
    assert_eq!(does(&mut root, NOBODY, "clear"), "done");
    assert!(
        stage.session()["oldest_s"].is_f64(),
        "{:#}",
        stage.session()
    );
    root.end().must_succeed();
}

#[test]
fn a_member_of_another_user_reads_no_names_and_is_recorded_all_the_same() {
    if !as_root("a_member_of_another_user_reads_no_names_and_is_recorded_all_the_same") {
        return;
    }
    let stage = Stage::new("names");
    let file = stage.file("recording");
    let mut root = member(&stage, &["-u", "now", "--record", &file.to_string_lossy()]);
    let private = stage.work().join("private");
    std::fs::create_dir(&private).expect("a folder");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&private, mode).expect("chmod");
    assert_eq!(root.sync("private/secret-23"), 0);
    // What the session's own user may read is there.
    assert_eq!(does(&mut root, "0", "find secret-23"), "found");
    assert_eq!(does(&mut root, NOBODY, "sync of-nobody-23"), "sync 0");
    assert_eq!(does(&mut root, "65533", "sync of-another-23"), "sync 0");
    assert_eq!(does(&mut root, NOBODY, "find secret-23"), "nothing");
    assert_eq!(does(&mut root, "65533", "find of-nobody-23"), "nothing");
    root.end().must_succeed();
    let table = crate::recording::read(&file);
    assert_eq!(table.rows.len(), 3, "{:?}", table.files);
    assert!(table.lost.is_empty(), "{:?}", table.lost);
    for name in ["secret-23", "of-nobody-23", "of-another-23"] {
        let is_there = table.files.iter().any(|f| f.path.ends_with(name));
        assert!(is_there, "{name}: {:?}", table.files);
    }
}

#[test]
fn a_member_of_another_user_does_not_speak_for_a_program_in_a_recording() {
    if !as_root("a_member_of_another_user_does_not_speak_for_a_program_in_a_recording") {
        return;
    }
    let stage = Stage::new("innocent");
    let file = stage.file("recording");
    let mut root = member(&stage, &["-u", "now", "--record", &file.to_string_lossy()]);
    assert_eq!(root.sync("before"), 0);
    let pid = super::death::named_child(root.pid(), "python");
    let pid = pid.as_raw_nonzero();
    let what = format!("impersonate {pid}");
    assert_eq!(does(&mut root, NOBODY, &what), "done");
    assert_eq!(root.sync("behind"), 0);
    root.end().must_succeed();
    let table = crate::recording::read(&file);
    assert_eq!(table.rows.len(), 2, "{:?}", table.files);
    for process in &table.rows.process {
        let its = &table.processes[*process as usize];
        assert!(its.exe.contains("python"), "{its:?}");
    }
    // Nor does he read it.
    let mode = std::os::unix::fs::PermissionsExt::mode;
    let about = std::fs::metadata(&file).expect("the recording");
    assert_eq!(mode(&about.permissions()) & 0o777, 0o600);
}

#[test]
fn users_for_whom_there_is_no_room_stay_real_and_are_named() {
    if !as_root("users_for_whom_there_is_no_room_stay_real_and_are_named") {
        return;
    }
    let stage = Stage::new("crowd");
    let json = stage.json();
    let mut root = member(&stage, &["-u", "1h", &json[0], &json[1]]);
    stage.warm(&mut root);
    let (before, later) = stage.counted();
    // 16 besides the session's own; what one has he keeps.
    let users: Vec<String> = (0..19).map(|k| (61_000 + k).to_string()).collect();
    for user in users.iter().chain(&users[..4]) {
        let done = does(&mut root, user, &format!("sync of-{user}"));
        assert_eq!(done, "sync 0", "{user}");
    }
    root.end().must_succeed();
    let report = stage.report();
    assert_eq!(report["requests"], before + 16 + 4, "{report:#}");
    // Also the first ones: where they lie is told before they can ask.
    assert_eq!(report["skipped"], later + 16 + 4, "{report:#}");
    assert_eq!(report["settled"], report["skipped"], "{report:#}");
    if report["escapes_unknown"].is_null() {
        let escaped = report["escaped"].as_array().expect("rows");
        let requests = escaped.iter().filter_map(|e| e["requests"].as_u64());
        assert_eq!(requests.sum::<u64>(), 3, "{report:#}");
    }
}

#[test]
fn a_descriptor_that_lost_o_sync_is_one_to_another_user_too() {
    if !as_root("a_descriptor_that_lost_o_sync_is_one_to_another_user_too") {
        return;
    }
    let stage = Stage::new("given");
    let json = stage.json();
    let mut root = member(&stage, &["-u", "1h", &json[0], &json[1]]);
    stage.warm(&mut root);
    let (before, _) = stage.counted();
    root.tell(&format!("give {NOBODY} file-of-root"));
    assert_eq!(root.hear(), "done");
    root.end().must_succeed();
    let report = stage.report();
    assert_eq!(report["requests"], before + 1, "{report:#}");
    assert_eq!(report["settled"], report["skipped"], "{report:#}");
}

#[test]
fn counts_of_any_size_end_nobody() {
    if !as_root("counts_of_any_size_end_nobody") {
        return;
    }
    let stage = Stage::new("boast");
    let json = stage.json();
    let mut root = member(&stage, &["-u", "1h", &json[0], &json[1]]);
    stage.warm(&mut root);
    for user in [NOBODY, "0"] {
        assert_eq!(does(&mut root, user, "boast"), "done");
        assert!(stage.session()["debt"].as_u64() > Some(0));
        assert_eq!(root.sync("file"), 0);
    }
    root.end().must_succeed();
    assert_eq!(stage.report()["exit_status"], 0, "{:#}", stage.report());
}

/// A session of root in which `program` makes 23 requests that the library does not see, and NOBODY
/// says in a slot of his that they were made by it: what the report says of the program.
fn claimed(program: &str, word: &str, is_named: bool, how: &str) -> Option<u64> {
    let stage = Stage::new("claimed");
    let json = stage.json();
    let mut root = member(&stage, &["-u", "1h", &json[0], &json[1]]);
    stage.warm(&mut root);
    let program = super::stage::program(program).display().to_string();
    root.tell(&format!("beside 23 {word} {program}"));
    let said = root.hear();
    let number = said.strip_prefix("beside ").expect("its number");
    let pid: u64 = number.parse().expect("a number");
    let named = if is_named { pid } else { 0 };
    assert_eq!(
        does(&mut root, NOBODY, &format!("claim {named} {how}")),
        "done"
    );
    // So that it is looked at while the program is there.
    stage.session();
    root.end().must_succeed();
    let report = stage.report();
    if !report["escapes_unknown"].is_null() {
        return Some(23);
    }
    let escaped = report["escaped"].as_array().expect("rows");
    let its = escaped.iter().find(|e| e["pid"] == pid);
    its.and_then(|e| e["requests"].as_u64())
}

#[test]
fn what_escaped_of_a_user_is_not_hidden_by_another() {
    if !as_root("what_escaped_of_a_user_is_not_hidden_by_another") {
        return;
    }
    for how in ["real", "kept"] {
        let escaped = claimed("demand_static", "sync", true, how);
        assert_eq!(escaped, Some(23), "{how}");
    }
    // Nor by what he says of nobody in particular.
    let escaped = claimed("demand", "own", false, "real");
    assert_eq!(escaped, Some(23));
}

#[test]
fn slots_that_name_nobody_do_not_hold_a_session_up() {
    if !as_root("slots_that_name_nobody_do_not_hold_a_session_up") {
        return;
    }
    let stage = Stage::new("storm");
    let mut root = member(&stage, &["-u", "1h"]);
    stage.warm(&mut root);
    assert_eq!(does(&mut root, NOBODY, "storm"), "done");
    let begun = std::time::Instant::now();
    for _ in 0..5 {
        stage.session();
    }
    assert!(stage.is_later(&mut root));
    root.end().must_succeed();
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
}

/// A node of the kernel's FUSE that anybody may open, as udev makes it.
fn fuse_for_all(stage: &Stage) -> String {
    let node = stage.file("fuse");
    let mut make = clean("mknod");
    make.args(["-m", "666"]).arg(&node).args(["c", "10", "229"]);
    run(&mut make).must_succeed();
    node.display().to_string()
}

/// Whether the session's supervisor does its work: another command is answered, and requests of its
/// own user are put off.
fn is_awake(stage: &Stage, root: &mut Running) -> bool {
    let all = stage.sessions();
    !all.is_empty() && until(SOON, || stage.is_later(root))
}

/// A session of root, of which a member is NOBODY whose own file system stops answering whoever
/// opens what `what` says; `said` is what he says then.
fn besieged(what: &str, said: &str) {
    let stage = Stage::new("besieged");
    let mut root = member(&stage, &["-u", "1h"]);
    let fuse = fuse_for_all(&stage);
    stage.warm(&mut root);
    let done = does(&mut root, NOBODY, &format!("besiege {fuse} {what}"));
    assert_eq!(done, said);
    assert!(is_awake(&stage, &mut root));
    root.end().must_succeed();
    assert!(stage.entries().is_empty());
}

#[test]
fn a_folder_of_another_user_that_does_not_open_holds_nobody_up() {
    if as_root("a_folder_of_another_user_that_does_not_open_holds_nobody_up") {
        // It lies in his own namespace alone: nobody opens it.
        besieged("folder", "free");
    }
}

#[test]
fn a_program_of_another_user_whose_path_leads_astray_holds_nobody_up() {
    if as_root("a_program_of_another_user_whose_path_leads_astray_holds_nobody_up") {
        besieged("name file-of-nobody", "free");
    }
}

#[test]
fn who_holds_the_lock_of_his_memory_keeps_nobody_waiting() {
    if as_root("who_holds_the_lock_of_his_memory_keeps_nobody_waiting") {
        keeps_nobody_waiting("lock");
    }
}

/// /proc/PID/stat and /proc/PID/exe wait for him (Linux 6.18).
#[test]
fn another_user_who_is_executing_something_for_long_keeps_nobody_waiting() {
    if as_root("another_user_who_is_executing_something_for_long_keeps_nobody_waiting") {
        keeps_nobody_waiting("execute");
    }
}

/// One of a session of root does what `how` says.
fn keeps_nobody_waiting(how: &str) {
    let stage = Stage::new("locked");
    let file = stage.file("recording");
    let mut command = stage.synclater(&["run", "--quiet", "-u", "1h", "--record"]);
    command.arg(&file).arg("--");
    command.args(["unshare", "-m", "--propagation", "private"]);
    command
        .arg(super::stage::program("closing"))
        .arg(stage.work())
        .arg(how);
    let mut victim = Running::start(&stage, command);
    // Each of these asks `ps`, and is answered.
    stage.warm(&mut victim);
    for _ in 0..20 {
        assert!(stage.is_later(&mut victim), "{:#}", stage.session());
    }
    stage.ask(&["settle"]).must_succeed();
    // And the recording goes on, for which he is looked at again and again.
    let size = || std::fs::metadata(&file).map_or(0, |about| about.len());
    let before = size();
    assert!(until(LIMIT, || size() > before), "nothing is recorded");
    victim.end().must_succeed();
    let table = crate::recording::read(&file);
    assert!(table.end_ns.is_some(), "{:?}", table.cut);
    assert!(table.rows.len() > 40, "{}", table.rows.len());
}
