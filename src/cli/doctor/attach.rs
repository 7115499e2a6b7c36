//! Whether processes that run already can be attached here.

use super::{Check, Status};
use crate::reach::attach::can_bring_image;
use synclater_sys::births::Births;

/// The check.
#[must_use]
pub fn attach_check() -> Check {
    let means = "synclater attach puts an image into a process that runs already, and hears from \
                 the kernel of those that begin later.";
    match (can_bring_image(), Births::listen()) {
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
