//! Recordings: what is in them, and what happens to them when something is killed or full.

mod agreement;
mod classes;
mod death;
mod events;
mod io;
mod seen;
mod stress;
mod system;

use crate::harness::command::{run, Outcome};
use crate::sessions::stage::Stage;
use std::collections::BTreeMap;
use std::path::Path;
use synclater_recording::record::table::{Done, Table};

/// The recording at `path`.
pub fn read(path: &Path) -> Table {
    let file = std::fs::File::open(path).expect("the recording");
    Table::read(std::io::BufReader::new(file)).expect("a recording")
}

/// Runs `words` with `options` and a recording; both.
pub fn recorded(stage: &Stage, options: &[&str], words: &[&str]) -> (Outcome, Table) {
    let file = stage.file("recording");
    let mut command = stage.synclater(&["run", "--quiet", "--force", "--record"]);
    command.arg(&file).args(options).arg("--").args(words);
    command.current_dir(stage.work());
    let outcome = run(&mut command);
    assert!(file.exists(), "{outcome}");
    (outcome, read(&file))
}

/// How many requests of each kind.
pub fn kinds(table: &Table) -> BTreeMap<&str, usize> {
    let mut found = BTreeMap::new();
    for kind in &table.rows.kind {
        *found
            .entry(table.kinds[usize::from(*kind)].as_str())
            .or_default() += 1;
    }
    found
}

/// How many requests of each kind for each path.
pub fn by_path(table: &Table) -> BTreeMap<(String, String), usize> {
    let mut found = BTreeMap::new();
    for (kind, file) in table.rows.kind.iter().zip(&table.rows.file) {
        let kind = table.kinds[usize::from(*kind)].clone();
        let path = table.files[*file as usize].path.clone();
        *found.entry((kind, path)).or_default() += 1;
    }
    found
}

pub fn how_many(table: &Table, done: Done) -> usize {
    table.rows.done.iter().filter(|d| **d == done).count()
}
