//! A mutational fuzzer that needs nothing but the stable toolchain.
//!
//! Promise: the same seed gives the same inputs in the same order; an input that makes the target
//! panic, or take longer than [`SLOW`], is printed as hex with the seed and its number, and the
//! exit status is 1.
//!
//! What it does not do: it has no coverage feedback; good seeds are what makes it find things. For
//! that there is `make fuzz`: the same targets below libFuzzer (covered.rs), from the same seeds.
//! In every test run this one is used, since an instrumented build would be a second one of all
//! that the readers depend on. It cannot break off an input that never returns: CI's own time limit
//! has to.
//!
//! Usage: `[TARGET]...` (default: all) `--seconds N` for each target (default: `FUZZ_SECONDS` of
//! the environment, else 10), `--seed S` (default: from the clock), `--input HEX` to run one input
//! as it was printed, `--corpus DIR` to write each target's seeds to DIR/TARGET and its words to
//! DIR/TARGET.dict, as libFuzzer reads them, and do no more.

pub mod mutate;
pub mod targets;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mutate::mutated;
use synclater_random::Random;

/// The longest that one input may take: inputs are a few KiB, readers are linear.
pub const SLOW: Duration = Duration::from_secs(2);

/// What is fuzzed.
pub struct Target {
    /// The name that is printed.
    pub name: &'static str,
    /// Inputs to begin with; at least one.
    pub seeds: &'static [&'static [u8]],
    /// Words that random bytes would hardly ever make.
    pub words: &'static [&'static [u8]],
    /// Reads one input; panics where a claim does not hold.
    pub run: fn(&[u8]),
}

/// What the command line asked for.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    targets: Vec<String>,
    time: Duration,
    seed: Option<u64>,
    input: Option<Vec<u8>>,
    corpus: Option<PathBuf>,
}

/// Runs the targets, up to the first that fails, as the command line says; returns the exit status
/// of the process: 0 nothing found, 1 something found, 125 the command line is wrong.
pub fn main() -> ExitCode {
    let default_seconds = std::env::var("FUZZ_SECONDS").ok();
    let options = match read_options(std::env::args().skip(1), default_seconds) {
        Ok(options) => options,
        Err(error) => {
            let names: Vec<&str> = targets::ALL.iter().map(|t| t.name).collect();
            eprintln!(
                "{error}\nusage: [TARGET]... [--seconds N] [--seed S] [--input HEX] [--corpus DIR]"
            );
            eprintln!("targets: {}", names.join(" "));
            return ExitCode::from(125);
        }
    };
    let is_wanted =
        |t: &Target| options.targets.is_empty() || options.targets.contains(&t.name.to_owned());
    let found = targets::ALL
        .iter()
        .filter(|t| is_wanted(t))
        .find_map(|t| run_target(t, &options));
    match found {
        Some(()) => ExitCode::FAILURE,
        None => ExitCode::SUCCESS,
    }
}

fn run_target(target: &Target, options: &Options) -> Option<()> {
    if let Some(dir) = &options.corpus {
        let written = write_corpus(target, dir);
        return written.err().map(|e| eprintln!("{}: {e}", target.name));
    }
    match &options.input {
        Some(input) => try_input(target, input).map(|fault| report(target, &fault, input)),
        None => fuzz(
            target,
            options.seed.unwrap_or_else(seed_of_clock),
            options.time,
        ),
    }
}

/// Writes what libFuzzer begins with: a file a seed, and a dictionary.
fn write_corpus(target: &Target, dir: &Path) -> std::io::Result<()> {
    let folder = dir.join(target.name);
    std::fs::create_dir_all(&folder)?;
    for (k, seed) in target.seeds.iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{k}")), seed)?;
    }
    let word = |bytes: &&[u8]| -> String { bytes.iter().map(|b| format!("\\x{b:02x}")).collect() };
    let words: String = target
        .words
        .iter()
        .map(|w| format!("\"{}\"\n", word(w)))
        .collect();
    std::fs::write(dir.join(format!("{}.dict", target.name)), words)
}

fn fuzz(target: &Target, seed: u64, time: Duration) -> Option<()> {
    println!("{}: seed {seed}, {} s", target.name, time.as_secs());
    let mut random = Random::new(seed);
    let started = Instant::now();
    let mut inputs = 0u64;
    while started.elapsed() < time {
        let input = match target.seeds.get(inputs as usize) {
            Some(whole_seed) => whole_seed.to_vec(),
            None => mutated(target.seeds, target.words, &mut random),
        };
        if let Some(fault) = try_input(target, &input) {
            println!("{}: seed {seed}, input number {inputs}", target.name);
            report(target, &fault, &input);
            return Some(());
        }
        inputs += 1;
    }
    println!("{}: {inputs} inputs, nothing found", target.name);
    None
}

/// Runs one input; returns what was wrong. The panic's own message has been printed by then.
fn try_input(target: &Target, input: &[u8]) -> Option<String> {
    let started = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let time = started.elapsed();
    match outcome {
        Err(_) => Some("panicked".to_owned()),
        Ok(()) if time > SLOW => Some(format!("took {time:?}")),
        Ok(()) => None,
    }
}

fn report(target: &Target, fault: &str, input: &[u8]) {
    let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = target.name;
    println!("{name}: {fault}; again with:\n  {name} --input {hex}");
}

fn read_options(
    mut words: impl Iterator<Item = String>,
    default_seconds: Option<String>,
) -> Result<Options, String> {
    let default = default_seconds.unwrap_or_else(|| "10".to_owned());
    let mut options = Options {
        targets: Vec::new(),
        time: read_time(&default)?,
        seed: None,
        input: None,
        corpus: None,
    };
    while let Some(option) = words.next() {
        if targets::ALL.iter().any(|t| t.name == option) {
            options.targets.push(option);
            continue;
        }
        if !option.starts_with("--") {
            return Err(format!("no target is called {option}"));
        }
        let value = words
            .next()
            .ok_or_else(|| format!("{option} has no value"))?;
        let bad = || format!("{option} {value} is not understood");
        match option.as_str() {
            "--seconds" => options.time = read_time(&value)?,
            "--seed" => options.seed = Some(value.parse().map_err(|_| bad())?),
            "--corpus" => options.corpus = Some(value.into()),
            "--input" => options.input = Some(bytes_of_hex(&value).ok_or_else(bad)?),
            _ => return Err(format!("unknown option {option}")),
        }
    }
    Ok(options)
}

fn read_time(seconds: &str) -> Result<Duration, String> {
    let number = seconds
        .parse()
        .map_err(|_| format!("{seconds} is not a number of seconds"))?;
    Ok(Duration::from_secs(number))
}

fn bytes_of_hex(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = hex
        .chars()
        .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect();
    let digits = digits?;
    let pairs = digits
        .chunks(2)
        .map(|pair| Some((pair[0] << 4) | *pair.get(1)?));
    pairs.collect()
}

fn seed_of_clock() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(1, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panics_on_two_slashes(input: &[u8]) {
        assert!(!input.windows(2).any(|pair| pair == b"//"), "two slashes");
    }

    const TARGET: Target = Target {
        name: "slashes",
        seeds: &[b"/a/b"],
        words: &[b"//"],
        run: panics_on_two_slashes,
    };

    #[test]
    fn a_panic_is_found() {
        assert_eq!(fuzz(&TARGET, 23, Duration::from_secs(20)), Some(()));
    }

    #[test]
    fn options_are_read() {
        let read = |line: &str| read_options(line.split_whitespace().map(str::to_owned), None);
        let options = read("rules --seconds 3 --seed 5 --input 2f00 slots").unwrap();
        let want = Options {
            targets: vec!["rules".to_owned(), "slots".to_owned()],
            time: Duration::from_secs(3),
            seed: Some(5),
            input: Some(vec![0x2f, 0]),
            corpus: None,
        };
        assert_eq!(options, want);
        for bad in [
            "--seconds",
            "nobody",
            "--seconds x",
            "--input 2",
            "--input xx",
            "--what 1",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
