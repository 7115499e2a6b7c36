//! What is told of a process that is attached, and of one that could not be let go of.

use crate::reach::attach::refusal::Refusal;
use crate::reach::attach::target::Open;
use crate::reach::program;
use std::path::Path;
use std::time::Duration;
use synclater_text::layout::shown;
use synclater_text::message::Trouble;
use synclater_text::number::counted;

/// A process that is attached.
#[derive(Clone, Debug)]
pub struct Reached {
    /// What it executes.
    pub exe: String,
    /// What it was called then, and what it forks is.
    pub name: String,
    /// Sites that lead to the gate.
    pub sites: u64,
    /// Sites that do not: they are too far away.
    pub far: u64,
    /// How long it stood still.
    pub pause: Duration,
    /// What it had open before.
    pub open: Open,
    /// How it was reached.
    pub how: &'static str,
}

impl Reached {
    /// What of it the gate does not see; `None` where there is nothing.
    pub(super) fn stays_real(&self) -> Option<String> {
        let synced = "descriptors had O_SYNC before it was attached";
        let ring = ["descriptors is a ring", "descriptors are rings"];
        let site = ["system-call sites is", "system-call sites are"];
        let all = [
            some_of(self.open.o_sync, [synced; 2], ""),
            some_of(self.open.rings, ring, " of io_uring"),
            some_of(self.far, site, " out of reach"),
        ];
        let all: Vec<String> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// That there are `n` of what is named `one_more`, one or more of it; `None` where there are none.
fn some_of(n: u64, one_more: [&str; 2], what: &str) -> Option<String> {
    let of = one_more[usize::from(n > 1)];
    (n > 0).then(|| format!("{n} of its {of}{what}"))
}

/// What is left of us in a process with so many descriptors that lost their `O_SYNC`.
#[must_use]
pub fn still_held(marked: u64) -> Option<String> {
    let of = counted(marked, "descriptor");
    let why = format!("{of} lost O_SYNC meanwhile: its writes are synced through the gate");
    (marked > 0).then_some(why)
}

/// Why it is not known of a process whether there is something to let go of.
pub const UNSEEN: &str =
    "its memory cannot be looked at: whether it is in the session is not known";

/// What is told of a process that could not be let go of; its session, `id`, is over.
#[must_use]
pub fn not_let_go(id: &str, pid: u32, refusal: &Refusal) -> Trouble {
    let state = "it makes every sync request for real; its code still leads through the gate";
    still_there(id, pid, refusal, state)
}

/// What is told of a process whose memory could not be looked at.
#[must_use]
pub fn not_seen(id: &str, pid: u32) -> Trouble {
    let try_ =
        "as root, or once it neither hides its memory (PR_SET_DUMPABLE) nor keeps a reader of \
                /proc/PID/maps waiting";
    let state =
        "if it is, its code leads through the gate, and it makes every sync request for real";
    still_there(id, pid, &Refusal::new(UNSEEN, try_), state)
}

fn still_there(id: &str, pid: u32, refusal: &Refusal, state: &str) -> Trouble {
    let exe = program::exe_of(pid);
    let name = Path::new(&exe).file_name().unwrap_or_default();
    Trouble::new(
        format!(
            "cannot let go of {pid} ({})",
            shown(&name.to_string_lossy())
        ),
        &refusal.why,
        format!("{}; then: synclater detach {id}", refusal.try_),
        state,
    )
}
