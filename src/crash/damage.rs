//! Errors of reading that tell of damage, not of the machine.

use std::io;

/// Whether an error of reading tells of the state, not of the machine.
#[must_use]
pub fn is_damage(e: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(
        Errno::from_io_error(e),
        Some(Errno::IO | Errno::BADMSG | Errno::UCLEAN)
    )
}

/// What is said of such a state.
#[must_use]
pub fn unreadable(e: &io::Error) -> String {
    format!("something in the folder cannot be read: {e}")
}
