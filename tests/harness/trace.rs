//! What a command asks of the kernel, by strace, and which of it makes the disk work.
//!
//! A call counts when it succeeded and its kind makes I/O: what failed has written nothing, and
//! the checks of arguments (sync_file_range with flags 0, or at an offset that no file has; msync
//! with MS_ASYNC) write nothing.
//!
//! What it cannot do: descriptors are followed by process, through open, dup, fork and close, not
//! through SCM_RIGHTS or exec with close-on-exec (a closed number is simply used again).

use super::backend::{Backend, Scene};
use super::command::{run, Outcome};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

/// `?` lets strace pass over names that a machine lacks.
const TRACED: &str = "trace=?fsync,?fdatasync,?sync,?syncfs,?msync,?sync_file_range,?open,?openat,\
    ?openat2,?open_by_handle_at,?dup,?dup2,?dup3,?close,?fcntl,?fcntl64,?fork,?vfork,?clone,\
    ?clone3,?write,?writev,?pwrite64,?pwritev,?pwritev2,?sendfile,?sendfile64,?splice,\
    ?copy_file_range,?io_submit,?io_uring_enter,?mmap,?mmap2";

/// An offset that no file has: what is asked there waits for nothing.
const FAR: &str = "9223372036854771712";

/// One system call that has come back.
#[derive(Debug, Clone)]
pub struct Call {
    pub pid: u32,
    pub name: String,
    pub arguments: String,
    /// What came back; -1 with an error.
    pub result: i64,
}

/// The calls in a log of `strace -f`, in the order in which they came back.
pub fn calls_in(log: &Path) -> Vec<Call> {
    let text = std::fs::read(log).unwrap_or_else(|e| panic!("{}: {e}", log.display()));
    parse(&String::from_utf8_lossy(&text))
}

/// A command's calls in the order in which they came back.
pub struct Trace {
    pub outcome: Outcome,
    pub calls: Vec<Call>,
}

impl Trace {
    /// Runs `words` under `backend`, strace between the two.
    pub fn of(scene: &Scene, backend: Backend, words: &[&Path]) -> Trace {
        let log = scene.file("trace");
        // Innermost in a session, so that the supervisor's own calls are not in the trace; else
        // outermost, so that only the command has the library.
        let mut command = match backend {
            Backend::Run(_) => scene.command(backend),
            _ => super::command::clean("env"),
        };
        if let Backend::Run(_) = backend {
            command.env("WARM", scene.state());
        }
        command.args([
            "strace",
            "-f",
            "-qq",
            "-y",
            "-e",
            TRACED,
            "-e",
            "signal=none",
            "-o",
        ]);
        command.arg(&log);
        for variable in scene.variables(backend) {
            command.arg("-E").arg(variable);
        }
        let outcome = run(command.args(words));
        let text = std::fs::read(&log).unwrap_or_else(|e| panic!("no trace: {e}\n{outcome}"));
        Trace {
            outcome,
            calls: parse(&String::from_utf8_lossy(&text)),
        }
    }

    /// How often each kind of call made the disk work, from the line `WARM` on where there is one.
    ///
    /// # Panics
    /// If the victim gave up waiting for the session to put requests off.
    pub fn io(&self) -> BTreeMap<String, Vec<String>> {
        assert!(!self.outcome.stderr.contains("COLD"), "{}", self.outcome);
        let warm = self.calls.iter().position(is_marker).map_or(0, |at| at + 1);
        let mut tables = Tables::default();
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (at, call) in self.calls.iter().enumerate() {
            tables.follow(call);
            if at >= warm && tables.makes_io(call) {
                found
                    .entry(call.name.clone())
                    .or_default()
                    .push(call.arguments.clone());
            }
        }
        found
    }

    /// How often a call came back without an error.
    pub fn count(&self, name: &str) -> usize {
        let good = |c: &&Call| c.name == name && c.result >= 0;
        self.calls.iter().filter(good).count()
    }
}

fn is_marker(call: &Call) -> bool {
    call.name == "write" && call.arguments.contains("\"WARM\\n\"")
}

fn parse(text: &str) -> Vec<Call> {
    let mut unfinished: HashMap<u32, String> = HashMap::new();
    let mut calls = Vec::new();
    for line in text.lines() {
        let Some((pid, rest)) = line.split_once(' ') else {
            continue;
        };
        let Ok(pid) = pid.parse() else { continue };
        let rest = rest.trim_start();
        if let Some(begun) = rest.strip_suffix("<unfinished ...>") {
            unfinished.insert(pid, begun.to_owned());
        } else if let Some(resumed) = rest.strip_prefix("<... ") {
            let begun = unfinished.remove(&pid).unwrap_or_default();
            let end = resumed.split_once(" resumed>").map_or("", |(_, end)| end);
            calls.extend(parse_call(pid, &format!("{begun}{end}")));
        } else {
            calls.extend(parse_call(pid, rest));
        }
    }
    calls
}

/// `name(arguments)   = result …`; none for an exit, a signal or a call that never came back.
fn parse_call(pid: u32, text: &str) -> Option<Call> {
    let (call, result) = text.rsplit_once(" = ")?;
    let (name, arguments) = call.split_once('(')?;
    Some(Call {
        pid,
        name: name.to_owned(),
        arguments: arguments
            .trim_end()
            .trim_end_matches(')')
            .trim_end()
            .to_owned(),
        result: number(result)?,
    })
}

/// The number at the beginning: decimal, or hexadecimal with 0x.
fn number(text: &str) -> Option<i64> {
    if let Some(hex) = text.strip_prefix("0x") {
        let digits: String = hex.chars().take_while(char::is_ascii_hexdigit).collect();
        return u64::from_str_radix(&digits, 16).ok().map(|n| n as i64);
    }
    let ends = |c: char| !(c.is_ascii_digit() || c == '-');
    text.split(ends).next()?.parse().ok()
}

/// What is known of the processes while the trace is read.
#[derive(Default)]
struct Tables {
    /// Descriptors that still have O_SYNC or O_DSYNC in the kernel, by process.
    synced: HashMap<u32, HashSet<i64>>,
    /// Where memory without a file is mapped.
    anonymous: HashSet<i64>,
}

fn asks_for_sync(flags: &str) -> bool {
    flags.contains("O_SYNC") || flags.contains("O_DSYNC")
}

/// Descriptors whose writes make no disk work: devices, channels, memory.
fn is_no_file(descriptor: &str) -> bool {
    let path = descriptor.split_once('<').map_or("", |(_, path)| path);
    let begins = ["/dev/", "pipe:", "socket:", "UNIX", "TCP", "/memfd:"];
    begins.iter().any(|b| path.starts_with(b)) || path.trim_end_matches('>').ends_with("/fifo")
}

impl Tables {
    fn follow(&mut self, call: &Call) {
        if call.result < 0 {
            return;
        }
        let first = number(&call.arguments).unwrap_or(-1);
        let table = self.synced.entry(call.pid).or_default();
        match call.name.as_str() {
            "open" | "openat" | "openat2" | "open_by_handle_at" => {
                set(table, call.result, asks_for_sync(&call.arguments));
            }
            "dup" | "dup2" | "dup3" => {
                let synced = table.contains(&first);
                set(table, call.result, synced);
            }
            "fcntl" | "fcntl64" if call.arguments.contains("F_DUPFD") => {
                let synced = table.contains(&first);
                set(table, call.result, synced);
            }
            "close" => set(table, first, false),
            "fork" | "vfork" | "clone" | "clone3" => {
                let inherited = table.clone();
                self.synced.entry(call.result as u32).or_insert(inherited);
            }
            "mmap" | "mmap2" => {
                if call.arguments.contains("MAP_ANONYMOUS") {
                    self.anonymous.insert(call.result);
                } else {
                    self.anonymous.remove(&call.result);
                }
            }
            _ => {}
        }
    }

    fn makes_io(&self, call: &Call) -> bool {
        let arguments: Vec<&str> = call.arguments.split(", ").collect();
        let flagged = asks_for_sync(&call.arguments.replace("RWF_", "O_"));
        match call.name.as_str() {
            "sync" => true,
            "fsync" | "fdatasync" | "syncfs" => call.result == 0 && !is_no_file(arguments[0]),
            "msync" => call.result == 0 && self.reaches_a_file(&arguments),
            "sync_file_range" => {
                let writes = arguments.last() != Some(&"0") && arguments[1] != FAR;
                call.result == 0 && writes && !is_no_file(arguments[0])
            }
            "pwritev2" if flagged => call.result > 0 && !is_no_file(arguments[0]),
            "write" | "writev" | "pwrite64" | "pwritev" | "pwritev2" | "sendfile"
            | "sendfile64" => self.writes_through(call, arguments[0]),
            "splice" | "copy_file_range" => self.writes_through(call, arguments[2]),
            "io_submit" => submits_sync(call),
            _ => false,
        }
    }

    fn writes_through(&self, call: &Call, descriptor: &str) -> bool {
        let fd = number(descriptor).unwrap_or(-1);
        let synced = self.synced.get(&call.pid).is_some_and(|t| t.contains(&fd));
        call.result > 0 && synced && !is_no_file(descriptor)
    }

    /// A length of 0, or one that wraps to 0 when it is rounded up to pages, is no range at all.
    fn reaches_a_file(&self, arguments: &[&str]) -> bool {
        let memory = number(arguments[0]).is_some_and(|at| self.anonymous.contains(&at));
        let empty = number(arguments[1]).is_none_or(|length| length == 0);
        let asked = arguments.last().is_some_and(|f| f.contains("MS_SYNC"));
        asked && !memory && !empty
    }
}

fn set(table: &mut HashSet<i64>, fd: i64, synced: bool) {
    if synced {
        table.insert(fd);
    } else {
        table.remove(&fd);
    }
}

/// Whether one of the blocks that were taken is a sync: a write with a sync flag stays real.
fn submits_sync(call: &Call) -> bool {
    let taken = usize::try_from(call.result).unwrap_or(0);
    let blocks = call.arguments.split("aio_data=").skip(1).take(taken);
    let words = ["IOCB_CMD_FSYNC", "IOCB_CMD_FDSYNC"];
    let of_a_file = |b: &&str| {
        let descriptor = b
            .split("aio_fildes=")
            .nth(1)
            .and_then(|d| d.split(',').next());
        descriptor.is_some_and(|d| !is_no_file(d))
    };
    blocks
        .filter(of_a_file)
        .any(|b| words.iter().any(|w| b.contains(w)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
        10 openat(AT_FDCWD</w>, \"f\", O_RDWR|O_SYNC) = 3</w/f>\n\
        10 write(3</w/f>, \"a = b\", 5)          = 5\n\
        10 fsync(3</w/f> <unfinished ...>\n\
        11 sync_file_range(3</w/f>, 0, 1, 0)   = 0\n\
        10 <... fsync resumed> )               = 0\n\
        10 write(2</dev/pts/0>, \"WARM\\n\", 5) = 5\n\
        10 fsync(999)                          = -1 EBADF (Bad file descriptor)\n\
        10 write(3</w/f>, \"a\", 1)            = 1\n\
        10 dup3(4</w/f>, 3</w/f>, 0)           = 3</w/f>\n\
        10 write(3</w/f>, \"a\", 1)            = 1\n\
        10 +++ exited with 0 +++\n";

    fn trace_of(log: &str) -> Trace {
        Trace {
            outcome: run(&mut super::super::command::clean("true")),
            calls: parse(log),
        }
    }

    #[test]
    fn only_what_makes_io_behind_the_marker_is_counted() {
        let trace = trace_of(LOG);
        assert_eq!(trace.calls.len(), 9);
        let io = trace.io();
        assert_eq!(io.keys().collect::<Vec<_>>(), ["write"]);
        assert_eq!(io["write"].len(), 1);
        let cold = LOG.replace("WARM", "OTHER");
        let names: Vec<String> = trace_of(&cold).io().into_keys().collect();
        assert_eq!(names, ["fsync", "write"]);
    }

    #[test]
    fn only_blocks_that_were_taken_count() {
        let log = "10 io_submit(0x7f, 2, [{aio_data=0x1, aio_lio_opcode=IOCB_CMD_PREAD, \
                   aio_fildes=3</w/f>}, {aio_data=0x2, aio_lio_opcode=IOCB_CMD_FSYNC, \
                   aio_fildes=3</w/f>}]) = ";
        assert!(trace_of(&format!("{log}1\n")).io().is_empty());
        assert_eq!(trace_of(&format!("{log}2\n")).io().len(), 1);
    }
}
