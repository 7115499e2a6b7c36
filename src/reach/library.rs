//! The preload library on disk: the installed one, or the embedded one unpacked to a folder that
//! allows execution.
//!
//! Promise: a file that is used is ours (owner, mode) and byte for byte the embedded one. The path
//! has `$LIB` in it: glibc's ld.so puts the class's folder there, so that 64- and 32-bit programs
//! each find theirs without a word; musl takes `$LIB` literally, and finds a folder of that name.
//! There are two libraries, side by side: one that times other calls too ([`Variant::Io`]), so that
//! ordinary sessions have nothing of it.

use crate::session::dirs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use synclater_shim::{CONTENT_NAME, LIBRARY, LIBRARY_32, LIBRARY_IO, LIBRARY_IO_32, NAMES};
use synclater_sys::{mount, process};

/// Which of the two libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Sync requests only.
    Ordinary,
    /// Reads, writes, opens, renames and closes as well.
    Io,
}

const VARIANTS: [Variant; 2] = [Variant::Ordinary, Variant::Io];

impl Variant {
    /// Its file's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES[usize::from(self == Variant::Io)]
    }

    /// What is in it, for this machine's programs or for 32-bit ones.
    fn bytes(self, is_native: bool) -> Option<&'static [u8]> {
        if is_native {
            Some(self.native())
        } else {
            self.small()
        }
    }

    fn native(self) -> &'static [u8] {
        match self {
            Variant::Ordinary => LIBRARY,
            Variant::Io => LIBRARY_IO,
        }
    }

    fn small(self) -> Option<&'static [u8]> {
        match self {
            Variant::Ordinary => LIBRARY_32,
            Variant::Io => LIBRARY_IO_32,
        }
    }
}

/// Files of a library that ld.so may find, below a folder: those in each folder that it may put in
/// the place of `$LIB`, with what is in them.
fn files(variant: Variant) -> Vec<(PathBuf, &'static [u8])> {
    // Where 32-bit libraries have lib32 and 64-bit ones plain lib (Arch), lib is 64-bit.
    let plain_is_64 = Path::new("/usr/lib32/ld-linux.so.2").exists()
        && !Path::new("/usr/lib/x86_64-linux-gnu").exists();
    let folders = [
        ("lib/x86_64-linux-gnu", true),
        ("lib/aarch64-linux-gnu", true),
        ("lib64", true),
        ("$LIB", true),
        ("lib32", false),
        ("lib/i386-linux-gnu", false),
        ("lib", plain_is_64),
    ];
    folders
        .into_iter()
        .filter_map(|(folder, is_native)| {
            let bytes = variant.bytes(is_native)?;
            Some((Path::new(folder).join(variant.name()), bytes))
        })
        .collect()
}

/// Writes the libraries for every value of `$LIB` below `dir`, each class once and its other names
/// as hard links, where the file system has them.
///
/// # Errors
/// Those of mkdir(2), open(2) and rename(2).
pub fn unpack(dir: &Path) -> io::Result<()> {
    let mut written: Vec<(&[u8], PathBuf)> = Vec::new();
    for (file, bytes) in VARIANTS.into_iter().flat_map(files) {
        let file = dir.join(file);
        let folder = file.parent().unwrap_or(dir);
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(folder)?;
        let fresh = folder.join(format!(".fresh.{}", std::process::id()));
        let _ = std::fs::remove_file(&fresh);
        let same = written.iter().find(|(other, _)| *other == bytes);
        if same.is_none_or(|(_, file)| std::fs::hard_link(file, &fresh).is_err()) {
            std::fs::write(&fresh, bytes)?;
            std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o755))?;
        }
        std::fs::rename(&fresh, &file)?;
        // A name for the very same file is not renamed over it: the fresh one stays (rename(2)).
        let _ = std::fs::remove_file(&fresh);
        written.push((bytes, file));
    }
    Ok(())
}

/// Whether every file of a library below `dir` is the embedded one and cannot be written by others.
fn is_whole(dir: &Path, variant: Variant) -> bool {
    // Several names of one file: it is read once.
    let mut read: Vec<(u64, u64, &[u8])> = Vec::new();
    files(variant).into_iter().all(|(file, bytes)| {
        let file = dir.join(file);
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

/// Folders of ours to unpack to, best first: none that anybody may make again once it is gone
/// (cleaned up, a reboot). What outlived a session goes on naming the library there, and ld.so
/// tells the name on that program's standard error.
fn caches() -> Vec<PathBuf> {
    let named = variable("XDG_CACHE_HOME").map(|d| d.join("synclater"));
    if process::effective_user() == 0 {
        let of_root = [
            "/var/cache/synclater",
            "/var/lib/synclater-lib",
            "/run/synclater-lib",
        ];
        // A home of root's is closed to the other users of a session; of what is named that is
        // known. A container may have nothing else, and root of a user namespace.
        return of_root
            .map(PathBuf::from)
            .into_iter()
            .chain(named)
            .collect();
    }
    let run = variable("XDG_RUNTIME_DIR").map(|d| d.join("synclater-lib"));
    named
        .or_else(|| variable("HOME").map(|h| h.join(".cache/synclater")))
        .into_iter()
        .chain(run)
        .collect()
}

/// The path that a variable of our environment has.
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|v| !v.is_empty())
        .map(PathBuf::from)
}

/// The folder `dir`, made where it is missing: programs of any user of the session can map a file
/// below it.
fn usable(dir: &Path) -> Result<PathBuf, String> {
    if dir.is_relative() {
        return Err(at(dir, &"not an absolute path"));
    }
    // Nothing is made where somebody else leads us to.
    if let Some(there) = dir.ancestors().find(|above| above.exists()) {
        safe(there)?;
    }
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir);
    made.map_err(|e| at(dir, &e))?;
    let seen = dir.symlink_metadata().map_err(|e| at(dir, &e))?;
    if let Some(why) = dirs::distrust(&seen) {
        return Err(at(dir, &why));
    }
    let real = safe(dir)?;
    if mount::forbids_exec(&real) == Some(true) {
        return Err(at(dir, &"mounted noexec"));
    }
    Ok(real)
}

/// Why a folder is not used, behind its path.
fn at(path: &Path, why: &dyn std::fmt::Display) -> String {
    format!("{}: {why}", path.display())
}

/// The same folder by a path without links, where nobody else can put another one: what is there
/// now is not all, since programs are executed as long as the session lasts, and behind it.
fn safe(dir: &Path) -> Result<PathBuf, String> {
    use std::os::unix::ffi::OsStrExt;
    let real = dir.canonicalize().map_err(|e| at(dir, &e))?;
    // ld.so(8): what stands between two names, and what begins one of its own.
    let bytes = real.as_os_str().as_bytes();
    if bytes.iter().any(|b| b" :$".contains(b)) {
        return Err(at(
            &real,
            &"LD_PRELOAD holds no name with a blank, a colon or a $",
        ));
    }
    for above in real.ancestors() {
        let seen = above.metadata().map_err(|e| at(above, &e))?;
        if let Some(why) = dirs::distrust_above(&seen) {
            return Err(at(above, &why));
        }
    }
    Ok(real)
}

/// The installed library beside the running program: `../lib/synclater`.
fn installed(variant: Variant) -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    let dir = safe(&exe.parent()?.parent()?.join("lib/synclater")).ok()?;
    (is_whole(&dir, variant) && mount::forbids_exec(&dir) != Some(true)).then_some(dir)
}

/// The value for `LD_PRELOAD`, unpacking the libraries where that is needed.
///
/// # Errors
/// Why no folder would do, one clause each.
pub fn locate(variant: Variant) -> Result<PathBuf, String> {
    if let Some(dir) = installed(variant) {
        return Ok(dir.join("$LIB").join(variant.name()));
    }
    let mut why = Vec::new();
    for cache in caches() {
        match unpacked_in(&cache, variant) {
            Ok(dir) => return Ok(dir.join("$LIB").join(variant.name())),
            Err(e) => why.push(e),
        }
    }
    if why.is_empty() {
        why.push("XDG_CACHE_HOME, HOME and XDG_RUNTIME_DIR name no folder".into());
    }
    Err(why.join("; "))
}

/// The folder of the libraries in `cache`, unpacked where that is needed.
fn unpacked_in(cache: &Path, variant: Variant) -> Result<PathBuf, String> {
    let dir = usable(cache)?.join(CONTENT_NAME);
    if !is_whole(&dir, variant) {
        unpack(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    Ok(dir)
}
