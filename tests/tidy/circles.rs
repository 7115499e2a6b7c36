//! Files of a crate that import each other, over however many others.

use super::scan::{code_of, Strings};
use super::{refuse, sources};
use std::collections::{BTreeMap, BTreeSet};

/// A file by the modules that lead to it from its crate's root.
type Module = Vec<String>;

/// The crate that a file belongs to, by its folder, and its module there.
fn place_of(name: &str) -> Option<(String, Module)> {
    let at = name
        .find("src/")
        .filter(|at| *at == 0 || name.starts_with("crates/"))?;
    let (home, below) = name.split_at(at + "src/".len());
    let mut module: Module = below
        .strip_suffix(".rs")?
        .split('/')
        .map(str::to_owned)
        .collect();
    if module
        .last()
        .is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str()))
    {
        module.pop();
    }
    Some((home.to_owned(), module))
}

/// Every path that code names, with `use` trees written out.
fn paths_in(code: &str) -> Vec<Vec<String>> {
    let (mut all, mut path, mut trees) = (Vec::new(), Vec::new(), Vec::<Vec<String>>::new());
    let mut joins = false;
    let mut rest = code;
    while let Some(c) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let length = match c {
            ':' if rest.starts_with("::") => 2,
            _ if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            _ => c.len_utf8(),
        };
        let (token, behind) = rest.split_at(length);
        rest = behind;
        match token {
            "::" => joins = true,
            "{" if joins => trees.push(path.clone()),
            "," | "}" if !trees.is_empty() => {
                all.push(std::mem::take(&mut path));
                if token == "}" {
                    trees.pop();
                }
                path.extend(trees.last().cloned().unwrap_or_default());
                joins = token == "," && !trees.is_empty();
            }
            _ if is_word(c) && joins => {
                path.push(token.to_owned());
                joins = false;
            }
            _ if is_word(c) => all.push(std::mem::replace(&mut path, vec![token.to_owned()])),
            _ if c.is_whitespace() => {}
            _ => {
                all.push(std::mem::take(&mut path));
                joins = false;
            }
        }
    }
    all
}

/// The file that a path named in `module` leads to.
fn led_to(path: &[String], module: &Module, all: &BTreeSet<Module>) -> Option<Module> {
    let ups = path.iter().take_while(|word| *word == "super").count();
    let (mut file, rest) = match path.first()?.as_str() {
        "crate" => (Module::new(), &path[1..]),
        "self" => (module.clone(), &path[1..]),
        "super" => (
            module[..module.len().checked_sub(ups)?].to_vec(),
            &path[ups..],
        ),
        _ => return None,
    };
    for word in rest {
        file.push(word.clone());
        if !all.contains(&file) {
            file.pop();
            break;
        }
    }
    Some(file)
}

/// What each file of a crate imports, but for those above and below it.
fn imports(files: &BTreeMap<Module, String>) -> BTreeMap<&Module, BTreeSet<Module>> {
    let all: BTreeSet<Module> = files.keys().cloned().collect();
    let of_one = |(module, code): (&Module, &String)| -> BTreeSet<Module> {
        let led = paths_in(code)
            .into_iter()
            .filter_map(|path| led_to(&path, module, &all));
        led.filter(|other| !other.starts_with(module) && !module.starts_with(other))
            .collect()
    };
    files.iter().map(|file| (file.0, of_one(file))).collect()
}

/// Whether imports lead from a file to another one.
fn leads(from: &Module, to: &Module, imports: &BTreeMap<&Module, BTreeSet<Module>>) -> bool {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        let new = imports[module].iter().filter(|m| seen.insert(*m));
        next.extend(new);
    }
    seen.contains(to)
}

#[test]
fn no_two_files_import_each_other() {
    let mut crates: BTreeMap<String, BTreeMap<Module, String>> = BTreeMap::new();
    for source in sources().iter().filter(|s| s.is_rust()) {
        let Some((home, module)) = place_of(&source.name) else {
            continue;
        };
        let code = code_of(source, Strings::Blank);
        let end = code.find("#[cfg(test)]\nmod tests").unwrap_or(code.len());
        crates
            .entry(home)
            .or_default()
            .insert(module, code[..end].to_owned());
    }
    let mut found = Vec::new();
    for (home, files) in &crates {
        let imports = imports(files);
        for (module, others) in &imports {
            let back = others.iter().filter(|other| leads(other, module, &imports));
            found.extend(back.map(|o| format!("{home}{} and {}", module.join("/"), o.join("/"))));
        }
    }
    refuse("files that import each other", &found);
}

/// What such a file needs nobody sees, nor the test above.
#[test]
fn no_file_but_a_test_imports_all_of_another() {
    let of_tests = |name: &str| name.ends_with("/tests.rs") || name.starts_with("tests/");
    let all = sources()
        .into_iter()
        .filter(|s| s.is_rust() && !of_tests(&s.name));
    let imports_all = |text: &str| { text.lines() }.any(|line| line == "use super::*;");
    let found: Vec<String> = all
        .filter(|s| imports_all(&s.text))
        .map(|s| s.name)
        .collect();
    refuse("files that import all of another", &found);
}

#[test]
fn a_tree_of_imports_is_written_out() {
    let code = "use super::{a::B, c::{self, D as E}};\nfn f() { crate::x::y(self::z) }";
    let paths: Vec<String> = paths_in(code).iter().map(|path| path.join("::")).collect();
    for path in [
        "super::a::B",
        "super::c::self",
        "super::c::D",
        "crate::x::y",
        "self::z",
    ] {
        assert!(paths.iter().any(|p| p == path), "{path}: {paths:?}");
    }
}

#[test]
fn a_circle_of_three_is_found() {
    let file = |name: &str, code: &str| (vec![name.to_owned()], code.to_owned());
    let three = [
        ("a", "use crate::b::X;"),
        ("b", "super::c::f()"),
        ("c", "use super::{a};"),
    ];
    let files: BTreeMap<Module, String> = three.map(|(n, c)| file(n, c)).into();
    let imports = imports(&files);
    assert!(leads(&vec!["b".into()], &vec!["a".into()], &imports));
}
