//! Notes of a program file (elf(5), "Notes"): who made it.

/// Bytes of the head of a note: length of its name, of what it holds, and its type.
const HEAD: usize = 12;

/// Whose note Go's linker leaves in a program.
pub const GO: &[u8] = b"Go\0";

/// Whose note synclater has.
pub const SYNCLATER: &[u8] = b"synclater\0";

/// Whether there is a note of `whose` in a segment of notes.
#[must_use]
pub fn are_of(whose: &[u8], notes: &[u8]) -> bool {
    let mut rest = notes;
    while let Some(head) = rest.get(..HEAD) {
        let (name, held) = (length(head, 0), length(head, 4));
        let named = rest.get(HEAD..).and_then(|r| r.get(..name));
        let padding = named.and_then(|n| n.strip_prefix(whose));
        if padding.is_some_and(is_padding) {
            return true;
        }
        let next = HEAD + name.next_multiple_of(4) + held.next_multiple_of(4);
        rest = rest.get(next..).unwrap_or_default();
    }
    false
}

/// The length that is at `at` in the head of a note.
fn length(head: &[u8], at: usize) -> usize {
    let bytes = head[at..at + 4].try_into().unwrap_or_default();
    u32::from_le_bytes(bytes) as usize
}

/// Go counts what pads its name to it.
fn is_padding(bytes: &[u8]) -> bool {
    bytes.len() < 4 && bytes.iter().all(|b| *b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn note(name: &[u8], held: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend((name.len() as u32).to_le_bytes());
        bytes.extend((held.len() as u32).to_le_bytes());
        bytes.extend(4u32.to_le_bytes());
        for part in [name, held] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn a_note_is_known_by_its_name() {
        let gnu = note(b"GNU\0", b"0123456789abcdefghij");
        let go = note(b"Go\0\0", b"KbQ/x");
        assert!(are_of(GO, &go));
        assert!(are_of(GO, &[gnu.clone(), go.clone()].concat()));
        assert!(!are_of(GO, &gnu));
        assert!(!are_of(GO, &go[..14]));
        let ours = note(SYNCLATER, b"");
        assert!(are_of(SYNCLATER, &[gnu.clone(), ours.clone()].concat()));
        assert!(!are_of(SYNCLATER, &[gnu, go].concat()) && !are_of(GO, &ours));
    }

    proptest! {
        #[test]
        fn no_note_is_a_trouble(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = are_of(GO, &bytes);
        }
    }
}
