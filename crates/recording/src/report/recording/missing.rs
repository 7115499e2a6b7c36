//! What a recording lacks.

use crate::record::table::Table;

/// What a recording lacks at its end, in words: why reading stopped in the middle, where it did,
/// and whether its last row was there. `None` where nothing is missing.
#[must_use]
pub fn missing_end(cut: Option<&str>, ended: bool) -> Option<String> {
    let why = match cut {
        Some(why) => format!("cut off in the middle of a batch ({why})"),
        None if ended => return None,
        None => "not ended in order: the recorder or its session was killed, or is still at work"
            .to_owned(),
    };
    Some(format!("{why}; everything from there on is missing"))
}

/// What a recording lacks, in words; `None` for a whole one.
#[must_use]
pub fn missing(table: &Table) -> Option<String> {
    let end = missing_end(table.cut.as_deref(), table.is_whole());
    let mut parts: Vec<String> = end.into_iter().collect();
    if !table.absent.is_empty() {
        let list = table.absent.join(", ");
        parts.push(format!("it has no {list}; what hangs on that is unknown"));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}
