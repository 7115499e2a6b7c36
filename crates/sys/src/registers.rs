//! The registers of an x86-64 thread as ptrace(2) shows them.

use crate::ptrace_call::request;
use std::io;
use synclater_calls::{self as calls, Kind, Machine};

/// Registers.
#[derive(Clone, Debug)]
pub struct Registers(libc::user_regs_struct);

impl Default for Registers {
    fn default() -> Registers {
        // SAFETY: a structure of integers, for which zero is a value.
        Registers(unsafe { std::mem::zeroed() })
    }
}

/// Numbers of errors that a system call leaves for the kernel alone: it is to be made again.
const AGAIN: [i64; 3] = [-512, -513, UNLESS_HANDLED];
const UNLESS_HANDLED: i64 = -514;
/// The same, by restart_syscall(2), which knows how much time is left.
const AGAIN_BY_BLOCK: i64 = -516;
const RESTART_SYSCALL: u64 = calls::number(Machine::X86_64, "restart_syscall") as u64;
const RESTART_SYSCALL_32: u64 = calls::number(Machine::I386, "restart_syscall") as u64;

const EINTR: i64 = -4;

/// Bytes of a `syscall` instruction.
const SYSCALL_LEN: u64 = 2;

impl Registers {
    /// Whether they can be read and given on this machine.
    pub const ARE_KNOWN: bool = true;

    /// Those of a thread that is traced and stands still.
    pub(crate) fn of(tid: u32) -> io::Result<Registers> {
        let mut r = Registers::default();
        let data = std::ptr::from_mut(&mut r.0).cast();
        request(libc::PTRACE_GETREGS, tid, 0, data)?;
        Ok(r)
    }

    /// Gives them to such a thread.
    pub(crate) fn give(&self, tid: u32) -> io::Result<()> {
        let mut r = self.clone();
        let data = std::ptr::from_mut(&mut r.0).cast();
        request(libc::PTRACE_SETREGS, tid, 0, data)?;
        Ok(())
    }

    fn general(&self) -> [u64; 15] {
        let r = &self.0;
        [
            r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.r8, r.r9, r.r10, r.r11, r.r12,
            r.r13, r.r14, r.r15,
        ]
    }

    /// The next instruction.
    #[must_use]
    pub fn ip(&self) -> u64 {
        self.0.rip
    }

    /// The stack pointer.
    #[must_use]
    pub fn sp(&self) -> u64 {
        self.0.rsp
    }

    /// The thread with its stack beginning elsewhere.
    #[must_use]
    pub fn with_stack(&self, sp: u64) -> Registers {
        let mut r = self.clone();
        r.0.rsp = sp;
        r
    }

    /// The thread about to execute a program. `enter` is where an instruction lies that enters the
    /// kernel ([`Registers::entry`]); the others are the arguments of execve(2).
    #[must_use]
    pub fn to_execute(&self, enter: u64, path: u64, args: u64, env: u64) -> Registers {
        const EXECVE: u64 = 59;
        const EXECVE_32: u64 = 11;
        let mut r = self.clone();
        r.0.rip = enter;
        r.0.orig_rax = u64::MAX;
        r.0.rdx = env;
        if self.is_64() {
            (r.0.rax, r.0.rdi, r.0.rsi) = (EXECVE, path, args);
        } else {
            (r.0.rax, r.0.rbx, r.0.rcx) = (EXECVE_32, path, args);
        }
        r
    }

    /// The instruction by which the thread's code enters the kernel.
    #[must_use]
    pub fn entry(&self) -> [u8; 2] {
        if self.is_64() {
            [0x0f, 0x05] // syscall
        } else {
            [0xcd, 0x80] // int $0x80
        }
    }

    /// Whether the thread runs 64-bit code.
    #[must_use]
    pub fn is_64(&self) -> bool {
        const USER_CS: u64 = 0x33;
        self.0.cs == USER_CS
    }

    /// What rax will be where the kernel has the system call that it was waiting in made again, if
    /// it was in one.
    fn again(&self) -> Option<u64> {
        let result = self.result();
        let call = self.call()?;
        if result == AGAIN_BY_BLOCK {
            return Some(if self.is_64() {
                RESTART_SYSCALL
            } else {
                RESTART_SYSCALL_32
            });
        }
        (AGAIN.contains(&result) || self.says_eintr_for_us()).then_some(call)
    }

    /// What rax holds, as the thread's code has it.
    fn result(&self) -> i64 {
        if self.is_64() {
            self.0.rax.cast_signed()
        } else {
            i64::from((self.0.rax as u32).cast_signed())
        }
    }

    /// The number of the system call that the thread is in, if it is in one.
    fn call(&self) -> Option<u64> {
        let call = self.0.orig_rax;
        if self.is_64() {
            (call.cast_signed() >= 0).then_some(call)
        } else {
            let call = call as u32;
            (call.cast_signed() >= 0).then_some(call.into())
        }
    }

    /// What the code that runs is for.
    fn machine(&self) -> Machine {
        if self.is_64() {
            Machine::X86_64
        } else {
            Machine::I386
        }
    }

    fn says_eintr_for_us(&self) -> bool {
        if self.result() != EINTR {
            return false;
        }
        let (machine, call) = (self.machine(), self.call());
        call.is_some_and(|call| calls::is_of(Kind::Eintr, machine, call as u32))
    }

    /// Whether the thread waits where Go's runtime does so: in futex, epoll_wait, epoll_pwait or
    /// nanosleep. Mostly that is on a stack of its own; for a lock of a channel on a goroutine's.
    #[must_use]
    pub fn waits_in_runtime(&self) -> bool {
        const WAITS: [u32; 4] = calls::numbers(
            Machine::X86_64,
            ["futex", "epoll_wait", "epoll_pwait", "nanosleep"],
        );
        WAITS.iter().any(|call| u64::from(*call) == self.0.orig_rax)
    }

    /// Where Go has what it knows of the goroutine that runs (`g`, from Go 1.17 on).
    #[must_use]
    pub fn goroutine(&self) -> u64 {
        self.0.r14
    }

    /// Whether the thread is in a system call by which it may restrict its own process, or has that
    /// call's number ready for one: seccomp(2), or prctl(2) with `PR_SET_SECCOMP`, `PR_SET_TSC` or
    /// `PR_SET_SYSCALL_USER_DISPATCH`. One that is to make its call again is in front of it.
    #[must_use]
    pub fn may_restrict(&self) -> bool {
        const OPTIONS: [u32; 3] = [22, 26, 59];
        let option = match self.machine() {
            Machine::X86_64 => self.0.rdi as u32,
            _ => self.0.rbx as u32,
        };
        self.makes("seccomp") || self.makes("prctl") && OPTIONS.contains(&option)
    }

    /// Whether the thread is in the system call of this name, or may be about to make it.
    fn makes(&self, name: &str) -> bool {
        let call = self.call().unwrap_or(self.0.rax);
        call as u32 == calls::number(self.machine(), name)
    }

    /// Whether the thread is in code of its own, in no system call.
    #[must_use]
    pub fn is_in_program(&self) -> bool {
        self.call().is_none()
    }

    /// The thread as it would be had we not interrupted it, where its call says EINTR because of
    /// us: the kernel makes the call again, or lets it fail where a signal's handler runs first.
    #[must_use]
    pub fn undisturbed(&self) -> Option<Registers> {
        let mut r = self.clone();
        r.0.rax = UNLESS_HANDLED.cast_unsigned();
        self.says_eintr_for_us().then_some(r)
    }

    /// The thread behind its call, where that says EINTR and is not to be made again.
    #[must_use]
    pub fn answered(&self) -> Registers {
        let mut r = self.clone();
        if self.says_eintr_for_us() {
            r.0.orig_rax = u64::MAX;
        }
        r
    }

    /// The thread as it would be had its call ended with `result`, where it is in `call`, would go
    /// on at `behind`, and has that call interrupted by us alone.
    #[must_use]
    pub fn ended(&self, call: u64, behind: u64, result: i64) -> Option<Registers> {
        let is_interrupted = self.says_eintr_for_us() || self.result() == UNLESS_HANDLED;
        let is_it = is_interrupted && self.call() == Some(call) && self.ip() == behind;
        let mut r = self.clone();
        r.0.rax = result.cast_unsigned();
        is_it.then_some(r)
    }

    /// The number of restart_syscall(2), as the thread's code has it.
    #[must_use]
    pub fn restart_call(&self) -> u32 {
        let number = if self.is_64() {
            RESTART_SYSCALL
        } else {
            RESTART_SYSCALL_32
        };
        number as u32
    }

    /// Whether the kernel is to go on with the call that the thread was waiting in by
    /// restart_syscall(2), which knows how much time is left.
    #[must_use]
    pub fn restarts(&self) -> bool {
        self.call().is_some() && self.result() == AGAIN_BY_BLOCK
    }

    /// The thread about to begin such a call anew instead, with all of its time: for one that may
    /// not call restart_syscall(2).
    #[must_use]
    pub fn begun_anew(&self) -> Registers {
        let mut r = self.clone();
        if self.restarts() {
            r.0.rax = UNLESS_HANDLED.cast_unsigned();
        }
        r
    }

    /// rax, rbx, rcx, rdx, rsi, rdi, rbp, r8 to r15, the flags, and where to go on, for a thread
    /// that comes back from an errand.
    #[must_use]
    pub fn to_come_back(&self) -> ([u64; 15], u64, u64) {
        let mut general = self.general();
        let mut back = self.ip();
        if let Some(rax) = self.again() {
            general[0] = rax;
            back -= SYSCALL_LEN;
        }
        (general, self.0.eflags, back)
    }

    /// The thread on its way to `code`, with one argument and this stack. Where it was waiting in a
    /// system call it arrives two bytes behind, if a signal's handler ran first and the call is to
    /// fail with EINTR for that.
    #[must_use]
    pub fn sent_to(&self, code: u64, argument: u64, stack: u64) -> Registers {
        let mut r = self.undisturbed().unwrap_or_else(|| self.clone());
        r.0.rip = code + SYSCALL_LEN;
        if self.again().is_none() {
            r.0.rip = code;
            r.0.orig_rax = u64::MAX;
        }
        r.0.rdi = argument;
        r.0.rsp = stack;
        r
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_call(call: i64, result: i64) -> Registers {
        let mut r = Registers::default();
        r.0.cs = 0x33;
        r.0.orig_rax = call.cast_unsigned();
        r.0.rax = result.cast_unsigned();
        r.0.rip = 0x1002;
        r
    }

    #[test]
    fn a_call_that_was_interrupted_is_made_again() {
        for (call, result, again) in [
            (7, -516, Some(219)),
            (0, -512, Some(0)),
            (202, -512, Some(202)),
            (130, -514, Some(130)),
            (232, -4, Some(232)),
            (34, -4, None), // pause: a handler has run
            (0, 17, None),
            (-1, -512, None),
        ] {
            let r = in_call(call, result);
            let (general, _, back) = r.to_come_back();
            let sent = r.sent_to(0x5000, 7, 0x6000);
            assert_eq!((sent.0.rdi, sent.0.rsp), (7, 0x6000));
            if let Some(number) = again {
                assert_eq!((general[0], back), (number, 0x1000));
                assert_eq!((sent.0.rip, sent.0.orig_rax), (0x5002, r.0.orig_rax));
                assert!(AGAIN.contains(&sent.0.rax.cast_signed()) || result == -516);
            } else {
                assert_eq!((general[0], back), (r.0.rax, 0x1002));
                assert_eq!((sent.0.rip, sent.0.orig_rax), (0x5000, u64::MAX));
            }
        }
    }

    #[test]
    fn a_call_of_32_bits_has_numbers_of_its_own() {
        for (call, result, again) in [
            (168, -516, Some(0)),
            (3, -512, Some(3)),
            (256, -4, Some(256)),
            (3, 17, None),
            (-1, -512, None),
        ] {
            let mut r = in_call(call, result);
            r.0.cs = 0x23;
            // As the kernel may show them: without the upper halves.
            r.0.orig_rax &= 0xffff_ffff;
            r.0.rax &= 0xffff_ffff;
            assert_eq!(r.again(), again, "{call} {result}");
        }
    }

    #[test]
    fn a_call_is_begun_anew_where_it_may_not_be_restarted() {
        for (call, result, is_changed) in [(7, -516, true), (7, -514, false), (-1, -516, false)] {
            let r = in_call(call, result);
            let anew = r.begun_anew();
            assert_eq!(anew.0.rax != r.0.rax, is_changed, "{call} {result}");
            let (general, _, back) = anew.to_come_back();
            if is_changed {
                assert_eq!((general[0], back), (7, 0x1000));
            }
        }
    }

    #[test]
    fn who_is_about_to_restrict_itself_may_do_so_as_who_is_at_it() {
        const OTHER: u64 = 38; // PR_SET_NO_NEW_PRIVS
        for (call, result, option, may) in [
            (317, -512, 0, true),
            (-1, 317, 0, true),
            (-1, 157, 22, true),
            (157, -512, 26, true),
            (-1, 157, OTHER, false),
            (0, 317, 0, false),
            (-1, 0, 22, false),
        ] {
            let mut r = in_call(call, result);
            r.0.rdi = option;
            assert_eq!(r.may_restrict(), may, "{call} {result} {option}");
        }
    }

    #[test]
    fn what_was_answered_is_not_made_again() {
        let answered = in_call(232, -4).answered();
        assert_eq!(answered.undisturbed().map(|r| r.ip()), None);
        let (general, _, back) = answered.to_come_back();
        assert_eq!((general[0].cast_signed(), back), (-4, 0x1002));
        assert!(in_call(7, -516).answered().restarts());
    }

    #[test]
    fn only_the_call_that_was_interrupted_ends() {
        let ends = |call, result| in_call(call, result).ended(232, 0x1002, 0).is_some();
        assert!(ends(232, -4) && ends(232, -514));
        assert!(!ends(281, -4) && !ends(232, 3) && !ends(232, -512) && !ends(-1, -4));
        let r = in_call(232, -4);
        assert!(r.ended(232, 0x1004, 0).is_none());
        let ended = r.ended(232, 0x1002, -11).expect("it is it");
        assert_eq!((ended.result(), ended.ip()), (-11, 0x1002));
        assert_eq!(ended.to_come_back().2, 0x1002);
    }

    #[test]
    fn only_a_call_that_says_eintr_for_us_is_changed() {
        let woken = in_call(232, -4).undisturbed().expect("epoll_wait");
        assert_eq!((woken.0.rax.cast_signed(), woken.0.rip), (-514, 0x1002));
        for (call, result) in [(34, -4), (232, -512), (232, 3), (-1, -4)] {
            assert!(in_call(call, result).undisturbed().is_none());
        }
    }
}
