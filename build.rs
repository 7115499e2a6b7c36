//! Compiles the writer that `synclater crash` brings with it: an ordinary dynamic program, since
//! what is to be shown with it is a program whose syncs can be put off.

use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = "src/crash/writer/prefix.c";

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-env-changed=SYNCLATER_CC");
    let file = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("prefix");
    let compiler = std::env::var("SYNCLATER_CC").unwrap_or_else(|_| "gcc".to_owned());
    let made = Command::new(&compiler)
        .args([
            "-std=gnu11",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-s",
            "-o",
        ])
        .arg(&file)
        .arg(SOURCE)
        .status();
    assert!(
        matches!(made, Ok(status) if status.success()),
        "{compiler} cannot compile {SOURCE}: install gcc and libc6-dev"
    );
}
