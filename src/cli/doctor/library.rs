//! Whether the library reaches the programs of this machine: 64-bit, 32-bit, musl.
//!
//! The preload check runs `cat /proc/self/maps` with the library in front and looks for it there:
//! what `ld.so` really did, not what the file's name promises. There are two libraries, the second
//! for `--io`: each is looked at.
//! Not checked: 32-bit and musl programs are not run (none may be at hand); only files are seen.

use super::mounts::is_noexec;
use super::{Check, Status};
use std::path::{Path, PathBuf};
use std::process::Command;
use synclater_proc::mountinfo::{mount_of, Mount};
use synclater_shim::NAMES;

/// What `$LIB` becomes in 32-bit programs: Debian's libc6-i386, i386 multiarch, Fedora and SUSE.
const DIRS_32: &[&str] = &["lib32", "lib/i386-linux-gnu", "lib"];
const LOADERS_32: &[&str] = &["/lib/ld-linux.so.2", "/lib32/ld-linux.so.2"];
const LOADERS_MUSL: &[&str] = &["/lib/ld-musl-x86_64.so.1", "/lib/ld-musl-aarch64.so.1"];

/// Checks `lib`, the value that goes into LD_PRELOAD (it may hold `$LIB`), or why there is none.
pub fn library_checks(lib: Result<PathBuf, String>, table: &[Mount]) -> Vec<Check> {
    let lib = match lib {
        Ok(lib) => lib,
        Err(why) => return vec![no_library(why)],
    };
    vec![
        preload_check(&lib, table),
        class_32_check(&lib),
        musl_check(&lib),
    ]
}

fn no_library(why: String) -> Check {
    let means = "No library to load into programs: every sync request stays real.";
    Check::new("preload", Status::Bad, why, means).advise(
        "make install, or give the library a directory of your own that allows exec (it is \
         unpacked into the cache directory: XDG_CACHE_HOME)",
    )
}

fn preload_check(lib: &Path, table: &[Mount]) -> Check {
    let (name, shown) = ("preload", lib.display());
    if mount_of(table, &tree_of(lib)).is_some_and(is_noexec) {
        let means = "The library lies on a file system mounted noexec, so it cannot be mapped: \
                     every sync request stays real.";
        let advice = "make install, or set XDG_CACHE_HOME to a directory that allows exec";
        return Check::new(name, Status::Bad, format!("{shown}: noexec"), means).advise(advice);
    }
    let loaded = NAMES
        .iter()
        .try_for_each(|file| loaded_by_cat(&lib.with_file_name(file)));
    match loaded {
        Ok(()) => {
            let means = "Dynamic 64-bit programs of the C library here can be run under synclater.";
            let seen = format!("{shown}: mapped in a child process");
            Check::new(name, Status::Ok, seen, means)
        }
        Err(why) if why.starts_with(NO_CAT) => {
            let means = "Whether programs load the library could not be tried.";
            Check::new(name, Status::Unknown, format!("{shown}: {why}"), means)
        }
        Err(why) => {
            let means = "Programs do not load the library: every sync request stays real.";
            let advice = "look at the output of: LD_DEBUG=libs LD_PRELOAD=LIBRARY cat /dev/null";
            Check::new(name, Status::Bad, format!("{shown}: {why}"), means).advise(advice)
        }
    }
}

/// Why nothing was tried.
const NO_CAT: &str = "cannot run cat";

/// Runs `cat` with the library; why it is not in the child's maps, or what `ld.so` complained of.
fn loaded_by_cat(lib: &Path) -> Result<(), String> {
    if !Path::new("/proc/self/maps").exists() {
        return Err(format!("{NO_CAT}: there is no /proc/self/maps to be read"));
    }
    let mut cat = Command::new("cat");
    cat.arg("/proc/self/maps")
        .env("LD_PRELOAD", lib)
        .env("SYNCLATER_UNTIL", "now");
    cat.env_remove("SYNCLATER_PAGE");
    let output = cat.output().map_err(|e| format!("{NO_CAT}: {e}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    let file = lib.file_name().unwrap_or_default().to_string_lossy();
    if !String::from_utf8_lossy(&output.stdout).contains(&*file) {
        return Err(format!(
            "{file} is not in the maps of a child; {}",
            complaint.trim()
        ));
    }
    if complaint.is_empty() {
        Ok(())
    } else {
        Err(format!("the child printed: {}", complaint.trim()))
    }
}

/// The directory that holds one directory for each value of `$LIB`.
fn tree_of(lib: &Path) -> PathBuf {
    let before: PathBuf = lib
        .components()
        .take_while(|c| c.as_os_str() != "$LIB")
        .collect();
    if before != lib {
        return before;
    }
    let dir = lib.parent().unwrap_or(lib);
    let known = [
        "lib/x86_64-linux-gnu",
        "lib/aarch64-linux-gnu",
        "lib64",
        "lib32",
        "lib",
    ];
    let values = known.iter().find(|value| dir.ends_with(value));
    let depth = values.map_or(0, |value| Path::new(value).components().count());
    dir.ancestors().nth(depth).unwrap_or(dir).to_owned()
}

fn first_existing(paths: &[&str]) -> Option<String> {
    paths
        .iter()
        .find(|p| Path::new(p).exists())
        .map(|p| (*p).to_owned())
}

fn class_32_check(lib: &Path) -> Check {
    let name = "32-bit programs";
    if !cfg!(target_arch = "x86_64") {
        let means = "There is no 32-bit library on this architecture.";
        return Check::new(name, Status::Unknown, std::env::consts::ARCH, means);
    }
    let Some(loader) = first_existing(LOADERS_32) else {
        let means = "No dynamic 32-bit program can run on this machine.";
        return Check::new(name, Status::Ok, "no /lib/ld-linux.so.2", means);
    };
    let tree = tree_of(lib);
    let found: Vec<String> = DIRS_32
        .iter()
        .filter(|dir| has_libraries(&tree.join(dir)))
        .map(|d| (*d).to_owned())
        .collect();
    if found.len() == DIRS_32.len() {
        let means = "32-bit programs, also those that 64-bit ones start, load their own library.";
        return Check::new(
            name,
            Status::Ok,
            format!("{loader}, {}", found.join(", ")),
            means,
        );
    }
    let seen = format!(
        "{loader}, but not every 32-bit library below {}",
        tree.display()
    );
    let means = "32-bit programs run without the library, and ld.so may complain in each of them.";
    let advice = "build synclater where gcc can compile with -m32 (Debian: gcc-12-multilib)";
    Check::new(name, Status::Bad, seen, means).advise(advice)
}

/// Whether a directory has every library.
fn has_libraries(dir: &Path) -> bool {
    NAMES.iter().all(|file| dir.join(file).exists())
}

fn musl_check(lib: &Path) -> Check {
    let name = "musl programs";
    let Some(loader) = first_existing(LOADERS_MUSL) else {
        let means = "No dynamic musl program can run on this machine.";
        return Check::new(name, Status::Ok, "no musl loader in /lib", means);
    };
    let dir = tree_of(lib).join("$LIB");
    if has_libraries(&dir) {
        let means = "musl does not expand $LIB; a directory of that very name serves it.";
        return Check::new(
            name,
            Status::Ok,
            format!("{loader}, {}", dir.display()),
            means,
        );
    }
    let seen = format!("{loader}, but not every library in {}", dir.display());
    let means = "musl programs skip the library without a word: their sync requests stay real.";
    Check::new(name, Status::Bad, seen, means).advise("make install")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_what_stands_before_the_value_of_lib() {
        let tree = Path::new("/usr/local/lib/synclater");
        for dir in ["$LIB", "lib/x86_64-linux-gnu", "lib64", "lib"] {
            assert_eq!(tree_of(&tree.join(dir).join(NAMES[0])), tree, "{dir}");
        }
    }

    #[test]
    fn a_library_that_is_not_there_is_bad_and_says_why() {
        let checks = library_checks(Err("no directory allows exec".into()), &[]);
        assert_eq!(checks.len(), 1);
        assert_eq!(
            (checks[0].status, checks[0].seen.as_str()),
            (Status::Bad, "no directory allows exec")
        );
    }

    #[test]
    fn a_library_that_ld_so_does_not_find_is_bad() {
        let checks = library_checks(Ok("/nonexistent/$LIB/libsynclater.so".into()), &[]);
        assert_eq!(checks[0].status, Status::Bad, "{}", checks[0].seen);
    }
}
