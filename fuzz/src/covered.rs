//! The targets below libFuzzer, which is guided by what each input reaches in the readers.
//!
//! Usage: `SYNCLATER_FUZZ_TARGET=rules synclater-fuzz-covered CORPUS -max_total_time=60`, further
//! options as libFuzzer has them; `make fuzz` builds it with the instrumentation that it needs.
#![no_main]

use std::sync::OnceLock;
use synclater_fuzz::{targets, Target};

/// The target that the environment names.
fn target() -> &'static Target {
    static TARGET: OnceLock<&'static Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let name = std::env::var("SYNCLATER_FUZZ_TARGET").unwrap_or_default();
        let named = targets::ALL.iter().find(|t| t.name == name);
        named.unwrap_or_else(|| {
            let names: Vec<&str> = targets::ALL.iter().map(|t| t.name).collect();
            panic!(
                "SYNCLATER_FUZZ_TARGET is {name:?}, which is none of {}",
                names.join(", ")
            )
        })
    })
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| (target().run)(input));
