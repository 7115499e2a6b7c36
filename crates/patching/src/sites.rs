//! System-call sites: where a libc loads a number into a register and enters the kernel.
//!
//! A site is an instruction of a fixed length that is directly in front of the one that enters the
//! kernel, so that it can be overwritten by a jump while the entering instruction stays: a thread
//! that is inside the call, or has to make it again, never notices. In Go it is two instructions: a
//! thread may stand between them.
//!
//! | machine | what is overwritten | what enters |
//! |---|---|---|
//! | x86-64 | `b8 NR 00 00 00`: `mov $NR, %eax` | `0f 05`: `syscall`; moves may be between |
//! | x86-64, any number | `4c 8b 4c 24 08`: `mov 8(%rsp), %r9` | the same; moves may be between |
//! | x86-64, musl's cancellation points | `4c 89 5c 24 08`: `mov %r11, 8(%rsp)` | the same |
//! | x86-64, Go | `48 89 ce 48 89 df`: `mov %rcx, %rsi; mov %rbx, %rdi`, see [`go`] | the same |
//! | i386 | `65 ff 15 10 00 00 00`: `call *%gs:0x10`, itself | by that, in the vdso |
//! | aarch64 | what stands in front, mostly `mov x8, #NR` | `svc #0` |
//!
//! Relies on: seven (twelve, eight) fixed bytes not occurring in code by chance.

use memchr::memmem;

/// Which call a site makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// That of this number.
    Number(u32),
    /// Whichever its caller asks for.
    Any,
}

/// A site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Where the instruction is that can be overwritten, in bytes from the code's begin.
    pub at: usize,
    /// Bytes from there to the instruction that enters the kernel.
    pub len: usize,
    /// What it calls.
    pub call: Call,
}

/// Bytes that are overwritten on x86-64.
pub const LEN: usize = 5;

const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// What stands in front of calls of any number: the last argument is loaded in syscall(3) and in
/// musl's programs without `pthread_cancel`, a place is kept in its others.
const ANY: [[u8; LEN]; 2] = [
    [0x4c, 0x8b, 0x4c, 0x24, 0x08],
    [0x4c, 0x89, 0x5c, 0x24, 0x08],
];
const CALL_VDSO: [u8; 7] = [0x65, 0xff, 0x15, 0x10, 0, 0, 0];

/// What `mov $NUMBER, %eax` calls.
fn number(b: &[u8]) -> Option<Call> {
    match b {
        [0xb8, low, high, 0, 0] => Some(Call::Number(u32::from(*low) | u32::from(*high) << 8)),
        _ => None,
    }
}

/// The most bytes of moves between a number that is loaded and the call.
const MOVES: usize = 7;

/// Sites in x86-64 code, in order.
pub fn x86_64(code: &[u8]) -> impl Iterator<Item = Site> + '_ {
    memmem::find_iter(code, &SYSCALL).filter_map(|entry| {
        (0..=MOVES).find_map(|moves| {
            let at = entry.checked_sub(LEN + moves)?;
            let b = &code[at..at + LEN];
            let any = ANY.iter().any(|any| b == any);
            if !any && is_part_of_another(&code[..at]) {
                return None;
            }
            let call = number(b).or(any.then_some(Call::Any))?;
            let len = LEN + moves;
            are_moves(&code[at + LEN..entry]).then_some(Site { at, len, call })
        })
    })
}

/// Every instruction of x86-64 code that enters the kernel, with the number that is loaded in front
/// of it, if that is near.
pub fn entries(code: &[u8]) -> impl Iterator<Item = Option<u32>> + '_ {
    const NEAR: usize = 32;
    memmem::find_iter(code, &SYSCALL).map(|entry| {
        let before = &code[entry.saturating_sub(NEAR)..entry];
        before.windows(LEN).rev().find_map(|b| match number(b) {
            Some(Call::Number(number)) => Some(number),
            _ => None,
        })
    })
}

/// Whether what follows `before` would be no instruction that loads eax, but one that loads another
/// register (a prefix with REX.B), or the rest of `movl $NR, -N(%register)`.
fn is_part_of_another(before: &[u8]) -> bool {
    match before {
        [.., prefix] if prefix & 0xf1 == 0x41 => true,
        [.., 0xc7, to] => to & 0xf8 == 0x40,
        _ => false,
    }
}

/// Where a jump (`0xe9`) is in x86-64 code in the place of what [`x86_64`] finds, and how many
/// bytes the call is behind its begin. Others may be among them.
pub fn x86_64_jumps(code: &[u8]) -> impl Iterator<Item = (usize, usize)> + '_ {
    memmem::find_iter(code, &SYSCALL).flat_map(move |entry| {
        let begins = (0..=MOVES).filter_map(move |moves| entry.checked_sub(LEN + moves));
        let jumps = begins.filter(move |at| code[*at] == 0xe9 && are_moves(&code[at + LEN..entry]));
        jumps.map(move |at| (at, entry - at))
    })
}

/// Whether instructions only move one register to another, or clear one, and never that of the
/// number: they do the same at another address, and in front of what is in front of them.
fn are_moves(mut code: &[u8]) -> bool {
    while !code.is_empty() {
        let (rex, rest) = match code {
            [rex @ 0x40..=0x4f, rest @ ..] => (*rex, rest),
            rest => (0, rest),
        };
        let [op, registers @ 0xc0..=0xff, rest @ ..] = rest else {
            return false;
        };
        // The one that is written: the middle one, or the last.
        let (number, upper) = match op {
            0x89 | 0x31 => (registers & 7, rex & 1),
            0x8b | 0x33 => (registers >> 3 & 7, rex & 4),
            _ => return false,
        };
        let clears = registers >> 3 & 7 == registers & 7 && (rex & 1 != 0) == (rex & 4 != 0);
        const STACK: u8 = 4;
        let is_good = upper != 0 || (number != 0 && number != STACK);
        if !is_good || (op & !2 == 0x31 && !clears) {
            return false;
        }
        code = rest;
    }
    true
}

/// What stands in front of the only system call of a Go program (from Go 1.18 on): the arguments
/// are moved from where Go has them.
const GO: [u8; 12] = [
    0x49, 0x89, 0xf2, 0x48, 0x89, 0xfa, 0x48, 0x89, 0xce, 0x48, 0x89, 0xdf,
];

/// Bytes of the last two of these instructions, which can be replaced by a jump to anywhere.
pub const GO_LEN: usize = 6;

/// Bytes of an address, which such a jump reads.
pub const ADDRESS_LEN: usize = 8;

/// `jmp *BY(%rip)`, without its `BY` of four bytes.
const JUMP_BY_ADDRESS: [u8; 2] = [0xff, 0x25];

/// A system call of Go's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoSite {
    /// Where the last two instructions in front of the call are.
    pub at: usize,
    /// Where [`ADDRESS_LEN`] bytes are that no function has, for the address of a jump. Nobody ever
    /// executes them: Go's runtime, which looks up where each signal has come (to preempt a
    /// goroutine, or for a profile), ends a program that stands between two functions.
    pub address: usize,
}

/// What stands at a site of Go's while it is redirected: a jump to where what lies at `address`
/// says; `None` where that is more than 2 GiB away.
#[must_use]
pub fn go_jump(at: u64, address: u64) -> Option<[u8; GO_LEN]> {
    let by = address.wrapping_sub(at + GO_LEN as u64).cast_signed();
    let b = i32::try_from(by).ok()?.to_le_bytes();
    let [a, c] = JUMP_BY_ADDRESS;
    Some([a, c, b[0], b[1], b[2], b[3]])
}

/// The system calls of a Go program, whose linker fills the room between functions with `int3`. A
/// site for which there is no such room is left out. `jumps`: where the last two instructions have
/// been replaced already.
pub fn go(code: &[u8], jumps: bool) -> Vec<GoSite> {
    let known = GO.len() - GO_LEN;
    let mut found: Vec<GoSite> = Vec::new();
    for entry in memmem::find_iter(code, &SYSCALL) {
        let Some(at) = entry.checked_sub(GO_LEN).filter(|at| *at >= known) else {
            continue;
        };
        if code[at - known..at] != GO[..known] {
            continue;
        }
        if jumps {
            found.extend(read_by(code, at).map(|address| GoSite { at, address }));
        } else if code[at..entry] == GO[known..] {
            let behind = free(code, at, &found);
            let address = behind.or_else(|| free(code, 0, &found));
            found.extend(address.map(|address| GoSite { at, address }));
        }
    }
    found
}

/// Where the jump at `at` reads its address from.
fn read_by(code: &[u8], at: usize) -> Option<usize> {
    let by = code[at..at + GO_LEN].strip_prefix(&JUMP_BY_ADDRESS)?;
    let by = i64::from(i32::from_le_bytes(by.try_into().ok()?));
    let address = usize::try_from((at + GO_LEN) as i64 + by).ok()?;
    (address.checked_add(ADDRESS_LEN)? <= code.len()).then_some(address)
}

/// The first room for an address behind `from` that none of `found` has.
fn free(code: &[u8], from: usize, found: &[GoSite]) -> Option<usize> {
    unused(code, from).find(|address| found.iter().all(|f| f.address != *address))
}

/// Where there is room for an address behind `from`, aligned, so that it is written at once: in
/// runs of `int3` that are longer than any constant in an instruction.
fn unused(code: &[u8], from: usize) -> impl Iterator<Item = usize> + '_ {
    let runs = memmem::find_iter(&code[from..], &[0xcc; 2 * ADDRESS_LEN]);
    runs.map(move |at| (from + at).next_multiple_of(ADDRESS_LEN))
}

/// Bytes that are overwritten on i386: the whole call into the kernel's own piece of code.
pub const LEN_32: usize = CALL_VDSO.len();

/// Those bytes.
pub const WAS_32: [u8; LEN_32] = CALL_VDSO;

/// What stands there while it is redirected: a call to `to`, and two bytes that do nothing.
#[must_use]
pub fn i386_call(at: u64, to: u64) -> [u8; LEN_32] {
    let by = (to as u32)
        .wrapping_sub((at as u32).wrapping_add(5))
        .to_le_bytes();
    [0xe8, by[0], by[1], by[2], by[3], 0x66, 0x90]
}

/// What stands in front of calls of any number on i386: `mov 20(%esp), %eax` in syscall(3); and
/// where glibc makes calls of six arguments, `mov (%edi), %ebx`, `mov 8(%edi), %ebp`, `mov 4(%edi),
/// %edi`.
const ANY_32: [&[u8]; 2] = [
    &[0x8b, 0x44, 0x24, 0x14],
    &[0x8b, 0x1f, 0x8b, 0x6f, 0x08, 0x8b, 0x7f, 0x04],
];

/// What the call at `at` in i386 code calls. Between the number and the call may be a few other
/// instructions (eleven in glibc's `prctl`).
fn called_32(code: &[u8], at: usize) -> Option<Call> {
    const BEFORE: usize = 48;
    let before = &code[at.saturating_sub(BEFORE)..at];
    if ANY_32.iter().any(|any| before.ends_with(any)) {
        return Some(Call::Any);
    }
    before.windows(LEN).rev().find_map(number)
}

/// Sites in i386 code, in order. One that is taken for another is redirected in vain, since the
/// gate looks at the number.
pub fn i386(code: &[u8]) -> impl Iterator<Item = Site> + '_ {
    memmem::find_iter(code, &CALL_VDSO).filter_map(|at| {
        let (call, len) = (called_32(code, at)?, LEN_32);
        Some(Site { at, len, call })
    })
}

/// Those of i386 code that lies at `start` which are redirected to `to`.
pub fn i386_calls_to(code: &[u8], start: u64, to: u64) -> impl Iterator<Item = Site> + '_ {
    let ends = memmem::find_iter(code, &[0x66u8, 0x90]);
    let begins = ends.filter_map(|end| end.checked_sub(5));
    begins
        .filter(move |at| code[*at..*at + LEN_32] == i386_call(start + *at as u64, to))
        .map(|at| {
            let (call, len) = (called_32(code, at).unwrap_or(Call::Any), LEN_32);
            Site { at, len, call }
        })
}

/// How many instructions may stand between the one that loads the number and the one that enters.
const BETWEEN: usize = 8;

/// Sites in aarch64 code (little endian), in order. What can be overwritten is the instruction in
/// front of `svc`, which in cancellation points is not the one that loads the number.
pub fn aarch64(code: &[u8]) -> impl Iterator<Item = Site> + '_ {
    const SVC_0: u32 = 0xd400_0001;
    let words: Vec<u32> = code
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    let entries = (1..words.len()).filter(|k| words[*k] == SVC_0);
    let sites = entries.filter_map(|k| {
        let before = &words[k.saturating_sub(BETWEEN)..k];
        let call = number_of_aarch64(before)?;
        let at = 4 * (k - 1);
        let len = 4;
        is_movable(words[k - 1]).then_some(Site { at, len, call })
    });
    sites.collect::<Vec<_>>().into_iter()
}

/// What the instructions in front of `svc` load into w8 or x8; `None` where another way may lead
/// there.
fn number_of_aarch64(before: &[u32]) -> Option<Call> {
    for word in before.iter().rev() {
        // movz w8 or x8, #imm16, without a shift.
        if word & 0x7fe0_001f == 0x5280_0008 {
            return Some(Call::Number(word >> 5 & 0xffff));
        }
        // mov w8 or x8 from another register.
        if word & 0x7fe0_ffff == 0x2a00_03e8 {
            return Some(Call::Any);
        }
        if is_branch(*word) || writes_8(*word) {
            return None;
        }
    }
    None
}

/// Branches, calls, returns and exceptions ("Branches, Exception Generating and System
/// instructions", Arm ARM C4.1): 101x in bits 26 to 29.
fn is_branch(word: u32) -> bool {
    word >> 26 & 7 == 0b101
}

/// Whether an instruction of data processing or a load may write register 8.
fn writes_8(word: u32) -> bool {
    word & 0x1f == 8
}

/// Whether an instruction means the same at another address: neither a branch nor adr, adrp, or a
/// load from beside the code.
fn is_movable(word: u32) -> bool {
    let is_adr = word & 0x1f00_0000 == 0x1000_0000;
    let is_literal = word & 0x3b00_0000 == 0x1800_0000;
    !is_branch(word) && !is_adr && !is_literal
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(sites: impl Iterator<Item = Site>) -> Vec<(usize, Call)> {
        sites.map(|s| (s.at, s.call)).collect()
    }

    /// As __syscall_cp_c of a static musl program without `pthread_cancel` has it.
    #[test]
    fn a_call_of_any_number_may_have_moves_in_front_of_it_too() {
        let code = [
            0x48, 0x89, 0xd6, 0x4c, 0x8b, 0x4c, 0x24, 0x08, 0x48, 0x89, 0xca, 0x0f, 0x05, 0xc3,
        ];
        let (at, len, call) = (3, 8, Call::Any);
        assert_eq!(x86_64(&code).collect::<Vec<_>>(), [Site { at, len, call }]);
        // What is moved to eax is the number.
        let mut other = code;
        other[10] = 0xc8;
        assert_eq!(x86_64(&other).count(), 0);
    }

    #[test]
    fn an_x86_64_site_is_a_number_and_a_call() {
        let fsync = [0xb8, 0x4a, 0, 0, 0, 0x0f, 0x05];
        let cut = &fsync[..6];
        let far = [0xb8, 0x4a, 0, 0, 0, 0x90, 0x0f, 0x05];
        let big = [0xb8, 0x4a, 0, 1, 0, 0x0f, 0x05];
        let any = [0x4c, 0x8b, 0x4c, 0x24, 0x08, 0x0f, 0x05];
        let musl = [0x4c, 0x89, 0x5c, 0x24, 0x08, 0x0f, 0x05];
        let code = [&far[..], &fsync, &big, &any, &musl, cut].concat();
        let expected = vec![(8, Call::Number(74)), (22, Call::Any), (29, Call::Any)];
        assert_eq!(all(x86_64(&code)), expected);
        let mut moved = code.clone();
        moved[8] = 0xe9;
        assert_eq!(x86_64_jumps(&moved).collect::<Vec<_>>(), [(8, 5)]);
    }

    #[test]
    fn a_number_for_another_register_is_no_site() {
        let fsync = [0xb8, 0x4a, 0, 0, 0, 0x0f, 0x05];
        for before in [&[0x41][..], &[0x49], &[0xc7, 0x45]] {
            let code = [before, &fsync].concat();
            assert_eq!(x86_64(&code).count(), 0, "{before:x?}");
        }
        assert_eq!(x86_64(&[&[0xc7, 0x05][..], &fsync].concat()).count(), 1);
    }

    #[test]
    fn an_entry_has_the_number_that_was_loaded_last() {
        let one: &[u8] = &[0xb8, 74, 0, 0, 0, 0x48, 0x8b, 0x7c, 0x24, 8, 0x0f, 0x05];
        let code = [&[0x0f, 0x05][..], one, &[0x90; 40], &[0x0f, 0x05]].concat();
        let all: Vec<_> = entries(&code).collect();
        assert_eq!(all, [None, Some(74), None]);
    }

    #[test]
    fn a_few_moves_may_stand_between_the_number_and_the_call() {
        let with = |moves: &[u8]| [&[0xb8, 72, 0, 0, 0], moves, &SYSCALL].concat();
        let good: [&[u8]; 6] = [
            &[0x4c, 0x89, 0xd2],                         // mov %r10, %rdx: musl's fcntl
            &[0x31, 0xff],                               // xor %edi, %edi
            &[0x45, 0x31, 0xc0],                         // xor %r8d, %r8d
            &[0x49, 0x89, 0xc2],                         // mov %rax, %r10
            &[0x48, 0x8b, 0xf7],                         // mov %rdi, %rsi
            &[0x89, 0xfe, 0x4c, 0x89, 0xd2, 0x31, 0xff], // three
        ];
        for moves in good {
            let code = with(moves);
            let (call, len) = (Call::Number(72), LEN + moves.len());
            let site = Site { at: 0, len, call };
            assert_eq!(x86_64(&code).collect::<Vec<_>>(), [site], "{moves:x?}");
            let mut moved = code.clone();
            moved[0] = 0xe9;
            assert_eq!(x86_64_jumps(&moved).collect::<Vec<_>>(), [(0, len)]);
        }
        let bad: [&[u8]; 7] = [
            &[0x90],                                           // nop: not known
            &[0x89, 0xf8],                                     // mov %edi, %eax
            &[0x31, 0xc0],                                     // xor %eax, %eax
            &[0x31, 0xf7],                                     // xor %esi, %edi
            &[0x41, 0x31, 0xff],                               // xor %edi, %r15d
            &[0x8b, 0x17],                                     // mov (%rdi), %edx
            &[0x89, 0xfe, 0x89, 0xfe, 0x89, 0xfe, 0x89, 0xfe], // too many
        ];
        for moves in bad {
            assert_eq!(x86_64(&with(moves)).count(), 0, "{moves:x?}");
        }
    }

    #[test]
    fn a_site_of_go_has_room_for_its_address_between_functions() {
        let mut code = vec![0x90; 40];
        code.extend(GO);
        code.extend(SYSCALL);
        // A constant is no room.
        code.extend([0xcc; 15]);
        code.extend([0x90; 500]);
        let without = code.clone();
        assert_eq!(go(&code, false), []);
        code.extend([0xcc; 20]);
        let site = GoSite {
            at: 46,
            address: 576,
        };
        assert_eq!(go(&code, false), [site]);
        assert_eq!(go(&code, true), []);
        code[46..52].copy_from_slice(&go_jump(46, 576).expect("it is near"));
        assert_eq!(code[46..52], [0xff, 0x25, 0x0c, 0x02, 0, 0]);
        assert_eq!(go(&code, false), []);
        assert_eq!(go(&code, true), [site]);
        // What it reads has to be there.
        assert_eq!(go(&code[..580], true), []);
        let before = [vec![0xcc; 16], without].concat();
        assert_eq!(go(&before, false)[0].address, 0);
    }

    #[test]
    fn two_sites_of_go_have_two_addresses() {
        let one = [&[0x90; 10][..], &GO, &SYSCALL].concat();
        let both = [
            one.clone(),
            one.clone(),
            vec![0xcc; 16],
            vec![0x90; 3],
            vec![0xcc; 30],
        ];
        let both = both.concat();
        let addresses: Vec<usize> = go(&both, false).iter().map(|s| s.address).collect();
        assert_eq!(addresses, [48, 72]);
        let room_for_one = [one.clone(), one, vec![0xcc; 16]].concat();
        assert_eq!(go(&room_for_one, false).len(), 1);
    }

    #[test]
    fn an_i386_site_goes_through_the_vdso() {
        let fsync = [0xb8, 0x76, 0, 0, 0, 0x65, 0xff, 0x15, 0x10, 0, 0, 0];
        let int = [0xb8, 0x76, 0, 0, 0, 0xcd, 0x80];
        let code = [&int[..], &fsync].concat();
        assert_eq!(all(i386(&code)), [(12, Call::Number(118))]);
        let between = [&fsync[..5], &[0x8b, 0x54, 0x24, 0x28], &CALL_VDSO].concat();
        assert_eq!(all(i386(&between)), [(9, Call::Number(118))]);
        let any = [&[0x8b, 0x44, 0x24, 0x14][..], &CALL_VDSO].concat();
        assert_eq!(all(i386(&any)), [(4, Call::Any)]);
        assert_eq!(all(i386(&CALL_VDSO)), []);
        let six: &[u8] = &[0x8b, 0x1f, 0x8b, 0x6f, 0x08, 0x8b, 0x7f, 0x04];
        assert_eq!(all(i386(&[six, &CALL_VDSO].concat())), [(8, Call::Any)]);
        let prctl = [&[0xb8, 0xac, 0, 0, 0][..], &[0x90; 34], &CALL_VDSO].concat();
        assert_eq!(all(i386(&prctl)), [(39, Call::Number(172))]);
        let too_far = [&[0xb8, 0xac, 0, 0, 0][..], &[0x90; 50], &CALL_VDSO].concat();
        assert_eq!(all(i386(&too_far)), []);
    }

    #[test]
    fn a_redirected_i386_site_is_known_by_where_it_leads() {
        for (start, to) in [(0xf7d0_0000, 0xf7c0_1234), (0x1000, 0xf000_0000)] {
            let mut code = vec![0x66, 0x90, 0xb8, 118, 0, 0, 0];
            code.extend(i386_call(start + 7, to));
            code.extend(i386_call(start, to));
            let found: Vec<_> = i386_calls_to(&code, start, to).collect();
            let (at, len, call) = (7, LEN_32, Call::Number(118));
            assert_eq!(found, [Site { at, len, call }]);
        }
    }

    #[test]
    fn an_aarch64_site_loads_w8_or_x8() {
        let words: [u32; 7] = [
            0xd280_0a48, // mov x8, #82
            0xd400_0001, // svc #0
            0x5280_0a68, // mov w8, #83
            0xd400_0001,
            0x5280_0a69, // mov w9, #83
            0xd400_0001,
            0xd280_0a48,
        ];
        let code: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let expected = vec![(0, Call::Number(82)), (8, Call::Number(83))];
        assert_eq!(all(aarch64(&code)), expected);
    }

    #[test]
    fn an_aarch64_site_may_have_its_number_loaded_sooner() {
        let found = |words: &[u32]| {
            let code: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            all(aarch64(&code))
        };
        let (fsync, enter, from_19) = (0xd280_0a48, 0xd400_0001, 0xaa13_03e0);
        assert_eq!(found(&[fsync, from_19, enter]), [(4, Call::Number(82))]);
        assert_eq!(found(&[0xaa00_03e8, from_19, enter]), [(4, Call::Any)]);
        let (call, adrp, ldr_8) = (0x97fe_68ef, 0xf000_0621, 0xf940_0008);
        for between in [call, adrp, ldr_8] {
            assert_eq!(found(&[fsync, between, enter]), []);
        }
        assert_eq!(
            found(&[fsync, adrp, from_19, enter]),
            [(8, Call::Number(82))]
        );
        let far: Vec<u32> = [&[fsync][..], &[from_19; 8], &[enter]].concat();
        assert_eq!(found(&far), []);
    }

    proptest! {
        #[test]
        fn no_code_is_read_past_its_end(
            code in proptest::collection::vec(prop_oneof![
                Just(0xb8u8), Just(0x0f), Just(0x05), Just(0x00), Just(0x65), any::<u8>()
            ], 0..64),
        ) {
            for site in x86_64(&code) {
                prop_assert!(site.at + LEN + SYSCALL.len() <= code.len());
            }
            for jumps in [false, true] {
                for site in go(&code, jumps) {
                    prop_assert!(site.at + GO_LEN + SYSCALL.len() <= code.len());
                }
            }
            for site in i386(&code) {
                prop_assert!(site.at + LEN_32 <= code.len());
            }
            for site in aarch64(&code) {
                prop_assert!(site.at + 8 <= code.len());
            }
        }
    }
}
