//! Daemons as they are, on loopback ports, under load: Dovecot, Postfix, etcd.
//!
//! Promise: what a test starts is gone at its end, also when it has failed (`daemon`, `leftovers`).
//!
//! What reaches the kernel is counted by strace, program by program (`syncs`), and compared with
//! the session's own report.

pub mod daemon;
pub mod leftovers;
mod slow;
mod syncs;

use crate::harness::command::{clean, run};
use crate::harness::limits::{count, is_root, skip};
use crate::programs::{script, Place};
use daemon::{Daemon, Stopped};
use serde_json::Value;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use syncs::Syncs;

/// What a process says of itself that lost the library.
const LOST: &str = "lost the library";

/// A loopback port that nobody listens at.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}

pub fn answers(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// True when the test may go on: the daemons change their users.
pub fn can_run_daemons(name: &str) -> bool {
    if !is_root() {
        skip(name, "the daemons change their users, which needs root");
    }
    is_root()
}

/// The names that a daemon has to import, as `synclater env` prints them.
pub fn names_to_import(place: &Place) -> String {
    let outcome = run(place.synclater().args(["env", "--json"])).must_succeed();
    let object: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    object["import"].as_str().expect("import").to_owned()
}

/// Copies a file of `tests/servers`, with what stands between @ filled in.
fn fill_in(name: &str, to: &Path, values: &[(&str, &str)]) {
    let text = std::fs::read_to_string(script(name)).expect(name);
    let filled = values
        .iter()
        .fold(text, |text, (key, value)| text.replace(key, value));
    std::fs::write(to, filled).expect("the configuration");
}

/// A directory that belongs to a user.
pub fn directory(path: &Path, user: &str) -> PathBuf {
    run(clean("install")
        .args(["-d", "-m", "755", "-o", user])
        .arg(path))
    .must_succeed();
    path.to_owned()
}

/// How a daemon is run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Alone,
    /// In a session for one program, at this dial; the environment is imported.
    Session(&'static str, &'static str),
    /// The same, but what cleans the environment is left as it is.
    NothingImported(&'static str, &'static str),
}

impl How {
    fn import(self, place: &Place) -> String {
        match self {
            How::Session(..) => names_to_import(place),
            How::Alone | How::NothingImported(..) => String::new(),
        }
    }

    /// A command that the daemon's own words are appended to.
    fn command(self, place: &Place, syncs: &Syncs) -> Command {
        let mut command = match self {
            How::Alone => clean("env"),
            How::Session(exe, until) | How::NothingImported(exe, until) => {
                let mut command = place.synclater();
                command.args(["run", "--summary", "--only", &format!("exe={exe}")]);
                command.args(["--until", until, "--json"]);
                command.arg(place.scene.file("report.json")).arg("--");
                command
            }
        };
        syncs.trace(&mut command);
        command
    }
}

/// The session as `ps` shows it.
fn session(place: &Place) -> Value {
    let outcome = run(place.synclater().args(["ps", "--json"])).must_succeed();
    let all: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert_eq!(all.as_array().map(Vec::len), Some(1), "{all:#}");
    all[0].clone()
}

/// Whether something was put off: it is still owed, or a living process counts it.
fn puts_off(session: &Value) -> bool {
    let processes = session["processes"].as_array().expect("processes");
    let skipped = |p: &Value| p["skipped"].as_u64() > Some(0);
    session["debt"].as_u64() > Some(0) || processes.iter().any(skipped)
}

/// A daemon with its mail and its port.
struct Mail {
    daemon: Daemon,
    syncs: Syncs,
    port: u16,
    delivered: PathBuf,
}

/// What a load of messages made of real syncs.
struct Load {
    /// In the program that the session is for.
    chosen: usize,
    /// In all others.
    elsewhere: usize,
}

impl Mail {
    fn dovecot(how: How) -> Mail {
        let place = Place::new("dovecot");
        let (work, port) = (place.scene.work(), free_port());
        let syncs = Syncs::new(place.scene.file("traces"));
        let mail = directory(&work.join("mail"), "2000");
        let config = dovecot_config(&work, &mail, port, &how.import(&place));
        let mut command = how.command(&place, &syncs);
        command.args(["dovecot", "-F", "-c"]).arg(config);
        let delivered = mail.join("user/new");
        Mail::start(place, &mut command, syncs, port, delivered)
    }

    fn postfix(how: How) -> Mail {
        let place = Place::new("postfix");
        let (work, port) = (place.scene.work(), free_port());
        let syncs = Syncs::new(place.scene.file("traces"));
        let etc = postfix_config(&work, port, &how.import(&place));
        let mut command = how.command(&place, &syncs);
        command.args(["postfix", "-c"]).arg(&etc).arg("start-fg");
        Mail::start(place, &mut command, syncs, port, work.join("mail/box/new"))
    }

    fn start(
        place: Place,
        command: &mut Command,
        syncs: Syncs,
        port: u16,
        delivered: PathBuf,
    ) -> Mail {
        let mut daemon = Daemon::start(place, command);
        daemon.wait_until("an answer at its port", || answers(port));
        Mail {
            daemon,
            syncs,
            port,
            delivered,
        }
    }

    fn messages(&self) -> usize {
        let entries = std::fs::read_dir(&self.delivered);
        entries.map_or(0, Iterator::count)
    }

    /// Sends by IMAP, one connection, one answer a message.
    fn append(&mut self, messages: usize) {
        let already = self.messages();
        imap_append(self.port, messages);
        assert_eq!(self.messages(), already + messages);
    }

    /// Sends by SMTP, one connection after the other, and waits for the delivery.
    fn smtp(&mut self, messages: usize) {
        let already = self.messages();
        smtp_source(self.port, 1, messages);
        let delivered = self.delivered.clone();
        let all = || std::fs::read_dir(&delivered).map_or(0, Iterator::count) == already + messages;
        self.daemon.wait_until("delivery of every message", all);
    }

    /// Sends single messages until the session puts something off.
    fn warm_up(&mut self, send: fn(&mut Mail, usize)) {
        for _ in 0..101 {
            send(self, 1);
            if puts_off(&session(&self.daemon.place)) {
                return;
            }
        }
        panic!("nothing was put off\n{:#}", session(&self.daemon.place));
    }

    /// Sends messages and counts what they make of real syncs.
    fn load(&mut self, program: &str, send: fn(&mut Mail, usize), messages: usize) -> Load {
        let all = |syncs: &Syncs| syncs.by_program().values().sum::<usize>();
        let (chosen, total) = (self.syncs.of(program), all(&self.syncs));
        send(self, messages);
        let chosen = self.syncs.of(program) - chosen;
        let elsewhere = all(&self.syncs) - total - chosen;
        println!("{messages} messages: {chosen} syncs in {program}, {elsewhere} elsewhere");
        Load { chosen, elsewhere }
    }

    /// Stops it by SIGTERM to the process that was started; a Postfix, whose start-fg is a script
    /// that passes no signal on, by its own command.
    fn stop(self) -> Stopped {
        let etc = self.daemon.place.scene.work().join("etc");
        if !etc.exists() {
            return self.daemon.stop();
        }
        run(clean("postfix").arg("-c").arg(etc).arg("stop")).must_succeed();
        self.daemon.end()
    }
}

/// A private Postfix below `base`: its folder of configuration. Mail goes to `mail/box/new`.
pub fn postfix_config(base: &Path, port: u16, import: &str) -> PathBuf {
    directory(&base.join("mail"), "2000");
    directory(&base.join("data"), "postfix");
    let etc = directory(&base.join("etc"), "root");
    directory(&base.join("spool"), "root");
    let base = base.to_string_lossy().into_owned();
    let values = [("@BASE@", base.as_str()), ("@IMPORT@", import)];
    fill_in("main.cf", &etc.join("main.cf"), &values);
    let port = port.to_string();
    fill_in("master.cf", &etc.join("master.cf"), &[("@PORT@", &port)]);
    etc
}

/// Sends messages by SMTP, by so many sessions at once.
pub fn smtp_source(port: u16, sessions: usize, messages: usize) {
    let mut command = clean("smtp-source");
    command.args(["-s", &sessions.to_string(), "-l", "2000"]);
    command.args(["-f", "a@example.org", "-t", "b@example.net"]);
    command.args(["-m", &messages.to_string(), &format!("127.0.0.1:{port}")]);
    run(&mut command).must_succeed();
}

pub fn dovecot_config(base: &Path, mail: &Path, port: u16, import: &str) -> PathBuf {
    let file = base.join("dovecot.conf");
    let (base, mail) = (base.to_string_lossy(), mail.to_string_lossy());
    let values = [
        ("@BASE@", &*base),
        ("@MAIL@", &*mail),
        ("@PORT@", &port.to_string()),
        ("@IMPORT@", import),
    ];
    fill_in("dovecot.conf", &file, &values);
    file
}

/// APPENDs messages; returns the seconds that it took.
pub fn imap_append(port: u16, messages: usize) -> f64 {
    let mut command = clean("/usr/bin/python3");
    command.arg(script("imap_append.py"));
    command.args([port.to_string(), messages.to_string()]);
    let outcome = run(&mut command).must_succeed();
    outcome.stdout.trim().parse().expect("seconds")
}

/// synclater ended as the daemon does without it.
fn ended_as(stopped: &Stopped, expected: ExitStatus) {
    assert_eq!(stopped.status, expected, "{}", stopped.output);
    let shown = expected.signal().map_or(expected.code(), |s| Some(128 + s));
    let told = stopped.report["exit_status"].as_i64();
    assert_eq!(told, shown.map(i64::from), "{:#}", stopped.report);
}

/// What was owed is settled, and the ledger knows of nothing.
fn owes_nothing(stopped: &Stopped, least: usize) {
    let report = &stopped.report;
    assert!(stopped.number("skipped") >= least as u64, "{report:#}");
    assert_eq!(stopped.number("settled"), stopped.number("skipped"));
    assert_eq!(report["escaped"], serde_json::json!([]), "{report:#}");
    let open = std::fs::read_dir(stopped.daemon.place.scene.state()).expect("the ledger");
    assert_eq!(open.count(), 0, "the ledger entry is closed");
}

#[test]
fn soak_messages_appended_to_dovecot_make_no_sync_in_imap() {
    if !can_run_daemons("dovecot") {
        return;
    }
    let messages = count(29, 1000);
    let mut alone = Mail::dovecot(How::Alone);
    // The first message makes the mailbox.
    alone.append(1);
    let usual = alone.load("imap", Mail::append, messages);
    assert!(usual.chosen >= 3 * messages, "{}", usual.chosen);
    let expected = alone.stop().status;

    let mut mail = Mail::dovecot(How::Session("imap", "exit"));
    mail.warm_up(Mail::append);
    let load = mail.load("imap", Mail::append, messages);
    let stopped = mail.stop();
    assert_eq!(load.chosen, 0, "syncs in imap\n{}", stopped.output);
    assert_eq!(
        load.elsewhere, usual.elsewhere,
        "syncs elsewhere\n{}",
        stopped.output
    );
    ended_as(&stopped, expected);
    owes_nothing(&stopped, 3 * messages);
}

#[test]
fn soak_messages_sent_to_postfix_make_no_sync_in_its_chrooted_cleanup() {
    if !can_run_daemons("postfix") {
        return;
    }
    let messages = count(29, 1000);
    let mut alone = Mail::postfix(How::Alone);
    alone.smtp(1);
    let usual = alone.load("cleanup", Mail::smtp, messages);
    assert_eq!(usual.chosen, messages);
    assert!(usual.elsewhere >= messages, "{}", usual.elsewhere);
    let expected = alone.stop().status;

    let mut mail = Mail::postfix(How::Session("cleanup", "1s"));
    mail.warm_up(Mail::smtp);
    let load = mail.load("cleanup", Mail::smtp, messages);
    let stopped = mail.stop();
    assert_eq!(load.chosen, 0, "syncs in cleanup\n{}", stopped.output);
    assert_eq!(
        load.elsewhere, usual.elsewhere,
        "syncs elsewhere\n{}",
        stopped.output
    );
    ended_as(&stopped, expected);
    owes_nothing(&stopped, messages);
}

/// The session names the processes that it lost, and how to keep them.
fn names_what_it_lost(mut mail: Mail, program: &str, send: fn(&mut Mail, usize)) {
    send(&mut mail, 29);
    let session = session(&mail.daemon.place);
    let stopped = mail.stop();
    let shown = session["escaped"].to_string();
    assert!(
        shown.contains(program) && shown.contains(LOST),
        "{session:#}"
    );
    let escaped = stopped.escaped(program);
    assert!(!escaped.is_empty(), "{:#}", stopped.report);
    assert!(
        escaped.iter().all(|(_, why)| why.contains(LOST)),
        "{escaped:?}"
    );
    let name = program.trim_start_matches('/');
    for words in [
        format!("escaped: {name} ("),
        "hand on LD_PRELOAD".to_owned(),
    ] {
        assert!(
            stopped.output.contains(&words),
            "{words}\n{}",
            stopped.output
        );
    }
    assert_eq!(stopped.number("skipped"), 0, "{:#}", stopped.report);
}

#[test]
fn a_dovecot_that_imports_nothing_is_told_of_with_its_imap() {
    if can_run_daemons("dovecot-lost") {
        let mail = Mail::dovecot(How::NothingImported("imap", "exit"));
        names_what_it_lost(mail, "/imap", Mail::append);
    }
}

#[test]
fn a_postfix_that_imports_nothing_is_told_of_with_its_cleanup() {
    if can_run_daemons("postfix-lost") {
        let mail = Mail::postfix(How::NothingImported("cleanup", "1s"));
        names_what_it_lost(mail, "/cleanup", Mail::smtp);
    }
}

/// A private etcd with its data in a folder: its command, its URL for clients, and their port.
pub fn etcd_words(data: &Path) -> (Vec<String>, String, u16) {
    let (client, peer) = (free_port(), free_port());
    let [client_url, peer_url] = [client, peer].map(|p| format!("http://127.0.0.1:{p}"));
    let words = [
        "etcd",
        "--data-dir",
        &data.display().to_string(),
        "--listen-client-urls",
        &client_url,
        "--advertise-client-urls",
        &client_url,
        "--listen-peer-urls",
        &peer_url,
        "--initial-advertise-peer-urls",
        &peer_url,
        "--initial-cluster",
        &format!("default={peer_url}"),
        "--log-level",
        "error",
    ];
    (words.map(str::to_owned).to_vec(), client_url, client)
}

/// Puts keys, one after the other, by one connection; the seconds that it took.
pub fn etcd_puts(port: u16, puts: usize) -> f64 {
    let mut command = clean("/usr/bin/python3");
    command
        .arg(script("etcd_puts.py"))
        .args([port.to_string(), puts.to_string()]);
    let outcome = run(&mut command).must_succeed();
    outcome.stdout.trim().parse().expect("seconds")
}

/// etcd in a session of its own, its syncs counted.
fn etcd() -> (Daemon, Syncs, String) {
    let place = Place::new("etcd");
    let syncs = Syncs::new(place.scene.file("traces"));
    let mut command = place.synclater();
    command
        .args(["run", "--summary", "--json"])
        .arg(place.scene.file("report.json"))
        .arg("--");
    syncs.trace(&mut command).arg("etcd");
    let (words, client_url, client) = etcd_words(&place.scene.work());
    command.args(&words[1..]);
    let mut daemon = Daemon::start(place, &mut command);
    daemon.wait_until("an answer at its port", || answers(client));
    (daemon, syncs, client_url)
}

#[test]
fn a_go_program_is_told_of_by_what_the_kernel_saw() {
    if !is_root() {
        skip("etcd", "counting in the kernel needs root");
        return;
    }
    let (daemon, syncs, url) = etcd();
    for key in 0..29 {
        let mut put = clean("etcdctl");
        put.env("ETCDCTL_API", "3").args([
            "--endpoints",
            &url,
            "put",
            &format!("key{key}"),
            "value",
        ]);
        run(&mut put).must_succeed();
    }
    let stopped = daemon.stop();
    let escaped = stopped.escaped("/etcd");
    let seen: usize = syncs.by_program().values().sum();
    assert!(seen >= 29, "{seen}");
    assert_eq!(escaped.len(), 1, "{:#}", stopped.report);
    let (requests, why) = &escaped[0];
    assert_eq!(*requests, seen as u64, "{:#}", stopped.report);
    assert!(why.contains("system calls of its own"), "{why}");
    assert!(
        stopped.output.contains("escaped: etcd ("),
        "{}",
        stopped.output
    );
}
