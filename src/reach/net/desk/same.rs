//! The three who decide, the library, the gate and the net, say the same of the same page: the core
//! is compiled into a program for each of the first two (crates/shim/tests/decide/).

use super::{Desk, Subject};
use crate::reach::net::visitor::Visitors;
use crate::reach::net::Terms;
use crate::session::compile::{compile, Users};
use crate::session::shared::Shared;
use rustix::fs::{Mode, OFlags};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use synclater_calls::{header, Machine};
use synclater_policy::dial::Until;
use synclater_policy::rules::RuleSet;
use synclater_shim::page::{self, Page};
use synclater_sys::clock::Reading;
use synclater_sys::mount::place_of_fd;

/// The numbers of file systems in the page.
const OWES: u32 = 3;
const STARTS: u32 = 5;

/// A folder that goes away.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let path = std::env::temp_dir().join(format!("sl-same-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a folder");
        Folder(path)
    }

    /// The path of a file in it.
    fn inside(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The program that decides as the library does, or as the gate.
fn decider(folder: &Path, is_gate: bool) -> PathBuf {
    let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/shim");
    let core = shim.join("c/core");
    std::fs::write(folder.join("numbers.h"), header(Machine::X86_64, "NR_")).expect("numbers.h");
    let program = folder.join(if is_gate { "gate" } else { "library" });
    let files = std::fs::read_dir(core).expect("core").flatten();
    let mut command = Command::new("gcc");
    command.args([
        "-std=gnu11",
        "-O1",
        "-ffreestanding",
        "-fPIE",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-builtin-declaration-mismatch",
        "-I",
    ]);
    command.arg(shim.join("c")).arg("-I").arg(folder);
    if is_gate {
        command.args(["-DSL_GATE=1", "-mgeneral-regs-only"]);
    }
    let files = files.map(|e| e.path());
    command.args(files.filter(|file| file.extension().is_some_and(|e| e == "c")));
    command.arg(shim.join("c/base/glob.c"));
    if !is_gate {
        command.arg(shim.join("c/join.c"));
    }
    let own = ["glue.c", "main.c"].map(|name| shim.join("tests/decide").join(name));
    // The core exports fsync and its kin: the program's own calls go past them.
    command.args(own).arg("-o").arg(&program);
    assert!(command.status().expect("gcc").success());
    program
}

/// What one of them said of each subject.
fn said_by(program: &Path, shared: &Shared, subjects: &[String]) -> Vec<String> {
    let exe = std::env::current_exe().expect("ourselves");
    let mut command = Command::new(program);
    command.arg(&shared.path);
    command.arg(shared.path.with_file_name("slots")).arg(exe);
    let out = command.args(subjects).output().expect("the decider");
    assert!(out.status.success(), "{program:?}: {out:?}");
    let text = String::from_utf8(out.stdout).expect("text");
    text.lines().map(str::to_owned).collect()
}

/// The same of the net.
fn said_by_net(desk: &Desk, subjects: &[String]) -> Vec<String> {
    let mut visitors = Visitors::new(1);
    subjects
        .iter()
        .map(|what| said_of(what, desk, &mut visitors))
        .collect()
}

fn said_of(what: &str, desk: &Desk, visitors: &mut Visitors) -> String {
    let is_ref = what.starts_with("ref:");
    let flags = if is_ref {
        OFlags::PATH | OFlags::NOFOLLOW
    } else {
        OFlags::RDONLY | OFlags::NONBLOCK
    };
    let name = what.trim_start_matches("ref:");
    let file = (what != "-").then(|| rustix::fs::open(name, flags, Mode::empty()));
    let file = file.map(|opened| opened.expect("a file"));
    let visitor = visitors.meet(std::process::id(), desk.slots()).expect("us");
    let subject = Subject {
        visitor,
        file: file.as_ref(),
        descriptor: -1,
        mapped: None,
    };
    match desk.later(&subject) {
        Ok(Ok((fs, class))) => format!("-1 0 {} {class}", fs.min(255)),
        Ok(Err(e)) => format!("-1 {} . .", e.raw_os_error()),
        Err(why) => format!("{} 0 . .", why as usize),
    }
}

/// A verdict without what counts for nothing in it: who would owe what is kept, or an error.
fn plain(verdict: &str) -> String {
    let words: Vec<_> = verdict.split(' ').collect();
    let owes = words[0] == "-1" && words[1] == "0";
    if owes {
        verdict.to_owned()
    } else {
        format!("{} {} . .", words[0], words[1])
    }
}

fn name(page: &Page, path: &str, fs: u32, of_mount: bool) {
    let file = rustix::fs::open(path, OFlags::PATH, Mode::empty()).expect(path);
    let place = place_of_fd(&file).expect("a place");
    let entry = page
        .places(place.dev)
        .find(|n| [0, place.dev].contains(&n.dev.load(SeqCst)))
        .expect("room");
    entry.fs.store(fs, SeqCst);
    entry
        .mount
        .store(if of_mount { place.mount } else { 0 }, SeqCst);
    entry.dev.store(place.dev, SeqCst);
}

/// Something that is true of a page.
type Case = (&'static str, fn(&Shared));

const CASES: [Case; 10] = [
    ("as it is", |_| {}),
    ("nothing is relaxed", |s| s.relax(false)),
    ("the lease is over", |s| s.end_lease()),
    ("the clock jumped", |s| {
        let span = s.page().lease_span.load(SeqCst);
        s.page().lease_until.fetch_add(10 * span, SeqCst);
    }),
    ("a write was lost", |s| s.page().error.store(28, SeqCst)),
    ("all is durable now", |s| s.page().now_mask.store(1, SeqCst)),
    ("lost and durable now", |s| {
        s.page().error.store(5, SeqCst);
        s.page().now_mask.store(1, SeqCst);
    }),
    ("sync() may be put off", |s| {
        s.page().sync_ok.store(1, SeqCst)
    }),
    ("sync() has asked", |s| {
        s.slots().want_sync.store(page::SYNC_WANTS, SeqCst);
    }),
    ("another mount", |s| {
        for entry in &s.page().names {
            entry.mount.fetch_add(1, SeqCst);
        }
    }),
];

/// Rules: none; about us, later; about us, `now`; about nobody; by a path that nothing has.
const RULES: [&str; 5] = [
    "",
    "[[rule]]\nexe = \"*\"\nuntil = \"exit\"\n",
    "[[rule]]\nexe = \"*\"\nuntil = \"now\"\n",
    "[[rule]]\nexe = \"nobody-is-called-so\"\nuntil = \"exit\"\n",
    "[[rule]]\npath = \"/nowhere/**\"\nuntil = \"now\"\n[[rule]]\nexe = \"*\"\nuntil = \"exit\"\n",
];

#[test]
fn library_gate_and_net_decide_the_same_on_the_same_page() {
    let folder = Folder::new();
    let deciders = [false, true].map(|is_gate| decider(&folder.0, is_gate));
    let file = folder.0.join("file");
    std::fs::write(&file, b"x").expect("a file");
    std::os::unix::fs::symlink("file", folder.0.join("link")).expect("a link");
    let subjects = [
        folder.inside("file"),
        folder.0.display().to_string(),
        format!("ref:{}", folder.inside("link")),
        "/dev/null".into(),
        "/proc/self/status".into(),
        "/sys/kernel".into(),
        "/dev/shm".into(),
        "-".into(),
    ];
    let mut seen = std::collections::BTreeSet::new();
    for (at, rules) in RULES.iter().enumerate() {
        for (what, change) in CASES {
            for fs in [
                OWES,
                STARTS,
                page::NAME_REAL,
                page::NAME_MEMORY,
                page::NAME_UNKNOWN,
            ] {
                let session = folder.0.join(format!("{at}-{}-{fs}", seen.len()));
                let _ = std::fs::remove_dir_all(&session);
                std::fs::create_dir(&session).expect("a folder");
                let desk = desk(&session, rules);
                let shared = desk.terms.shared;
                name(shared.page(), &folder.inside("file"), fs, true);
                name(shared.page(), "/dev/shm", page::NAME_MEMORY, false);
                name(shared.page(), "/proc/self/status", page::NAME_AWAY, false);
                shared.page().fs[OWES as usize]
                    .state
                    .store(page::FS_OWES, SeqCst);
                shared.page().fs[OWES as usize].held.store(1, SeqCst);
                shared.relax(true);
                shared.heartbeat();
                change(shared);
                let asked = shared.slots().want_sync.load(SeqCst);
                let net = said_by_net(&desk, &subjects);
                for program in &deciders {
                    shared.slots().want_sync.store(asked, SeqCst);
                    let said = said_by(program, shared, &subjects);
                    for ((subject, by_net), by_it) in subjects.iter().zip(&net).zip(&said) {
                        let case = format!("{program:?}, {subject}: {rules:?}, {what}, {fs}");
                        assert_eq!(plain(by_it), *by_net, "{case}");
                        seen.insert(by_net.clone());
                    }
                }
                std::fs::remove_dir_all(&session).expect("gone");
            }
        }
    }
    // Each reason that a page can give was one.
    assert!(seen.len() > 9, "{seen:?}");
}

/// The net's desk of a session with these rules.
fn desk(session: &Path, rules: &str) -> Desk {
    let parsed = (!rules.is_empty()).then(|| RuleSet::from_toml(rules).expect("rules"));
    let (rules, users) = (parsed, Users::default());
    let until = Until::Exit;
    let compiled = rules.as_ref().map(|r| compile(r, until, &users));
    let compiled = compiled.unwrap_or_default();
    let shared = Shared::create(session, &compiled, &[0; 32], Reading::now());
    let shared: &'static Shared = Box::leak(Box::new(shared.expect("page and slots")));
    let places = rules.as_ref().map(crate::session::compile::places);
    Desk::new(Terms {
        shared,
        classes: compiled.classes,
        rules,
        places: places.unwrap_or_default(),
        users,
        supervisor: std::process::id(),
    })
}
