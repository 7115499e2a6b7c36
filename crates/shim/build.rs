//! Compiles the preload library, once for x86-64 (glibc and musl alike) and once for i386, so that
//! the binary can carry both; and both once more with `SL_IO`, for sessions that time other calls
//! too. Relies on gcc (or what `SYNCLATER_CC` names) and binutils only: no 32-bit libc is needed.
//! Without `-m32` the 32-bit libraries are empty, and `synclater doctor` says so.

use std::path::{Path, PathBuf};
use std::process::Command;
use synclater_calls::Machine;

/// The rooms of c/, each of which calls those in front of it (c/core/core.h).
const SOURCES: [&str; 25] = [
    "base/glob.c",
    "core/session.c",
    "core/room.c",
    "core/identity.c",
    "core/count.c",
    "core/real.c",
    "core/decide.c",
    "core/rules.c",
    "core/fsync.c",
    "watch/noted.c",
    "watch/address.c",
    "watch/record.c",
    "watch/ring.c",
    "routes/range.c",
    "routes/memory.c",
    "routes/osync.c",
    "routes/opens.c",
    "routes/writes.c",
    "routes/mounts.c",
    "routes/restrict.c",
    "routes/async.c",
    "routes/uring.c",
    "routes/next.c",
    "entry.c",
    "join.c",
];

/// Keeps the library free of libc: see the head of c/core/core.h for what each flag guards.
const FLAGS: [&str; 17] = [
    "-std=gnu11",
    "-O2",
    "-g0",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-builtin-declaration-mismatch",
    "-ffreestanding",
    "-nostdlib",
    "-fPIC",
    "-shared",
    "-fno-stack-protector",
    "-fno-tree-loop-distribute-patterns",
    "-fvisibility=hidden",
    "-fcf-protection=none",
    "-Wl,-z,defs,-z,relro,-z,now",
    "-Wl,--hash-style=both",
];

/// One of the two libraries: what it has beside the other, and what it exports.
struct Variant {
    name: &'static str,
    soname: &'static str,
    more: &'static [&'static str],
    flags: &'static [&'static str],
}

const VARIANTS: [Variant; 2] = [
    Variant {
        name: "",
        soname: "libsynclater.so",
        more: &[],
        flags: &[],
    },
    Variant {
        name: "-io",
        soname: "libsynclater-io.so",
        more: &["watch/io.c"],
        flags: &["-DSL_IO=1"],
    },
];

/// How a program that was started with the library finds its sessions.
const JOIN: &str = "join.c";

/// What the image for running processes has beside [`SOURCES`], and in the place of [`JOIN`].
const GATE_SOURCES: [&str; 5] = [
    "gate/gate.c",
    "gate/gate_i386.c",
    "gate/boot.c",
    "gate/boot_i386.c",
    "gate/attach.c",
];

/// `SL_VERSION`, as page.h has it.
fn layout_version(dir: &Path) -> u32 {
    let text = std::fs::read_to_string(dir.join("core/page.h")).expect("page.h");
    let mut lines = text.lines();
    let defined = lines.find_map(|l| l.strip_prefix("#define SL_VERSION "));
    let number = defined.map(|l| l.trim().trim_end_matches('u').parse());
    number
        .expect("SL_VERSION in page.h")
        .expect("a number in page.h")
}

/// Writes the numbers of a machine's system calls to `out`/`machine`/numbers.h, and returns what
/// makes the compiler find it.
fn numbers(out: &Path, machine: Machine) -> String {
    let folder = out.join(format!("{machine:?}"));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(
        folder.join("numbers.h"),
        synclater_calls::header(machine, "NR_"),
    )
    .unwrap();
    format!("-I{}", folder.display())
}

/// What makes the compiler find the headers of the rooms.
fn rooms(dir: &Path) -> String {
    format!("-I{}", dir.display())
}

/// Compiles the image for running processes of a class: linked at 0, without a relocation, flat. It
/// may touch no vector register: to the program it is a system call, which changes none.
fn compile_gate(dir: &Path, class: &[&str], image: &Path) -> bool {
    let elf = image.with_extension("elf");
    let shared = [
        "-shared",
        "-Wl,-z,defs,-z,relro,-z,now",
        "-Wl,--hash-style=both",
    ];
    let sources = SOURCES.iter().filter(|s| **s != JOIN);
    let linked = Command::new(compiler())
        .args(FLAGS.iter().filter(|f| !shared.contains(f)))
        .args(class)
        .arg(rooms(dir))
        .args(["-DSL_GATE=1", "-mgeneral-regs-only", "-fno-jump-tables"])
        .args([
            "-ffunction-sections",
            "-fdata-sections",
            "-fno-asynchronous-unwind-tables",
        ])
        .args([
            "-pie",
            "-Wl,--gc-sections,--no-dynamic-linker,-z,text,-z,norelro,--build-id=none",
        ])
        .args([
            "-Wl,--entry=sl_gate,--undefined=sl_there,--undefined=sl_boot",
            "-Wl,--orphan-handling=error",
        ])
        .arg(format!("-Wl,--defsym=sl_version={}", layout_version(dir)))
        .arg("-Wl,-T")
        .arg(dir.join("gate/gate.ld"))
        .arg("-o")
        .arg(&elf)
        .args(sources.chain(&GATE_SOURCES).map(|s| dir.join(s)))
        .status();
    linked.is_ok_and(|s| s.success())
        && Command::new("objcopy")
            .args(["-O", "binary"])
            .args([&elf, image])
            .status()
            .is_ok_and(|s| s.success())
}

/// The version script of a variant, written beside the libraries.
fn exports(dir: &Path, out: &Path, variant: &Variant) -> PathBuf {
    let mut map = std::fs::read_to_string(dir.join("exports.map")).unwrap();
    if !variant.more.is_empty() {
        let names = std::fs::read_to_string(dir.join("exports-io.map")).unwrap();
        map = map.replace("local:", &format!("{names}local:"));
    }
    let path = out.join(format!("exports{}.map", variant.name));
    std::fs::write(&path, map).unwrap();
    path
}

fn compile(dir: &Path, out: &Path, file: &Path, class: &[&str], variant: &Variant) -> bool {
    let exports = exports(dir, out, variant);
    Command::new(compiler())
        .args(class)
        .arg(rooms(dir))
        .args(FLAGS)
        .args(variant.flags)
        .arg(format!("-Wl,-soname,{}", variant.soname))
        .arg(format!("-Wl,--version-script={}", exports.display()))
        .arg("-o")
        .arg(file)
        .args(SOURCES.iter().chain(variant.more).map(|s| dir.join(s)))
        .status()
        .is_ok_and(|s| s.success())
}

fn main() {
    let dir = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("c");
    let out = PathBuf::from(std::env::var("OUT_DIR").unwrap());
    println!("cargo:rerun-if-changed=c");
    println!("cargo:rerun-if-env-changed=SYNCLATER_CC");
    let (machine, flag) = match std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => (Machine::X86_64, "-m64"),
        Ok("aarch64") => (Machine::Aarch64, "-mno-outline-atomics"),
        arch => panic!("synclater's preload library has no system-call layer for {arch:?}"),
    };
    let is_x86 = machine == Machine::X86_64;
    let (numbers, numbers32) = (numbers(&out, machine), numbers(&out, Machine::I386));
    let native = [flag, &numbers];
    let class32 = ["-m32", "-march=i686", &numbers32];
    let has32 = is_x86 && can_compile(&out, &class32);
    if !has32 {
        println!("cargo:warning=no 32-bit preload library: gcc -m32 does not work here");
    }
    let mut files = Vec::new();
    for variant in &VARIANTS {
        let file = out.join(format!("native{}.so", variant.name));
        assert!(
            compile(&dir, &out, &file, &native, variant),
            "the preload library did not compile: is gcc installed?"
        );
        let small = out.join(format!("small{}.so", variant.name));
        if has32 {
            assert!(
                compile(&dir, &out, &small, &class32, variant),
                "the 32-bit library does not compile"
            );
        } else {
            std::fs::write(&small, b"").unwrap();
        }
        files.extend([file, small]);
    }
    let gate = out.join("gate.bin");
    let gate32 = out.join("gate32.bin");
    // It aligns no stack by 16: nothing in it asks for that.
    let tight = [&class32[..], &["-mpreferred-stack-boundary=2"]].concat();
    let tight64 = [&native[..], &["-mpreferred-stack-boundary=3"]].concat();
    let gates = [(&gate, is_x86, &tight64[..]), (&gate32, has32, &tight[..])];
    for (image, is_made, class) in gates {
        if is_made {
            assert!(
                compile_gate(&dir, class, image),
                "an image for running processes does not compile: are gcc and objcopy installed?"
            );
        } else {
            std::fs::write(image, b"").unwrap();
        }
    }
    println!("cargo:rustc-env=SYNCLATER_SHIM_NAME={:016x}", hash(&files));
}

/// FNV-1a over the files: tells versions apart, no more.
fn hash(files: &[PathBuf]) -> u64 {
    let bytes = files.iter().flat_map(|f| std::fs::read(f).unwrap());
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Whether the compiler makes libraries of this class at all.
fn can_compile(out: &Path, class: &[&str]) -> bool {
    let empty = out.join("empty.c");
    std::fs::write(&empty, b"").unwrap();
    Command::new(compiler())
        .args(class)
        .args(["-nostdlib", "-shared", "-o"])
        .arg(out.join("empty.so"))
        .arg(empty)
        .status()
        .is_ok_and(|s| s.success())
}

fn compiler() -> String {
    std::env::var("SYNCLATER_CC").unwrap_or_else(|_| "gcc".into())
}
