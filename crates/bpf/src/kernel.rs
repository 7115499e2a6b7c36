//! What this kernel is like: privileges, types, processes; and what the loader says.

use crate::Error;
use libbpf_rs::btf::types::{Enum, FuncProto, Ptr, Typedef};
use libbpf_rs::btf::{Btf, ReferencesType};
use libbpf_rs::PrintLevel;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use synclater_proc::status::Status;
use synclater_sys::lock::lock;
use synclater_sys::process;

const TYPES: &str = "/sys/kernel/btf/vmlinux";
/// Of the loader's complaints, the latest.
const WORDS_MAX: usize = 600;

static WORDS: Mutex<String> = Mutex::new(String::new());

/// Keeps what the loader complains of, instead of letting it write to stderr.
pub(crate) fn listen() {
    fn keep(_: PrintLevel, text: String) {
        let mut words = lock(&WORDS);
        words.push_str(&text);
        let over = words.len().saturating_sub(WORDS_MAX);
        let from = (over..=words.len()).find(|at| words.is_char_boundary(*at));
        words.drain(..from.unwrap_or(0));
    }
    lock(&WORDS).clear();
    libbpf_rs::set_print(Some((PrintLevel::Warn, keep)));
}

/// What the loader complained of since `listen`, on one line.
pub(crate) fn last_words() -> String {
    let words = lock(&WORDS);
    let lines: Vec<&str> = words.split(['\n', '\t']).map(str::trim).collect();
    lines.join(" ").trim().to_owned()
}

/// What differs from kernel to kernel, as its types tell.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    /// io_uring hands over its request at submission, and at completion.
    submits_requests: bool,
    completes_requests: bool,
    pub(crate) completion_by_pointer: bool,
    /// 0: not known.
    pub(crate) dirty_pages_bit: u32,
}

impl Kernel {
    pub(crate) fn look() -> Result<Kernel, Error> {
        let btf = Btf::from_vmlinux().map_err(|e| refused("reading its types", &e))?;
        // Each has one parameter of the tracer's own before those of the trace point.
        let submit = trace_point(&btf, "io_uring_submit_req");
        let complete = trace_point(&btf, "io_uring_complete");
        let last_bit = btf.type_by_kind::<Enum<'_>>().find_map(|e| {
            let mut members = e.iter();
            let found = members.find(|m| m.name.is_some_and(|n| n == "___GFP_LAST_BIT"));
            found.map(|m| m.value)
        });
        Ok(Kernel {
            submits_requests: submit == Some(2),
            completes_requests: complete.is_some_and(|n| n >= 4),
            completion_by_pointer: complete == Some(4),
            // The marks of an xarray lie behind the bits that say how to allocate.
            dirty_pages_bit: last_bit
                .and_then(|bit| u32::try_from(bit).ok())
                .and_then(|bit| 1u32.checked_shl(bit))
                .filter(|bit| *bit <= 1 << 30)
                .unwrap_or(0),
        })
    }

    pub(crate) fn follows_uring(&self) -> bool {
        self.submits_requests && self.completes_requests
    }
}

/// The parameters of a trace point; `None` where there is no such one.
fn trace_point(btf: &Btf<'_>, name: &str) -> Option<usize> {
    let point: Typedef<'_> = btf.type_by_name(&format!("btf_trace_{name}"))?;
    let pointer = Ptr::try_from(point.referenced_type()).ok()?;
    let function = FuncProto::try_from(pointer.referenced_type()).ok()?;
    Some(function.len())
}

/// Whether this process may, and the kernel can.
pub(crate) fn check() -> Result<(), Error> {
    const CAPABILITIES: [(&str, u32); 2] = [("CAP_PERFMON", 38), ("CAP_BPF", 39)];
    const ADMIN: u32 = 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = Status::parse(status).set("CapEff").unwrap_or(u64::MAX);
    let missing: Vec<&str> = CAPABILITIES
        .iter()
        .filter(|(_, bit)| effective & (1 << *bit | 1 << ADMIN) == 0)
        .map(|(name, _)| *name)
        .collect();
    if !missing.is_empty() {
        return Err(Error::NotPermitted(missing.join(" and ")));
    }
    if !Path::new(TYPES).exists() {
        return Err(Error::NoTypes);
    }
    Ok(())
}

/// Every process with its parent.
pub(crate) fn parents() -> BTreeMap<u32, u32> {
    let all = process::all();
    all.filter_map(|pid| Some((pid, process::parent_of(pid)?)))
        .collect()
}

/// That the kernel refused something, with the last words that it had for it.
pub(crate) fn refused(what: &str, e: &dyn std::fmt::Display) -> Error {
    let why = match last_words() {
        words if words.is_empty() => e.to_string(),
        words => format!("{e}: {words}"),
    };
    Error::Kernel {
        what: what.into(),
        why,
    }
}
