//! Local closures, which a reader has to keep in mind until they are used, and blocks around
//! receivers, which only steer the formatter.

use super::scan::{code_of, functions_of, Source, Strings};
use super::{refuse, sources};

/// How many closures a function may give a name.
const NAMED_MAX: usize = 2;

/// How many of them there may be in a thousand lines of all.
const NAMED_PER_1000_LINES_MAX: usize = 2;

/// Code that is no test's: those make what they need where they need it.
fn is_ours(source: &Source) -> bool {
    source.is_rust() && !source.name.contains("tests") && !source.name.starts_with("fuzz/")
}

/// The code of a file in front of its tests.
fn code_before_tests(source: &Source) -> String {
    let code = code_of(source, Strings::Blank);
    let end = code.find("#[cfg(test)]\nmod tests").unwrap_or(code.len());
    code[..end].to_owned()
}

/// Whether a text begins with a closure.
fn is_closure(text: &str) -> bool {
    let text = text.trim_start();
    text.strip_prefix("move ").unwrap_or(text).starts_with('|')
}

/// Whether a line, with the `next` one, gives a closure a name: `let is_one = |...|`.
fn names_closure(line: &str, next: &str) -> bool {
    let Some((name, value)) = line
        .trim_start()
        .strip_prefix("let ")
        .and_then(|l| l.split_once('='))
    else {
        return false;
    };
    name.chars()
        .all(|c| c.is_alphanumeric() || c == '_' || c == ' ')
        && (is_closure(value) || value.trim().is_empty() && is_closure(next))
}

/// The lines, from 1, on which a closure gets a name.
fn named_closures(code: &str) -> Vec<usize> {
    let next = code.lines().skip(1).chain([""]);
    let lines = code.lines().zip(next).enumerate();
    lines
        .filter(|(_, (line, next))| names_closure(line, next))
        .map(|(k, _)| k + 1)
        .collect()
}

/// Functions in which more closures than that have a name, with how many.
fn with_many(source: &Source) -> Vec<(String, usize)> {
    let code = code_before_tests(source);
    let functions = functions_of(source);
    let mut counts = vec![0; functions.len()];
    for line in named_closures(&code) {
        // The innermost one.
        let its = functions
            .iter()
            .rposition(|f| (f.first_line..f.first_line + f.lines).contains(&line));
        if let Some(k) = its {
            counts[k] += 1;
        }
    }
    let all = functions.into_iter().zip(counts);
    let many = all.filter(|(_, n)| *n > NAMED_MAX);
    many.map(|(f, n)| (f.name, n)).collect()
}

/// Where a block stands around a receiver, `{ one.iter() }.map(...)`: the lines, from 1.
fn braced_receivers(code: &str) -> Vec<usize> {
    let starts = code.match_indices("{ ").map(|(at, _)| at);
    starts
        .filter(|at| is_braced_receiver(code, *at))
        .map(|at| code[..at].matches('\n').count() + 1)
        .collect()
}

/// Whether the brace at `at` opens such a block.
fn is_braced_receiver(code: &str, at: usize) -> bool {
    const BEFORE: [&str; 13] = [
        "=", "(", ",", ";", "{", "}", "&&", "||", "=>", "return", "match", "if", "in",
    ];
    let before = code[..at].trim_end();
    let begins_expression = BEFORE.iter().any(|token| before.ends_with(token));
    let Some((inside, behind)) = code[at + 2..].split_once(" }") else {
        return false;
    };
    begins_expression && !inside.contains(['{', '}', ';', '\n']) && is_call(behind.trim_start())
}

/// Whether a text goes on with a method or a field of what stands before it.
fn is_call(text: &str) -> bool {
    let name = text.strip_prefix('.');
    name.is_some_and(|name| name.starts_with(|c: char| c.is_alphabetic()))
}

#[test]
fn no_function_names_more_than_two_closures() {
    let mut found = Vec::new();
    for source in sources().into_iter().filter(is_ours) {
        for (name, n) in with_many(&source) {
            found.push(format!("{}: {name}: {n}", source.name));
        }
    }
    refuse("functions with more than two named closures", &found);
}

#[test]
fn a_thousand_lines_name_no_more_than_two_closures() {
    let (mut named, mut lines) = (Vec::new(), 0);
    for source in sources().into_iter().filter(is_ours) {
        let code = code_before_tests(&source);
        lines += code.lines().count();
        for line in named_closures(&code) {
            named.push(format!("{}:{line}", source.name));
        }
    }
    assert!(lines > 50_000, "{lines}");
    let allowed = lines * NAMED_PER_1000_LINES_MAX / 1000;
    assert!(named.len() <= allowed, "more than {allowed}: {named:#?}");
}

#[test]
fn no_block_stands_around_a_receiver() {
    let mut found = Vec::new();
    for source in sources().into_iter().filter(Source::is_rust) {
        for line in braced_receivers(&code_of(&source, Strings::Blank)) {
            found.push(format!("{}:{line}", source.name));
        }
    }
    refuse("blocks around receivers", &found);
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

#[test]
fn a_block_around_a_receiver_is_found() {
    let code = "let a = { b.iter() }.map(c);\nlet d = E { f }.g();\n{ h }\n    .i();\n\
                if j { k } else { l }.m();\n";
    assert_eq!(braced_receivers(code), [1, 3]);
}
