//! What the kernel offers: its version, clock, tracing, ptrace and seccomp.
//!
//! Relies on: /proc and /sys as proc(5) and the kernel's Documentation describe them.
//! What cannot be read is `unknown`, never guessed.

use super::{Check, Status};
use std::fs;
use synclater_bpf::{Engine, Error, Filter};
use synclater_sys::process::effective_user;

/// All checks of the kernel, the most important first.
pub fn kernel_checks() -> Vec<Check> {
    vec![
        version_check(&read("/proc/sys/kernel/osrelease")),
        clock_check(&read("/proc/cpuinfo")),
        escapes_check(effective_user()),
        system_check(),
        ptrace_check(&read("/proc/sys/kernel/yama/ptrace_scope")),
        seccomp_check(
            &read("/proc/self/status"),
            &read("/proc/sys/kernel/seccomp/actions_avail"),
        ),
    ]
}

/// The file's text; empty where it cannot be read.
fn read(path: &str) -> String {
    fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

/// `6.1.0-13-amd64` is (6, 1).
fn parse_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn version_check(release: &str) -> Check {
    let name = "kernel";
    let (status, means) = match parse_version(release) {
        None => (Status::Unknown, "The version could not be read."),
        Some(version) if version < (5, 8) => {
            let means = "Before 5.8 syncfs does not report lost writes and statx gives no mount \
                         ids: a settle could claim what it does not know.";
            return Check::new(name, Status::Bad, release, means).advise("use Linux 5.8 or newer");
        }
        Some(version) if version < (6, 8) => (
            Status::Warn,
            "Lost writes are reported (5.8). Mount ids may be used again after an unmount (unique \
             from 6.8), and msync finds its file systems by reading maps (PROCMAP_QUERY from \
             6.11): slower, never wrong.",
        ),
        Some(version) if version < (6, 11) => (
            Status::Ok,
            "Lost writes are reported (5.8), mount ids are unique (6.8). msync finds its file \
             systems by reading maps (PROCMAP_QUERY from 6.11).",
        ),
        Some(_) => (
            Status::Ok,
            "Lost writes are reported (5.8), mount ids are unique (6.8), msync finds its file \
             systems by one call (6.11).",
        ),
    };
    Check::new(name, status, release, means)
}

/// The lease's clock in programs: the time stamp counter where it neither changes speed nor stops.
fn clock_check(cpuinfo: &str) -> Check {
    let name = "lease clock";
    let Some(flags) = cpuinfo.lines().find(|l| l.starts_with("flags")) else {
        let means =
            "No time stamp counter is described: CLOCK_REALTIME serves as the lease's clock.";
        return Check::new(name, Status::Unknown, "no flags in /proc/cpuinfo", means);
    };
    let missing: Vec<&str> = ["constant_tsc", "nonstop_tsc"]
        .into_iter()
        .filter(|flag| !flags.split_whitespace().any(|f| f == *flag))
        .collect();
    if missing.is_empty() {
        let means = "The time stamp counter runs evenly: a lease is checked in a few nanoseconds, \
                     and no time namespace shifts it.";
        return Check::new(name, Status::Ok, "constant_tsc, nonstop_tsc", means);
    }
    let means = "The time stamp counter may change speed or stop: CLOCK_REALTIME serves as the \
                 lease's clock, which costs some 25 ns a request.";
    Check::new(
        name,
        Status::Warn,
        format!("without {}", missing.join(", ")),
        means,
    )
}

/// Whether syncs that reach the kernel can be counted, which is how escapes are known.
fn escapes_check(uid: u32) -> Check {
    let name = "escapes";
    let paranoid = read("/proc/sys/kernel/perf_event_paranoid");
    let paranoid = Some(paranoid.as_str()).filter(|p| !p.is_empty());
    let paranoid = paranoid.unwrap_or("not to be read");
    let who = format!("user {uid}, perf_event_paranoid {paranoid}");
    match synclater_sys::perf::is_permitted() {
        Ok(()) => {
            let means = "Syncs that pass the library by are counted in the kernel and named by \
                         process.";
            let seen = format!("{who}, trace points can be opened");
            Check::new(name, Status::Ok, seen, means)
        }
        Err(error) => {
            let blind = "Syncs that reach the kernel cannot be counted: ps and the summary say \
                         that they cannot know what escaped, and name programs that did not load \
                         the library.";
            let advice = "run synclater as root";
            Check::new(name, Status::Warn, format!("{who}, {error}"), blind).advise(advice)
        }
    }
}

/// Loads the trace programs and takes them away again.
fn system_check() -> Check {
    let name = "record --system";
    let only_me = Filter {
        pids: [std::process::id()].into(),
        ..Filter::default()
    };
    match Engine::open(&only_me, 1 << 16) {
        Ok(engine) if engine.absent().is_empty() => {
            let means = "Every sync request of the machine can be recorded, without a restart.";
            Check::new(name, Status::Ok, "the trace programs load", means)
        }
        Ok(engine) => {
            let lacks = format!("this kernel lacks {}", engine.absent().join(", "));
            let means = "Requests of these file systems are seen as system calls only.";
            Check::new(name, Status::Warn, lacks, means)
        }
        Err(e) => {
            let means = "Recordings have what goes through the library only.";
            let advice = match e {
                Error::NotPermitted(_) => "run synclater as root",
                Error::NotBuilt(_) => "build it where clang and libelf's headers are",
                _ => "use `synclater record -- COMMAND`",
            };
            Check::new(name, Status::Warn, e.to_string(), means).advise(advice)
        }
    }
}

fn ptrace_check(scope: &str) -> Check {
    let means = "What synclater attach needs; sessions that are started by run need none of it.";
    let seen = match scope {
        "" => "no Yama restriction",
        "0" => "ptrace_scope 0 (own processes)",
        "1" => "ptrace_scope 1 (own children; root: all)",
        "2" => "ptrace_scope 2 (root only)",
        other => {
            let seen = format!("ptrace_scope {other} (nobody)");
            return Check::new("ptrace", Status::Warn, seen, means)
                .advise("start programs by synclater run; it can be lifted by a reboot only");
        }
    };
    Check::new("ptrace", Status::Ok, seen, means)
}

fn seccomp_check(status: &str, actions: &str) -> Check {
    let name = "seccomp";
    let mode = status
        .lines()
        .find_map(|l| l.strip_prefix("Seccomp:"))
        .map(str::trim);
    let notify = actions.split_whitespace().any(|a| a == "user_notif");
    let seen = format!(
        "mode {}, user_notif {}",
        mode.unwrap_or("?"),
        if notify { "yes" } else { "no" }
    );
    match mode {
        Some("0") => {
            let means = "No filter lies on this process: programs may make every call.";
            Check::new(name, Status::Ok, seen, means)
        }
        Some(_) => {
            let means =
                "A filter lies on this process already (a container?): it may refuse calls \
                         that synclater makes. Programs behave as under the filter alone.";
            Check::new(name, Status::Warn, seen, means)
                .advise("where a session fails, try outside the container or with a wider profile")
        }
        None => Check::new(name, Status::Unknown, seen, "This kernel does not tell."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_up_to_what_follows_the_minor_number() {
        assert_eq!(parse_version("6.18.44-fc-v669"), Some((6, 18)));
        assert_eq!(parse_version("5.10"), Some((5, 10)));
        assert_eq!(parse_version("6.1-rc3+"), Some((6, 1)));
        assert_eq!(parse_version("unknown"), None);
    }

    #[test]
    fn a_kernel_before_5_8_is_bad_and_one_without_unique_ids_a_warning() {
        let status = |release| version_check(release).status;
        assert_eq!(status("5.4.0-150-generic"), Status::Bad);
        assert_eq!(status("6.1.0-13-amd64"), Status::Warn);
        assert_eq!(status("6.8.0"), Status::Ok);
        assert_eq!(status("6.18.1"), Status::Ok);
        assert_eq!(status(""), Status::Unknown);
    }

    #[test]
    fn a_counter_that_may_stop_is_no_lease_clock() {
        let status = |info| clock_check(info).status;
        assert_eq!(
            status("flags\t\t: fpu constant_tsc nonstop_tsc sse"),
            Status::Ok
        );
        assert_eq!(status("flags\t\t: fpu constant_tsc"), Status::Warn);
        assert_eq!(status("Features\t: fp asimd"), Status::Unknown);
        let seen = clock_check("flags : xconstant_tsc nonstop_tsc").seen;
        assert_eq!(seen, "without constant_tsc");
    }

    #[test]
    fn a_filter_that_is_in_force_is_a_warning() {
        let actions = "kill_process errno user_notif allow";
        assert_eq!(seccomp_check("Seccomp:\t2\n", actions).status, Status::Warn);
        let check = seccomp_check("Seccomp:\t0\n", actions);
        assert_eq!(
            (check.status, check.seen.as_str()),
            (Status::Ok, "mode 0, user_notif yes")
        );
    }

    #[test]
    fn nobody_may_trace_at_scope_3() {
        assert_eq!(ptrace_check("3").status, Status::Warn);
        assert_eq!(ptrace_check("").status, Status::Ok);
    }
}
