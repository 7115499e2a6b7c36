//! Kills and stops of those that answer, at any moment: every request is answered all the same.

use super::*;
use crate::harness::limits::below;

/// The living processes of synclater that belong to a stage, with their names.
pub fn of_this_stage(stage: &Stage) -> Vec<(Pid, String)> {
    let name = |pid: Pid| {
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
        (pid, comm.unwrap_or_default().trim_end().to_owned())
    };
    stage.of_synclater().into_iter().map(name).collect()
}

fn named(stage: &Stage, name: &str) -> Vec<Pid> {
    let all = of_this_stage(stage).into_iter();
    all.filter(|(_, n)| n == name).map(|(pid, _)| pid).collect()
}

/// A static hammer without an end in a session with a net, which has begun.
fn hammering(stage: &Stage, options: &[&str], threads: &str) -> Running {
    let mut command = reaching(stage, options);
    command
        .arg(program("hammer_static"))
        .arg(stage.work())
        .arg(threads);
    let victim = Running::start(stage, command);
    goes_on(stage, &victim, "at first");
    victim
}

/// Whether more requests are answered than now; none fails, or the hammer would end.
fn goes_on(stage: &Stage, victim: &Running, what: &str) {
    let (before, _) = progress(&stage.work());
    let more = until(LIMIT, || progress(&stage.work()).0 > before + 20);
    assert!(more, "{what}: {before} {}", victim.stderr());
}

/// Ends the hammer.
fn end(stage: &Stage) {
    let (_, pid) = progress(&stage.work());
    let pid = Pid::from_raw(pid).expect("a hammer");
    kill_process(pid, Signal::KILL).expect("it goes on");
    let nobody = until(LIMIT, || of_this_stage(stage).is_empty());
    assert!(nobody, "{:?}", of_this_stage(stage));
}

#[test]
fn soak_whoever_is_killed_every_request_is_answered() {
    if !needs_net("soak_whoever_is_killed_every_request_is_answered") {
        return;
    }
    let seed = seed();
    let mut state = seed;
    for round in 0..count(6, 200) {
        let stage = Stage::new("net-kills");
        let until_when = ["never", "now", "exit"][round % 3];
        let victim = hammering(&stage, &["--net", "-u", until_when], "2");
        for kill in 0..3 {
            let what = format!("seed {seed} round {round} kill {kill}");
            pass(Duration::from_micros(below(&mut state, 20_000)));
            let all = of_this_stage(&stage);
            if all.is_empty() {
                break;
            }
            let (pid, name) = &all[below(&mut state, all.len() as u64) as usize];
            // It may have ended in between.
            let _ = kill_process(*pid, Signal::KILL);
            goes_on(&stage, &victim, &format!("{what}, {name}"));
        }
        end(&stage);
    }
}

#[test]
fn soak_where_both_are_killed_the_supervisor_starts_others() {
    if !needs_net("soak_where_both_are_killed_the_supervisor_starts_others") {
        return;
    }
    // What they have received belongs to nobody then: with one thread there is no other call.
    for round in 0..count(4, 100) {
        let stage = Stage::new("net-both");
        let threads = ["1", "2"][round % 2];
        let victim = hammering(&stage, &["--net", "-u", "now"], threads);
        let all = named(&stage, "synclater-net");
        assert_eq!(all.len(), 2, "{:?}", of_this_stage(&stage));
        for pid in all {
            let _ = kill_process(pid, Signal::STOP);
        }
        for pid in named(&stage, "synclater-net") {
            let _ = kill_process(pid, Signal::KILL);
        }
        goes_on(&stage, &victim, "both killed");
        end(&stage);
    }
}

#[test]
fn soak_each_request_is_counted_once_though_those_that_answer_are_killed() {
    if !needs_net("soak_each_request_is_counted_once_though_those_that_answer_are_killed") {
        return;
    }
    let seed = seed();
    let mut state = seed;
    for _ in 0..count(1, 20) {
        let stage = Stage::new("net-counts");
        let all = 20_000;
        let mut command = reaching(&stage, &["--net", "-u", "now"]);
        command.arg(program("hammer_static")).arg(stage.work());
        command.args(["1", &all.to_string()]);
        let mut victim = Running::start(&stage, command);
        goes_on(&stage, &victim, "at first");
        let mut kills = 0;
        let ended = until(LIMIT * 2, || {
            pass(Duration::from_micros(20_000 + below(&mut state, 20_000)));
            if let Some(pid) = named(&stage, "synclater-net").first() {
                let _ = kill_process(*pid, Signal::KILL);
                kills += 1;
            }
            progress(&stage.work()).0 >= all
        });
        assert!(ended, "seed {seed}, {kills} kills: {}", victim.stderr());
        let outcome = victim.end().must_succeed();
        let report = stage.report();
        let counted = number(&report, "requests");
        // Whoever is killed between a count and its note leaves one that is counted again.
        let about = all..=all + kills;
        assert!(
            kills > 5 && about.contains(&counted),
            "seed {seed}, {kills}: {outcome}{report:#}"
        );
        // So does whoever is killed between the two.
        let real = number(&report, "real");
        assert!(real.abs_diff(counted) <= kills, "{kills}: {report:#}");
    }
}

#[test]
fn where_the_one_that_answers_is_stopped_the_other_one_does() {
    if !needs_net("where_the_one_that_answers_is_stopped_the_other_one_does") {
        return;
    }
    let stage = Stage::new("net-stopped");
    let victim = hammering(&stage, &["--net", "-u", "never"], "2");
    // From then on none is made by it: it has one at a time.
    assert!(until(LIMIT, || stage.counted().1 > 0));
    // The second is a child of the first.
    let all = named(&stage, "synclater-net").into_iter();
    let first = all.min_by_key(|pid| pid.as_raw_nonzero()).expect("one");
    kill_process(first, Signal::STOP).expect("it runs");
    // What it has received waits for it; the other thread's are answered.
    let (before, _) = progress(&stage.work());
    let more = until(LIMIT, || progress(&stage.work()).0 > before + 100);
    kill_process(first, Signal::CONT).expect("it is there");
    assert!(more, "{}", victim.stderr());
    goes_on(&stage, &victim, "continued");
    end(&stage);
}

#[test]
fn what_outlives_its_run_is_answered_on_and_nothing_is_left_in_the_end() {
    if !needs_net("what_outlives_its_run_is_answered_on_and_nothing_is_left_in_the_end") {
        return;
    }
    let stage = Stage::new("net-daemon");
    let hammer = program("hammer_static").display().to_string();
    let script = "setsid \"$@\" >/dev/null 2>&1 </dev/null & \
                  until [ -s \"$2/progress\" ]; do :; done";
    let mut command = reaching(&stage, &NET);
    command.args(["sh", "-c", script, "sh", &hammer]);
    run(command.arg(stage.work())).must_succeed();
    assert!(named(&stage, "synclater").is_empty());
    let (before, _) = progress(&stage.work());
    assert!(until(LIMIT, || progress(&stage.work()).0 > before + 100));
    // Also where one of those that answer is killed.
    let pid = named(&stage, "synclater-net")[0];
    kill_process(pid, Signal::KILL).expect("it runs");
    let (before, _) = progress(&stage.work());
    assert!(until(LIMIT, || progress(&stage.work()).0 > before + 100));
    end(&stage);
}

#[test]
fn a_killed_supervisor_makes_requests_real_within_two_seconds() {
    if !needs_net("a_killed_supervisor_makes_requests_real_within_two_seconds") {
        return;
    }
    let stage = Stage::new("net-supervisor");
    let victim = hammering(&stage, &["--net", "-u", "exit"], "2");
    victim.send(Signal::KILL);
    // The keeper settles and closes the entry; what is answered from then on was made.
    let closed = until(LIMIT, || stage.entries().is_empty());
    assert!(closed, "{:?}", stage.entries());
    goes_on(&stage, &victim, "after the supervisor");
    end(&stage);
}

#[test]
fn nobody_waits_for_the_file_system_of_somebody_else() {
    let name = "nobody_waits_for_the_file_system_of_somebody_else";
    if !needs_net(name) || !needs_root(name) {
        return;
    }
    for how in ["range", "sync"] {
        let stage = Stage::new("net-closing");
        let mut command = reaching(&stage, &["--net", "-u", "exit"]);
        command.args(["unshare", "-m", "--propagation", "private"]);
        command
            .arg(program("closing_static"))
            .arg(stage.work())
            .arg(how);
        let outcome = run(&mut command);
        assert!(outcome.stdout.contains("done"), "{how}: {outcome}");
        outcome.must_succeed();
        let report = stage.report();
        assert_eq!(report["escaped"], json!([]), "{report:#}");
        assert!(number(&report, "skipped") > 0, "{report:#}");
    }
}
