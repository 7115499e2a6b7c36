//! Every system call of synclater that std does not wrap safely, and all its unsafe code, behind
//! small safe types. Knows nothing of policy. The modules that allow unsafe are the audit list.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub mod attendant;
pub mod births;
pub mod blockdev;
#[allow(unsafe_code)]
pub mod children;
#[allow(unsafe_code)]
pub mod clock;
pub mod clone;
#[allow(unsafe_code)]
pub mod command;
#[allow(unsafe_code)]
pub mod contain;
pub mod each;
pub mod everything;
pub mod flushes;
#[cfg_attr(test, allow(unsafe_code))]
pub mod frames;
#[allow(unsafe_code)]
mod fsioctl;
pub mod in_call;
#[allow(unsafe_code)]
pub mod job;
pub mod limits;
#[allow(unsafe_code)]
pub mod lock;
#[allow(unsafe_code)]
pub mod loopdev;
#[allow(unsafe_code)]
pub mod memory;
pub mod mount;
pub mod patient;
#[allow(unsafe_code)]
pub mod perf;
#[allow(unsafe_code)]
pub mod process;
mod processors;
#[allow(unsafe_code)]
pub mod ptrace;
#[allow(unsafe_code)]
mod ptrace_call;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
pub mod registers;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_registers.rs"]
pub mod registers;
#[allow(unsafe_code)]
pub mod remote;
#[allow(unsafe_code)]
pub mod seccomp;
mod seen;
pub mod sharing;
#[allow(unsafe_code)]
pub mod signal;
#[allow(unsafe_code)]
pub mod socket;
#[allow(unsafe_code)]
mod spawn;
#[allow(unsafe_code)]
pub mod threads;
#[allow(unsafe_code)]
mod timers;
pub mod tracefs;
pub mod wait;
