//! Daemons that leave their command and clean the environment, their configurations unchanged.

use super::*;
use crate::harness::disk::SlowDisk;
use crate::harness::limits::needs_root;
use crate::programs::Place;
use crate::servers::daemon::Daemon;
use crate::servers::{
    answers, can_run_daemons, directory, dovecot_config, etcd_puts, etcd_words, free_port,
    imap_append, postfix_config, smtp_source,
};

/// `synclater run --follow` at this place, with a report.
fn following(place: &Place, until: &str) -> Command {
    reaching(place, "--follow", until)
}

/// A run that reaches what it starts in this way.
fn reaching(place: &Place, how: &str, until: &str) -> Command {
    let mut command = place.synclater();
    command.args(["run", how, "--summary", "--until", until, "--json"]);
    command.arg(place.scene.file("report.json")).arg("--");
    command
}

#[test]
fn soak_a_dovecot_that_daemonises_is_reached() {
    if !can_run_daemons("soak_a_dovecot_that_daemonises_is_reached") {
        return;
    }
    let place = Place::new("dovecot-follow");
    let (work, port, messages) = (place.scene.work(), free_port(), count(50, 1000));
    let mail = directory(&work.join("mail"), "2000");
    let config = dovecot_config(&work, &mail, port, "");
    let mut command = following(&place, "1s");
    command.args(["dovecot", "-c"]).arg(&config);
    let mut daemon = Daemon::start(place, &mut command);
    daemon.wait_until("an answer at its port", || answers(port));
    imap_append(port, messages);
    assert_eq!(
        std::fs::read_dir(mail.join("user/new"))
            .expect("mail")
            .count(),
        messages
    );
    run(clean("dovecot").arg("-c").arg(&config).arg("stop")).must_succeed();
    let stopped = daemon.end();
    assert_eq!(stopped.status.code(), Some(0), "{}", stopped.output);
    assert!(
        stopped.number("requests") >= 3 * messages as u64,
        "{:#}",
        stopped.report
    );
    assert_eq!(stopped.report["escaped"], json!([]), "{:#}", stopped.report);
    assert_eq!(stopped.number("settled"), stopped.number("skipped"));
}

#[test]
fn soak_a_postfix_that_is_started_is_reached() {
    if !can_run_daemons("soak_a_postfix_that_is_started_is_reached") {
        return;
    }
    let place = Place::new("postfix-follow");
    let (work, port, messages) = (place.scene.work(), free_port(), count(50, 1000));
    let etc = postfix_config(&work, port, "");
    let mut command = following(&place, "1s");
    command.arg("postfix").arg("-c").arg(&etc).arg("start");
    let mut daemon = Daemon::start(place, &mut command);
    daemon.wait_until("an answer at its port", || answers(port));
    smtp_source(port, 8, messages);
    let delivered = work.join("mail/box/new");
    let arrived = || std::fs::read_dir(&delivered).map_or(0, Iterator::count);
    daemon.wait_until("delivery of every message", || arrived() == messages);
    run(clean("postfix").arg("-c").arg(&etc).arg("stop")).must_succeed();
    let stopped = daemon.end();
    assert!(
        stopped.number("requests") >= messages as u64,
        "{:#}",
        stopped.report
    );
    assert_eq!(stopped.report["escaped"], json!([]), "{:#}", stopped.report);
    assert_eq!(stopped.number("settled"), stopped.number("skipped"));
}

#[test]
fn soak_etcd_is_answered() {
    if !needs_root("soak_etcd_is_answered") {
        return;
    }
    let disk = SlowDisk::new("ext4", 512, 8);
    let puts = count(100, 2000);
    let rate = |how: Option<&str>, more: &[&str]| {
        let place = Place::new("etcd-follow");
        let run = |how| reaching(&place, how, "1s");
        let mut command = how.map_or_else(|| clean("env"), run);
        let data = disk.path().join(format!("{how:?}{}", more.len()));
        let (words, _, port) = etcd_words(&data);
        command.args(words).args(more);
        let mut daemon = Daemon::start(place, &mut command);
        daemon.wait_until("an answer at its port", || answers(port));
        etcd_puts(port, 10);
        let seconds = etcd_puts(port, puts);
        (puts as f64 / seconds, daemon.stop())
    };
    let (real, _) = rate(None, &[]);
    let (own, _) = rate(None, &["--unsafe-no-fsync"]);
    for how in ["--follow", "--net"] {
        let (ours, stopped) = rate(Some(how), &[]);
        println!("etcd: {real:.0} puts a second, {own:.0} by its own switch, {ours:.0} {how}");
        let report = &stopped.report;
        assert!(stopped.number("skipped") >= puts as u64, "{report:#}");
        assert_eq!(report["escaped"], json!([]), "{report:#}");
        assert_eq!(stopped.number("settled"), stopped.number("skipped"));
        assert!(ours >= 2.0 * real, "{how}: {real} {ours}");
    }
}
