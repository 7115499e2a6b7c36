//! Processes whose requests the session did not answer, why, and how to reach them.
//!
//! Promise: an escape is never passed over in silence. Only ways that exist are advised.
//!
//! What it does not do: it does not find them; who looks at processes does.

use serde::{Deserialize, Serialize};

use super::number::counted;
use super::text::shown;

/// The library is not mapped although the environment could have brought it along.
pub const CLEARED_ENVIRONMENT: &str = "lost the library (cleared environment)";

/// Some calls of a program with the library do not go through libc.
pub const OWN_CALLS: &str =
    "has the library, but makes system calls of its own (Go, io_uring, inline)";

/// A program without a dynamic linker loads no library.
pub const STATIC_PROGRAM: &str = "a static program, which loads no library";

/// The dynamic linker drops the library where a program gains rights.
pub const GAINED_RIGHTS: &str = "gained rights (setuid, setgid or capabilities)";

/// A session inside of this one answers, or nobody: this one does not.
pub const OF_ANOTHER: &str = "is in another session (synclater run), whose dial holds for it";

/// What the library would have to ask is forbidden to it, or handed back to the program.
pub const RESTRICTED: &str = "has restricted its own calls (seccomp filter, PR_SET_TSC, \
                              PR_SET_SYSCALL_USER_DISPATCH)";

/// What is said, before its name, of the session that has a process.
pub const ATTACHED_TO: &str = "it is attached to session ";

/// A process that reached the kernel without the library, as `ps` and the summary name it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Escape {
    /// Process id.
    pub pid: u32,
    /// Full path of the executable.
    pub exe: String,
    /// Why it escaped: one of this module's texts, or another one.
    pub why: String,
    /// Requests that reached the kernel on their own; absent when they could not be counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
}

impl Escape {
    /// One sentence: who, how much, why.
    pub fn sentence(&self) -> String {
        let requests = match self.requests {
            Some(number) => format!("{} kept real", counted(number, "request")),
            // That one's dial decides.
            None if self.why.contains(ATTACHED_TO) => "requests not relaxed here".to_owned(),
            None => "requests kept real, not counted".to_owned(),
        };
        let exe = shown(self.exe.rsplit('/').next().unwrap_or(&self.exe));
        format!(
            "escaped: {exe} ({}), {requests}: {}",
            self.pid,
            shown(&self.why)
        )
    }
}

/// What to do about the escapes, one sentence for each cause that has a remedy.
pub fn remedies(escapes: &[Escape]) -> Vec<&'static str> {
    let any = |whys: &[&str]| escapes.iter().any(|e| whys.contains(&e.why.as_str()));
    let mut all = Vec::new();
    if any(&[CLEARED_ENVIRONMENT]) {
        all.push("to keep the library: --follow, or what `synclater env` prints");
    } else if any(&[STATIC_PROGRAM, OWN_CALLS]) {
        all.push("to reach static programs and Go: --follow; whatever it is: run --net");
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escape(why: &str, requests: Option<u64>) -> Escape {
        Escape {
            pid: 4121,
            exe: "/usr/bin/cron".into(),
            why: why.into(),
            requests,
        }
    }

    #[test]
    fn a_sentence_says_who_how_much_and_why() {
        assert_eq!(
            escape(STATIC_PROGRAM, Some(2_300)).sentence(),
            "escaped: cron (4121), 2,300 requests kept real: a static program, which loads no \
             library"
        );
        assert!(escape("x", None).sentence().contains("not counted"));
        let of_another = escape(&format!("not attached: {ATTACHED_TO}kelp"), None).sentence();
        assert!(!of_another.contains("real"), "{of_another}");
    }

    #[test]
    fn a_remedy_is_named_once_and_only_where_it_helps() {
        let lost = escape(CLEARED_ENVIRONMENT, None);
        assert_eq!(remedies(&[lost.clone(), lost]).len(), 1);
        assert!(remedies(&[escape(GAINED_RIGHTS, None)]).is_empty());
        assert_eq!(remedies(&[escape(STATIC_PROGRAM, None)]).len(), 1);
    }

    #[test]
    fn what_is_not_known_is_absent_from_json() {
        let json = serde_json::to_string(&escape("x", None)).unwrap();
        assert!(!json.contains("requests"));
    }
}
