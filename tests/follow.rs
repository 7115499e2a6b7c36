//! `run --follow`: programs that lose the library are reached, whatever it is that they lose it by,
//! and whoever is killed meanwhile.

mod daemons;
mod ends;
mod rights;

use crate::attach::refusals::bare_32;
use crate::harness::command::{clean, run, Outcome, LIMIT};
use crate::harness::limits::{count, is_root, skip};
use crate::harness::victims::{victim, Class};
use crate::odd_victims::furnish;
use crate::sessions::stage::{as_root, program, Running, Stage, SYNCLATER};
use crate::wait::until;
use serde_json::{json, Value};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Requests of each child.
pub fn requests() -> u64 {
    count(100, 10_000) as u64
}

pub fn number(report: &Value, key: &str) -> u64 {
    let number = report[key].as_u64();
    number.unwrap_or_else(|| panic!("{key}: {report:#}"))
}

/// A session with a report that follows, or does not.
fn session(stage: &Stage, follows: bool) -> Command {
    reaching(stage, if follows { &["--follow"] } else { &[] })
}

/// A session with a report that reaches programs as these options say.
pub fn reaching(stage: &Stage, options: &[&str]) -> Command {
    let mut command = stage.synclater(&["run", "--quiet"]);
    command.args(stage.json()).args(options).arg("--");
    command
}

/// The words of a hammer that makes [`requests`] in a folder.
pub fn hammer(name: &str, dir: &Path) -> Vec<String> {
    let words = [
        program(name).display().to_string(),
        dir.display().to_string(),
    ];
    words
        .into_iter()
        .chain(["1".into(), requests().to_string()])
        .collect()
}

/// Every request was seen by the session: of one child, or of `children`.
pub fn all_were_seen(stage: &Stage, outcome: &Outcome, children: u64) {
    assert_eq!(outcome.status.code(), Some(0), "{outcome}");
    let report = stage.report();
    assert!(!outcome.stderr.contains("ld.so"), "{outcome}");
    let expected = children * requests();
    assert_eq!(number(&report, "requests"), expected, "{report:#}");
    assert_eq!(report["escaped"], json!([]), "{report:#}");
    assert_eq!(report["settled"], report["skipped"], "{report:#}");
    assert!(stage.entries().is_empty(), "{:?}", stage.entries());
}

/// Has a child lose the library by some words in front of it: with `--follow` every request is
/// seen, without it the child is named.
fn is_reached(name: &str, words: &[&str], victim: &str) {
    let stage = Stage::new(name);
    let victim = hammer(victim, &stage.work());
    let outcome = run(session(&stage, true).args(words).args(&victim));
    all_were_seen(&stage, &outcome, 1);
    if !is_root() {
        return;
    }
    run(session(&stage, false).args(words).args(&victim)).must_succeed();
    let report = stage.report();
    let escaped = report["escaped"].as_array().expect("escaped");
    assert_eq!(escaped.len(), 1, "{report:#}");
    assert_eq!(escaped[0]["requests"], requests(), "{report:#}");
    assert_eq!(number(&report, "requests"), 0, "{report:#}");
}

const CLEANED: [&str; 3] = ["env", "-i", "PATH=/usr/bin:/bin"];

#[test]
fn soak_a_child_with_a_cleaned_environment() {
    is_reached("cleaned", &CLEANED, "hammer");
}

#[test]
fn soak_a_musl_child_with_a_cleaned_environment() {
    is_reached("cleaned-musl", &CLEANED, "hammer_musl");
}

#[test]
fn soak_a_32_bit_child_with_a_cleaned_environment() {
    is_reached("cleaned-32", &CLEANED, "hammer_32");
}

#[test]
fn soak_a_static_child() {
    is_reached("static", &[], "hammer_static");
    is_reached("static-of-python", &["env", "-i"], "hammer_static");
}

#[test]
fn soak_a_static_32_bit_child() {
    is_reached("static-32", &[], "hammer_32_static");
    is_reached("static-32-of-env", &["env", "-i"], "hammer_32_static");
}

#[test]
fn a_static_32_bit_program_is_asked_at_every_kind_of_request() {
    let requests = |name, class, follows| {
        let stage = Stage::new("kinds");
        let victim = victim(name, class);
        run(session(&stage, follows).arg(victim).arg(stage.work()));
        let report = stage.report();
        assert_eq!(report["escaped"], json!([]), "{name}: {report:#}");
        // A report that has none leaves the key out.
        number(&report, "requests") + report["hints"].as_u64().unwrap_or(0)
    };
    // By six arguments, offsets of 64 bits, the numbers of i386.
    let all = [
        "sync_file_range",
        "pwritev2",
        "msync",
        "sync",
        "syncfs",
        "fdatasync",
        "syscall",
    ];
    for name in all {
        let by_library = requests(name, Class::Small, false);
        let by_sites = requests(name, Class::SmallStatic, true);
        assert!(by_library > 0, "{name}");
        assert_eq!(by_sites, by_library, "{name}");
    }
}

#[test]
fn a_static_32_bit_program_without_a_libc_is_named() {
    if !as_root("a_static_32_bit_program_without_a_libc_is_named") {
        return;
    }
    let stage = Stage::new("bare");
    let mut command = session(&stage, true);
    command.arg(bare_32(&stage)).arg(stage.work().join("file"));
    run(&mut command).must_succeed();
    let report = stage.report();
    let escaped = report["escaped"].as_array().expect("escaped");
    assert_eq!(escaped.len(), 1, "{report:#}");
    assert_eq!(escaped[0]["requests"], 1, "{report:#}");
    let why = escaped[0]["why"].as_str().expect("why");
    assert!(why.contains("no system-call site"), "{report:#}");
}

#[test]
fn a_child_whose_name_is_no_text_is_reached() {
    use std::os::unix::ffi::OsStrExt;
    for victim in ["hammer", "hammer_static"] {
        let stage = Stage::new("no-text");
        let copy = stage
            .file("")
            .join(std::ffi::OsStr::from_bytes(b"no\xfftext"));
        crate::harness::command::copy_program(program(victim), &copy);
        let mut command = session(&stage, true);
        command.args(CLEANED).arg(copy).arg(stage.work());
        command.args(["1", &requests().to_string()]);
        all_were_seen(&stage, &run(&mut command), 1);
    }
}

#[test]
fn a_static_program_that_is_replaced_between_two_executions_is_searched_anew() {
    let stage = Stage::new("replaced");
    let copy = stage.file("victim");
    let mut script = String::new();
    // The very same file, with other contents; none of them old enough to be remembered at first.
    for victim in ["hammer_static", "hammer_32_static", "hammer_static"] {
        let from = program(victim).display().to_string();
        let (to, dir) = (copy.display(), stage.work().display().to_string());
        script += &format!("cat {from} >{to} && chmod +x {to} || exit 9\n");
        script += &format!(
            "{to} {dir} 1 {0} && {to} {dir} 1 {0} || exit 8\n",
            requests()
        );
    }
    let outcome = run(session(&stage, true).args(["sh", "-c", &script]));
    all_were_seen(&stage, &outcome, 6);
    // Old ones are: the programs of the tests are executed from where they were built.
    let old = hammer("hammer_static", &stage.work()).join(" ");
    let script = format!("for k in 1 2 3; do {old} || exit 8; done");
    let outcome = run(session(&stage, true).args(["sh", "-c", &script]));
    all_were_seen(&stage, &outcome, 3);
}

/// Python with an empty environment for its child, a shell, which has the next one.
const NO_ENVIRONMENT: &str = "import subprocess, sys; \
    sys.exit(subprocess.run(['/bin/sh', '-c', '\"$@\"', 'sh'] + sys.argv[1:], env={}).returncode)";

#[test]
fn soak_a_child_of_a_shell_of_a_python_without_an_environment() {
    let words = ["/usr/bin/python3", "-c", NO_ENVIRONMENT];
    for victim in ["hammer", "hammer_static"] {
        is_reached("python", &words, victim);
    }
}

#[test]
fn soak_children_of_su_and_sudo() {
    if !as_root("soak_children_of_su_and_sudo") {
        return;
    }
    is_reached("sudo", &["sudo", "-n"], "hammer");
    let stage = Stage::new("su");
    let line = hammer("hammer", &stage.work()).join(" ");
    let outcome =
        run(session(&stage, true).args(["su", "-", "root", "-s", "/bin/sh", "-c", &line]));
    all_were_seen(&stage, &outcome, 1);
}

/// A hammer in Go, where there is a compiler: its words.
pub fn hammer_in_go(stage: &Stage) -> Option<Vec<String>> {
    let built = in_go(stage, "tests/follow/hammer.go")?;
    let words = [built, stage.work().join("file")].map(|p| p.display().to_string());
    Some(words.into_iter().chain([requests().to_string()]).collect())
}

/// A program of Go's; `None` without a compiler.
pub fn in_go(stage: &Stage, source: &str) -> Option<PathBuf> {
    let built = stage.file("built-by-go");
    let mut go = clean("go");
    go.args(["build", "-o"]).arg(&built);
    go.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(source));
    go.env("HOME", stage.file(".")).env("GO111MODULE", "off");
    let told = go.output().ok()?;
    let complaint = String::from_utf8_lossy(&told.stderr);
    assert!(told.status.success(), "{source} is not built: {complaint}");
    Some(built)
}

#[test]
fn soak_a_go_child_of_a_shell_of_a_python_without_an_environment() {
    const NAME: &str = "soak_a_go_child_of_a_shell_of_a_python_without_an_environment";
    let stage = Stage::new("go");
    let Some(words) = hammer_in_go(&stage) else {
        return skip(NAME, "no Go compiler (go) is installed");
    };
    let mut command = session(&stage, true);
    command
        .args(["/usr/bin/python3", "-c", NO_ENVIRONMENT])
        .args(words);
    let outcome = run(&mut command);
    all_were_seen(&stage, &outcome, 1);
}

#[test]
fn soak_what_is_followed_is_recorded() {
    let stage = Stage::new("recorded");
    let victims = [
        "hammer",
        "hammer_static",
        "hammer_musl",
        "hammer_32",
        "hammer_32_static",
    ];
    let mut all: Vec<_> = victims
        .iter()
        .map(|name| hammer(name, &stage.work()))
        .collect();
    all.extend(hammer_in_go(&stage));
    for words in all {
        let recording = stage.file("recording").display().to_string();
        let _ = std::fs::remove_file(&recording);
        let mut command = stage.synclater(&["run", "--follow", "--record", &recording]);
        let outcome = run(command.args(["--", "env", "-i"]).args(&words)).must_succeed();
        let report = stage.ask(&["report", "--json", &recording]).must_succeed();
        let report: Value = serde_json::from_str(&report.stdout).expect("JSON");
        let expected = json!([requests(), 0]);
        assert_eq!(
            json!([report["requests"], report["lost"]]),
            expected,
            "{outcome}"
        );
    }
}

#[test]
fn soak_children_behind_another_root() {
    if !as_root("soak_children_behind_another_root") {
        return;
    }
    let stage = Stage::new("root");
    let root = stage.file("root");
    let victims = [
        "hammer",
        "hammer_static",
        "hammer_32",
        "hammer_32_static",
        "hammer_musl",
    ];
    let victims = victims.map(program);
    let paths: Vec<&Path> = victims.iter().map(PathBuf::as_path).collect();
    furnish(&root, &paths[..4]);
    for (file, below) in [
        (paths[4], "bin"),
        (Path::new("/lib/ld-musl-x86_64.so.1"), "lib"),
    ] {
        let to = root.join(below).join(file.file_name().expect("a name"));
        std::fs::create_dir_all(root.join(below)).expect("a folder in the root");
        crate::harness::command::copy_program(file, to);
    }
    for victim in victims {
        let inside = root.join("w");
        std::fs::create_dir_all(&inside).expect("a folder in the root");
        let mut command = session(&stage, true);
        command.arg("chroot").arg(&root);
        command.arg(Path::new("/bin").join(victim.file_name().expect("a name")));
        command.args(["/w", "1", &requests().to_string()]);
        let outcome = run(&mut command);
        all_were_seen(&stage, &outcome, 1);
    }
}

#[test]
fn soak_children_of_cron() {
    if !as_root("soak_children_of_cron") {
        return;
    }
    let stage = Stage::new("cron");
    let (tables, empty) = (stage.file("spool/crontabs"), stage.file("empty"));
    for dir in [&tables, &empty] {
        std::fs::create_dir_all(dir).expect("a folder");
    }
    let done = stage.file("done");
    let line = hammer("hammer", &stage.work()).join(" ");
    let table = tables.join("root");
    std::fs::write(
        &table,
        format!("* * * * * {line} && touch {}\n", done.display()),
    )
    .expect("it");
    std::fs::set_permissions(&table, std::fs::Permissions::from_mode(0o600)).expect("its rights");
    // With tables of its own, whatever this machine's are.
    let private = "mount --bind \"$1\" /var/spool/cron && mount --bind \"$2\" /etc/cron.d && \
        mount --bind /dev/null /etc/crontab && mount -t tmpfs none /run && exec cron -f";
    let mut command = session(&stage, true);
    command.args(["unshare", "-m", "sh", "-c", private, "sh"]);
    command.arg(stage.file("spool")).arg(&empty);
    let mut cron = Running::start(&stage, command);
    // It looks once a minute.
    let ran = until(LIMIT, || done.exists());
    assert!(ran, "{}", cron.stderr());
    cron.send(rustix::process::Signal::TERM);
    cron.end();
    let report = stage.report();
    let seen = number(&report, "requests");
    assert!(
        seen >= requests() && seen.is_multiple_of(requests()),
        "{report:#}"
    );
    assert_eq!(report["escaped"], json!([]), "{report:#}");
}

#[test]
fn what_the_command_leaves_behind_is_waited_for() {
    let stage = Stage::new("behind");
    let words = hammer("hammer", &stage.work()).join(" ");
    let script = format!("{words} & exit 7");
    let outcome = run(session(&stage, true).args(["setsid", "sh", "-c", &script]));
    assert_eq!(outcome.status.code(), Some(7), "{outcome}");
    let report = stage.report();
    assert_eq!(number(&report, "requests"), requests(), "{report:#}");
    assert_eq!(number(&report, "exit_status"), 7, "{report:#}");
}

#[test]
fn a_session_that_the_command_leaves_behind_is_waited_for_whatever_its_file_is_called() {
    let stage = Stage::new("session-behind");
    let (link, go) = (stage.file("synclater-0.9"), stage.file("go"));
    std::os::unix::fs::symlink(SYNCLATER, &link).expect("a link");
    let script = format!(
        "{} run --quiet -- sh -c 'until [ -e {} ]; do :; done' & echo left; exit 7",
        link.display(),
        go.display()
    );
    let mut command = session(&stage, true);
    command.args(["setsid", "sh", "-c", &script]);
    let mut outer = Running::start(&stage, command);
    assert_eq!(outer.hear(), "left");
    // It looks who is left at each heartbeat.
    crate::sessions::stage::pass(std::time::Duration::from_secs(1));
    let is_there = !crate::sessions::death::is_gone(&outer.pid());
    std::fs::write(go, "").expect("it goes on");
    let end = outer.end();
    assert!(is_there, "{end}");
    assert_eq!(end.status.code(), Some(7), "{end}");
}

/// Of a session at `until` inside of one that follows at `never`, and that does not know of that.
fn inside(until: &str) -> (Value, Value) {
    const UNKNOWN: [&str; 4] = ["-u", "SYNCLATER_PAGE", "-u", "LD_PRELOAD"];
    let stage = Stage::new("inside-followed");
    let inner = stage.file("inner.json");
    let mut command = reaching(&stage, &["--follow", "-u", "never"]);
    command.arg("env").args(UNKNOWN).arg(SYNCLATER);
    command.args(["run", "--quiet", "-u", until, "--json"]);
    command.arg(&inner).arg("--").arg(program("hammer"));
    run(command.arg(stage.work()).args(["1", "2003"])).must_succeed();
    let text = std::fs::read_to_string(inner).expect("a report");
    assert!(stage.entries().is_empty(), "{:?}", stage.entries());
    (serde_json::from_str(&text).expect("JSON"), stage.report())
}

#[test]
fn a_session_inside_that_does_not_know_of_the_one_around_it_keeps_its_promise() {
    for (until, relaxes) in [("exit", true), ("1s", true), ("now", false)] {
        let (inner, outer) = inside(until);
        for report in [&inner, &outer] {
            assert_eq!(number(report, "requests"), 2003, "{until}: {report:#}");
            let skipped = number(report, "skipped");
            assert_eq!(skipped > 0, relaxes, "{until}: {report:#}");
            assert_eq!(report["escaped"], json!([]), "{until}: {report:#}");
        }
        assert_eq!(inner["settled"], inner["skipped"], "{until}: {inner:#}");
    }
}

/// A program of a session at `now` inside of one at `never`, which `reaches` by itself what the
/// library does not: what the outer one has answered late.
pub fn answered_late_around_now(reaches: &str, unknown: &[&str], victim: &[&str]) -> u64 {
    let stage = Stage::new("around-now");
    let mut command = reaching(&stage, &[reaches, "-u", "never"]);
    command.arg("env").args(unknown).arg(SYNCLATER);
    command.args(["run", "--quiet", "-u", "now", "--"]);
    command.arg(program(victim[0])).arg(stage.work());
    run(command.args(&victim[1..])).must_succeed();
    number(&stage.report(), "skipped")
}

#[test]
fn what_a_session_inside_does_not_reach_is_not_answered_late() {
    let late = answered_late_around_now("--follow", &[], &["hammer_static", "1", "503"]);
    assert_eq!(late, 0);
}

#[test]
fn ps_says_how_each_process_was_reached() {
    let stage = Stage::new("how");
    let mut command = session(&stage, true);
    let victim = program("demand").display().to_string();
    let script = format!(
        "{victim} {0} <&3 3<&- & exec env -i {victim} {0}",
        stage.work().display()
    );
    command.args(["sh", "-c", &format!("exec 3<&0; {script}")]);
    let mut victim = Running::start(&stage, command);
    let hows = || -> Vec<String> {
        let session = stage.sessions();
        let rows = session.first().and_then(|s| s["processes"].as_array());
        let rows = rows.into_iter().flatten();
        let of = rows.filter(|r| r["exe"].as_str().is_some_and(|x| x.ends_with("demand")));
        let mut all: Vec<_> = of
            .map(|r| r["how"].as_str().expect("how").to_owned())
            .collect();
        all.sort();
        all
    };
    assert!(
        until(LIMIT, || hows() == ["follow", "launch"]),
        "{:?}",
        hows()
    );
    victim.end();
}

#[test]
fn whoever_is_traced_already_is_told_so() {
    let stage = Stage::new("traced");
    let mut command = stage.with_folders("strace");
    command.args([
        "-f",
        "-o",
        "/dev/null",
        SYNCLATER,
        "run",
        "--follow",
        "--",
        "touch",
    ]);
    let outcome = run(command.arg(stage.file("touched")));
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(
        outcome.stderr.contains("cannot follow the command"),
        "{outcome}"
    );
    assert!(outcome.stderr.contains("is traced by"), "{outcome}");
    assert!(!stage.file("touched").exists());
    assert!(stage.left_in_run_dir().is_empty());
    // So is another session inside of one.
    let mut command = session(&stage, true);
    command.args([SYNCLATER, "run", "--follow", "--", "true"]);
    let outcome = run(&mut command);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(outcome.stderr.contains("is traced by"), "{outcome}");
    // And one that does not follow works as ever.
    let mut command = session(&stage, true);
    command.args([SYNCLATER, "run", "--quiet", "--", "env", "-i"]);
    let outcome = run(command.args(hammer("hammer", &stage.work()))).must_succeed();
    all_were_seen(&stage, &outcome, 1);
}

/// Its own session takes for real what it asks for, and the one around it is not to answer.
#[test]
fn a_static_program_of_a_session_inside_is_named_as_that_ones() {
    if !as_root("a_static_program_of_a_session_inside_is_named_as_that_ones") {
        return;
    }
    let stage = Stage::new("inside");
    let mut command = session(&stage, true);
    command.args([SYNCLATER, "run", "--quiet", "--"]);
    run(command.args(hammer("hammer_static", &stage.work()))).must_succeed();
    let report = stage.report();
    let escaped = report["escaped"].as_array().expect("escaped");
    assert_eq!(escaped.len(), 1, "{report:#}");
    assert_eq!(escaped[0]["requests"], requests(), "{report:#}");
    let why = escaped[0]["why"].as_str().expect("why");
    assert!(why.starts_with("is in another session"), "{report:#}");
    assert_eq!(number(&report, "requests"), 0, "{report:#}");
}

#[test]
fn a_command_that_is_not_there_is_not_found() {
    let stage = Stage::new("not-there");
    let outcome = run(session(&stage, true).arg("/no/such/command"));
    assert_eq!(outcome.status.code(), Some(127), "{outcome}");
    let outcome = run(session(&stage, true).arg("/etc/passwd"));
    assert_eq!(outcome.status.code(), Some(126), "{outcome}");
}
