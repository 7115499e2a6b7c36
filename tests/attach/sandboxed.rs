//! Programs behind seccomp filters of their own: attached where those let pass what attaching
//! takes, and refused where they do not. A filter that is misread kills the victim.

use super::cycles::cycles_of;
use super::*;
use crate::sessions::stage::as_root;
use synclater_shim::calls::{Argument, Made, MADE};

const ARCH_64: u32 = 0xc000_003e;
const ARCH_32: u32 = 0x4000_0003;
const LOAD: u16 = 0x20;
const JEQ: u16 = 0x15;
const JSET: u16 = 0x45;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const KILL: u32 = 0x8000_0000;
const DENY: u32 = 0x0005_0001;

type Instruction = (u16, u8, u8, u32);

/// The calls that `busy` and `demand` make by themselves, and their libc, as strace showed them
/// (glibc 2.36).
const OWN_64: &[u32] = &[
    0, 1, 3, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 21, 26, 28, 39, 56, 58, 59, 60, 61,
    62, 72, 74, 75, 77, 80, 87, 158, 202, 218, 222, 223, 219, 230, 231, 232, 233, 234, 257, 262,
    273, 277, 291, 293, 302, 318, 328, 334, 435,
];
const OWN_32: &[u32] = &[
    0, 1, 3, 4, 6, 7, 10, 11, 12, 20, 33, 37, 45, 54, 77, 91, 93, 114, 118, 119, 120, 125, 140,
    144, 146, 148, 168, 173, 174, 175, 180, 181, 190, 191, 192, 194, 197, 219, 221, 240, 241, 243,
    252, 254, 255, 256, 258, 259, 260, 267, 270, 295, 300, 311, 314, 329, 331, 340, 355, 379, 383,
    384, 386, 403, 407, 409, 413, 422, 435,
];

/// What lets a call pass whose arguments are those of an entry, and goes on behind otherwise.
fn block(made: &Made, is_64: bool) -> Vec<Instruction> {
    // What a comparison goes on to is put in at the end.
    const NEXT: u8 = 255;
    let mut all = vec![(LOAD, 0, 0, 0)];
    all.push((JEQ, 0, NEXT, if is_64 { made.long } else { made.small }));
    for (k, told) in (0u32..).zip(made.arguments) {
        let (low, high) = (16 + 8 * k, 20 + 8 * k);
        let number = match *told {
            Argument::Any => continue,
            Argument::Within(mask) => {
                all.extend([(LOAD, 0, 0, low), (JSET, NEXT, 0, !mask)]);
                continue;
            }
            Argument::Is(number) => number,
            Argument::By(long, small) => [small, long][usize::from(is_64)],
        };
        all.extend([(LOAD, 0, 0, low), (JEQ, 0, NEXT, number as u32)]);
        if is_64 {
            all.extend([(LOAD, 0, 0, high), (JEQ, 0, NEXT, (number >> 32) as u32)]);
        }
    }
    all.push((RETURN, 0, 0, ALLOW));
    let len = all.len();
    for (at, instruction) in all.iter_mut().enumerate() {
        let by = u8::try_from(len - at - 1).expect("a jump");
        if instruction.0 != RETURN && instruction.0 != LOAD {
            for jump in [&mut instruction.1, &mut instruction.2] {
                *jump = if *jump == NEXT { by } else { *jump };
            }
        }
    }
    all
}

/// Lets pass what `own` lists, and what attaching takes with the arguments that it has then; kills
/// at anything else.
fn strict(is_64: bool, own: &[u32]) -> Vec<Instruction> {
    let arch = if is_64 { ARCH_64 } else { ARCH_32 };
    let mut all = vec![
        (LOAD, 0, 0, 4),
        (JEQ, 1, 0, arch),
        // The launcher's own execve, of a 32-bit program.
        (RETURN, 0, 0, if is_64 { KILL } else { ALLOW }),
        (LOAD, 0, 0, 0),
    ];
    for number in own {
        all.extend([(JEQ, 0, 1, *number), (RETURN, 0, 0, ALLOW)]);
    }
    for made in MADE {
        all.extend(block(made, is_64));
    }
    all.push((RETURN, 0, 0, KILL));
    all
}

/// Does something at one of the calls that attaching takes, and lets all else pass.
fn against(made: &Made, action: u32) -> Vec<Instruction> {
    let mut all = block(made, true);
    all.last_mut().expect("a return").3 = action;
    all.push((RETURN, 0, 0, ALLOW));
    all
}

/// A program behind a filter, which was started.
fn started(stage: &Stage, filter: &[Instruction], words: &[&std::ffi::OsStr]) -> Running {
    let file = stage.file("filter");
    let bytes = filter.iter().flat_map(|(code, yes, no, k)| {
        let [a, b] = code.to_ne_bytes();
        let [c, d, e, f] = k.to_ne_bytes();
        [a, b, *yes, *no, c, d, e, f]
    });
    std::fs::write(&file, bytes.collect::<Vec<u8>>()).expect("the filter");
    let mut command = clean(program("sandboxed"));
    command.arg(&file).args(words);
    Running::start(stage, command)
}

/// One of the victims behind a filter.
fn behind(stage: &Stage, filter: &[Instruction], words: &[&str]) -> Running {
    let (name, work) = (program(words[0]), stage.work());
    let mut all = vec![name.as_os_str(), work.as_os_str()];
    all.extend(words[1..].iter().map(std::ffi::OsStr::new));
    let mut victim = started(stage, filter, &all);
    victim.be_ready();
    victim
}

fn cycles(name: &str, is_64: bool, own: &[u32]) {
    if !as_root(&format!("{name} behind a filter")) {
        return;
    }
    let stage = Stage::new("strict");
    let victim = behind(&stage, &strict(is_64, own), &[name, "4"]);
    cycles_of(&stage, name, victim);
}

#[test]
fn soak_a_busy_program_behind_a_filter_is_attached_and_let_go_of() {
    cycles("busy", true, OWN_64);
}

#[test]
fn soak_a_busy_32_bit_program_behind_a_filter_is_attached_and_let_go_of() {
    cycles("busy_32", false, OWN_32);
}

#[test]
fn one_behind_a_filter_is_recorded_and_ruled_and_keeps_its_marks() {
    if !as_root("one_behind_a_filter_is_recorded") {
        return;
    }
    let stage = Stage::new("all");
    let mut victim = behind(&stage, &strict(true, OWN_64), &["demand"]);
    let file = stage.file("rec").display().to_string();
    let pid = number(victim.pid());
    const RULES: &str = "[[rule]]\npath = '**/kept'\nuntil = 'now'\n\
        [[rule]]\npath = '**'\nuntil = '1h'\n";
    let rule = stage.file("rules").display().to_string();
    std::fs::write(&rule, RULES).expect("the rules");
    let session = stage.attach(&[
        "--pid", &pid, "-u", "1h", "--record", &file, "--rules", &rule,
    ]);
    stage.warm(&mut victim);
    for line in [
        "sync kept",
        "open marked 1576960",
        "put marked",
        "flag other",
        "plain other",
    ] {
        victim.tell(line);
        let said = victim.hear();
        assert!(!said.ends_with("-1"), "{line}: {said}");
    }
    let (requests, skipped) = stage.counted();
    assert!(requests > skipped, "{requests} {skipped}");
    let report = stage.detach(&session);
    assert_eq!(report["requests"].as_u64(), Some(requests), "{report:#}");
    victim.tell("put marked");
    assert_eq!(victim.hear(), "put 0");
    let outcome = stage.ask(&["report", &file, "--json"]).must_succeed();
    let told: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert_eq!(told["requests"].as_u64(), Some(requests), "{told:#}");
}

#[test]
fn a_call_that_is_denied_is_named_and_its_victim_lives() {
    if !as_root("a_call_that_is_denied_is_named") {
        return;
    }
    let stage = Stage::new("denied");
    let others = MADE.iter().filter(|m| !OWN_64.contains(&m.long));
    let mut seen = 0;
    for made in others {
        let denies = seen % 2 == 1 && !made.may_fail;
        let action = if denies { DENY } else { KILL };
        let mut victim = behind(&stage, &against(made, action), &["demand"]);
        let outcome = stage.ask(&["attach", "--pid", &number(victim.pid())]);
        assert_eq!(outcome.status.code(), Some(125), "{made:?} {outcome}");
        let told = format!(" at {}, a call that is made", made.name);
        assert!(outcome.stderr.contains(&told), "{outcome}");
        assert_eq!(victim.sync("file"), 0, "{made:?}");
        assert_eq!(stage.sessions(), Vec::<Value>::new());
        seen += 1;
    }
    assert!(seen > 15, "{seen}");
}

#[test]
fn one_that_may_not_restart_its_wait_waits_on() {
    if !as_root("one_that_may_not_restart_its_wait_waits_on") {
        return;
    }
    const RESTART: u32 = 219;
    let restarts = [(LOAD, 0, 0, 0), (JEQ, 0, 1, RESTART), (RETURN, 0, 0, KILL)];
    let call = MADE.iter().find(|m| m.name == "dup3");
    for refused in [false, true] {
        let stage = Stage::new("restart");
        let action = if refused { DENY } else { ALLOW };
        let filter = [&restarts[..], &against(call.expect("the call"), action)].concat();
        let words = ["/bin/sleep", "1000"].map(std::ffi::OsStr::new);
        let mut victim = started(&stage, &filter, &words);
        let pid = number(victim.pid());
        let sleeps = || {
            let call = std::fs::read_to_string(format!("/proc/{pid}/syscall"));
            call.is_ok_and(|c| c.starts_with("230 "))
        };
        assert!(until(LIMIT, sleeps), "{}", victim.stderr());
        for _ in 0..3 {
            let outcome = stage.ask(&["attach", "--pid", &pid]);
            let status = if refused { 125 } else { 0 };
            assert_eq!(outcome.status.code(), Some(status), "{outcome}");
            if !refused {
                stage.detach(&stage.id());
            }
            assert!(until(LIMIT, sleeps), "it has ended");
        }
        victim.send(rustix::process::Signal::TERM);
        victim.end();
    }
}

#[test]
fn without_root_one_behind_a_filter_is_refused() {
    if !as_root("without_root_one_behind_a_filter_is_refused") {
        return;
    }
    let stage = Stage::for_nobody("nobodys");
    let mut command = stage.with_folders(crate::sessions::stage::AS_NOBODY[0]);
    command.args(&crate::sessions::stage::AS_NOBODY[1..]);
    command.arg(program("demand")).arg(stage.work());
    let mut victim = Running::start(&stage, command);
    victim.be_ready();
    victim.tell("filter");
    assert_eq!(victim.hear(), "filter 0");
    let mut command = stage.with_folders(crate::sessions::stage::AS_NOBODY[0]);
    command.args(&crate::sessions::stage::AS_NOBODY[1..]);
    command.arg(crate::sessions::stage::SYNCLATER);
    command.args(["attach", "--pid", &number(victim.pid())]);
    let outcome = crate::harness::command::run(&mut command);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(outcome.stderr.contains("only root may read"), "{outcome}");
    assert_eq!(victim.sync("file"), 0);
}

#[test]
fn a_program_that_puts_a_filter_on_itself_later_is_real_from_then_on() {
    if !as_root("a_program_that_puts_a_filter_on_itself_later") {
        return;
    }
    let stage = Stage::new("later");
    let mut victim = demand(&stage);
    let session = stage.attach_to(&victim, "1h");
    stage.warm(&mut victim);
    victim.tell("filter");
    assert_eq!(victim.hear(), "filter 0");
    assert!(!stage.is_later(&mut victim));
    let escaped = stage.session()["escaped"].to_string();
    assert!(
        escaped.contains("has restricted its own calls"),
        "{escaped}"
    );
    stage.detach(&session);
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
    // What it has is known now, and lets all pass.
    let session = stage.attach_to(&victim, "1h");
    stage.warm(&mut victim);
    stage.detach(&session);
}
