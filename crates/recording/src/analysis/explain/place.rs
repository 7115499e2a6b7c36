//! Where a request went: file, directories above it, file system, device, and what devices share.

use super::dimension::{numbered, Dimension, Family, Members, Numbered, Tier, NONE};
use super::slow::Requests;
use crate::record::table::{File, Filesystem};

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
    let mut dimensions = vec![file(files), directory(files), folder(files), name(files)];
    let mut by_filesystem = |key, get: fn(&Filesystem) -> &str| {
        let (ids, labels) = numbered(table.filesystems.iter().map(get));
        let of = |f: &File| ids[f.filesystem as usize];
        let members = Members::One(files.iter().map(of).collect());
        dimensions.push(Dimension::new(key, Tier::Cause, members, labels));
    };
    by_filesystem("device", |f| &f.device);
    by_filesystem("mount", |f| &f.mount);
    by_filesystem("fstype", |f| &f.fstype);
    by_filesystem("server", |f| server(&f.device));
    dimensions.push(parent(&table.filesystems, files));
    Family {
        numbers,
        count: files.len(),
        dimensions,
    }
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
    let known = |(id, f): (u32, &File)| if f.path.is_empty() { NONE } else { id };
    Dimension {
        chosen_from: 1.0,
        key: "file",
        tier: Tier::Cause,
        values: files.len(),
        members: Members::One((0..).zip(files).map(known).collect()),
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
    let parents: Vec<u32> = { known.keys.iter() }
        .map(|path| known.known(&above(path)).unwrap_or(NONE))
        .collect();
    // A directory that is synced itself belongs to what lies below it.
    let start = |f: &File| {
        let path = f.path.as_str();
        let directory = || known.known(&above(path));
        known.known(&path).or_else(directory).unwrap_or(NONE)
    };
    let node: Vec<u32> = files.iter().map(start).collect();
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
    let mut of = |file: &File| {
        let name = file.path.rsplit('/').next().unwrap_or("");
        if name.is_empty() {
            return NONE;
        }
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
        known
            .known(&pattern)
            .unwrap_or_else(|| known.id(pattern.clone()))
    };
    let ids = files.iter().map(&mut of).collect();
    Dimension::new("name", Tier::Cause, Members::One(ids), known.keys)
}

/// Each of the devices below a device: what several file systems share.
fn parent<'a>(filesystems: &'a [Filesystem], files: &[File]) -> Dimension<'a> {
    let mut known: Numbered<&str> = Numbered::new();
    let mut of = |f: &'a Filesystem| -> Vec<u32> {
        let parts = f.parents.split(" < ").filter(|p| !p.is_empty());
        let mut ids: Vec<u32> = parts.map(|part| known.id(part)).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let parents: Vec<Vec<u32>> = filesystems.iter().map(&mut of).collect();
    let of_file = |f: &File| parents[f.filesystem as usize].clone();
    let members = Members::Many(files.iter().map(of_file).collect());
    Dimension::new("parent", Tier::Cause, members, known.keys)
}
