//! What a program's own seccomp filters say to the calls that are made for us in it.
//!
//! Promise: a program is attached only if each filter of each of its threads lets every call pass
//! that the gate and the errand may make, whatever its arguments are; and says to what the gate
//! makes in the program's place what it would have said to the program.

use super::class::Class;
use super::refusal::Refusal;
use crate::reach::status::{filters_of, handles};
use std::io;
use synclater_patching::sandbox::{
    argument, call, is_alike, passes, passes_or_fails, Data, Verdict, Word, ARCH_32, ARCH_64,
};
use synclater_shim::calls::{Argument, Made, Own, MADE, OWN};
use synclater_sys::ptrace::{Instruction, Thread};
use synclater_sys::registers::Registers;

/// Whether a thread that stands still has the kernel make its calls: where they are handed back to
/// it, those that are made for us in it would be, too.
///
/// # Errors
/// That it does not, or may not.
pub(super) fn check_dispatch(thread: &Thread) -> Result<(), Refusal> {
    match thread.dispatches() {
        Ok(false) => Ok(()),
        Ok(true) => Err(left_alone(
            "it dispatches its system calls itself (PR_SET_SYSCALL_USER_DISPATCH, as Wine does), \
             and would those that are made for attaching it",
        )),
        // Gone, or on its way.
        Err(e) if e.kind() != io::ErrorKind::InvalidInput && e.raw_os_error() != Some(EIO) => {
            Ok(())
        }
        Err(_) if handles(thread.tid(), SIGSYS) => Err(left_alone(
            "it handles SIGSYS, and whether it dispatches its system calls itself \
             (PR_SET_SYSCALL_USER_DISPATCH, as Wine does) is told from Linux 6.4 on",
        )),
        Err(_) => Ok(()),
    }
}

/// What is said of a program that nothing is to be done about.
fn left_alone(why: &str) -> Refusal {
    Refusal::new(why, "it stays as it is: every request of its own is real")
}

const EIO: i32 = 5;
const SIGSYS: u32 = 31;

/// Whether one filter lets all pass that is needed.
pub(super) fn judge(filter: &[Instruction], class: Class) -> Result<(), Refusal> {
    for made in MADE {
        let says = if made.may_fail {
            passes_or_fails
        } else {
            passes
        };
        match says(filter, &data_of(made, class)) {
            Verdict::Passes => {}
            verdict => return Err(refusal(made.name, verdict)),
        }
    }
    for own in OWN {
        match data_of_own(own, class).map(|data| is_alike(filter, &data)) {
            None | Some(Verdict::Passes) => {}
            Some(verdict) => return Err(refusal(own.name, verdict)),
        }
    }
    Ok(())
}

fn refusal(name: &str, verdict: Verdict) -> Refusal {
    let why = match verdict {
        Verdict::May(action) => {
            let what = does(action);
            format!("its seccomp filter may {what} at {name}, a call that is made for attaching it")
        }
        Verdict::Looks => format!(
            "its seccomp filter looks at what a {name} has that is made in the program's place"
        ),
        Verdict::Passes | Verdict::Unclear => {
            format!("what its seccomp filter says to {name} cannot be told")
        }
    };
    let try_ = format!(
        "let {name} pass (systemd: SystemCallFilter={name}), or start it under synclater: \
         synclater run -- COMMAND"
    );
    Refusal::new(why, try_)
}

/// What an action of a filter does (seccomp(2)).
fn does(action: u32) -> &'static str {
    match action {
        0x8000_0000 => "kill it",
        0x0000_0000 => "kill a thread of its",
        0x0003_0000 => "raise SIGSYS",
        0x0005_0000 => "return an error",
        0x7fc0_0000 => "ask somebody",
        0x7ff0_0000 => "ask its tracer",
        _ => "do something unknown",
    }
}

fn arch(class: Class) -> u32 {
    match class {
        Class::Long => ARCH_64,
        Class::Small => ARCH_32,
    }
}

fn data_of(made: &Made, class: Class) -> Data {
    let number = match class {
        Class::Long => made.long,
        Class::Small => made.small,
    };
    let mut data = call(arch(class), number);
    for (k, told) in made.arguments.iter().enumerate() {
        let at = argument(k);
        let number = match *told {
            Argument::Any => continue,
            Argument::Within(mask) => {
                data[at] = Word::within(mask);
                data[at + 1] = Word::is(0);
                continue;
            }
            Argument::Is(number) => number,
            Argument::By(long, _) if class == Class::Long => long,
            Argument::By(_, small) => small,
        };
        let (low, high) = halves(number);
        data[at] = Word::is(low);
        data[at + 1] = Word::is(if class == Class::Long { high } else { 0 });
    }
    data
}

fn halves(number: i64) -> (u32, u32) {
    let bits = number.cast_unsigned();
    (bits as u32, (bits >> 32) as u32)
}

/// `None` where this class has no such call.
fn data_of_own(own: &Own, class: Class) -> Option<Data> {
    let number = match class {
        Class::Long => own.long?,
        Class::Small => own.small,
    };
    let mut data = call(arch(class), number);
    // Where it is made from.
    data[2] = Word::CHANGED;
    data[3] = Word::CHANGED;
    let unused = (own.arguments..6).map(|k| (k, u32::MAX));
    for (k, bits) in own.changed.iter().copied().chain(unused) {
        let at = argument(k);
        data[at] = Word::changed(bits);
        if bits == u32::MAX && class == Class::Long {
            data[at + 1] = Word::CHANGED;
        }
    }
    Some(data)
}

/// Whether a thread that stands still may call restart_syscall(2), by which the kernel has it go on
/// in some calls that were interrupted; `None` where that cannot be told.
pub(super) fn may_restart(thread: &Thread, registers: &Registers) -> Option<bool> {
    let class = if registers.is_64() {
        Class::Long
    } else {
        Class::Small
    };
    if thread.has_filter() == Some(false) {
        return Some(true);
    }
    let data = call(arch(class), registers.restart_call());
    let count = filters_of(thread.tid(), thread.tid())?;
    match thread.filters() {
        _ if count == 0 => Some(true),
        Ok(filters) if filters.len() as u64 == count => {
            Some(filters.iter().all(|f| passes(f, &data) == Verdict::Passes))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOW: Instruction = (0x06, 0, 0, 0x7fff_0000);
    const KILL: Instruction = (0x06, 0, 0, 0x8000_0000);

    /// Kills at one call of one kind of program.
    fn kills_at(arch: u32, number: u32) -> Vec<Instruction> {
        vec![
            (0x20, 0, 0, 4),
            (0x15, 0, 3, arch),
            (0x20, 0, 0, 0),
            (0x15, 0, 1, number),
            KILL,
            ALLOW,
        ]
    }

    #[test]
    fn each_call_that_is_made_has_to_pass() {
        for class in [Class::Long, Class::Small] {
            assert_eq!(judge(&[ALLOW], class), Ok(()));
            assert!(judge(&[KILL], class).is_err());
            for made in MADE {
                let number = data_of(made, class)[0];
                let own = if class == Class::Long {
                    made.long
                } else {
                    made.small
                };
                assert_eq!(number, Word::is(own));
                let refused = judge(&kills_at(arch(class), own), class).expect_err(made.name);
                assert!(refused.why.contains("kill it"), "{refused:?}");
                assert!(refused.why.contains(made.name), "{refused:?}");
            }
            // What the program alone calls is its own affair: getcwd.
            assert_eq!(judge(&kills_at(arch(class), 79), Class::Long), Ok(()));
        }
    }

    #[test]
    fn a_filter_may_not_look_at_what_is_changed() {
        let place = [(0x20, 0, 0, 8), (0x35, 0, 1, 0x40_0000), ALLOW, KILL];
        let mut filter = kills_at(ARCH_64, 2);
        // In front of the end, for open alone.
        filter.truncate(4);
        filter[3].2 = u8::try_from(place.len()).unwrap_or(0);
        filter.extend(place);
        filter.push(ALLOW);
        filter[1].2 = u8::try_from(filter.len() - 3).unwrap_or(0);
        let refused = judge(&filter, Class::Long).expect_err("open");
        assert!(refused.why.contains("looks at"), "{refused:?}");
        assert!(refused.why.contains("open"), "{refused:?}");
    }
}
