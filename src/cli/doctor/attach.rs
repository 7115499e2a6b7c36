//! Whether processes that run already can be attached here, what programs start be followed, and
//! a net be cast.

use super::{Check, Status};
use crate::reach::attach::can_bring_image;
use crate::reach::net;
use synclater_sys::births::Births;
use synclater_sys::job::Job;
use synclater_sys::process;
use synclater_sys::ptrace::Thread;
use synclater_sys::registers::Registers;

/// The check.
#[must_use]
pub fn attach_check() -> Check {
    let means = "synclater attach puts an image into a process that runs already, and hears from \
                 the kernel of those that begin later.";
    match (can_bring_image(), Births::listen()) {
        (Ok(()), _) if process::is_filtered() => {
            let seen = "a seccomp filter lies on synclater itself (a container?)";
            Check::new("attach", Status::Warn, seen, means).advise(
                "the filters of others cannot be read here: attach from outside of the container, \
                 or start programs by synclater run",
            )
        }
        (Err(why), _) => Check::new("attach", Status::Warn, why.why, means).advise(why.try_),
        (Ok(()), Err(e)) => {
            let seen = format!("an image can be brought; no process events ({e})");
            Check::new("attach", Status::Warn, seen, means).advise(
                "as root they are heard of at once; else those of --exe and --unit are looked for \
                 four times a second",
            )
        }
        (Ok(()), Ok(_)) => {
            let seen = "an image can be brought; process events arrive";
            Check::new("attach", Status::Ok, seen, means)
        }
    }
}

/// Whether what a program starts can be followed.
#[must_use]
pub fn follow_check() -> Check {
    let means =
        "--follow traces a program and all that it starts, and puts the library back where \
                 it got lost.";
    let name = "follow";
    if !Registers::ARE_KNOWN {
        return Check::new(
            name,
            Status::Warn,
            "not on this machine (x86-64 only)",
            means,
        );
    }
    // It ends with us at the latest.
    let child = Job::start(|| {
        std::thread::sleep(std::time::Duration::from_secs(60));
        0
    });
    let traced = child.and_then(|child| {
        let traced = Thread::seize(child.pid()).map(|_| ());
        child.end();
        traced
    });
    match traced {
        Err(e) => {
            let seen = format!("ptrace is refused ({e})");
            Check::new(name, Status::Warn, seen, means).advise(
                "in a container: --cap-add SYS_PTRACE; sysctl kernel.yama.ptrace_scope below 3",
            )
        }
        Ok(()) if process::effective_user() != 0 => {
            let seen = "processes may be traced; setuid programs are left alone";
            Check::new(name, Status::Ok, seen, means)
        }
        Ok(()) => {
            let seen = "processes may be traced, setuid programs too";
            Check::new(name, Status::Ok, seen, means)
        }
    }
}

/// Whether the kernel can ask about what nothing else sees.
#[must_use]
pub fn net_check() -> Check {
    let means = "--net has the kernel ask about sync requests that nothing else sees: inline \
                 system calls of static programs and Go.";
    match net::can_be_had() {
        Err(e) => Check::new("net", Status::Warn, net::explain(&e), means)
            .advise("--follow reaches static programs and Go without it"),
        Ok(()) if net::gives_up_rights() => {
            let seen = "the kernel asks; programs of such a run gain no rights (no_new_privs)";
            Check::new("net", Status::Warn, seen, means)
                .advise("as root, or with CAP_SYS_ADMIN, sudo and its like go on working")
        }
        Ok(()) => Check::new("net", Status::Ok, "the kernel asks, and waits", means),
    }
}
