//! Daemons that are not restarted: attached under load, on a disk whose flush takes 8 ms.

use super::*;
use crate::harness::disk::SlowDisk;
use crate::harness::limits::{count, needs_root, skip};
use crate::programs::{let_others_in, script, Place};
use crate::servers::daemon::Daemon;
use crate::servers::{answers, directory, dovecot_config, free_port, postfix_config, smtp_source};
use crate::sessions::stage::SYNCLATER;
use std::path::Path;

/// Users with numbers of their own.
const USERS: [(&str, &str); 2] = [("anna", "2001"), ("bob", "2002")];

fn with_two_users(config: &Path, mail: &Path) {
    let users = config.with_file_name("users");
    let lines = USERS.map(|(name, uid)| {
        let home = directory(&mail.join(name), uid);
        format!("{name}::{uid}:{uid}::{}::\n", home.display())
    });
    std::fs::write(&users, lines.concat()).expect("users");
    let text = std::fs::read_to_string(config).expect("the configuration");
    let (before, rest) = text.split_once("userdb {").expect("a userdb");
    let (_, behind) = rest.split_once('}').expect("its end");
    let own = format!(
        "userdb {{\n  driver = passwd-file\n  args = {}\n}}",
        users.display()
    );
    std::fs::write(config, format!("{before}{own}{behind}")).expect("the configuration");
}

/// A user's connections, which stay.
struct Load {
    client: Running,
}

impl Load {
    fn begin(stage: &Stage, port: u16, user: &str, connections: usize) -> Load {
        let mut command = clean("/usr/bin/python3");
        command.arg(script("imap_load.py"));
        command.args([port.to_string(), user.to_owned(), connections.to_string()]);
        let mut client = Running::start(stage, command);
        client.be_ready();
        Load { client }
    }

    /// Messages a second.
    fn rate(&mut self, messages: usize) -> f64 {
        self.client.tell(&messages.to_string());
        let seconds: f64 = self
            .client
            .hear()
            .parse()
            .unwrap_or_else(|_| panic!("{}\n{}", self.client.stdout(), self.client.stderr()));
        messages as f64 / seconds
    }

    fn end(mut self, messages: usize) {
        let outcome = self.client.end().must_succeed();
        let expected = format!("{messages} whole\n");
        assert!(outcome.stdout.ends_with(&expected), "{outcome}");
    }
}

#[test]
fn soak_a_running_dovecot_is_relaxed_for_one_user() {
    if !needs_root("soak_a_running_dovecot_is_relaxed_for_one_user") {
        return;
    }
    let (disk, stage) = (SlowDisk::new("ext4", 512, 8), Stage::new("imap"));
    let place = Place::new("dovecot");
    let_others_in(&disk.path());
    let (port, mail) = (free_port(), directory(&disk.path().join("mail"), "root"));
    let config = dovecot_config(&place.scene.work(), &mail, port, "");
    with_two_users(&config, &mail);
    let mut command = clean("dovecot");
    command.args(["-F", "-c"]).arg(config);
    let mut daemon = Daemon::start(place, &mut command);
    daemon.wait_until("an answer at its port", || answers(port));
    let few = count(40, 200);
    let many = count(240, 2000);
    let mut anna = Load::begin(&stage, port, "anna", 8);
    let mut bob = Load::begin(&stage, port, "bob", 2);
    // The first message makes the mailbox.
    anna.rate(8);
    bob.rate(2);
    let before = anna.rate(few);
    let words = [
        "--exe",
        "imap",
        "-u",
        "1s",
        "--for",
        "10m",
        "--only",
        "user=2001",
    ];
    let session = stage.attach(&words);
    let relaxed = anna.rate(many);
    bob.rate(20);
    let skipped_by = |uid: &str| {
        let session = stage.session();
        let rows = session["processes"].as_array().expect("processes").clone();
        let of = rows.into_iter().filter(|r| r["user"] == uid);
        of.filter_map(|r| r["skipped"].as_u64()).sum::<u64>()
    };
    assert!(skipped_by("2001") > many as u64, "{:#}", stage.session());
    assert_eq!(skipped_by("2002"), 0, "{:#}", stage.session());
    stage
        .ask(&["set", &session, "--for", "100ms"])
        .must_succeed();
    assert!(until(LIMIT, || stage.sessions().is_empty()));
    let behind = anna.rate(few);
    println!("dovecot: {before:.0} messages a second, {relaxed:.0} attached, {behind:.0} behind");
    assert!(relaxed >= 4.0 * before, "{before} {relaxed}");
    assert!(behind <= relaxed / 2.0, "{relaxed} {behind}");
    anna.end(8 + 2 * few + many);
    bob.end(2 + 20);
    daemon.stop();
}

#[test]
fn soak_a_running_postfix_is_relaxed_and_each_cleanup_that_begins() {
    if !needs_root("soak_a_running_postfix_is_relaxed_and_each_cleanup_that_begins") {
        return;
    }
    let (disk, stage) = (SlowDisk::new("ext4", 256, 8), Stage::new("smtp"));
    let (place, port) = (Place::new("postfix"), free_port());
    let_others_in(&disk.path());
    let work = directory(&disk.path().join("postfix"), "root");
    let etc = postfix_config(&work, port, "");
    // Every few messages another one begins.
    let mut postconf = clean("postconf");
    postconf.arg("-c").arg(&etc).args(["-e", "max_use=17"]);
    crate::harness::command::run(&mut postconf).must_succeed();
    let mut command = clean("postfix");
    command.arg("-c").arg(&etc).arg("start-fg");
    let mut daemon = Daemon::start(place, &mut command);
    daemon.wait_until("an answer at its port", || answers(port));
    let messages = count(300, 2000);
    smtp_source(port, 1, 1);
    let words = ["--exe", "/usr/lib/postfix/sbin/cleanup", "--follow"];
    let session = stage.attach(&[&words[..], &["-u", "1s"]].concat());
    smtp_source(port, 8, messages);
    let delivered = work.join("mail/box/new");
    let arrived = || std::fs::read_dir(&delivered).map_or(0, Iterator::count);
    daemon.wait_until("delivery of every message", || arrived() == 1 + messages);
    let report = stage.detach(&session);
    let number = |key: &str| report[key].as_u64().expect("a number");
    println!(
        "postfix: {} of {messages} requests seen",
        number("requests")
    );
    assert_eq!(number("requests"), messages as u64, "{report:#}");
    assert!(number("skipped") > 0, "{report:#}");
    assert_eq!(report["escaped"], serde_json::json!([]), "{report:#}");
    for file in std::fs::read_dir(&delivered).expect("mail").flatten() {
        let text = std::fs::read(file.path()).expect("a message");
        assert!(
            text.len() > 2000 && text.ends_with(b"\n"),
            "{:?}",
            file.path()
        );
    }
    let mut stop = clean("postfix");
    crate::harness::command::run(stop.arg("-c").arg(&etc).arg("stop")).must_succeed();
    daemon.end();
}

/// Attaches and lets go of a server's processes while it works.
fn under_load(kind: &str, small: usize) {
    if !needs_root(kind) {
        return;
    }
    let stage = Stage::new(kind);
    stage.open_to_others(0o755);
    let dir = directory(&stage.work().join("server"), "root");
    let_others_in(&dir);
    let mut command = stage.with_folders("bash");
    command.arg(script("cycles.sh")).arg(kind).arg(&dir);
    command.arg(count(small, 1000).to_string()).arg(SYNCLATER);
    let outcome = crate::harness::command::run(&mut command).must_succeed();
    print!("{kind}: {}", outcome.stdout);
    assert_eq!(stage.sessions(), Vec::<Value>::new());
    assert_eq!(stage.entries(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn soak_postgresql_is_attached_under_load() {
    under_load("postgresql", 7);
}

#[test]
fn soak_redis_is_attached_under_load() {
    under_load("redis", 7);
}

#[test]
fn soak_mariadb_is_attached_under_load() {
    under_load("mariadb", 7);
}

#[test]
fn soak_etcd_is_attached_under_load() {
    under_load("etcd", 7);
}

#[test]
fn soak_python_is_attached_under_load() {
    under_load("python", 7);
}

#[test]
fn soak_java_is_attached_under_load() {
    if clean("javac").arg("-version").output().is_err() {
        return skip(
            "soak_java_is_attached_under_load",
            "no Java compiler (javac) is installed",
        );
    }
    under_load("java", 7);
}
