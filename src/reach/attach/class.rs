//! What code a program consists of, and the gate that there is for it.

use synclater_shim::gate::Head;
use synclater_shim::{IMAGE, IMAGE_32};

/// What code a program consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// x86-64.
    Long,
    /// i386.
    Small,
}

/// The image that is brought along for programs of a class, and its head.
#[must_use]
pub fn image(class: Class) -> Option<(&'static [u8], Head)> {
    let image = match class {
        Class::Long => IMAGE,
        Class::Small => IMAGE_32,
    };
    image.and_then(|image| Some((image, Head::read(image)?)))
}

/// The head of what a process executes.
pub(super) fn head_of(pid: u32) -> std::io::Result<[u8; 20]> {
    use std::io::Read;
    let mut head = [0u8; 20];
    std::fs::File::open(format!("/proc/{pid}/exe"))?.read_exact(&mut head)?;
    Ok(head)
}

/// What code a process consists of; `None` where that is no code of this machine, or may not be
/// read.
#[must_use]
pub fn class_of(pid: u32) -> Option<Class> {
    let head = head_of(pid).ok()?;
    match (head[4], u16::from_le_bytes([head[18], head[19]])) {
        (2, 62) => Some(Class::Long),
        (1, 3) => Some(Class::Small),
        _ => None,
    }
}
