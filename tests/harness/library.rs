//! The preload library, laid out as `ld.so` and musl look for it: `DIR/$LIB/libsynclater.so`.
//!
//! glibc puts the class's own directory in the place of `$LIB`; musl expands nothing and finds a
//! directory that is really called `$LIB`.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use synclater_shim::{LIBRARY, LIBRARY_32};

const FOR_64: [&str; 3] = ["lib/x86_64-linux-gnu", "lib64", "$LIB"];
const FOR_32: [&str; 3] = ["lib/i386-linux-gnu", "lib32", "lib"];

/// The value for LD_PRELOAD that loads the library into programs of every class.
///
/// # Panics
/// If the 32-bit library was not built: then 32-bit programs would go untested.
pub fn preload() -> String {
    static TREE: OnceLock<PathBuf> = OnceLock::new();
    let tree = TREE.get_or_init(lay_out);
    format!("{}/$LIB/libsynclater.so", tree.display())
}

fn lay_out() -> PathBuf {
    let tree = Path::new(env!("CARGO_TARGET_TMPDIR")).join("library");
    let small = LIBRARY_32.expect("gcc -m32 works where the tests run");
    let native = FOR_64.map(|at| (at, LIBRARY));
    for (at, bytes) in native.into_iter().chain(FOR_32.map(|at| (at, small))) {
        let dir = tree.join(at);
        std::fs::create_dir_all(&dir).expect("a directory for the library");
        let fresh = dir.join("fresh");
        std::fs::write(&fresh, bytes).expect("the library can be written");
        std::fs::rename(fresh, dir.join("libsynclater.so")).expect("rename");
    }
    tree
}
