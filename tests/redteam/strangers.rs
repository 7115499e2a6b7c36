//! Who else could answer for a session: the next one of its name, another user, somebody in another
//! network namespace. And what a process does that has found nobody.

use super::*;
use crate::harness::command::{Outcome, LIMIT};
use crate::sessions::stage::{as_root, AS_NOBODY};
use crate::wait::until;
use rustix::net::{connect, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{kill_process, Signal};
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use synclater_shim::page::Page;

/// Two users without rights, by their numbers.
const USERS: [&str; 2] = ["65533", "65532"];

/// In front of a command: user `who`.
fn as_user(who: &str) -> [String; 4] {
    let of = |what: &str| format!("--{what}={who}");
    let words = ["setpriv".into(), of("reuid"), of("regid")];
    let [setpriv, user, group] = words;
    [setpriv, user, group, "--clear-groups".into()]
}

/// A command of user `who`.
fn by_user(who: &str) -> Command {
    let words = as_user(who);
    let mut command = clean(&words[0]);
    command.args(&words[1..]);
    command
}

/// Writes a file durably.
fn saving(path: &Path) -> Vec<String> {
    let to = format!("of={}", path.display());
    let words = [
        "dd",
        "if=/dev/zero",
        &to,
        "bs=4096",
        "count=1",
        "conv=fsync",
        "status=none",
    ];
    words.map(str::to_owned).to_vec()
}

/// What a session gives its command to join it by.
struct Ways {
    library: String,
    page: PathBuf,
}

impl Ways {
    fn of(text: &str) -> Ways {
        let value = |name: &str| {
            let line = text
                .lines()
                .find_map(|l| l.strip_prefix(name)?.strip_prefix('='));
            line.expect(name).to_owned()
        };
        Ways {
            library: value("LD_PRELOAD"),
            page: value("SYNCLATER_PAGE").into(),
        }
    }

    /// In front of a command: it goes on with them.
    fn words(&self) -> [String; 3] {
        let page = format!("SYNCLATER_PAGE={}", self.page.display());
        ["env".into(), format!("LD_PRELOAD={}", self.library), page]
    }
}

/// The abstract name by which its supervisor is asked for slots.
fn socket_of(ways: &Ways) -> [u8; 32] {
    let page = std::fs::read(&ways.page).expect("the page");
    let name = &page[offset_of!(Page, socket)..][..32];
    name.try_into().expect("32 bytes")
}

/// A stage whose sessions anybody may look for, by their names, in a folder in memory; and an ext4
/// there that anybody may write to.
struct Open {
    stage: Stage,
    disk: Disk,
    at: PathBuf,
}

impl Open {
    fn new(name: &str) -> Open {
        let (disk, stage) = (Disk::new("ext4", 64), Stage::new(name));
        stage.open_to_others(0o755);
        mount(&["-t", "tmpfs", "-o", "mode=711"], "none", &stage.run_dir());
        let at = stage.work().join("disk");
        std::fs::create_dir(&at).expect("a mount point");
        mount(&["--bind"], &disk.path().display().to_string(), &at);
        run(clean("chmod").arg("777").arg(&at)).must_succeed();
        Open { stage, disk, at }
    }

    /// Whether a saved file is there once the power is cut.
    fn is_saved(&self, name: &str) -> bool {
        let seen = std::fs::metadata(self.disk.cut().path().join(name));
        seen.is_ok_and(|m| m.len() == 4096)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        for at in [self.at.clone(), self.stage.run_dir()] {
            run(clean("umount").arg("-l").arg(at));
        }
    }
}

#[test]
fn no_session_has_the_page_that_an_earlier_one_of_its_name_had() {
    if !as_root("no_session_has_the_page_that_an_earlier_one_of_its_name_had") {
        return;
    }
    let open = Open::new("names");
    let stage = &open.stage;
    let told = |command: &mut Command| {
        let outcome: Outcome = run(command).must_succeed();
        (stage.report()["id"].clone(), outcome.stdout)
    };
    let (id, text) = told(session(stage, &[]).arg("env"));
    // What outlived it goes on naming that.
    let page = Ways::of(&text).page;
    let mut later = session(stage, &["-u", "never"]);
    later.args(["sh", "-c", "test -e \"$0\" && echo there || echo gone"]);
    later.arg(&page);
    // There are 64 names: which one it is depends on the number of the process.
    let again = (0..2000)
        .map(|_| told(&mut later))
        .find(|(name, _)| *name == id);
    let (_, said) = again.expect("a session of the same name");
    assert_eq!(said, "gone\n", "{}", page.display());
}

#[test]
fn a_page_of_another_user_relaxes_nobody_but_him() {
    if !as_root("a_page_of_another_user_relaxes_nobody_but_him") {
        return;
    }
    let open = Open::new("planted");
    let stage = &open.stage;
    let his = stage.run_dir().join("his");
    for dir in [his.clone(), his.join("run"), his.join("state")] {
        std::fs::create_dir(&dir).expect("a folder");
        std::os::unix::fs::chown(&dir, USERS[0].parse().ok(), None).expect("chown");
    }
    let mut command = by_user(USERS[0]);
    command.arg(SYNCLATER);
    command.env("SYNCLATER_RUN_DIR", his.join("run"));
    command.env("SYNCLATER_STATE_DIR", his.join("state"));
    command.env("XDG_CACHE_HOME", &his);
    let env = stage.file("env");
    std::fs::write(&env, "").expect("a file");
    run(clean("chmod").arg("666").arg(&env)).must_succeed();
    let script = format!("env >{} && exec \"$0\"", env.display());
    command.args(["run", "--quiet", "-u", "never", "--", "sh", "-c", &script]);
    let mut member = Running::start(stage, {
        command.arg(tool("scribe"));
        command
    });
    member.be_ready();
    let ways = Ways::of(&std::fs::read_to_string(&env).expect("its environment"));
    // He opens all that he has to whoever names it.
    let memory = ways.page.parent().expect("a folder");
    run(clean("chmod").args(["-R", "a+rwX"]).arg(&his).arg(memory)).must_succeed();
    let saves = |who: &str, name: &str| {
        let mut command = by_user(who);
        command.args(ways.words());
        run(command.args(saving(&open.at.join(name)))).must_succeed();
        open.is_saved(name)
    };
    let is_later = until(LIMIT, || !saves(USERS[0], "own"));
    let is_real = (0..10).all(|k| saves(USERS[1], &format!("{k}")));
    member.end();
    assert!(is_later, "his own programs are not relaxed");
    assert!(is_real, "another user's program is");
}

#[test]
fn nobody_else_gives_out_slots_in_another_network_namespace() {
    if !as_root("nobody_else_gives_out_slots_in_another_network_namespace") {
        return;
    }
    let open = Open::new("strangers");
    let stage = &open.stage;
    let mut scribe = scribe(stage, &[]);
    warm(stage, &mut scribe, &open.at);
    // Who is asked there is another user, and gives what is asked for.
    let stranger = stage.work().join("strangers.py");
    std::fs::write(&stranger, include_str!("strangers.py")).expect("a script");
    let saved = open.at.join("a");
    let script = format!(
        "{} timeout 60 /usr/bin/python3 {} \"$SYNCLATER_PAGE\" {} {} | \
         {{ read said && echo $said >{ready}; {} {}; }}",
        as_user(USERS[1]).join(" "),
        stranger.display(),
        offset_of!(Page, socket),
        offset_of!(Page, slots_size),
        as_user(USERS[0]).join(" "),
        saving(&saved).join(" "),
        ready = stage.file("ready").display(),
    );
    let file = stage.work().join("script");
    std::fs::write(&file, script).expect("a script");
    let line = format!("tell unshare --net sh {}", file.display());
    assert_eq!(does(&mut scribe, &line), 0);
    let is_saved = open.is_saved("a");
    let was_ready = std::fs::read_to_string(stage.file("ready"));
    ends_well(stage, &mut scribe);
    assert_eq!(was_ready.expect("the stranger's words"), "ready\n");
    assert!(is_saved, "its debt is a stranger's");
}

/// Writes to what the scribe holds open with `O_SYNC` as number 7.
const WRITES: &str = "sh -c \"printf synced >&7\"";

#[test]
fn o_sync_comes_back_in_who_can_not_join_the_session() {
    if !as_root("o_sync_comes_back_in_who_can_not_join_the_session") {
        return;
    }
    let open = Open::new("outside");
    let (stage, disk) = (&open.stage, &open.disk);
    let mut scribe = scribe(stage, &[]);
    warm(stage, &mut scribe, &open.at);
    let outside = [
        // Nobody answers there.
        (
            "a",
            format!("unshare --net {}", as_user(USERS[0]).join(" ")),
        ),
        // There is no page.
        ("b", "env SYNCLATER_PAGE=/gone/page".to_owned()),
        ("c", "env -u SYNCLATER_PAGE".to_owned()),
    ];
    for (name, who) in outside {
        let line = format!("wants {}", open.at.join(name).display());
        assert_eq!(does(&mut scribe, &line), 0);
        assert_eq!(does(&mut scribe, &format!("tell {who} {WRITES}")), 0);
        let text = std::fs::read_to_string(disk.cut().path().join(name));
        assert_eq!(text.unwrap_or_default(), "synced", "{who}");
    }
    // It is gone, and all in the session had a filter: of those that the name tells of it is known
    // that they let it look.
    let line = format!("wants {}", open.at.join("d").display());
    assert_eq!(does(&mut scribe, &line), 0);
    assert_eq!(does(&mut scribe, "filter"), 0);
    let line = format!("tell env SYNCLATER_PAGE=/gone/0123456789.1/page {WRITES}");
    assert_eq!(does(&mut scribe, &line), 0);
    let text = std::fs::read_to_string(disk.cut().path().join("d"));
    assert_eq!(text.unwrap_or_default(), "synced");
    ends_well(stage, &mut scribe);
}

/// What a scribe's session gave it.
fn ways_of(stage: &Stage, scribe: &mut Running) -> Ways {
    let env = stage.work().join("env");
    let line = format!("tell cp /proc/self/environ {}", env.display());
    assert_eq!(does(scribe, &line), 0);
    let text = std::fs::read_to_string(&env).expect("its environment");
    Ways::of(&text.replace('\0', "\n"))
}

#[test]
fn a_crowd_before_a_supervisor_that_stands_still_holds_up_no_program() {
    if !as_root("a_crowd_before_a_supervisor_that_stands_still_holds_up_no_program") {
        return;
    }
    let open = Open::new("crowd");
    let stage = &open.stage;
    let mut scribe = scribe(stage, &[]);
    let name = socket_of(&ways_of(stage, &mut scribe));
    let name = SocketAddrUnix::new_abstract_name(&name).expect("a name");
    let supervisor = stage.session()["pid"].as_i64().expect("a number");
    let supervisor = rustix::process::Pid::from_raw(supervisor as i32).expect("a process");
    kill_process(supervisor, Signal::STOP).expect("SIGSTOP");
    let knocks = || -> Option<OwnedFd> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
        connect(&socket, &name).ok().map(|()| socket)
    };
    let crowd: Vec<OwnedFd> = std::iter::from_fn(knocks).collect();
    scribe.tell(&format!("tell {} true", AS_NOBODY[..5].join(" ")));
    let said = scribe.hear();
    kill_process(supervisor, Signal::CONT).expect("SIGCONT");
    assert!(crowd.len() > 10, "{} could knock", crowd.len());
    drop(crowd);
    assert_eq!(said, "tell 0");
    ends_well(stage, &mut scribe);
}

/// Another user's process that asks for slots all the time, from the end of so long a line.
fn asker(stage: &Stage, scribe: &mut Running, length: u32) -> Running {
    let name = socket_of(&ways_of(stage, scribe));
    let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    let script = stage.work().join("line.py");
    std::fs::write(&script, include_str!("line.py")).expect("a script");
    let mut command = by_user(USERS[0]);
    command.arg("/usr/bin/python3").arg(&script);
    command.args([name, length.to_string()]);
    let mut asker = Running::start(stage, command);
    assert_eq!(asker.hear(), "ready");
    asker
}

#[test]
fn who_asks_all_the_time_keeps_nobody_out_of_the_session() {
    if !as_root("who_asks_all_the_time_keeps_nobody_out_of_the_session") {
        return;
    }
    for length in [0, 400] {
        let open = Open::new("asks");
        let stage = &open.stage;
        let mut scribe = scribe(stage, &[]);
        warm(stage, &mut scribe, &open.at);
        let mut asker = asker(stage, &mut scribe, length);
        let other = as_user(USERS[1]).join(" ");
        for name in ["a", "b", "c", "d"] {
            let words = saving(&open.at.join(name)).join(" ");
            let begun = Instant::now();
            assert_eq!(does(&mut scribe, &format!("tell {other} {words}")), 0);
            let took = begun.elapsed();
            assert!(took < Duration::from_millis(900), "{length}: {took:?}");
            assert!(!open.is_saved(name), "{length}: {name} is real");
        }
        asker.end();
        ends_well(stage, &mut scribe);
    }
}

/// The supervisor looks at each parent of whoever asks.
#[test]
fn who_asks_from_the_end_of_a_long_line_holds_up_no_settle() {
    if !as_root("who_asks_from_the_end_of_a_long_line_holds_up_no_settle") {
        return;
    }
    let open = Open::new("line");
    let stage = &open.stage;
    let mut scribe = scribe(stage, &["-u", "100ms"]);
    warm(stage, &mut scribe, &open.at);
    let mut asker = asker(stage, &mut scribe, 400);
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        save(&mut scribe, &open.at, &["a"]);
    }
    asker.end();
    ends_well(stage, &mut scribe);
    let report = stage.report();
    let settles = report["settles"].as_u64().expect("a number");
    assert!(settles >= 12, "{settles} in three seconds: {report:#}");
}

#[test]
fn the_library_lies_where_nobody_else_can_put_another() {
    if !as_root("the_library_lies_where_nobody_else_can_put_another") {
        return;
    }
    let open = Open::new("library");
    let his = |name: &str, who: &str| {
        let dir = open.stage.run_dir().join(name);
        std::fs::create_dir(&dir).expect("a folder");
        std::os::unix::fs::chown(&dir, who.parse().ok(), None).expect("chown");
        dir
    };
    let (mine, others) = (his("mine", USERS[0]), his("others", USERS[1]));
    run(clean("chmod").arg("777").arg(&others)).must_succeed();
    let in_session = |home: &Path, cache: Option<&Path>| {
        let mut command = by_user(USERS[0]);
        command.env("HOME", home);
        command.env_remove("XDG_CACHE_HOME");
        command.envs(cache.map(|dir| ("XDG_CACHE_HOME", dir)));
        command.env("SYNCLATER_RUN_DIR", mine.join("run"));
        command.env("SYNCLATER_STATE_DIR", mine.join("state"));
        run(command.args([SYNCLATER, "run", "--quiet", "--", "env"]))
    };
    // None of his own: not /tmp, whose names are anybody's once they are free.
    for home in [Path::new("/nonexistent"), &others] {
        let refused = in_session(home, None);
        assert_eq!(refused.status.code(), Some(125), "{refused}");
        assert!(refused.stderr.contains("XDG_CACHE_HOME"), "{refused}");
    }
    // What leads there may be another's, or be taken apart by ld.so.
    let (link, blank) = (others.join("link"), mine.join("a b"));
    std::os::unix::fs::symlink(&mine, &link).expect("a link");
    let blank = in_session(&others, Some(&blank));
    assert!(blank.stderr.contains("a blank"), "{blank}");
    let relative = in_session(&others, Some("mine".as_ref()));
    assert!(
        relative.stderr.contains("not an absolute path"),
        "{relative}"
    );
    for cache in [&mine, &link] {
        let ways = Ways::of(&in_session(&others, Some(cache)).must_succeed().stdout);
        let library = Path::new(&ways.library);
        assert!(library.starts_with(&mine), "{}", ways.library);
    }
}

/// As in a container whose root folder is read-only.
#[test]
fn root_has_the_library_where_the_environment_names_a_cache() {
    if !as_root("root_has_the_library_where_the_environment_names_a_cache") {
        return;
    }
    let stage = Stage::new("read-only");
    let [own, others] = ["own", "others"].map(|name| stage.file(name));
    for dir in [&own, &others] {
        std::fs::create_dir(dir).expect("a folder");
    }
    std::os::unix::fs::chown(&others, USERS[1].parse().ok(), None).expect("chown");
    let in_session = |cache: &Path| {
        let mut command = stage.with_folders("unshare");
        command.env("XDG_CACHE_HOME", cache);
        let script = "for dir in /var/cache /var/lib /run; do \
                      mount -t tmpfs -o ro none $dir || exit; done; exec \"$@\"";
        command.args(["-m", "--propagation", "private", "sh", "-c", script, "sh"]);
        run(command.args([SYNCLATER, "run", "--quiet", "--", "env"]))
    };
    let ways = Ways::of(&in_session(&own).must_succeed().stdout);
    assert!(ways.library.contains("/own/synclater/"), "{}", ways.library);
    // Not where a user could put another, nor is anything made there.
    let refused = in_session(&others.join("a/b"));
    assert_eq!(refused.status.code(), Some(125), "{refused}");
    assert!(refused.stderr.contains("it belongs to user"), "{refused}");
    assert!(!others.join("a").exists(), "{refused}");
}

#[test]
fn an_installed_library_is_not_taken_from_a_folder_of_somebody_else() {
    if !as_root("an_installed_library_is_not_taken_from_a_folder_of_somebody_else") {
        return;
    }
    let open = Open::new("installed");
    let stage = &open.stage;
    let preload = |program: &Path| {
        let mut command = stage.with_folders(program);
        let told = run(command.args(["run", "--quiet", "--", "env"])).must_succeed();
        PathBuf::from(Ways::of(&told.stdout).library)
    };
    let genuine = preload(SYNCLATER.as_ref());
    let genuine = genuine.ancestors().nth(2).expect("a folder above $LIB");
    // The one file lies below a public folder, where another user has made a `lib`.
    let [public, own, lib] = ["p", "p/own", "p/lib"].map(|dir| stage.file(dir));
    for dir in [&public, &own, &lib] {
        std::fs::create_dir(dir).expect("a folder");
    }
    std::os::unix::fs::chown(&lib, USERS[1].parse().ok(), None).expect("chown");
    std::os::unix::fs::symlink(genuine, lib.join("synclater")).expect("a link");
    crate::harness::command::copy_program(SYNCLATER, own.join("synclater"));
    let taken = preload(&own.join("synclater"));
    assert!(!taken.starts_with(&public), "{}", taken.display());
}

#[test]
fn settle_needs_nobody_to_hear_how_children_end() {
    let stage = Stage::new("deaf");
    let mut command = stage.with_folders("env");
    command.args(["--ignore-signal=CHLD", SYNCLATER, "settle"]);
    let settle = run(command.arg(stage.work())).must_succeed();
    assert!(settle.stdout.contains("file system settled"), "{settle}");
}
