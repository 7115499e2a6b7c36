//! Notes of a program file (elf(5), "Notes"): who made it.

/// Bytes of the head of a note: length of its name, of what it holds, and its type.
const HEAD: usize = 12;

/// Whether Go's linker made a program, by a segment of notes of it.
#[must_use]
pub fn are_of_go(notes: &[u8]) -> bool {
    let mut rest = notes;
    while let Some(head) = rest.get(..HEAD) {
        let len = |k: usize| {
            let bytes = head[k..k + 4].try_into().unwrap_or_default();
            u32::from_le_bytes(bytes) as usize
        };
        let (name, held) = (len(0), len(4));
        if rest.get(HEAD..HEAD + 4) == Some(b"Go\0\0") && name == 4 {
            return true;
        }
        let next = HEAD + name.next_multiple_of(4) + held.next_multiple_of(4);
        rest = rest.get(next..).unwrap_or_default();
    }
    false
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
    fn go_leaves_a_note_of_its_own() {
        let gnu = note(b"GNU\0", b"0123456789abcdefghij");
        let go = note(b"Go\0\0", b"KbQ/x");
        assert!(are_of_go(&go));
        assert!(are_of_go(&[gnu.clone(), go.clone()].concat()));
        assert!(!are_of_go(&gnu));
        assert!(!are_of_go(&go[..14]));
    }

    proptest! {
        #[test]
        fn no_note_is_a_trouble(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = are_of_go(&bytes);
        }
    }
}
