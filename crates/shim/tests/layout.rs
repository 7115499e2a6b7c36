//! The page's two descriptions, the headers and their mirrors, lay every field at the same place,
//! for both word sizes; and the library is what the head of c/core/core.h promises: no libc, its
//! exports only.

use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;
use synclater_shim::page::{Fs, Name, Page, Rule, Shard, Slot, Slots};
use synclater_shim::rings::{Hist, HistShard, Ring, Rings};

macro_rules! rows {
    ($($t:ident $c:literal { $($f:ident $n:literal),* $(,)? })*) => {{
        let [dsync, sync] = synclater_shim::page::MARKS;
        let mut rows = vec![
            format!("SL_VERSION 0 {}", synclater_shim::page::VERSION),
            format!("marks {dsync} {sync}"),
        ];
        $($(rows.push({
            fn size<T>(_: impl Fn(&$t) -> &T) -> usize { size_of::<T>() }
            format!("{}.{} {} {}", $c, $n, offset_of!($t, $f), size(|x: &$t| &x.$f))
        });)*)*
        rows
    }};
}

fn mirror() -> Vec<String> {
    rows! {
        Fs "sl_fs" { state "state", held "held", dev "dev" }
        Name "sl_name" { dev "dev", mount "mount", fs "fs", turn "turn" }
        Rule "sl_rule" { exe "exe", path "path", users "users", user_count "user_count",
            class "class_" }
        Page "sl_page" { magic "magic", version "version", size "size", lease_until "lease_until",
            lease_span "lease_span", clock "clock", relax "relax", error "error", several "several",
            now_mask "now_mask", rule_count "rule_count",
            record "record", rules_at "rules_at",
            ring_cells "ring_cells",
            rule_needs "rule_needs", slots_size "slots_size", filters "filters",
            sync_ok "sync_ok", socket "socket",
            fs "fs", names "names", slow "slow", scale "scale", net "net",
            told "told", heard "heard" }
        Shard "sl_shard" { requests "requests", real "real", failed "failed", hints "hints",
            ticks "ticks", hints_real "hints_real", timed "timed", elsewhere "elsewhere" }
        Slot "sl_slot" { pid "pid", flags "flags", pid_ns "pid_ns", ask_dev "ask_dev",
            umount_dev "umount_dev", umount_mount "umount_mount", ask_fd "ask_fd",
            umount "umount", uid "uid", lost "lost",
            kept "kept", shard "shard" }
        Slots "sl_slots" { magic "magic", version "version", size "size", doorbell "doorbell",
            stripped "stripped", want_sync "want_sync", owed "owed", debt "debt",
            fs_requests "fs_requests", in_memory "in_memory", took "took", slot "slot",
            tsyncs "tsyncs" }
        Ring "sl_ring" { pid "pid", backed "backed", pid_ns "pid_ns", head "head", lost "lost",
            tail "tail" }
        Rings "sl_rings" { magic "magic", version "version", count "count",
            bell "bell", ring "ring" }
        HistShard "sl_hist_shard" { count "count" }
        Hist "sl_hist" { shard "shard" }
    }
}

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn witness(class: &str) -> Vec<String> {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("witness{class}"));
    let built = Command::new("gcc")
        .args([class, "-Wall", "-Werror", "-I"])
        .arg(here().join("c"))
        .arg("-o")
        .arg(&program)
        .arg(here().join("tests/witness.c"))
        .status()
        .expect("gcc");
    assert!(built.success(), "the witness does not compile with {class}");
    let out = Command::new(&program).output().expect("witness");
    String::from_utf8(out.stdout)
        .unwrap()
        .lines()
        .map(String::from)
        .collect()
}

#[test]
fn the_64_bit_header_and_the_mirror_agree_on_every_field() {
    assert_eq!(witness("-m64"), mirror());
}

#[test]
fn the_32_bit_header_and_the_mirror_agree_on_every_field() {
    assert_eq!(witness("-m32"), mirror());
}

fn nm(library: &[u8], what: &str) -> Vec<String> {
    // A name of its own: tests run side by side.
    let file = format!("nm{what}-{}", library.len());
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
    std::fs::write(&file, library).unwrap();
    let out = Command::new("nm")
        .args(["-D", what])
        .arg(&file)
        .output()
        .expect("nm");
    let mut names: Vec<String> = String::from_utf8(out.stdout)
        .unwrap()
        .lines()
        .map(|l| {
            l.split_whitespace()
                .skip_while(|w| w.len() != 1)
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    names.sort();
    names
}

/// The libraries of both classes: those that time other calls too where `io` is set.
fn libraries(io: bool) -> [&'static [u8]; 2] {
    let (native, small) = if io {
        (synclater_shim::LIBRARY_IO, synclater_shim::LIBRARY_IO_32)
    } else {
        (synclater_shim::LIBRARY, synclater_shim::LIBRARY_32)
    };
    [native, small.expect("a 32-bit library")]
}

#[test]
fn the_library_takes_nothing_from_a_libc_but_weak_names() {
    let allowed = [
        "__errno_location",
        "__libc_single_threaded",
        "aio_read",
        "aio_suspend",
        "dl_iterate_phdr",
        "dladdr",
        "dlclose",
        "dlerror",
        "dlopen",
        "dlsym",
        "environ",
        "gnu_get_libc_version",
        "pthread_setcancelstate",
        "pthread_setcanceltype",
        "pthread_testcancel",
    ];
    for (io, more) in [(false, &[][..]), (true, &["__chk_fail"])] {
        for library in libraries(io) {
            for name in nm(library, "--undefined-only") {
                let Some(weak) = name.strip_prefix("w ") else {
                    panic!("not weak: {name}")
                };
                let may = allowed.contains(&weak) || more.contains(&weak);
                assert!(may, "the library asks for {weak}");
            }
        }
    }
}

fn names_in(text: &str) -> Vec<String> {
    text.split(';')
        .map(|s| format!("T {}", s.trim()))
        .filter(|s| s != "T ")
        .collect()
}

#[test]
fn the_library_exports_what_its_map_says_and_nothing_else() {
    let read = |name: &str| std::fs::read_to_string(here().join("c").join(name)).unwrap();
    let map = read("exports.map");
    let global = map.split("global:").nth(1).unwrap();
    let ordinary = names_in(global.split("local:").next().unwrap());
    let timed = names_in(&read("exports-io.map"));
    assert!(timed.len() > 10 && timed.iter().all(|n| !ordinary.contains(n)));
    for (io, more) in [(false, &[][..]), (true, &timed)] {
        let mut want = [&ordinary, more].concat();
        want.sort();
        for library in libraries(io) {
            assert_eq!(nm(library, "--defined-only"), want);
        }
    }
}

#[test]
fn each_library_bears_its_own_name() {
    for (io, name) in [false, true].into_iter().zip(synclater_shim::NAMES) {
        for (class, library) in libraries(io).into_iter().enumerate() {
            let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("soname-{class}-{io}"));
            std::fs::write(&file, library).unwrap();
            let out = Command::new("readelf").arg("-d").arg(&file).output();
            let text = String::from_utf8(out.expect("readelf").stdout).unwrap();
            let soname = text.lines().find(|l| l.contains("SONAME"));
            let ends = soname.is_some_and(|l| l.ends_with(&format!("[{name}]")));
            assert!(ends, "{name}: {soname:?}");
        }
    }
}
