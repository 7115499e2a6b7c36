//! The repository's own rules, as tests: sizes, headers, names, where `unsafe` may stand.
//!
//! Promise: every rule reads the files as they are; none of them changes anything.
//!
//! The allowlists below may only shrink: an entry that is no longer needed fails its test.

mod circles;
mod closures;
mod scan;

use scan::{code_of, functions_of, line_of, words, Function, Source, Strings};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const COLUMNS_MAX: usize = 100;
const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 1000;

/// Functions over the limit: file, function, lines at most, why.
const LONG_FUNCTIONS: &[(&str, &str, usize, &str)] = &[];

/// Files over the limit: file, why. A table may be long.
const LONG_FILES: &[(&str, &str)] = &[];

/// Where a test may sleep: the one place that waits for a condition with a deadline.
const WAITERS: &[&str] = &["tests/wait.rs"];

/// Crates that may hold `unsafe` code; the compiler forbids it elsewhere, this test keeps the list.
const UNSAFE_CRATES: &[&str] = &["crates/sys/", "crates/shim/", "crates/bpf/"];

/// Our crates, each above those that it may depend on.
const LAYERS: [&str; 12] = [
    "calls",
    "random",
    "proc",
    "patching",
    "text",
    "policy",
    "account",
    "powercut",
    "recording",
    "shim",
    "sys",
    "bpf",
];

/// The parts of the binary, each above those that it may import.
const PARTS: [&str; 9] = [
    "voice",
    "session",
    "probe",
    "record",
    "export",
    "crash",
    "reach",
    "supervisor",
    "cli",
];

/// Names that say nothing about what a file holds.
const EMPTY_NAMES: &[&str] = &[
    "utils", "util", "helper", "helpers", "common", "misc", "manager",
];

/// A sleep this long in a shell line is a victim that lives, not a wait.
const LIVING_SLEEP_S: u64 = 60;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    for entry in entries {
        let path = entry.expect("directory entry").path();
        let name = path
            .file_name()
            .expect("name")
            .to_string_lossy()
            .into_owned();
        let kind = fs::symlink_metadata(&path).expect("metadata").file_type();
        if kind.is_dir() && !matches!(name.as_str(), "target" | ".git") {
            walk(&path, found);
        } else if kind.is_file() {
            found.push(path);
        }
    }
}

/// Every text file of the repository, in a stable order.
fn sources() -> Vec<Source> {
    let mut paths = Vec::new();
    walk(&root(), &mut paths);
    paths.sort();
    let read = |path: PathBuf| {
        let name = path
            .strip_prefix(root())
            .expect("below root")
            .to_string_lossy()
            .into_owned();
        let text = String::from_utf8(fs::read(&path).ok()?).ok()?;
        Some(Source { name, text })
    };
    paths.into_iter().filter_map(read).collect()
}

fn code_sources() -> Vec<Source> {
    sources()
        .into_iter()
        .filter(|s| s.is_rust() || s.is_c())
        .collect()
}

fn refuse(rule: &str, found: &[String]) {
    assert!(found.is_empty(), "{rule}:\n  {}", found.join("\n  "));
}

// --- Size and shape ------------------------------------------------------------------------------

#[test]
fn no_line_of_code_is_wider_than_100_columns() {
    let mut found = Vec::new();
    for source in code_sources() {
        for (i, line) in source.text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX {
                found.push(format!("{}:{}: {columns} columns", source.name, i + 1));
            }
        }
    }
    refuse("lines over 100 columns", &found);
}

#[test]
fn no_function_is_longer_than_70_lines() {
    let mut found = Vec::new();
    let mut needed = vec![false; LONG_FUNCTIONS.len()];
    for source in code_sources() {
        for f in functions_of(&source)
            .iter()
            .filter(|f| f.lines > FUNCTION_LINES_MAX)
        {
            let allowed = LONG_FUNCTIONS
                .iter()
                .position(|a| a.0 == source.name && a.1 == f.name);
            let Function {
                name,
                first_line,
                lines,
            } = f;
            match allowed {
                Some(i) if *lines <= LONG_FUNCTIONS[i].2 => needed[i] = true,
                _ => found.push(format!(
                    "{}:{first_line}: {name}: {lines} lines",
                    source.name
                )),
            }
        }
    }
    let idle = LONG_FUNCTIONS
        .iter()
        .zip(&needed)
        .filter(|(_, n)| !**n)
        .map(|(a, _)| a);
    found.extend(idle.map(|a| format!("{} {}: is in the allowlist without need", a.0, a.1)));
    refuse("functions over 70 lines", &found);
}

#[test]
fn no_file_is_longer_than_1000_lines() {
    let is_long = |s: &Source| s.text.lines().count() > FILE_LINES_MAX;
    let long: Vec<String> = code_sources()
        .into_iter()
        .filter(is_long)
        .map(|s| s.name)
        .collect();
    let allowed = |name: &str| LONG_FILES.iter().any(|a| a.0 == name);
    let mut found: Vec<String> = long.iter().filter(|name| !allowed(name)).cloned().collect();
    let idle = LONG_FILES
        .iter()
        .filter(|a| !long.iter().any(|name| name == a.0));
    found.extend(idle.map(|a| format!("{}: is in the allowlist without need", a.0)));
    refuse("files over 1,000 lines", &found);
}

#[test]
fn every_source_file_begins_by_saying_what_it_is_for() {
    let says_so = |s: &Source| {
        let mut lines = s.text.lines().filter(|l| !l.starts_with("#!["));
        let first = lines.find(|l| !l.trim().is_empty() && !l.starts_with("// SPDX"));
        let first = first.unwrap_or("");
        if s.is_rust() {
            first.starts_with("//!")
        } else if s.is_c() {
            first.starts_with("/*")
        } else {
            s.text
                .lines()
                .nth(1)
                .is_some_and(|l| l.starts_with("# ") || l.starts_with("\"\"\""))
        }
    };
    let found: Vec<String> = sources()
        .into_iter()
        .filter(|s| s.is_rust() || s.is_c() || s.is_script())
        .filter(|s| !s.is_fixture() && !says_so(s))
        .map(|s| s.name)
        .collect();
    refuse(
        "files without a header (//! in Rust, /* in C, # in line 2 of a script)",
        &found,
    );
}

#[test]
fn every_text_file_ends_with_a_newline_and_no_line_with_a_blank() {
    let mut found = Vec::new();
    for source in sources()
        .iter()
        .filter(|s| !s.is_fixture() && !s.text.is_empty())
    {
        if !source.text.ends_with('\n') {
            found.push(format!("{}: no newline at the end", source.name));
        }
        let blank = |(_, line): &(usize, &str)| line.ends_with([' ', '\t']);
        let lines = source.text.lines().enumerate().filter(blank);
        found.extend(lines.map(|(i, _)| format!("{}:{}: ends with a blank", source.name, i + 1)));
    }
    refuse("white space", &found);
}

#[test]
fn every_script_can_be_executed() {
    let is_executable = |s: &Source| {
        let mode = fs::metadata(root().join(&s.name))
            .expect("metadata")
            .permissions()
            .mode();
        mode & 0o111 != 0
    };
    let found: Vec<String> = sources()
        .into_iter()
        .filter(|s| s.is_script() && !s.is_fixture() && !is_executable(s))
        .map(|s| s.name)
        .collect();
    refuse("scripts that are not executable", &found);
}

// --- Words ---------------------------------------------------------------------------------------

#[test]
fn nothing_is_left_to_do_without_an_issue_number() {
    // In two halves, so that this file passes its own rule.
    let never = concat!("FIX", "ME");
    let numbered = concat!("TO", "DO");
    let mut found = Vec::new();
    for source in sources()
        .iter()
        .filter(|s| s.is_rust() || s.is_c() || s.is_script())
    {
        for (i, line) in source.text.lines().enumerate() {
            let owed = line
                .split(numbered)
                .skip(1)
                .any(|rest| !names_an_issue(rest));
            if owed || line.contains(never) {
                found.push(format!("{}:{}: {}", source.name, i + 1, line.trim()));
            }
        }
    }
    refuse("work left without an issue number, as in (#12)", &found);
}

/// `(#12)…` follows.
fn names_an_issue(rest: &str) -> bool {
    let digits = rest
        .strip_prefix("(#")
        .and_then(|r| r.split_once(')'))
        .map(|(n, _)| n);
    digits.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

#[test]
fn no_file_has_a_name_that_says_nothing() {
    let mut found = Vec::new();
    for source in code_sources() {
        let path = Path::new(&source.name).with_extension("");
        let names = path
            .components()
            .map(|c| c.as_os_str().to_string_lossy().into_owned());
        if names.into_iter().any(|n| EMPTY_NAMES.contains(&n.as_str())) {
            found.push(source.name);
        }
    }
    refuse("files named after nothing", &found);
}

#[test]
fn unsafe_code_stands_only_in_the_crates_made_for_it() {
    let outside = |s: &Source| !UNSAFE_CRATES.iter().any(|c| s.name.starts_with(c));
    let found: Vec<String> = sources()
        .into_iter()
        .filter(|s| s.is_rust() && outside(s))
        .filter(|s| words(&code_of(s, Strings::Blank)).any(|w| w == "unsafe"))
        .map(|s| s.name)
        .collect();
    refuse(
        "unsafe code outside crates/sys, crates/shim, crates/bpf",
        &found,
    );
}

#[test]
fn the_other_crates_and_the_binary_forbid_unsafe_code() {
    let roots = LAYERS.map(|name| format!("crates/{name}/src/lib.rs"));
    let may_hold = |path: &String| UNSAFE_CRATES.iter().any(|c| path.starts_with(c));
    let found: Vec<String> = roots
        .into_iter()
        .chain(["src/main.rs".into()])
        .filter(|path| !may_hold(path))
        .filter(|path| {
            let text = fs::read_to_string(root().join(path)).unwrap_or_default();
            !text.contains("#![forbid(unsafe_code)]")
        })
        .collect();
    refuse("without #![forbid(unsafe_code)]", &found);
}

#[test]
fn no_part_of_the_binary_imports_one_above_it() {
    let part_of = |name: &str| {
        let rest = name.strip_prefix("src/")?;
        let part = rest.split(['/', '.']).next()?;
        PARTS.iter().position(|p| *p == part)
    };
    let mut found = Vec::new();
    for source in sources().into_iter().filter(Source::is_rust) {
        let Some(part) = part_of(&source.name) else {
            continue;
        };
        let code = code_of(&source, Strings::Blank);
        let imports = code.split("crate::").skip(1);
        let parts = imports.filter_map(|text| text.split(|c: char| !c.is_alphanumeric()).next());
        let above = parts.filter(|p| PARTS[part + 1..].contains(p));
        found.extend(above.map(|p| format!("{} imports {p}", source.name)));
    }
    refuse("imports that go up (docs/INTERNALS.md, \"Crates\")", &found);
}

/// Our crates that the manifest in `dir` names as dependencies.
fn dependencies(dir: &Path) -> Vec<String> {
    let text = fs::read_to_string(dir.join("Cargo.toml")).expect("a manifest");
    let names = text.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("synclater-")?.split_once(" =")?;
        rest.contains("path").then(|| name.to_owned())
    });
    names.collect()
}

#[test]
fn no_crate_depends_on_one_above_it() {
    let crates = fs::read_dir(root().join("crates")).expect("the crates");
    let mut found = Vec::new();
    for dir in crates.map(|entry| entry.expect("a crate").path()) {
        let name = dir
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let Some(layer) = LAYERS.iter().position(|l| *l == name) else {
            found.push(format!("{name} has no layer"));
            continue;
        };
        let below = &LAYERS[..layer];
        let up = dependencies(&dir)
            .into_iter()
            .filter(|d| !below.contains(&d.as_str()));
        found.extend(up.map(|d| format!("{name} depends on {d}")));
    }
    refuse("imports that go up (docs/INTERNALS.md, \"Crates\")", &found);
}

// --- Tests ---------------------------------------------------------------------------------------

#[test]
fn no_test_sleeps_to_wait() {
    let mut found = Vec::new();
    let is_test = |s: &Source| s.name.starts_with("tests/") || s.name.contains("/tests/");
    for source in sources().into_iter().filter(is_test) {
        if WAITERS.contains(&source.name.as_str()) || source.name.starts_with("tests/tidy") {
            continue;
        }
        let text = if source.is_rust() {
            code_of(&source, Strings::Keep)
        } else if source.is_script() {
            source.text.clone()
        } else {
            continue;
        };
        for (i, line) in text.lines().enumerate().filter(|(_, line)| sleeps(line)) {
            found.push(format!("{}:{}: {}", source.name, i + 1, line.trim()));
        }
    }
    refuse(
        "sleeps (wait for a line, a pipe or a page field, with a deadline)",
        &found,
    );
}

fn sleeps(line: &str) -> bool {
    if line.trim_start().starts_with('#') {
        return false;
    }
    let is_short = |rest: &str| {
        let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
        number.parse::<u64>().is_ok_and(|s| s < LIVING_SLEEP_S)
    };
    line.contains("thread::sleep") || line.split("sleep ").skip(1).any(is_short)
}

#[test]
fn names_of_tests_are_claims() {
    let mut found = Vec::new();
    for source in sources().into_iter().filter(Source::is_rust) {
        let code = code_of(&source, Strings::Blank);
        for (at, _) in code.match_indices("#[test]") {
            let name = code[at..]
                .split("fn ")
                .nth(1)
                .and_then(|rest| words(rest).next());
            let name = name.unwrap_or("");
            if name.starts_with("test_") || !name.contains('_') {
                found.push(format!("{}:{}: {name}", source.name, line_of(&code, at)));
            }
        }
    }
    refuse("tests whose names are no sentences", &found);
}

// --- Files that belong together ------------------------------------------------------------------

#[test]
fn every_rust_file_is_part_of_a_crate() {
    let rust: Vec<Source> = sources().into_iter().filter(Source::is_rust).collect();
    let declared: Vec<String> = rust.iter().flat_map(declared_modules).collect();
    // `#[path = "file.rs"]` names one by its file.
    let by_path = |s: &Source| {
        let file = s.name.rsplit('/').next().unwrap_or_default();
        let named = format!("#[path = \"{file}\"]");
        rust.iter().any(|r| r.text.contains(&named))
    };
    let is_root = |s: &Source| {
        let parts: Vec<&str> = s.name.rsplit('/').collect();
        matches!(parts[0], "main.rs" | "lib.rs" | "build.rs")
            || parts.get(1) == Some(&"bin")
            || (s.name.starts_with("crates/")
                && matches!(parts.get(1), Some(&"tests" | &"examples")))
            || s.name.starts_with("fuzz/")
            || s.name.starts_with("benches/")
    };
    let module = |s: &Source| {
        let path = Path::new(&s.name);
        let stem = path.file_stem().expect("stem");
        let named = if stem == "mod" {
            path.parent().and_then(Path::file_name)
        } else {
            Some(stem)
        };
        named.unwrap_or(stem).to_string_lossy().into_owned()
    };
    let found: Vec<String> = rust
        .iter()
        .filter(|s| !is_root(s) && !declared.contains(&module(s)) && !by_path(s))
        .map(|s| s.name.clone())
        .collect();
    refuse("files that no `mod` names", &found);
}

fn declared_modules(source: &Source) -> Vec<String> {
    let code = code_of(source, Strings::Blank);
    let all: Vec<&str> = words(&code).collect();
    all.windows(2)
        .filter(|w| w[0] == "mod")
        .map(|w| w[1].to_owned())
        .collect()
}

#[test]
fn the_changelog_has_a_section_to_write_into() {
    let text = fs::read_to_string(root().join("CHANGELOG.md")).expect("CHANGELOG.md");
    let version = concat!("## [", env!("CARGO_PKG_VERSION"), "]");
    let found = text
        .lines()
        .any(|l| l.starts_with("## [Unreleased]") || l.starts_with(version));
    assert!(
        found,
        "CHANGELOG.md has neither `## [Unreleased]` nor `{version}`"
    );
}

#[test]
fn every_relative_link_in_the_documents_leads_to_a_file() {
    let mut found = Vec::new();
    for source in sources().iter().filter(|s| s.extension() == "md") {
        let dir = root()
            .join(&source.name)
            .parent()
            .expect("parent")
            .to_owned();
        for link in links_of(&source.text) {
            if !dir.join(link).exists() {
                found.push(format!("{}: {link}", source.name));
            }
        }
    }
    refuse("links that lead nowhere", &found);
}

/// Targets of `[text](target)` that are paths, without their `#anchor`.
fn links_of(markdown: &str) -> Vec<&str> {
    let targets = markdown
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let paths = targets.map(|t| t.split('#').next().unwrap_or(""));
    paths
        .filter(|p| !p.is_empty() && !p.contains("://") && !p.contains(' '))
        .collect()
}

/// What stands between backticks in a line.
fn quoted(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

#[test]
fn the_glossary_says_each_word_once() {
    let path = root().join("docs/GLOSSARY.md");
    let text = fs::read_to_string(path).expect("docs/GLOSSARY.md");
    let defined: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .filter(|cell| *cell != "word")
        .flat_map(|cell| cell.split(", "))
        .collect();
    assert!(defined.len() >= 60, "{defined:?}");
    let mut seen = BTreeSet::new();
    let twice: Vec<String> = defined
        .iter()
        .filter(|word| !seen.insert(**word))
        .map(|word| (*word).to_owned())
        .collect();
    refuse("words that docs/GLOSSARY.md says twice", &twice);
}

#[test]
fn each_figure_of_the_readme_stands_where_it_was_measured() {
    let read = |path: &str| {
        fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
    };
    let (readme, benchmarks) = (read("README.md"), read("docs/BENCHMARKS.md"));
    let (measured, table) = benchmarks
        .split_once("\n## Where the figures are from")
        .expect("the table of figures");
    let rows: Vec<&str> = table.lines().filter(|l| l.starts_with("| `")).collect();
    assert!(rows.len() >= 13, "{rows:?}");
    let mut wrong = Vec::new();
    for row in rows {
        let [said, words] = quoted(row)[..] else {
            panic!("{row}");
        };
        let path = row
            .split("| ")
            .nth(2)
            .and_then(|cell| cell.split(':').next());
        let source = match path {
            Some("docs/BENCHMARKS.md") => measured.to_owned(),
            Some(path) => read(path),
            None => panic!("{row}"),
        };
        if !readme.contains(said) || !source.contains(words) {
            wrong.push(row.to_owned());
        }
    }
    refuse(
        "figures that the README does not say, or nobody measured",
        &wrong,
    );
}

#[test]
fn a_short_sleep_is_a_wait_and_a_long_one_a_victim() {
    assert!(sleeps("sh(\"sleep 1; sync\")"));
    assert!(sleeps("sleep 0.2"));
    assert!(sleeps("std::thread::sleep(second)"));
    assert!(!sleeps("run([\"sleep 1000\"])"));
    assert!(!sleeps("# sleep 1 would be wrong"));
}
