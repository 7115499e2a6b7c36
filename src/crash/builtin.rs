//! Checks that are brought along. Each runs in a process of its own, so that one that hangs or
//! crashes on what a power cut has left takes nothing with it.

use super::damage;
use anyhow::Context;
use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use synclater_powercut::prefix;

/// Which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Builtin {
    /// Every database that is found opens, and passes SQLite's integrity check.
    Sqlite,
    /// Every message that is found is whole, and those that were acknowledged are there.
    Maildir,
    /// Every repository that is found passes git's check, and has the commits that were
    /// acknowledged.
    Git,
    /// What the bundled writer has left is a prefix of its steps.
    Prefix,
}

impl Builtin {
    /// As `--check builtin:NAME` names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Builtin::Sqlite => "sqlite",
            Builtin::Maildir => "maildir",
            Builtin::Git => "git",
            Builtin::Prefix => "prefix",
        }
    }

    /// What is wrong with the state in `folder`, in a sentence; `None` where all is well.
    ///
    /// # Errors
    /// Where it cannot be judged.
    pub fn judge(self, folder: &Path, acknowledged: &Path) -> anyhow::Result<Option<String>> {
        let lines = std::fs::read(acknowledged)?;
        let lines = String::from_utf8_lossy(&lines);
        let judged = match self {
            Builtin::Sqlite => databases(folder),
            Builtin::Maildir => messages(folder, &lines),
            Builtin::Git => repositories(folder, &lines),
            Builtin::Prefix => steps(folder, &lines),
        };
        judged.or_else(|e| match e.downcast_ref::<io::Error>() {
            Some(damage) if damage::is_damage(damage) => Ok(Some(damage::unreadable(damage))),
            _ => Err(e),
        })
    }
}

/// Files and folders below `top`, folders first.
fn below(top: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    let mut folders = vec![top.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            }
            all.push(entry.path());
        }
    }
    all.sort();
    Ok(all)
}

fn said_of(path: &Path, top: &Path, said: &str) -> String {
    let path = path.strip_prefix(top).unwrap_or(path);
    format!("{}: {said}", path.display())
}

fn is_database(path: &Path) -> bool {
    let mut head = [0; 16];
    let has_head = std::fs::File::open(path).is_ok_and(|mut f| f.read_exact(&mut head).is_ok());
    let named = path
        .extension()
        .is_some_and(|e| e == "db" || e == "sqlite" || e == "sqlite3");
    path.is_file()
        && (has_head && &head == b"SQLite format 3\0"
            || named
            || has_beside(path, "-journal")
            || has_beside(path, "-wal"))
}

/// Whether something lies beside a file that is called as it is, with this end.
fn has_beside(path: &Path, end: &str) -> bool {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    Path::new(&name).exists()
}

/// A program that a signal has ended has judged nothing.
fn ended_by_itself(output: &Output, name: &str) -> anyhow::Result<()> {
    match output.status.code() {
        Some(_) => Ok(()),
        None => anyhow::bail!("{name}: {}", output.status),
    }
}

/// What SQLite's own program says, or Python's module where there is none.
fn integrity(database: &Path) -> anyhow::Result<String> {
    const PYTHON: &str = "import sqlite3,sys\ntry:\n print(sqlite3.connect(sys.argv[1])\
        .execute('pragma integrity_check').fetchone()[0])\nexcept sqlite3.Error as e:\n print(e)";
    let mut command = Command::new("sqlite3");
    // Nobody's own settings.
    command.args(["-batch", "-init", "/dev/null", "-noheader", "-list"]);
    command.arg(database).arg("pragma integrity_check");
    let mut python = Command::new("python3");
    python.args(["-B", "-c", PYTHON]).arg(database);
    let output = command.stdin(Stdio::null()).output();
    let output = match output {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => python
            .output()
            .context("neither sqlite3 nor python3 can be run; install sqlite3")?,
        output => output.context("sqlite3")?,
    };
    ended_by_itself(&output, "sqlite3")?;
    let said = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&said).trim().to_owned())
}

fn databases(top: &Path) -> anyhow::Result<Option<String>> {
    for path in below(top)?.iter().filter(|p| is_database(p)) {
        let said = integrity(path)?;
        if said != "ok" {
            let first = said.lines().find(|l| !l.starts_with("***"));
            let first = first.unwrap_or("it says nothing");
            return Ok(Some(said_of(path, top, first)));
        }
    }
    Ok(None)
}

/// The part of a message's name that stays when its flags change: maildir(5).
fn unique(name: &str) -> &str {
    let name = name.rsplit('/').next().unwrap_or(name);
    name.split([':', ',']).next().unwrap_or(name)
}

/// The size that a name promises, as Maildir++ and Dovecot have it.
fn promised_size(name: &str) -> Option<u64> {
    let base = name.split(':').next().unwrap_or(name);
    base.split(',')
        .find_map(|part| part.strip_prefix("S=")?.parse().ok())
}

fn damage_of_message(path: &Path, name: &str) -> std::io::Result<Option<String>> {
    let text = std::fs::read(path)?;
    let wanted = promised_size(name);
    Ok(match wanted {
        _ if text.is_empty() => Some("the message is empty".into()),
        _ if text.contains(&0) => Some("the message has zeros in it".into()),
        Some(size) if size != text.len() as u64 => {
            Some(format!("the message has {} of {size} bytes", text.len()))
        }
        _ => None,
    })
}

fn messages(top: &Path, lines: &str) -> anyhow::Result<Option<String>> {
    let mut have = BTreeSet::new();
    for path in below(top)? {
        let Some((folder, name)) = path.parent().zip(path.file_name()) else {
            continue;
        };
        let is_box = folder.file_name().is_some_and(|f| f == "new" || f == "cur")
            && folder.parent().is_some_and(|f| f.join("tmp").is_dir());
        if !is_box || !path.is_file() {
            continue;
        }
        let name = name.to_string_lossy();
        if let Some(damage) = damage_of_message(&path, &name)? {
            return Ok(Some(said_of(&path, top, &damage)));
        }
        have.insert(unique(&name).to_owned());
    }
    // A line with blanks is something else that was said.
    let names = lines
        .lines()
        .filter(|l| !l.is_empty() && !l.contains(char::is_whitespace));
    let lost = names.map(unique).find(|name| !have.contains(*name));
    Ok(lost.map(|name| format!("lost: message {name}, which was acknowledged")))
}

fn git(repository: &Path, words: &[&str]) -> anyhow::Result<Output> {
    let mut command = Command::new("git");
    command
        .args(["-c", "safe.directory=*", "--git-dir"])
        .arg(repository)
        .args(words);
    let output = command.stdin(Stdio::null()).output();
    let output = output.context("git cannot be run; install git")?;
    ended_by_itself(&output, "git").map(|()| output)
}

/// The first line of git's that tells of damage.
fn damage_of_repository(repository: &Path) -> anyhow::Result<Option<String>> {
    let output = git(
        repository,
        &["fsck", "--full", "--no-dangling", "--no-progress"],
    )?;
    if output.status.success() {
        return Ok(None);
    }
    let said = [output.stderr, output.stdout].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    let telling = said.lines().find(|line| tells_of_damage(line));
    let line = telling
        .or(said.lines().next())
        .unwrap_or("git fsck failed")
        .replace(&*repository.to_string_lossy(), "");
    Ok(Some(line))
}

fn tells_of_damage(line: &str) -> bool {
    ["error", "fatal", "missing", "broken"]
        .iter()
        .any(|word| line.starts_with(word))
}

fn repositories(top: &Path, lines: &str) -> anyhow::Result<Option<String>> {
    let mut all = below(top)?;
    all.push(top.to_path_buf());
    all.retain(|p| {
        p.join("HEAD").is_file() && p.join("objects").is_dir() && p.join("refs").is_dir()
    });
    for repository in &all {
        if let Some(damage) = damage_of_repository(repository)? {
            return Ok(Some(said_of(repository, top, &damage)));
        }
    }
    let mut reached = BTreeSet::new();
    for repository in &all {
        let output = git(repository, &["rev-list", "--all"])?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Ok(Some(said_of(repository, top, &said)));
        }
        let list = String::from_utf8_lossy(&output.stdout).into_owned();
        reached.extend(list.lines().map(str::to_ascii_lowercase));
    }
    let mut commits = lines.lines().filter(|line| is_commit(line));
    let lost = commits.find(|commit| !reached.contains(&commit.to_ascii_lowercase()));
    Ok(lost.map(|commit| format!("lost: commit {commit}, which was acknowledged")))
}

/// Whether a line is the name of a commit, by SHA-1 or SHA-256.
fn is_commit(line: &str) -> bool {
    matches!(line.len(), 40 | 64) && line.bytes().all(|b| b.is_ascii_hexdigit())
}

fn steps(folder: &Path, lines: &str) -> anyhow::Result<Option<String>> {
    let mut files = prefix::Files::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            let name = String::from_utf8_lossy(entry.file_name().as_bytes()).into_owned();
            files.insert(name, std::fs::read(entry.path())?);
        }
    }
    Ok(prefix::judge(&files, prefix::acknowledged(lines)).err())
}
