//! The preload library on disk: the installed one, or the embedded one unpacked to a folder that
//! allows execution.
//!
//! Promise: a file that is used is ours (owner, mode) and byte for byte the embedded one. The path
//! has `$LIB` in it: glibc's ld.so puts the class's folder there, so that 64- and 32-bit programs
//! each find theirs without a word; musl takes `$LIB` literally, and finds a folder of that name.

use crate::session::dirs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use synclater_shim::{CONTENT_NAME, LIBRARY, LIBRARY_32};
use synclater_sys::{mount, process};

const NAME: &str = "libsynclater.so";

/// Folders that ld.so may put in the place of `$LIB`, with the class that it means.
fn folders() -> Vec<(&'static str, Option<&'static [u8]>)> {
    // Where 32-bit libraries have lib32 and 64-bit ones plain lib (Arch), lib is 64-bit.
    let plain = if Path::new("/usr/lib32/ld-linux.so.2").exists()
        && !Path::new("/usr/lib/x86_64-linux-gnu").exists()
    {
        Some(LIBRARY)
    } else {
        LIBRARY_32
    };
    vec![
        ("lib/x86_64-linux-gnu", Some(LIBRARY)),
        ("lib/aarch64-linux-gnu", Some(LIBRARY)),
        ("lib64", Some(LIBRARY)),
        ("$LIB", Some(LIBRARY)),
        ("lib32", LIBRARY_32),
        ("lib/i386-linux-gnu", LIBRARY_32),
        ("lib", plain),
    ]
}

/// Writes the library for every value of `$LIB` below `dir`, each class once and the other names of
/// it as hard links, where the file system has them.
///
/// # Errors
/// Those of mkdir(2), open(2) and rename(2).
pub fn unpack(dir: &Path) -> io::Result<()> {
    let mut written: Vec<(&[u8], PathBuf)> = Vec::new();
    for (folder, bytes) in folders() {
        let Some(bytes) = bytes else { continue };
        let folder = dir.join(folder);
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&folder)?;
        let fresh = folder.join(format!(".{NAME}.{}", std::process::id()));
        let _ = std::fs::remove_file(&fresh);
        let same = written.iter().find(|(other, _)| *other == bytes);
        if same.is_none_or(|(_, file)| std::fs::hard_link(file, &fresh).is_err()) {
            std::fs::write(&fresh, bytes)?;
            std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o755))?;
        }
        std::fs::rename(&fresh, folder.join(NAME))?;
        // A name for the very same file is not renamed over it: the fresh one stays (rename(2)).
        let _ = std::fs::remove_file(&fresh);
        written.push((bytes, folder.join(NAME)));
    }
    Ok(())
}

/// Whether every file below `dir` is the embedded one and cannot be written by others.
fn is_whole(dir: &Path) -> bool {
    // Several names of one file: it is read once.
    let mut read: Vec<(u64, u64, &[u8])> = Vec::new();
    folders().into_iter().all(|(folder, bytes)| {
        let Some(bytes) = bytes else { return true };
        let file = dir.join(folder).join(NAME);
        let Ok(seen) = file.symlink_metadata() else {
            return false;
        };
        let known = (seen.dev(), seen.ino(), bytes);
        if read.contains(&known) {
            return true;
        }
        let whole = seen.is_file()
            && is_trusted(&seen)
            && std::fs::read(&file).is_ok_and(|found| found == bytes);
        read.push(known);
        whole
    })
}

/// Whether only root or we can have written the file.
fn is_trusted(seen: &std::fs::Metadata) -> bool {
    (seen.uid() == 0 || seen.uid() == process::effective_user()) && seen.mode() & 0o022 == 0
}

/// Folders to unpack to, best first.
fn caches() -> Vec<PathBuf> {
    let user = process::effective_user();
    let variable = |name| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let home = || variable("HOME").map(|h| h.join(".cache"));
    let mut all = Vec::new();
    if user == 0 {
        all.push("/var/cache/synclater".into());
    } else {
        all.extend(
            variable("XDG_CACHE_HOME")
                .or_else(home)
                .map(|d| d.join("synclater")),
        );
    }
    all.push(format!("/tmp/synclater-lib-{user}").into());
    all.push(format!("/dev/shm/synclater-lib-{user}").into());
    all
}

/// Whether programs of any user of the session can map a file below `dir`.
fn usable(dir: &Path) -> Result<(), String> {
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir);
    made.map_err(|e| format!("{}: {e}", dir.display()))?;
    let seen = dir
        .symlink_metadata()
        .map_err(|e| format!("{}: {e}", dir.display()))?;
    if let Some(why) = dirs::distrust(&seen) {
        return Err(format!("{}: {why}", dir.display()));
    }
    if mount::forbids_exec(dir) == Some(true) {
        return Err(format!("{}: mounted noexec", dir.display()));
    }
    Ok(())
}

/// The installed library beside the running program: `../lib/synclater`.
fn installed() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    let dir = exe.parent()?.parent()?.join("lib/synclater");
    (is_whole(&dir) && mount::forbids_exec(&dir) != Some(true)).then_some(dir)
}

/// The value for `LD_PRELOAD`, unpacking the library where that is needed.
///
/// # Errors
/// Why no folder would do, one clause each.
pub fn locate() -> Result<PathBuf, String> {
    if let Some(dir) = installed() {
        return Ok(dir.join("$LIB").join(NAME));
    }
    let mut why = Vec::new();
    for cache in caches() {
        let dir = cache.join(CONTENT_NAME);
        match usable(&cache).and_then(|()| {
            if !is_whole(&dir) {
                unpack(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
            }
            Ok(())
        }) {
            Ok(()) => return Ok(dir.join("$LIB").join(NAME)),
            Err(e) => why.push(e),
        }
    }
    Err(why.join("; "))
}
