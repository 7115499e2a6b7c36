//! Processes whose requests the session did not answer, why, and how to reach them.
//!
//! Promise: an escape is never passed over in silence. Only ways that exist are advised.
//!
//! What it does not do: it does not find them; who looks at processes does.

use serde::{Deserialize, Serialize};

use std::collections::HashMap;

use synclater_text::layout::{shown, wrapped};
use synclater_text::number::{count, counted};

/// The library is not mapped although the environment could have brought it along.
pub const CLEARED_ENVIRONMENT: &str = "lost the library (cleared environment)";

/// Some calls of a program with the library do not go through libc.
pub const OWN_CALLS: &str =
    "has the library, but makes system calls of its own (Go, io_uring, inline)";

/// The same of one that has not joined the session: its memory may be hidden from it.
pub const OWN_CALLS_OR_HIDDEN: &str = "has the library, but makes system calls of its own \
     (Go, io_uring, inline), has a seccomp filter, does not see the session's memory (a sandbox, a \
     chroot without /dev/shm), writes to what another process has opened with O_SYNC, or makes a \
     call that syncs along the way (losetup, mount -o loop)";

/// A program without a dynamic linker loads no library.
pub const STATIC_PROGRAM: &str = "a static program, which loads no library";

/// The dynamic linker drops the library where a program gains rights.
pub const GAINED_RIGHTS: &str = "gained rights (setuid, setgid or capabilities)";

/// A session inside of this one answers, or nobody: this one does not.
pub const OF_ANOTHER: &str = "is in another session (synclater run), whose dial holds for it";

/// What it executes is not what bears that name here: the library is not there either.
pub const OTHER_ROOT: &str = "does not see the library (it has another root: chroot, container)";

/// One of the two: what was executed is not there any more to be compared.
pub const LOST_SOMEHOW: &str =
    "lost the library (a cleared environment, or another root: chroot, container)";

/// What is in a ring is known to the program and the kernel alone.
pub const OWN_RING: &str =
    "has the library, but makes requests in an io_uring, or by system calls of its own";

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

/// Processes that execute one file and escaped for one reason.
struct Alike<'a> {
    first: &'a Escape,
    more: u64,
    requests: Option<u64>,
}

impl Alike<'_> {
    /// One sentence: who, how much, why.
    fn sentence(&self) -> String {
        let Escape { pid, exe, why, .. } = self.first;
        let requests = match self.requests {
            Some(number) => format!("{} kept real", counted(number, "request")),
            // That one's dial decides.
            None if why.contains(ATTACHED_TO) => "requests not relaxed here".to_owned(),
            None => "requests kept real, not counted".to_owned(),
        };
        let exe = shown(exe.rsplit('/').next().unwrap_or(exe));
        let more = match self.more {
            0 => String::new(),
            more => format!(" and {} more", count(more)),
        };
        format!("escaped: {exe} ({pid}{more}), {requests}: {}", shown(why))
    }

    /// The first, with the requests of all.
    fn as_one(&self) -> Escape {
        Escape {
            requests: self.requests,
            ..self.first.clone()
        }
    }
}

/// In the order of the first of each.
fn groups(escapes: &[Escape]) -> Vec<Alike<'_>> {
    let mut groups: Vec<Alike> = Vec::new();
    let mut places: HashMap<(&str, &str), usize> = HashMap::new();
    for escape in escapes {
        let place = *places
            .entry((&escape.exe, &escape.why))
            .or_insert(groups.len());
        match groups.get_mut(place) {
            None => groups.push(Alike {
                first: escape,
                more: 0,
                requests: escape.requests,
            }),
            Some(group) => {
                let both = group.requests.zip(escape.requests);
                group.requests = both.map(|(a, b)| a.saturating_add(b));
                group.more += 1;
            }
        }
    }
    groups
}

/// A sentence for all that execute one file and escaped for one reason.
pub fn sentences(escapes: &[Escape]) -> Vec<String> {
    groups(escapes).iter().map(Alike::sentence).collect()
}

/// At most this many are told one by one; the JSON has them all.
const SHOWN: usize = 5;

/// The first of [`sentences`] as lines that begin with `lead`, and how many more there are.
pub fn told(escapes: &[Escape], lead: &str) -> String {
    let all = sentences(escapes);
    let shown_ones = all.iter().take(SHOWN);
    let mut text: String = shown_ones.map(|one| wrapped(lead, one)).collect();
    let more = all.len().saturating_sub(SHOWN) as u64;
    if more > 0 {
        let more = counted(more, "program");
        text += &wrapped(
            lead,
            &format!("escaped: {more} more, all of them in --json"),
        );
    }
    text
}

/// One for all that execute one file and escaped for one reason: the first, with the requests of
/// all.
pub fn alike(escapes: &[Escape]) -> Vec<Escape> {
    groups(escapes).iter().map(Alike::as_one).collect()
}

/// The way into a program by a tracer, as it is asked for.
pub const FOLLOW: &str = "--follow";
/// The way by a seccomp filter, as it is asked for.
pub const NET: &str = "--net";

/// Where an environment was cleared. (What `synclater env` prints is for a library without a
/// session, which settles nothing.)
const KEEP_LIBRARY: &str =
    "to keep the library: --follow, or hand on LD_PRELOAD, SYNCLATER_PAGE and SYNCLATER_UNTIL";

/// Reasons of escapes that [`NET`] puts an end to.
const REACHED_BY_NET: &[&str] = &[
    CLEARED_ENVIRONMENT,
    OTHER_ROOT,
    LOST_SOMEHOW,
    STATIC_PROGRAM,
    OWN_CALLS,
    OWN_CALLS_OR_HIDDEN,
];

/// What to do about the escapes, one sentence for each cause that has a remedy, of a session that
/// has the ways `used` already.
pub fn remedies(escapes: &[Escape], used: &[String]) -> Vec<&'static str> {
    let mut all = Vec::new();
    if used.iter().any(|way| way == NET) {
        return all;
    }
    let follows = used.iter().any(|way| way == FOLLOW);
    if has_any(escapes, &[CLEARED_ENVIRONMENT]) && !follows {
        all.push(KEEP_LIBRARY);
    } else if has_any(escapes, &[OTHER_ROOT, LOST_SOMEHOW]) && !follows {
        all.push("to reach programs in another root: --follow");
    } else if has_any(escapes, &[STATIC_PROGRAM, OWN_CALLS]) && !follows {
        all.push("to reach static programs and Go: --follow; whatever it is: run --net");
    } else if has_any(escapes, REACHED_BY_NET) {
        all.push("to reach whatever it is: run --net");
    }
    all
}

/// Whether one of the escapes has one of these reasons.
fn has_any(escapes: &[Escape], whys: &[&str]) -> bool {
    escapes.iter().any(|e| whys.contains(&e.why.as_str()))
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
        let sentence = |escape: Escape| sentences(&[escape]).concat();
        assert_eq!(
            sentence(escape(STATIC_PROGRAM, Some(2_300))),
            "escaped: cron (4121), 2,300 requests kept real: a static program, which loads no \
             library"
        );
        assert!(sentence(escape("x", None)).contains("not counted"));
        let of_another = sentence(escape(&format!("not attached: {ATTACHED_TO}kelp"), None));
        assert!(!of_another.contains("real"), "{of_another}");
    }

    #[test]
    fn those_that_are_alike_are_told_together() {
        let other = |pid| Escape {
            pid,
            ..escape("y", Some(2))
        };
        let all = [
            other(7),
            escape("x", None),
            other(8),
            other(9),
            escape("x", Some(1)),
        ];
        let want = [
            "escaped: cron (7 and 2 more), 6 requests kept real: y",
            "escaped: cron (4121 and 1 more), requests kept real, not counted: x",
        ];
        assert_eq!(sentences(&all), want);
    }

    #[test]
    fn a_remedy_is_named_once_and_only_where_it_helps() {
        let lost = escape(CLEARED_ENVIRONMENT, None);
        assert_eq!(remedies(&[lost.clone(), lost], &[]).len(), 1);
        assert!(remedies(&[escape(GAINED_RIGHTS, None)], &[]).is_empty());
        assert_eq!(remedies(&[escape(STATIC_PROGRAM, None)], &[]).len(), 1);
    }

    #[test]
    fn what_is_on_already_is_not_advised() {
        let whys = [
            CLEARED_ENVIRONMENT,
            OTHER_ROOT,
            LOST_SOMEHOW,
            STATIC_PROGRAM,
            OWN_CALLS,
        ];
        for why in whys {
            let all = [escape(why, Some(3))];
            let with = |ways: &[&str]| {
                let ways: Vec<String> = ways.iter().map(|w| (*w).to_owned()).collect();
                remedies(&all, &ways).concat()
            };
            assert!(with(&[]).contains(FOLLOW), "{why}");
            assert!(!with(&[FOLLOW]).contains(FOLLOW), "{why}");
            assert!(with(&[FOLLOW]).contains(NET), "{why}");
            assert_eq!(with(&[NET]), "", "{why}");
            assert_eq!(with(&[FOLLOW, NET]), "", "{why}");
        }
        assert!(remedies(&[escape(OWN_RING, Some(3))], &[]).is_empty());
    }

    #[test]
    fn what_is_not_known_is_absent_from_json() {
        let json = serde_json::to_string(&escape("x", None)).unwrap();
        assert!(!json.contains("requests"));
    }
}
