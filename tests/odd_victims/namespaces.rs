//! Sessions and programs in namespaces of their own: containers, and what is mounted there alone.

use super::*;

#[test]
fn the_first_process_of_a_container_can_be_synclater() {
    if !as_root("the_first_process_of_a_container_can_be_synclater") {
        return;
    }
    let stage = Stage::new("first");
    let mut command = reported(&stage, &["unshare", "-fp", "--mount-proc"]);
    hammer(&mut command, &stage.work());
    is_kept(&stage, &run(&mut command));
}

#[test]
fn the_first_processes_of_two_containers_do_not_disturb_each_other() {
    if !as_root("the_first_processes_of_two_containers_do_not_disturb_each_other") {
        return;
    }
    let stage = Stage::new("first-of-two");
    let container = ["unshare", "-fp", "--mount-proc", "--kill-child"];
    let mut command = reported(&stage, &container);
    command.arg(program("demand")).arg(stage.work());
    let mut victim = Running::start(&stage, command);
    assert_eq!(victim.sync("file"), 0);
    let other = Stage::new("second-of-two");
    let mut command = reported(&other, &container);
    hammer(&mut command, &other.work());
    is_kept(&other, &run(&mut command));
    assert_eq!(victim.sync("file"), 0);
    victim.end().must_succeed();
}

#[test]
fn the_first_process_of_a_container_can_be_a_victim() {
    if !as_root("the_first_process_of_a_container_can_be_a_victim") {
        return;
    }
    let stage = Stage::new("victim");
    let mut command = reported(&stage, &[]);
    command.args(["unshare", "-fp", "--mount-proc"]);
    hammer(&mut command, &stage.work());
    is_kept(&stage, &run(&mut command));
}

#[test]
fn a_signal_from_outside_of_the_container_is_passed_on() {
    if !as_root("a_signal_from_outside_of_the_container_is_passed_on") {
        return;
    }
    let stage = Stage::new("outside");
    let mut command = reported(&stage, &["unshare", "-fp", "--mount-proc", "--kill-child"]);
    let script = "trap 'exit 23' TERM; echo ready; while :; do :; done";
    command.args(["sh", "-c", script]);
    let mut running = Running::start(&stage, command);
    running.be_ready();
    let unshare = running.pid().as_raw_nonzero();
    let children = std::fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children"));
    let first = children
        .expect("children")
        .trim()
        .parse()
        .expect("one child");
    kill_process(Pid::from_raw(first).expect("a process"), Signal::TERM).expect("it runs");
    let ended = until(std::time::Duration::from_secs(10), || {
        std::fs::metadata(format!("/proc/{first}")).is_err()
    });
    assert!(ended, "the command has not heard of SIGTERM");
    let end = running.end();
    assert_eq!(end.status.code(), Some(23), "{end}");
}

#[test]
fn a_time_namespace_changes_nothing() {
    if !as_root("a_time_namespace_changes_nothing") {
        return;
    }
    for offset in ["100000", "-20"] {
        let stage = Stage::new("time");
        let mut command = reported(&stage, &[]);
        command.args([
            "unshare",
            "-T",
            "--fork",
            "--boottime",
            offset,
            "--monotonic",
            offset,
        ]);
        hammer(&mut command, &stage.work());
        is_kept(&stage, &run(&mut command));
    }
}

#[test]
fn a_mount_namespace_that_ends_leaves_what_was_mounted_there_whole() {
    if !as_root("a_mount_namespace_that_ends_leaves_what_was_mounted_there_whole") {
        return;
    }
    // Real ones.
    const INSIDE: u64 = 503;
    // As whoever builds an image does: the end of the namespace is its umount.
    let script = "set -e; cd \"$1\"; mkdir mnt; truncate -s 32M img; mkfs.ext4 -q img; \
        unshare -m sh -c 'mount -o loop img mnt; \"$0\" mnt 1 \"$1\"' \"$2\" \"$4\"; \
        losetup -j img > held; cp img copy; e2fsck -fy img; resize2fs -M img; \
        \"$2\" . 1 \"$3\"";
    for dial in ["exit", "1s"] {
        let stage = Stage::new("gone");
        let mut command = stage.with_folders(SYNCLATER);
        command.args(["run", "--quiet", "--until", dial]);
        command.args(stage.json());
        command.args(["--", "sh", "-c", script, "sh"]);
        command.arg(stage.work());
        command.arg(program("hammer"));
        command.args([REQUESTS.to_string(), INSIDE.to_string()]);
        run(&mut command).must_succeed();
        let work = stage.work();
        let held = std::fs::read_to_string(work.join("held")).expect("what losetup said");
        assert_eq!(held, "", "{dial}: its loop device is still held");
        let at = work.join("look");
        std::fs::create_dir(&at).expect("a mount point");
        for image in ["copy", "img"] {
            run(clean("fsck.ext4").arg("-fn").arg(work.join(image))).must_succeed();
            mount_copy("ext4", &work.join(image), &at);
            let seen = progress(&at);
            run(clean("umount").arg(&at)).must_succeed();
            assert_eq!(seen.0, INSIDE, "{dial}: {image}");
        }
        let report = stage.report();
        let kept =
            &report["kept_real"]["the file system is mounted in another mount namespace alone"];
        assert!(kept.as_u64() > Some(0), "{dial}: {report:#}");
        // What is in sight is put off all the same.
        assert!(number(&report, "skipped") > 0, "{dial}: {report:#}");
        assert!(stage.entries().is_empty());
    }
}

/// Nothing of the session keeps its namespace behind its end: what is mounted there alone is as
/// free as without.
#[test]
fn a_session_in_a_namespace_of_its_own_leaves_nothing_that_keeps_it() {
    if !as_root("a_session_in_a_namespace_of_its_own_leaves_nothing_that_keeps_it") {
        return;
    }
    let script = "set -e; mount -o loop \"$1/img\" \"$1/mnt\"; shift; exec \"$@\"";
    for dial in ["now", "exit", "1s"] {
        let stage = Stage::new("inside");
        let work = stage.work();
        std::fs::create_dir(work.join("mnt")).expect("a mount point");
        run(clean("truncate").args(["-s", "32M"]).arg(work.join("img"))).must_succeed();
        run(clean("mkfs.ext4").arg("-q").arg(work.join("img"))).must_succeed();
        let mut command = stage.with_folders("unshare");
        command.args(["-m", "sh", "-c", script, "sh"]).arg(&work);
        command.args([SYNCLATER, "run", "--quiet", "--until", dial, "--"]);
        hammer(&mut command, &work.join("mnt"));
        run(&mut command).must_succeed();
        // Whoever looks for a free loop device opens all of them, for an instant.
        let is_free = || {
            let held = run(clean("losetup").arg("-j").arg(work.join("img"))).must_succeed();
            held.stdout.is_empty()
        };
        let is_soon_free = until(Duration::from_millis(500), is_free);
        assert!(is_soon_free, "{dial}: its loop device is still held");
        run(clean("fsck.ext4").arg("-fn").arg(work.join("img"))).must_succeed();
    }
}

/// What a rule keeps at `now` stays there where nobody can tell what is executed: a /proc that is
/// no root of a procfs.
#[test]
fn a_program_that_cannot_be_told_is_none_that_a_laxer_rule_means() {
    if !as_root("a_program_that_cannot_be_told_is_none_that_a_laxer_rule_means") {
        return;
    }
    let stage = Stage::new("no-exe");
    let rules = stage.file("rules.toml");
    let text = "[[rule]]\nexe = \"hammer\"\nuntil = \"now\"\n[[rule]]\nuntil = \"exit\"\n";
    std::fs::write(&rules, text).expect("rules");
    let script = "set -e; mkdir \"$1/p\"; mount --rbind /proc \"$1/p\"; \
        mount -t tmpfs none /proc; \
        for of in self thread-self; do ln -s \"$1/p/$of\" /proc/$of; done; \
        exec \"$2\" \"$1\" 1 \"$3\"";
    let mut command = stage.with_folders(SYNCLATER);
    command.args(["run", "--quiet", "--rules"]).arg(rules);
    command.args(stage.json());
    command.args(["--", "unshare", "-m", "sh", "-c", script, "sh"]);
    command.arg(stage.work()).arg(program("hammer")).arg("503");
    run(&mut command).must_succeed();
    let report = stage.report();
    assert_eq!(number(&report, "skipped"), 0, "{report:#}");
}

#[test]
fn a_tmpfs_in_a_private_mount_namespace_owes_nothing() {
    if !as_root("a_tmpfs_in_a_private_mount_namespace_owes_nothing") {
        return;
    }
    let stage = Stage::new("private-tmpfs");
    let script = "mount -t tmpfs none \"$1\" && \"$2\" \"$1\" 1 \"$3\"";
    let mut command = reported(&stage, &[]);
    command.args(["unshare", "-m", "sh", "-c", script, "sh"]);
    command
        .arg(stage.work())
        .arg(program("hammer"))
        .arg(REQUESTS.to_string());
    run(&mut command).must_succeed();
    assert_eq!(number(&stage.report(), "requests"), REQUESTS);
    assert!(stage.entries().is_empty());
}

/// By somebody inside of another one, and by somebody around its own.
#[test]
fn a_session_is_asked_from_another_pid_namespace() {
    if !as_root("a_session_is_asked_from_another_pid_namespace") {
        return;
    }
    let inside = &["unshare", "-fp", "--mount-proc", "--kill-child"][..];
    for (victims, askers) in [(&[][..], inside), (inside, &[]), (inside, inside)] {
        let stage = Stage::new("asked");
        let within = |namespace: &[&str]| {
            let mut command = stage.with_folders("env");
            command.args(namespace).arg(SYNCLATER);
            command
        };
        let mut command = within(victims);
        command.args(["run", "--quiet", "--"]);
        command.arg(program("demand")).arg(stage.work());
        let mut victim = Running::start(&stage, command);
        assert_eq!(victim.sync("file"), 0);
        let ask = |words: &[&str]| {
            let told = run(within(askers).args(words)).must_succeed();
            assert_eq!(told.stderr, "", "{told}");
            told.stdout
        };
        let listed = ask(&["ps", "--json"]);
        let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
        let id = listed[0]["id"].as_str().expect("an id");
        for words in [&["set", id, "--until", "2s"][..], &["settle", id]] {
            let told = ask(words);
            assert!(told.contains(id), "{told}");
        }
        let listed = ask(&["ps"]);
        assert!(listed.contains("until 2s"), "{listed}");
        victim.end().must_succeed();
    }
}

#[test]
fn one_that_does_not_answer_from_another_pid_namespace_is_said_to_be_there() {
    if !as_root("one_that_does_not_answer_from_another_pid_namespace_is_said_to_be_there") {
        return;
    }
    let stage = Stage::new("unanswered");
    let mut victim = stage.demand(&["-u", "1h"]);
    victim.be_ready();
    let id = stage.id();
    victim.send(Signal::STOP);
    let mut command = stage.with_folders("unshare");
    command.args(["-fp", "--mount-proc", "--kill-child", SYNCLATER]);
    let told = run(command.args(["set", &id, "--until", "2s"]));
    victim.send(Signal::CONT);
    assert_eq!(told.status.code(), Some(125), "{told}");
    let says = "its supervisor, in another pid namespace, does not answer";
    assert!(told.stderr.contains(says), "{told}");
    victim.end().must_succeed();
}
