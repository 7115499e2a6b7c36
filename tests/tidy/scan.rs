//! Tells comments, strings and code apart, and finds functions, in Rust and in C.
//!
//! A scanner, no parser: enough for counting lines and finding words.
//! What it cannot do: macros that hide a brace, and C functions whose head holds a `=`.

use std::path::Path;

/// One text file of the repository.
pub struct Source {
    /// Relative to the repository's root, with `/`.
    pub name: String,
    pub text: String,
}

impl Source {
    pub fn extension(&self) -> &str {
        Path::new(&self.name)
            .extension()
            .and_then(|e| e.to_str())
            .unwrap_or("")
    }
    pub fn is_rust(&self) -> bool {
        self.extension() == "rs"
    }
    pub fn is_c(&self) -> bool {
        matches!(self.extension(), "c" | "h")
    }
    pub fn is_script(&self) -> bool {
        self.text.starts_with("#!") && !self.is_rust()
    }
    pub fn is_fixture(&self) -> bool {
        self.name.starts_with("tests/golden/")
    }
}

#[derive(Clone, Copy, PartialEq)]
pub enum Strings {
    Keep,
    Blank,
}

/// The text with comments (and strings, if asked) replaced by spaces; lines stay where they are.
pub fn code_of(source: &Source, strings: Strings) -> String {
    let mut scan = Scan {
        bytes: source.text.as_bytes(),
        at: 0,
        out: Vec::new(),
        strings,
    };
    while scan.at < scan.bytes.len() {
        scan.step(source.is_rust());
    }
    String::from_utf8_lossy(&scan.out).into_owned()
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
    out: Vec<u8>,
    strings: Strings,
}

impl Scan<'_> {
    fn step(&mut self, rust: bool) {
        let rest = &self.bytes[self.at..];
        if rest.starts_with(b"//") {
            self.blank(rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len()));
        } else if rest.starts_with(b"/*") {
            self.blank(block_comment_len(rest, rust));
        } else if let Some(len) = raw_string_len(rest, rust && !self.inside_a_word()) {
            self.string(len);
        } else if rest[0] == b'"' {
            self.string(quoted_len(rest, b'"'));
        } else if let Some(len) = char_literal_len(rest, rust) {
            self.string(len);
        } else {
            self.out.push(rest[0]);
            self.at += 1;
        }
    }

    fn inside_a_word(&self) -> bool {
        self.out.last().is_some_and(|&b| is_word(b))
    }

    fn string(&mut self, len: usize) {
        if self.strings == Strings::Blank {
            return self.blank(len);
        }
        self.out
            .extend_from_slice(&self.bytes[self.at..self.at + len]);
        self.at += len;
    }

    fn blank(&mut self, len: usize) {
        let hidden = &self.bytes[self.at..self.at + len];
        self.out
            .extend(hidden.iter().map(|&b| if b == b'\n' { b } else { b' ' }));
        self.at += len;
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Rust nests block comments, C does not.
fn block_comment_len(text: &[u8], nests: bool) -> usize {
    let (mut at, mut depth) = (2, 1);
    while at < text.len() && depth > 0 {
        let pair = &text[at..text.len().min(at + 2)];
        match pair {
            b"*/" => depth -= 1,
            b"/*" if nests => depth += 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
    }
    at
}

/// The length up to and with the closing quote, backslashes respected.
fn quoted_len(text: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < text.len() && text[at] != quote {
        at += if text[at] == b'\\' { 2 } else { 1 };
    }
    text.len().min(at + 1)
}

/// `r"…"`, `r#"…"#` and their byte and C forms.
fn raw_string_len(text: &[u8], may_start: bool) -> Option<usize> {
    if !may_start {
        return None;
    }
    let prefix = usize::from(matches!(text[0], b'b' | b'c'));
    let rest = text.get(prefix..)?.strip_prefix(b"r")?;
    let hashes = rest.iter().take_while(|&&b| b == b'#').count();
    if rest.get(hashes) != Some(&b'"') {
        return None;
    }
    let end: Vec<u8> = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    let body = &rest[hashes + 1..];
    let close = body
        .windows(end.len())
        .position(|w| w == end)
        .unwrap_or(body.len() - end.len());
    Some(prefix + 1 + hashes + 1 + close + end.len())
}

/// A character literal; a lifetime (`'a` without a closing quote) is none.
fn char_literal_len(text: &[u8], rust: bool) -> Option<usize> {
    if text[0] != b'\'' {
        return None;
    }
    if !rust || text.get(1) == Some(&b'\\') {
        return Some(quoted_len(text, b'\''));
    }
    let character = std::str::from_utf8(&text[1..text.len().min(5)])
        .or_else(|e| std::str::from_utf8(&text[1..1 + e.valid_up_to()]))
        .ok()?
        .chars()
        .next()?;
    let close = 1 + character.len_utf8();
    (text.get(close) == Some(&b'\'')).then_some(close + 1)
}

pub fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|w| !w.is_empty())
}

// --- Functions and their length ------------------------------------------------------------------

pub struct Function {
    pub name: String,
    pub first_line: usize,
    pub lines: usize,
}

pub fn line_of(code: &str, at: usize) -> usize {
    code[..at].matches('\n').count() + 1
}

/// The index behind the brace that closes the one at `open`.
fn behind_block(code: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (i, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 1 => return i + 1,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

pub fn functions_of(source: &Source) -> Vec<Function> {
    let code = code_of(source, Strings::Blank);
    if source.is_rust() {
        rust_functions(&code)
    } else {
        c_functions(&without_directives(&code))
    }
}

fn rust_functions(code: &str) -> Vec<Function> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        if at > 0 && is_word(code.as_bytes()[at - 1]) {
            continue;
        }
        let Some(name) = words(&code[at + 3..]).next() else {
            continue;
        };
        if let Some(open) = body_of(code, at) {
            found.push(function(code, name, at, behind_block(code, open)));
        }
    }
    found
}

fn function(code: &str, name: &str, begin: usize, end: usize) -> Function {
    let first_line = line_of(code, begin);
    Function {
        name: name.to_owned(),
        first_line,
        lines: line_of(code, end) - first_line + 1,
    }
}

/// The `{` of a function's body; none for a declaration. `;` in `[u8; 4]` does not end it.
fn body_of(code: &str, at: usize) -> Option<usize> {
    let mut depth = 0i32;
    for (i, byte) in code.bytes().enumerate().skip(at) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'{' if depth == 0 => return Some(i),
            b';' | b'}' if depth <= 0 => return None,
            _ => {}
        }
    }
    None
}

/// Preprocessor lines (with their continuations) replaced by empty ones.
fn without_directives(code: &str) -> String {
    let mut inside = false;
    let mut out = String::new();
    for line in code.lines() {
        inside = inside || line.trim_start().starts_with('#');
        out.push_str(if inside { "" } else { line });
        out.push('\n');
        inside = inside && line.trim_end().ends_with('\\');
    }
    out
}

/// A block at file level whose head has parentheses and no `=`.
fn c_functions(code: &str) -> Vec<Function> {
    let mut found = Vec::new();
    let (mut begin, mut at) = (0, 0);
    while at < code.len() {
        match code.as_bytes()[at] {
            b'{' => {
                let end = behind_block(code, at);
                let head = &code[begin..at];
                if let Some(name) = c_function_name(head) {
                    let skipped = head.len() - head.trim_start().len();
                    found.push(function(code, &name, begin + skipped, end));
                }
                (begin, at) = (end, end);
            }
            b';' => {
                (begin, at) = (at + 1, at + 1);
            }
            _ => at += 1,
        }
    }
    found
}

fn c_function_name(head: &str) -> Option<String> {
    if head.contains('=') || !head.contains('(') {
        return None;
    }
    let mut rest = head;
    while let Some(open) = rest.find('(') {
        let name = words(&rest[..open]).last()?;
        if name != "__attribute__" {
            return Some(name.to_owned());
        }
        rest = &rest[rest.find("))").map_or(rest.len(), |i| i + 2)..];
    }
    None
}

fn source(name: &str, text: &str) -> Source {
    Source {
        name: name.to_owned(),
        text: text.to_owned(),
    }
}

#[test]
fn a_brace_in_a_string_or_comment_closes_nothing() {
    let text =
        "fn a() {\n  let s = \"}\"; // }\n  let c = '}'; /* } */\n  x(r#\"}\"#)\n}\nfn b() {}\n";
    let found = functions_of(&source("a.rs", text));
    let seen: Vec<(&str, usize)> = found.iter().map(|f| (f.name.as_str(), f.lines)).collect();
    assert_eq!(seen, [("a", 5), ("b", 1)]);
}

#[test]
fn a_lifetime_is_no_character_literal() {
    let found = functions_of(&source(
        "a.rs",
        "fn a<'x>(s: &'x [u8; 4]) -> &'x u8 {\n  &s[0]\n}\n",
    ));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].lines, 3);
}

#[test]
fn a_c_function_is_told_from_a_table_and_a_struct() {
    let text = "#define M(x) do { \\\n } while (0)\nstruct s { int a; };\nint t[] = { 1 };\n\
                __attribute__((noipa)) static int\nf(int a)\n{\n  if (a) {\n  }\n\
                return '{';\n}\n";
    let found = functions_of(&source("a.c", text));
    let seen: Vec<(&str, usize)> = found.iter().map(|f| (f.name.as_str(), f.lines)).collect();
    assert_eq!(seen, [("f", 7)]);
}
