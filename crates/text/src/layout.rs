//! Lines for a terminal: wrapped, cut to width, and free of what would steer the terminal.
//!
//! Promise: names that come from victims (commands, paths, executables) are shown without control
//! characters, so that no program can write on the screen of the one who looks at it.
//!
//! What it does not do: widths are counted in characters; wide East Asian ones count as one.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The width of all texts where no terminal has another one, in columns.
pub const COLUMNS: usize = 80;
/// Narrower than this they would fall apart, and wider nobody reads them.
const FITS: std::ops::RangeInclusive<usize> = 60..=200;

static WIDTH: AtomicUsize = AtomicUsize::new(COLUMNS);

/// Texts are as wide as a terminal of so many columns from now on, within 60 and 200.
pub fn fit(terminal: usize) {
    WIDTH.store(terminal.clamp(*FITS.start(), *FITS.end()), Relaxed);
}

/// The width of all texts, in columns.
pub fn columns() -> usize {
    WIDTH.load(Relaxed)
}

/// Shows a name that someone else chose: each control character, and each character that would
/// turn the direction of text, is written as its escape.
pub fn shown(name: &str) -> String {
    let mut safe = String::with_capacity(name.len());
    for c in name.chars() {
        if steers(c) {
            safe.extend(c.escape_unicode());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// The same of a name that stands alone in a sentence: one that is empty would not be seen.
#[must_use]
pub fn visible(name: &str) -> String {
    if name.is_empty() {
        "\"\"".to_owned()
    } else {
        shown(name)
    }
}

/// Whether a character would steer the terminal instead of being shown.
pub fn steers(c: char) -> bool {
    c.is_control() || steers_direction(c)
}

/// The bidirectional controls of Unicode (UAX 9), which reorder what stands around them.
fn steers_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Writes a command as one would type it: words that need quotes have single ones.
pub fn command_line(command: &[String]) -> String {
    command
        .iter()
        .map(|word| quoted(&shown(word)))
        .collect::<Vec<_>>()
        .join(" ")
}

fn quoted(word: &str) -> String {
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Whether a shell takes a character as it is, wherever in a word.
fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || "-_./=:,+@%".contains(c)
}

/// Cuts a text to `columns`, the last of which is `…` where something was cut off.
pub fn truncated(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let (mut kept, mut room) = (String::new(), columns.saturating_sub(1));
    for c in text.chars() {
        let Some(left) = room.checked_sub(c.width().unwrap_or(0)) else {
            break;
        };
        kept.push(c);
        room = left;
    }
    format!("{kept}…")
}

/// Breaks words into lines of [`columns`]: the first begins with `lead`, the others with as many
/// spaces. A word that is longer than a line stands alone and is left whole, to be copied.
pub fn wrapped(lead: &str, words: &str) -> String {
    laid_out(lead, words.split_whitespace())
}

/// As [`wrapped`], but breaks only between clauses where a clause fits a line by itself.
pub fn wrapped_clauses(lead: &str, clauses: &[String]) -> String {
    let room = columns().saturating_sub(width(lead));
    let pieces = clauses.iter().flat_map(|clause| {
        if width(clause) > room {
            clause.split_whitespace().collect()
        } else {
            vec![clause.as_str()]
        }
    });
    laid_out(lead, pieces)
}

fn laid_out<'a>(lead: &str, pieces: impl Iterator<Item = &'a str>) -> String {
    let margin = " ".repeat(width(lead));
    let columns = columns();
    let mut text = lead.to_owned();
    let mut column = width(lead);
    let mut at_start = true;
    for piece in pieces {
        if !at_start && column + 1 + width(piece) > columns {
            text.push('\n');
            text.push_str(&margin);
            column = width(&margin);
            at_start = true;
        }
        if !at_start {
            text.push(' ');
            column += 1;
        }
        text.push_str(piece);
        column += width(piece);
        at_start = false;
    }
    text.push('\n');
    text
}

/// A text with blanks behind it, so that it takes `columns`; a longer one as it is.
pub fn padded(text: &str, columns: usize) -> String {
    let blanks = columns.saturating_sub(width(text));
    format!("{text}{:blanks$}", "")
}

/// Columns that a text takes: two of most characters of Chinese, Japanese and Korean, none of those
/// that combine (Unicode Standard Annex 11).
pub fn width(text: &str) -> usize {
    text.width()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_cannot_steer_the_terminal() {
        assert_eq!(
            shown("a\x1b[2Jb\nc\u{202e}d"),
            "a\\u{1b}[2Jb\\u{a}c\\u{202e}d"
        );
        assert_eq!(shown("Überraschung"), "Überraschung");
    }

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let words = ["sh", "-c", "echo it's $HOME", ""].map(str::to_owned);
        assert_eq!(command_line(&words), r"sh -c 'echo it'\''s $HOME' ''");
    }

    #[test]
    fn what_is_cut_off_leaves_a_mark() {
        assert_eq!(truncated("abcdef", 6), "abcdef");
        assert_eq!(truncated("abcdef", 5), "abcd…");
        assert_eq!(truncated("äöüß", 3), "äö…");
        assert_eq!(
            (width("邮件"), truncated("邮件箱", 5).as_str()),
            (4, "邮件…")
        );
        assert_eq!(truncated("邮件箱", 4), "邮…");
        assert_eq!(
            (padded("邮", 4).as_str(), padded("abc", 2).as_str()),
            ("邮  ", "abc")
        );
    }

    #[test]
    fn lines_are_broken_between_words_and_indented() {
        let text = wrapped("x: ", &"word ".repeat(30));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[1].starts_with("   word"));
    }

    #[test]
    fn clauses_stay_whole_where_they_fit() {
        let clauses = [
            "a ".repeat(30).trim().to_owned(),
            "b b b b b b b b b b b b".to_owned(),
        ];
        let text = wrapped_clauses("x: ", &clauses);
        assert_eq!(text.lines().last(), Some("   b b b b b b b b b b b b"));
    }

    proptest! {
        #[test]
        fn no_line_is_too_wide(words in "([a-zé邮]{1,30} ){0,40}") {
            for line in wrapped("synclater: ", &words).lines() {
                prop_assert!(width(line) <= COLUMNS);
            }
        }
    }
}
