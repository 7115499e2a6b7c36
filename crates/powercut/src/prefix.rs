//! What the bundled writer has left: is it a prefix of its steps?
//!
//! The other half of src/crash/writer/prefix.c: its steps, their order, and the page of each, which
//! is the step's number in every eight bytes.

use std::collections::BTreeMap;
use std::fmt;

const PAGE: usize = 4096;
const WAYS: u64 = 7;
const NAMES: u64 = 3;
/// As the writer has it.
const STEPS_MAX: u64 = 1_000_000;

/// The files of a folder, by name.
pub type Files = BTreeMap<String, Vec<u8>>;

/// How a step is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Write,
    Map,
    Direct,
    Rename,
    Create,
    Dsync,
    Syncfs,
}

impl Way {
    fn of(step: u64) -> Way {
        match step % WAYS {
            0 => Way::Write,
            1 => Way::Map,
            2 => Way::Direct,
            3 => Way::Rename,
            4 => Way::Create,
            5 => Way::Dsync,
            _ => Way::Syncfs,
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Write => "pwrite",
            Way::Map => "mmap",
            Way::Direct => "O_DIRECT",
            Way::Rename => "rename",
            Way::Create => "a new file",
            Way::Dsync => "O_DSYNC",
            Way::Syncfs => "syncfs",
        })
    }
}

/// What is there of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum There {
    Nothing,
    Part,
    Whole,
}

/// What a page holds.
enum Page {
    Zeros,
    /// The whole page of a step.
    Of(u64),
    /// Something else.
    Odd,
}

fn page(bytes: &[u8]) -> Page {
    let mut eights = bytes.chunks(8);
    let first = eights.next().and_then(|eight| eight.try_into().ok());
    let number = first.map_or(0, u64::from_le_bytes);
    let same = eights.all(|eight| *eight == number.to_le_bytes());
    match (same, number) {
        (true, 0) => Page::Zeros,
        (true, number) if bytes.len() == PAGE => Page::Of(number),
        _ => Page::Odd,
    }
}

/// What is there of the one step that has a page for itself.
fn own_page(bytes: Option<&[u8]>, step: u64) -> There {
    match page(bytes.unwrap_or_default()) {
        Page::Zeros => There::Nothing,
        Page::Of(number) if number == step => There::Whole,
        Page::Of(_) | Page::Odd => There::Part,
    }
}

fn there(files: &Files, step: u64, steps: u64) -> There {
    match Way::of(step) {
        Way::Write => in_file(files, "pwrite", step),
        Way::Map => in_file(files, "mmap", step),
        Way::Direct => in_file(files, "direct", step),
        Way::Dsync => in_file(files, "dsync", step),
        Way::Syncfs => in_file(files, "syncfs", step),
        Way::Create => own_page(files.get(&format!("file-{step}")).map(Vec::as_slice), step),
        Way::Rename => {
            let file = files.get(&format!("renamed-{}", name_of(step)));
            match page(file.map_or(&[][..], Vec::as_slice)) {
                Page::Zeros if file.is_none() => There::Nothing,
                // A later step of that name stands for the earlier ones.
                Page::Of(number)
                    if Way::of(number) == Way::Rename
                        && name_of(number) == name_of(step)
                        && number <= steps =>
                {
                    if number >= step {
                        There::Whole
                    } else {
                        There::Nothing
                    }
                }
                _ => There::Part,
            }
        }
    }
}

/// What is there of a step whose page is one of a file's.
fn in_file(files: &Files, name: &str, step: u64) -> There {
    let slot = (step / WAYS) as usize * PAGE;
    let file = files.get(name);
    let bytes = file.and_then(|f| f.get(slot..(slot + PAGE).min(f.len())));
    own_page(bytes, step)
}

/// The number in the name that a step gives its file.
fn name_of(step: u64) -> u64 {
    step / WAYS % NAMES
}

/// Steps that were acknowledged: the last line that is a number.
#[must_use]
pub fn acknowledged(lines: &str) -> u64 {
    lines
        .lines()
        .rev()
        .find_map(|line| line.trim().parse().ok())
        .unwrap_or(0)
}

/// How many steps are there, without a hole; or what is wrong, in words, where `acknowledged` of
/// them had been acknowledged.
///
/// # Errors
/// One sentence: a step that was acknowledged is lost, or a later one is there without it.
pub fn judge(files: &Files, acknowledged: u64) -> Result<u64, String> {
    let plan = files
        .get("plan")
        .map(|bytes| String::from_utf8_lossy(bytes).trim().parse());
    let steps: u64 = match plan {
        Some(Ok(steps @ 1..=STEPS_MAX)) => steps,
        _ if acknowledged == 0 => return Ok(0),
        _ => {
            return Err(format!(
                "lost: the plan, with {acknowledged} steps acknowledged"
            ))
        }
    };
    let all: Vec<There> = (1..=steps).map(|step| there(files, step, steps)).collect();
    let way = Way::of;
    let whole = all.iter().take_while(|there| **there == There::Whole);
    let prefix = whole.count() as u64;
    if prefix < acknowledged {
        let lost = prefix + 1;
        let what = match all[lost as usize - 1] {
            There::Part => "torn",
            _ => "lost",
        };
        return Err(format!(
            "{what}: step {lost} ({}), with {acknowledged} acknowledged",
            way(lost)
        ));
    }
    // The one that was under way may be there in part.
    let later = (prefix + 2..=steps)
        .rev()
        .find(|step| all[*step as usize - 1] != There::Nothing);
    match later {
        Some(later) => Err(format!(
            "out of order: step {later} ({}) is there, step {} ({}) is not",
            way(later),
            prefix + 1,
            way(prefix + 1)
        )),
        None => Ok(prefix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the writer leaves, once these steps are made.
    fn after(steps: u64, made: &[u64]) -> Files {
        let mut files = Files::from([("plan".to_owned(), format!("{steps}\n").into_bytes())]);
        for step in made {
            let bytes = step.to_le_bytes().repeat(PAGE / 8);
            let name = match Way::of(*step) {
                Way::Write => "pwrite".to_owned(),
                Way::Map => "mmap".to_owned(),
                Way::Direct => "direct".to_owned(),
                Way::Dsync => "dsync".to_owned(),
                Way::Syncfs => "syncfs".to_owned(),
                Way::Create => format!("file-{step}"),
                Way::Rename => format!("renamed-{}", step / WAYS % NAMES),
            };
            let is_slot = !matches!(Way::of(*step), Way::Create | Way::Rename);
            let at = if is_slot {
                (*step / WAYS) as usize * PAGE
            } else {
                0
            };
            let file = files.entry(name).or_default();
            file.resize(file.len().max(at + PAGE), 0);
            file[at..at + PAGE].copy_from_slice(&bytes);
        }
        files
    }

    fn first(n: u64) -> Vec<u64> {
        (1..=n).collect()
    }

    #[test]
    fn every_prefix_that_has_what_was_acknowledged_is_good() {
        for n in 0..=60 {
            let files = after(60, &first(n));
            for acknowledged in 0..=n {
                assert_eq!(judge(&files, acknowledged), Ok(n));
            }
        }
        assert_eq!(judge(&Files::new(), 0), Ok(0));
    }

    #[test]
    fn every_step_that_is_lost_is_seen() {
        for lost in 1..=30 {
            let said = judge(&after(60, &first(lost - 1)), lost).expect_err("lost");
            assert!(said.starts_with(&format!("lost: step {lost} (")), "{said}");
        }
        assert!(judge(&Files::new(), 1).is_err());
    }

    #[test]
    fn every_hole_is_seen_without_any_acknowledgement_but_where_a_rename_covers_it() {
        for hole in 1..=30u64 {
            let made: Vec<u64> = first(30).into_iter().filter(|s| *s != hole).collect();
            let next = hole + WAYS * NAMES;
            let covered = Way::of(hole) == Way::Rename && next <= 30;
            let seen = judge(&after(60, &made), 0);
            // Nothing comes behind the last one.
            assert_eq!(seen.is_ok(), covered || hole == 30, "{hole}: {seen:?}");
        }
    }

    #[test]
    fn what_nobody_wrote_is_seen() {
        for name in ["pwrite", "mmap", "direct", "dsync", "syncfs", "renamed-0"] {
            let mut files = after(60, &first(20));
            let file = files.get_mut(name).expect("it is there");
            let last = file.len() - 1;
            file[last] ^= 0x40;
            assert!(judge(&files, 20).is_err(), "{name}");
        }
    }

    #[test]
    fn a_million_steps_are_judged_at_once() {
        let files = after(STEPS_MAX, &first(70));
        assert_eq!(judge(&files, 70), Ok(70));
    }

    #[test]
    fn the_step_under_way_may_be_torn_and_no_other() {
        let mut files = after(60, &first(6));
        let file = files.entry("pwrite".into()).or_default();
        file.resize(2 * PAGE, 0);
        file[PAGE..PAGE + 512].copy_from_slice(&7u64.to_le_bytes().repeat(64));
        assert_eq!(judge(&files, 6), Ok(6));
        let said = judge(&files, 7).expect_err("torn");
        assert!(said.starts_with("torn: step 7 (pwrite)"), "{said}");
    }
}
