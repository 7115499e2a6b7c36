//! Where a request went: file, directories above it, file system, device, and what devices share.

use super::dimension::{numbered, Dimension, Family, Members, Numbered, Tier, NONE};
use super::slow::Requests;
use crate::record::table::{File, Filesystem, Table};

/// Directories above a file that count, from the file up.
const DEPTH_MAX: usize = 48;
/// A name's pattern is cut to this many bytes.
const PATTERN_MAX: usize = 80;

/// File, directory, folder, name, device, mount, fstype, parent, server.
pub fn family<'a>(requests: &Requests<'a>) -> Family<'a> {
    let table = requests.table;
    let rows = requests.rows.iter();
    let numbers = rows.map(|row| table.rows.file[*row as usize]).collect();
    let files = &table.files;
    Family {
        numbers,
        count: files.len(),
        dimensions: vec![
            file(files),
            directory(files),
            folder(files),
            name(files),
            of_filesystem(table, "device", |f| &f.device),
            of_filesystem(table, "mount", |f| &f.mount),
            of_filesystem(table, "fstype", |f| &f.fstype),
            of_filesystem(table, "server", |f| server(&f.device)),
            parent(&table.filesystems, files),
        ],
    }
}

/// What a file's file system says of itself.
fn of_filesystem<'a>(
    table: &'a Table,
    key: &'static str,
    get: fn(&Filesystem) -> &str,
) -> Dimension<'a> {
    let (ids, labels) = numbered(table.filesystems.iter().map(get));
    let of_files = table.files.iter().map(|f| ids[f.filesystem as usize]);
    let members = Members::One(of_files.collect());
    Dimension::new(key, Tier::Cause, members, labels)
}

/// The server of a network file system; empty for a device.
fn server(device: &str) -> &str {
    if let Some(share) = device.strip_prefix("//") {
        return share.split('/').next().unwrap_or("");
    }
    match device.split_once(":/") {
        Some((server, _)) if !server.contains('/') => server,
        _ => "",
    }
}

fn file(files: &[File]) -> Dimension<'_> {
    // The first is "no file".
    let ids = (0..)
        .zip(files)
        .map(|(id, f)| if f.path.is_empty() { NONE } else { id });
    Dimension {
        chosen_from: 1.0,
        key: "file",
        tier: Tier::Cause,
        values: files.len(),
        members: Members::One(ids.collect()),
        label: Box::new(|v| files[v as usize].path.clone()),
    }
}

/// The directory of a path; empty for one directly below the root, and for no path.
fn above(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(above, _)| above)
}

fn directory(files: &[File]) -> Dimension<'_> {
    let mut known: Numbered<&str> = Numbered::new();
    for file in files {
        let mut path = above(&file.path);
        for _ in 0..DEPTH_MAX {
            if path.is_empty() || known.known(&path).is_some() {
                break;
            }
            known.id(path);
            path = above(path);
        }
    }
    let parents = known.keys.iter().map(|path| known.known(&above(path)));
    let parents: Vec<u32> = parents.map(|id| id.unwrap_or(NONE)).collect();
    let node: Vec<u32> = files.iter().map(|f| innermost(&f.path, &known)).collect();
    // One with nothing but one directory in it is the same set as that one.
    let mut inside = vec![0u32; parents.len()];
    for at in node.iter().filter(|at| **at != NONE) {
        inside[*at as usize] = inside[*at as usize].saturating_add(2);
    }
    for at in parents.iter().filter(|at| **at != NONE) {
        inside[*at as usize] = inside[*at as usize].saturating_add(1);
    }
    let hidden = inside.iter().map(|n| *n == 1).collect();
    let members = Members::Tree {
        node,
        above: parents,
        hidden,
    };
    Dimension::new("directory", Tier::Cause, members, known.keys)
}

/// The innermost directory that a path lies in. A directory that is synced itself belongs to what
/// lies below it.
fn innermost<'a>(path: &'a str, known: &Numbered<&'a str>) -> u32 {
    let itself = known.known(&path);
    itself.or_else(|| known.known(&above(path))).unwrap_or(NONE)
}

/// The name of the innermost directory, wherever it lies: Maildir's `tmp`, `new` and `cur`.
fn folder(files: &[File]) -> Dimension<'_> {
    let (ids, labels) = numbered(files.iter().map(folder_of));
    Dimension::new("folder", Tier::Cause, Members::One(ids), labels)
}

/// The last part of a file's directory; empty without one.
pub fn folder_of(file: &File) -> &str {
    above(&file.path).rsplit('/').next().unwrap_or("")
}

/// The last part of a path with its numbers left out: `#.M#P#.host`.
fn name(files: &[File]) -> Dimension<'_> {
    let mut known: Numbered<String> = Numbered::new();
    let mut pattern = String::new();
    let mut ids = Vec::with_capacity(files.len());
    for file in files {
        let name = file.path.rsplit('/').next().unwrap_or("");
        if name.is_empty() {
            ids.push(NONE);
            continue;
        }
        put_pattern(name, &mut pattern);
        let id = known.known(&pattern);
        ids.push(id.unwrap_or_else(|| known.id(pattern.clone())));
    }
    Dimension::new("name", Tier::Cause, Members::One(ids), known.keys)
}

/// Puts the name into `pattern`, with `#` in place of each number.
fn put_pattern(name: &str, pattern: &mut String) {
    pattern.clear();
    for c in name.chars() {
        match c {
            '0'..='9' if pattern.ends_with('#') => {}
            '0'..='9' => pattern.push('#'),
            other => pattern.push(other),
        }
        if pattern.len() >= PATTERN_MAX {
            break;
        }
    }
}

/// Each of the devices below a device: what several file systems share.
fn parent<'a>(filesystems: &'a [Filesystem], files: &[File]) -> Dimension<'a> {
    let mut known: Numbered<&str> = Numbered::new();
    let mut parents = Vec::with_capacity(filesystems.len());
    for f in filesystems {
        let parts = f.parents.split(" < ").filter(|p| !p.is_empty());
        let mut ids: Vec<u32> = parts.map(|part| known.id(part)).collect();
        ids.sort_unstable();
        ids.dedup();
        parents.push(ids);
    }
    let of_files = files.iter().map(|f| parents[f.filesystem as usize].clone());
    let members = Members::Many(of_files.collect());
    Dimension::new("parent", Tier::Cause, members, known.keys)
}
