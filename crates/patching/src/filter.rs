//! The seccomp filter of a session with `--net`: which system calls are asked about, by number and
//! arguments, for every kind of program that this machine runs.
//!
//! Promise: whatever is no sync request passes without a question, and its verdict depends on its
//! number alone, so that the kernel finds it in a table (Linux 5.11); a request that carries the
//! session's cookie passes too. A kind of program that is not known here passes whole.
//! Source: seccomp(2), <linux/filter.h>, <linux/audit.h>; numbers: calls.def.

use synclater_calls::{if_any, Machine};

/// One instruction of classic BPF: what to do, jumps if true and if false, operand.
pub type Instruction = (u16, u8, u8, u32);

/// What a program asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Asked {
    /// fsync(2).
    Fsync,
    /// fdatasync(2).
    Fdatasync,
    /// sync(2).
    Sync,
    /// syncfs(2).
    Syncfs,
    /// msync(2) with `MS_SYNC`.
    Msync,
    /// sync_file_range(2) with flags.
    Range,
    /// An open of the family with `O_SYNC` or `O_DSYNC`.
    Open,
    /// openat2(2), whose flags stand behind a pointer.
    OpenHow,
    /// pwritev2(2) with `RWF_SYNC` or `RWF_DSYNC`.
    FlaggedWrite,
    /// io_uring_setup(2).
    Ring,
    /// umount(2), umount2(2).
    Umount,
}

/// One call that is asked about, wherever it has a number.
struct Call {
    number: Number,
    asked: Asked,
    /// The argument that tells, and the bits of which one must be set.
    test: Option<(u8, u32)>,
    /// The argument that holds the cookie.
    cookie: u8,
}

/// Where the number of a call is.
enum Number {
    /// In calls.def.
    Of(&'static str),
    /// The same, and only where arguments have 64 bits: others have six of them here and no room
    /// for a cookie, so they pass.
    OfWide(&'static str),
    /// x32 alone has it.
    X32(u32),
}
use Number::{Of, OfWide, X32};

impl Number {
    const fn on(&self, machine: Machine, is_wide: bool) -> Option<u32> {
        match self {
            Of(name) => if_any(machine, name),
            OfWide(name) if is_wide => if_any(machine, name),
            X32(number) if matches!(machine, Machine::X86_64) => Some(*number),
            _ => None,
        }
    }
}

const fn call(number: Number, asked: Asked) -> Call {
    Call {
        number,
        asked,
        test: None,
        cookie: 5,
    }
}

const fn tested(number: Number, asked: Asked, argument: u8, bits: u32) -> Call {
    Call {
        test: Some((argument, bits)),
        ..call(number, asked)
    }
}

const MS_SYNC: u32 = 4;
/// The three that there are; without any of them the call does nothing.
const RANGE_FLAGS: u32 = 7;
/// `O_SYNC` has this bit too, on every machine that is known here.
const O_DSYNC: u32 = 0x1000;
const RWF_DSYNC: u32 = 2;
const RWF_SYNC: u32 = 4;

/// The calls.
static CALLS: [Call; 15] = [
    call(Of("fsync"), Asked::Fsync),
    call(Of("fdatasync"), Asked::Fdatasync),
    tested(Of("msync"), Asked::Msync, 2, MS_SYNC),
    tested(OfWide("sync_file_range"), Asked::Range, 3, RANGE_FLAGS),
    tested(Of("openat"), Asked::Open, 2, O_DSYNC),
    tested(Of("open"), Asked::Open, 1, O_DSYNC),
    tested(Of("open_by_handle_at"), Asked::Open, 2, O_DSYNC),
    call(Of("openat2"), Asked::OpenHow),
    call(Of("syncfs"), Asked::Syncfs),
    call(Of("sync"), Asked::Sync),
    Call {
        // It has a sixth argument of its own.
        cookie: 4,
        ..tested(
            OfWide("pwritev2"),
            Asked::FlaggedWrite,
            5,
            RWF_DSYNC | RWF_SYNC,
        )
    },
    // Its place in a file is one argument.
    tested(X32(547), Asked::FlaggedWrite, 4, RWF_DSYNC | RWF_SYNC),
    call(Of("io_uring_setup"), Asked::Ring),
    call(Of("umount"), Asked::Umount),
    call(Of("umount2"), Asked::Umount),
];

/// A kind of program: its number in <linux/audit.h>, whether its arguments have 64 bits, which bits
/// of a call's number count, and the numbers of [`CALLS`], where it has them.
struct Abi {
    arch: u32,
    is_wide: bool,
    number: u32,
    numbers: [Option<u32>; CALLS.len()],
}

impl Abi {
    const fn new(arch: u32, machine: Machine, is_wide: bool, number: u32) -> Abi {
        let (mut numbers, mut at) = ([None; CALLS.len()], 0);
        while at < CALLS.len() {
            numbers[at] = CALLS[at].number.on(machine, is_wide);
            at += 1;
        }
        Abi {
            arch,
            is_wide,
            number,
            numbers,
        }
    }

    /// The calls that it has, with their numbers.
    fn calls(&self) -> impl Iterator<Item = (u32, &'static Call)> + '_ {
        let all = self.numbers.iter().zip(&CALLS);
        all.filter_map(|(number, call)| Some(((*number)?, call)))
    }
}

/// Every one of them: a machine has programs of its own kinds only. x32's numbers are those of
/// x86-64 with one more bit.
static ALL: [Abi; 4] = [
    Abi::new(0xc000_003e, Machine::X86_64, true, !0x4000_0000),
    Abi::new(0x4000_0003, Machine::I386, false, u32::MAX),
    Abi::new(0xc000_00b7, Machine::Aarch64, true, u32::MAX),
    Abi::new(0x4000_0028, Machine::Arm, false, u32::MAX),
];

fn find(arch: u32, number: u32) -> Option<&'static Call> {
    let abi = ALL.iter().find(|abi| abi.arch == arch)?;
    let mut found = abi.calls().filter(|(its, _)| *its == number & abi.number);
    found.next().map(|(_, call)| call)
}

/// What call `number` of a program of kind `arch` asks for, where the filter asks about it.
#[must_use]
pub fn asked(arch: u32, number: u32) -> Option<Asked> {
    find(arch, number).map(|call| call.asked)
}

/// Which of its arguments tells that it is a request, where one does.
#[must_use]
pub fn telling_argument(arch: u32, number: u32) -> Option<usize> {
    let (argument, _) = find(arch, number)?.test?;
    Some(usize::from(argument))
}

/// Verdicts: the supervisor is asked, or the call is made.
const ASK: u32 = 0x7fc0_0000;
const PASS: u32 = 0x7fff_0000;

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const IS: u16 = 0x15;
const HAS: u16 = 0x45;
const END: u16 = 0x06;

/// Where things stand in struct seccomp_data.
const NUMBER_AT: u32 = 0;
const ARCH_AT: u32 = 4;

fn argument_at(argument: u8, upper: bool) -> u32 {
    // The lower half comes first on every machine that is known here.
    16 + 8 * u32::from(argument) + 4 * u32::from(upper)
}

/// The filter; what carries `cookie` (its lower half, in 32-bit programs) passes.
#[must_use]
pub fn program(cookie: u64) -> Vec<Instruction> {
    let mut all = vec![];
    for abi in &ALL {
        let of_it = of_abi(abi, cookie);
        all.push((LOAD, 0, 0, ARCH_AT));
        // A jump that depends on something reaches 255 instructions.
        all.push((
            IS,
            0,
            u8::try_from(of_it.len()).unwrap_or(u8::MAX),
            abi.arch,
        ));
        all.extend(of_it);
    }
    all.push((END, 0, 0, PASS));
    all
}

fn of_abi(abi: &Abi, cookie: u64) -> Vec<Instruction> {
    let mut all = vec![(LOAD, 0, 0, NUMBER_AT), (AND, 0, 0, abi.number)];
    for (number, call) in abi.calls() {
        let of_it = of_call(call, abi, cookie);
        all.push((IS, 0, u8::try_from(of_it.len()).unwrap_or(u8::MAX), number));
        all.extend(of_it);
    }
    all.push((END, 0, 0, PASS));
    all
}

/// Ends in a verdict on every way.
fn of_call(call: &Call, abi: &Abi, cookie: u64) -> Vec<Instruction> {
    let mut all = vec![];
    if let Some((argument, bits)) = call.test {
        all.push((LOAD, 0, 0, argument_at(argument, false)));
        all.push((HAS, 1, 0, bits));
        all.push((END, 0, 0, PASS));
    }
    all.push((LOAD, 0, 0, argument_at(call.cookie, false)));
    let lower = cookie as u32;
    if abi.is_wide {
        all.push((IS, 0, 3, lower));
        all.push((LOAD, 0, 0, argument_at(call.cookie, true)));
        all.push((IS, 0, 1, (cookie >> 32) as u32));
    } else {
        all.push((IS, 0, 1, lower));
    }
    all.push((END, 0, 0, PASS));
    all.push((END, 0, 0, ASK));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COOKIE: u64 = 0x7379_6e63_0bad_cafe;

    /// As the kernel runs it, on struct seccomp_data.
    fn run(arch: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let mut data = vec![number, arch, 0, 0];
        data.extend(arguments.iter().flat_map(|a| [*a as u32, (a >> 32) as u32]));
        let program = program(COOKIE);
        let (mut at, mut a) = (0, 0);
        loop {
            let (code, yes, no, k) = program[at];
            at += 1;
            let jump = |is: bool| usize::from(if is { yes } else { no });
            match code {
                LOAD => a = data[k as usize / 4],
                AND => a &= k,
                IS => at += jump(a == k),
                HAS => at += jump(a & k != 0),
                END => return k,
                other => panic!("{other:#x}"),
            }
        }
    }

    #[test]
    fn no_jump_is_too_long_and_the_program_is_one_that_the_kernel_takes() {
        let program = program(COOKIE);
        assert!(program.len() <= 4096);
        for (at, (code, yes, no, _)) in program.iter().enumerate() {
            assert!(*code == END || at + 1 + usize::from(*yes.max(no)) < program.len());
            assert!([LOAD, AND, IS, HAS, END].contains(code));
        }
        for abi in &ALL {
            assert!(of_abi(abi, COOKIE).len() <= 255);
            assert!(abi
                .calls()
                .all(|(_, c)| of_call(c, abi, COOKIE).len() <= 255));
        }
    }

    #[test]
    fn each_request_is_asked_about_unless_it_carries_the_cookie() {
        for abi in &ALL {
            for (number, call) in abi.calls() {
                let mut arguments = [0; 6];
                if let Some((argument, bits)) = call.test {
                    assert_eq!(run(abi.arch, number, arguments), PASS);
                    arguments[usize::from(argument)] = u64::from(bits & bits.wrapping_neg());
                }
                assert_eq!(run(abi.arch, number, arguments), ASK, "{}", number);
                assert_eq!(asked(abi.arch, number), Some(call.asked));
                let cookie = usize::from(call.cookie);
                arguments[cookie] = if abi.is_wide {
                    COOKIE
                } else {
                    COOKIE as u32 as u64
                };
                assert_eq!(run(abi.arch, number, arguments), PASS, "{}", number);
                arguments[cookie] ^= 1 << if abi.is_wide { 32 } else { 31 };
                assert_eq!(run(abi.arch, number, arguments), ASK, "{}", number);
            }
        }
    }

    #[test]
    fn x32_is_asked_about_as_well() {
        let x32 = |number: u32| run(0xc000_003e, number | 0x4000_0000, [0; 6]);
        assert_eq!((x32(74), x32(75), x32(162)), (ASK, ASK, ASK));
        assert_eq!((x32(0), x32(1)), (PASS, PASS));
        assert_eq!(asked(0xc000_003e, 0x4000_004a), Some(Asked::Fsync));
    }

    proptest! {
        #[test]
        fn what_is_asked_about_is_a_request(
            arch in prop::sample::select(vec![0xc000_003e, 0x4000_0003, 0xc000_00b7, 0x4000_0028]),
            number in 0..600u32,
            arguments in any::<[u64; 6]>(),
        ) {
            let verdict = run(arch, number, arguments);
            prop_assert!(verdict == PASS || asked(arch, number).is_some());
        }

        #[test]
        fn other_kinds_of_programs_pass(arch: u32, number: u32) {
            prop_assume!(ALL.iter().all(|abi| abi.arch != arch));
            prop_assert_eq!(run(arch, number, [u64::MAX; 6]), PASS);
            prop_assert_eq!(asked(arch, number), None);
        }
    }
}
