//! Compiles the programs in `tests/victims`, each in up to four classes.

use super::command::{clean, run};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

/// What kind of program a victim is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// glibc, x86-64.
    Native,
    /// glibc, i386.
    Small,
    /// musl, x86-64.
    Musl,
    /// glibc, i386, static: no library reaches it.
    SmallStatic,
}

pub const CLASSES: [Class; 3] = [Class::Native, Class::Small, Class::Musl];

/// What 32-bit programs are compiled with. gcc's multilib has no `asm/` headers of its own; the
/// 64-bit ones serve both.
pub const SMALL: &[&str] = &["-m32", "-idirafter", "/usr/include/x86_64-linux-gnu"];

const SMALL_STATIC: &[&str] = &[SMALL[0], SMALL[1], SMALL[2], "-static"];

/// The warnings left out are about the wrong arguments that victims pass on purpose.
const FLAGS: &[&str] = &[
    "-std=gnu11",
    "-O2",
    "-g",
    "-D_GNU_SOURCE",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-function",
    "-Wno-unused-result",
    "-Wno-nonnull",
    "-Wno-stringop-overflow",
];

impl Class {
    fn name(self) -> &'static str {
        match self {
            Class::Native => "64",
            Class::Small => "32",
            Class::Musl => "musl",
            Class::SmallStatic => "32-static",
        }
    }

    fn compiler(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Class::Native => ("gcc", &["-m64"]),
            Class::Small => ("gcc", SMALL),
            Class::Musl => ("musl-gcc", &[]),
            Class::SmallStatic => ("gcc", SMALL_STATIC),
        }
    }

    /// There is a libaio and a liburing for the native class only.
    fn has_libaio_and_liburing(self) -> bool {
        self == Class::Native
    }
}

pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/victims")
}

/// The compiled victim; compiled when it is missing or older than any source.
///
/// # Panics
/// If it does not compile.
pub fn victim(name: &str, class: Class) -> PathBuf {
    static COMPILING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = COMPILING.lock().unwrap_or_else(|e| e.into_inner());
    let into = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("victims")
        .join(class.name());
    std::fs::create_dir_all(&into).expect("a directory for the victims");
    let program = into.join(name);
    if modified(&program) < newest_source() {
        compile(&directory().join(format!("{name}.c")), &program, class);
    }
    program
}

fn compile(source: &Path, program: &Path, class: Class) {
    let (compiler, machine) = class.compiler();
    let fresh = program.with_extension("new");
    let mut command = clean(compiler);
    command
        .args(machine)
        .args(FLAGS)
        .arg("-o")
        .arg(&fresh)
        .arg(source);
    let name = program.file_name().expect("a name").to_string_lossy();
    if class.has_libaio_and_liburing() && name.starts_with("io_submit_") {
        command.args(["-DVICTIM_HAS_LIBAIO", "-laio"]);
    }
    if class.has_libaio_and_liburing() && name.starts_with("io_uring") {
        command.args(["-DVICTIM_HAS_LIBURING", "-luring"]);
    }
    run(&mut command).must_succeed();
    std::fs::rename(&fresh, program).expect("rename");
}

/// A program in `tests/tools`, compiled for this machine.
///
/// # Panics
/// If it does not compile.
pub fn tool(name: &str) -> PathBuf {
    static COMPILED: Mutex<()> = Mutex::new(());
    let _one_at_a_time = COMPILED.lock().unwrap_or_else(|e| e.into_inner());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = root.join("tests/tools").join(format!("{name}.c"));
    let shim = root.join("crates/shim/c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let sources = [
        &source,
        &shim.join("base/glob.c"),
        &shim.join("core/page.h"),
    ];
    if sources.iter().any(|s| modified(&program) < modified(s)) {
        let fresh = program.with_extension("new");
        let mut command = clean("gcc");
        command
            .args(FLAGS)
            .arg("-I")
            .arg(&shim)
            .arg("-o")
            .arg(&fresh)
            .arg(&source);
        if name == "glob_lines" {
            command.arg(shim.join("base/glob.c"));
        }
        if name == "slowfiles" {
            let mut flags = clean("pkg-config");
            let flags = run(flags.args(["--cflags", "--libs", "fuse3"])).must_succeed();
            command.args(flags.stdout.split_whitespace());
        }
        run(&mut command).must_succeed();
        std::fs::rename(&fresh, &program).expect("rename");
    }
    program
}

fn modified(path: &Path) -> SystemTime {
    let time = std::fs::metadata(path).and_then(|m| m.modified());
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

fn newest_source() -> SystemTime {
    let files = std::fs::read_dir(directory()).expect("tests/victims");
    let times = files.map(|entry| modified(&entry.expect("entry").path()));
    times.max().expect("a victim")
}
