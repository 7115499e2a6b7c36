//! What this machine and this run allow: root, large counts, tests that have to be skipped.

use super::backend::{Backend, Scene};
use super::command::run;
use std::io::Write;
use std::sync::OnceLock;

/// Notes that a test cannot run here. It is counted and printed at the end of `make test`.
pub fn skip(name: &str, reason: &str) {
    let line = format!("SKIPPED {name}: {reason}\n");
    print!("{line}");
    let Some(log) = std::env::var_os("SYNCLATER_SKIP_LOG") else {
        return;
    };
    let file = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(log);
    file.and_then(|mut f| f.write_all(line.as_bytes()))
        .expect("SYNCLATER_SKIP_LOG can be written");
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// True when the test may go on; otherwise the skip is noted.
pub fn needs_root(name: &str) -> bool {
    if !is_root() {
        skip(name, "mounting a file system needs root");
    }
    is_root()
}

/// A test's size: the full one where `make soak` asks for it.
pub fn count(small: usize, full: usize) -> usize {
    if std::env::var_os("SYNCLATER_SOAK").is_some() {
        full
    } else {
        small
    }
}

/// True when the test may go on; otherwise the skip is noted: the kernel is too old to be asked by,
/// or a filter around us asks somebody already.
pub fn needs_net(name: &str) -> bool {
    static REFUSED: OnceLock<Option<String>> = OnceLock::new();
    let why = REFUSED.get_or_init(|| {
        let scene = Scene::new("needs-net");
        let outcome = run(scene.command(Backend::Net("now")).arg("true"));
        (!outcome.status.success()).then(|| outcome.stderr.lines().collect::<Vec<_>>().join(" "))
    });
    why.iter().for_each(|why| skip(name, why));
    why.is_none()
}

/// The seed of a random test: SYNCLATER_SEED, or the clock. Every failure message must hold it.
pub fn seed() -> u64 {
    let given = std::env::var("SYNCLATER_SEED").ok();
    let given = given.map(|s| s.parse().expect("SYNCLATER_SEED is a number"));
    given.unwrap_or_else(|| {
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        clock.map_or(1, |d| d.subsec_nanos().into())
    })
}

/// A pseudo-random number below `n`; moves `state` on.
pub fn below(state: &mut u64, n: u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % n
}
