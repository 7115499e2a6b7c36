//! Whether what a dead session owed is settled, by its keeper or by somebody in its place.

use crate::session::debtor::Debtor;
use crate::session::losses;
use crate::session::orphans::Silence;
use crate::session::stale::Debt;
use crate::voice;
use std::thread::sleep;
use std::time::{Duration, Instant};
use synclater_text::message::Trouble;

/// How often it is looked whether somebody still settles.
const PAUSE: Duration = Duration::from_millis(50);

/// Waits as long as somebody settles what a dead session owed, for `patience` at most.
pub fn wait_for(debtor: &Debtor, patience: Duration) {
    let begun = Instant::now();
    let mut silence = Silence::begin();
    while debtor.debt() == Ok(Debt::BeingPaid) && begun.elapsed() < patience {
        if silence.ends() {
            say_that_it_waits(debtor.id());
        }
        sleep(PAUSE);
    }
}

/// Says for whom it is waited.
pub fn say_that_it_waits(id: &str) {
    voice::say(&format!(
        "synclater: session {id} has been killed, and its keeper, or another command, settles: \
         waiting for that\n"
    ));
}

/// Whether all that a dead session owed is settled, after [`wait_for`]; says why not.
pub fn is_paid(debtor: &Debtor, patience: Duration) -> bool {
    wait_for(debtor, patience);
    let (why, try_) = match debtor.debt() {
        Ok(Debt::Paid) => return true,
        Ok(Debt::BeingPaid) => (
            format!("its keeper, or another command, is at it for {patience:?}"),
            "synclater settle",
        ),
        Ok(Debt::Open(entry)) => (
            format!("its ledger entry {} is open", entry.display()),
            "synclater settle; synclater status",
        ),
        Err(unread) => (
            format!("{}: {}", unread.path.display(), unread.why),
            "synclater settle",
        ),
    };
    let what = format!(
        "not everything is settled that session {} owed",
        debtor.id()
    );
    let state = "its processes make every request for real within two seconds";
    voice::say(&format!("{}\n", Trouble::new(what, why, try_, state)));
    false
}

/// What to try where writes were lost.
pub const FOR_ERRORS: &str = "look at `dmesg` for write errors";

/// How things stand where something was not settled.
pub const NOT_KNOWN: &str = "nothing is known to be durable that was not before";

/// Why what session `name` put off is not durable although it says so: `what` is not.
pub(super) fn lost_elsewhere(name: &str, what: String) -> Option<Trouble> {
    let why = match Debtor::named(name).lost_elsewhere() {
        Ok(error) => losses::to_others(&error?),
        Err(unread) => format!("what others were told cannot be read: {}", unread.why),
    };
    Some(Trouble::new(what, why, FOR_ERRORS, NOT_KNOWN))
}
