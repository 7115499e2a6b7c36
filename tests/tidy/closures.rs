//! Local closures, which a reader has to keep in mind until they are used.

use super::scan::{code_of, functions_of, Source, Strings};
use super::{refuse, sources};

/// How many closures a function may give a name.
const NAMED_MAX: usize = 2;

/// Where the tests of a file begin, which make what they need where they need it.
fn code_before_tests(source: &Source) -> String {
    let code = code_of(source, Strings::Blank);
    let end = code.find("#[cfg(test)]\nmod ").unwrap_or(code.len());
    code[..end].to_owned()
}

/// The lines, from 0, on which a closure gets a name: `let is_one = |...|`.
fn named_closures(code: &str) -> Vec<usize> {
    let begins = |text: &str| {
        let text = text.trim_start();
        let text = text.strip_prefix("move ").unwrap_or(text);
        text.starts_with('|')
    };
    let lines: Vec<&str> = code.lines().collect();
    let has_one = |k: &usize| {
        let line = lines[*k].trim_start();
        let Some((name, value)) = line.strip_prefix("let ").and_then(|l| l.split_once('=')) else {
            return false;
        };
        let is_name = name
            .chars()
            .all(|c| c.is_alphanumeric() || c == '_' || c == ' ');
        let next = lines.get(k + 1).copied().unwrap_or_default();
        is_name && (begins(value) || value.trim().is_empty() && begins(next))
    };
    (0..lines.len()).filter(has_one).collect()
}

/// Functions in which more closures than that have a name, with how many.
fn with_many(source: &Source) -> Vec<(String, usize)> {
    let code = code_before_tests(source);
    let closures = named_closures(&code);
    let functions = functions_of(source);
    let mut counts = vec![0; functions.len()];
    for line in closures {
        let line = line + 1;
        // The innermost one.
        let holds = |k: &usize| {
            let f = &functions[*k];
            (f.first_line..f.first_line + f.lines).contains(&line)
        };
        if let Some(k) = (0..functions.len()).rev().find(holds) {
            counts[k] += 1;
        }
    }
    let all = functions.into_iter().zip(counts);
    let many = all.filter(|(_, n)| *n > NAMED_MAX);
    many.map(|(f, n)| (f.name, n)).collect()
}

#[test]
fn no_function_names_more_than_two_closures() {
    let is_ours =
        |s: &Source| s.is_rust() && !s.name.contains("tests") && !s.name.starts_with("fuzz/");
    let mut found = Vec::new();
    for source in sources().into_iter().filter(is_ours) {
        let many = with_many(&source);
        found.extend(
            many.into_iter()
                .map(|(name, n)| format!("{}: {name}: {n}", source.name)),
        );
    }
    refuse("functions with more than two named closures", &found);
}

#[test]
fn a_third_closure_is_found() {
    let text =
        "fn one() {\n    let a = |x| x;\n    let b =\n        move |x| x;\n    let c = || 1;\n}\n\
                fn two() {\n    let a = |x| x;\n    let b = if y { 1 } else { 2 };\n}\n";
    let source = Source {
        name: "src/one.rs".into(),
        text: text.into(),
    };
    assert_eq!(with_many(&source), [("one".to_owned(), 3)]);
}
