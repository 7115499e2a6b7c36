//! Compiles the trace programs with clang, where the feature `bpf` asks for them. Without clang the
//! crate still builds, and [`Engine::open`] says what was missing.

use std::path::{Path, PathBuf};
use std::process::Command;
use synclater_calls::{header, Machine};

const SOURCE: &str = "c/trace.bpf.c";

fn main() {
    println!("cargo:rerun-if-changed=c");
    println!("cargo:rerun-if-env-changed=SYNCLATER_CLANG");
    println!("cargo:rustc-check-cfg=cfg(engine)");
    let missing = match compile() {
        Ok(()) => {
            println!("cargo:rustc-cfg=engine");
            String::new()
        }
        Err(why) => why,
    };
    println!("cargo:rustc-env=SYNCLATER_BPF_MISSING={missing}");
}

fn compile() -> Result<(), String> {
    if std::env::var_os("CARGO_FEATURE_BPF").is_none() {
        return Err("the feature `bpf` was left out when it was built".into());
    }
    let (machine, calls) = match std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => ("x86", Machine::X86_64),
        Ok("aarch64") => ("arm64", Machine::Aarch64),
        _ => return Err("there are no trace programs for this machine's processor".into()),
    };
    let headers = std::env::var("DEP_BPF_INCLUDE").map_err(|_| "libbpf's headers are missing")?;
    let folder = PathBuf::from(std::env::var("OUT_DIR").unwrap());
    let numbers = [header(calls, "NR_"), header(Machine::I386, "NR32_")].concat();
    std::fs::write(folder.join("numbers.h"), numbers).unwrap();
    let out = folder.join("trace.o");
    let clang = std::env::var("SYNCLATER_CLANG").unwrap_or_else(|_| "clang".into());
    if Command::new(&clang).arg("--version").output().is_err() {
        println!("cargo:warning=no clang: `record --system` will not be there");
        return Err("clang was missing when it was built".into());
    }
    assert!(
        run(&clang, machine, &headers, &out),
        "the trace programs did not compile"
    );
    strip(&out);
    Ok(())
}

fn run(clang: &str, machine: &str, headers: &str, out: &Path) -> bool {
    Command::new(clang)
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g"])
        .args(["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"])
        .args(["-Wno-unused-function", "-fno-ident"])
        .arg(format!("-D__TARGET_ARCH_{machine}"))
        .arg(format!("-I{headers}"))
        .arg(format!("-I{}", out.parent().unwrap().display()))
        .args(["-c", SOURCE, "-o"])
        .arg(out)
        .status()
        .is_ok_and(|s| s.success())
}

/// Takes out what only a debugger reads, where LLVM's tool for it is installed; the types that the
/// loader needs stay.
fn strip(object: &Path) {
    let names = [
        "llvm-strip",
        "llvm-strip-19",
        "llvm-strip-16",
        "llvm-strip-14",
    ];
    let mut strips = names
        .iter()
        .map(|name| Command::new(name).arg("-g").arg(object).status());
    let _ = strips.any(|status| status.is_ok_and(|s| s.success()));
}
