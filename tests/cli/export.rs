//! `synclater export`: every row is there, whole or not at all, and small.

use crate::harness::command::{clean, run, Outcome, LIMIT};
use crate::harness::dir::Dir;
use crate::harness::limits::{count, is_root, skip};
use crate::harness::recordings::{
    self, header, Made, MailServer, Request, DAY_NS, MARCH_NS, REQUEST, SECOND_NS,
};
use crate::sessions::stage::{has_four_parts, SYNCLATER};
use crate::wait::until;
use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, RecordBatch};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use rustix::process::{kill_process, Pid, Signal};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use synclater_recording::record::header::Header;
use synclater_recording::record::read::Stream;
use synclater_recording::record::schema::{fields, Type, COLUMNS};

fn command(recording: &Path, to: impl AsRef<OsStr>) -> Command {
    let mut command = clean(SYNCLATER);
    command
        .arg("export")
        .arg(recording)
        .arg("--parquet")
        .arg(to);
    command
}

fn export(recording: &Path, to: impl AsRef<OsStr>) -> Outcome {
    run(&mut command(recording, to))
}

/// A recording of `requests`, as a mail server makes it.
fn mail(path: &Path, requests: usize) {
    let out = BufWriter::new(File::create(path).expect("a file"));
    let mut made = Made::new(out, &header("mail1", "kelp"));
    let mut server = MailServer::new(1);
    server.work(&mut made, requests);
    made.end(server.time_ns);
}

fn batches_of(recording: &Path) -> Vec<RecordBatch> {
    let file = File::open(recording).expect("a file");
    let mut stream = Stream::open(file).expect("a recording");
    std::iter::from_fn(|| stream.next_batch()).collect()
}

/// What is in a Parquet file, in batches as large as those of the recording; and its metadata.
fn parquet(path: &Path) -> (Vec<RecordBatch>, Vec<(String, String)>) {
    let file = File::open(path).expect("a file");
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet");
    let facts = reader.metadata().file_metadata().key_value_metadata();
    let facts = facts.expect("metadata").iter();
    let facts = facts
        .map(|f| (f.key.clone(), f.value.clone().unwrap_or_default()))
        .collect();
    let reader = reader.with_batch_size(65_536).build().expect("a reader");
    (reader.map(|b| b.expect("a batch")).collect(), facts)
}

/// All files below a folder, without the folder's name, in order.
fn files_below(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left: Vec<PathBuf> = vec![dir.to_owned()];
    while let Some(at) = left.pop() {
        for entry in fs::read_dir(&at).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                left.push(path)
            } else {
                let name = path.strip_prefix(dir).expect("below");
                found.push(name.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn every_value_of_every_column_is_the_recording_s() {
    let dir = Dir::new("export");
    let (recording, out) = (dir.join("mail.rec"), dir.join("mail.parquet"));
    mail(&recording, 70_000);
    export(&recording, &out).must_succeed();
    let (theirs, facts) = parquet(&out);
    let ours = batches_of(&recording);
    let rows = |batches: &[RecordBatch]| batches.iter().map(RecordBatch::num_rows).collect();
    let (a, b): (Vec<usize>, Vec<usize>) = (rows(&ours), rows(&theirs));
    assert_eq!(a, b);
    for (ours, theirs) in ours.iter().zip(&theirs) {
        for column in &COLUMNS {
            let want = ours.column_by_name(column.name).expect("a column");
            let have = theirs.column_by_name(column.name).expect("a column");
            if column.holds == Type::Text {
                let dictionary = want.as_dictionary::<Int32Type>();
                let texts = dictionary.downcast_dict::<arrow_array::StringArray>();
                let same = texts.expect("text").into_iter().eq(have.as_string::<i32>());
                assert!(same, "{}", column.name);
            } else {
                assert_eq!(want, have, "{}", column.name);
                assert_eq!(want.data_type(), have.data_type(), "{}", column.name);
            }
        }
    }
    assert_eq!(theirs[0].num_columns(), fields().fields.len());
    let mut want: Vec<_> = header("mail1", "kelp").to_metadata().into_iter().collect();
    want.retain(|(key, value)| !value.is_empty() && key != "synclater.version");
    want.push(("synclater.version".into(), "1".into()));
    want.sort();
    assert_eq!(facts, want);
}

#[test]
fn rows_go_to_the_folder_of_their_day_and_those_before_1970_too() {
    let dir = Dir::new("days");
    let recording = dir.join("mail.rec");
    let at = |time_ns| Request { time_ns, ..REQUEST };
    let midnight = MARCH_NS + DAY_NS;
    // By turns, as rows of two rings come.
    let times = [
        midnight - 2,
        midnight,
        midnight - 1,
        midnight + 1,
        -1,
        midnight + DAY_NS,
    ];
    recordings::file(&recording, &header("a/b", "kelp"), &times.map(at));
    let out = dir.make("fleet");
    let outcome = export(&recording, &out).must_succeed();
    let file = |date: &str| format!("host=a%2Fb/date={date}/kelp-20260301T000000Z.parquet");
    let dates = ["1969-12-31", "2026-03-01", "2026-03-02", "2026-03-03"];
    assert_eq!(files_below(&out), dates.map(file));
    let rows = |date: &str| -> usize {
        let (batches, _) = parquet(&out.join(file(date)));
        batches.iter().map(RecordBatch::num_rows).sum()
    };
    // The last one has the end of the recording too.
    assert_eq!(dates.map(rows), [1, 2, 2, 2]);
    assert!(outcome.stdout.contains("4 files, 7 rows"), "{outcome}");
    assert!(outcome.stdout.contains("6 requests"), "{outcome}");
}

#[test]
fn a_recording_that_is_cut_off_gives_its_whole_batches_and_says_so() {
    let dir = Dir::new("cut");
    let (recording, out) = (dir.join("mail.rec"), dir.join("mail.parquet"));
    mail(&recording, 140_000);
    let bytes = fs::read(&recording).expect("a recording");
    fs::write(&recording, &bytes[..bytes.len() * 2 / 3]).expect("a file");
    let outcome = export(&recording, &out).must_succeed();
    let rows: usize = batches_of(&recording)
        .iter()
        .map(RecordBatch::num_rows)
        .sum();
    assert_eq!(rows, 65_536);
    assert_eq!(
        parquet(&out)
            .0
            .iter()
            .map(RecordBatch::num_rows)
            .sum::<usize>(),
        rows
    );
    assert!(has_four_parts(&outcome.stderr), "{outcome}");
    assert!(
        outcome.stderr.contains("cut off in the middle of a batch"),
        "{outcome}"
    );
    assert!(outcome.stderr.contains("65,536 rows"), "{outcome}");
}

#[test]
fn a_recording_without_requests_is_exported_and_named() {
    let dir = Dir::new("none");
    let recording = dir.join("none.rec");
    recordings::file(&recording, &Header::default(), &[]);
    let outcome = export(&recording, dir.join("fleet/")).must_succeed();
    assert!(has_four_parts(&outcome.stderr), "{outcome}");
    assert!(outcome.stderr.contains("no sync request"), "{outcome}");
    let file = format!(
        "host=__HIVE_DEFAULT_PARTITION__/date=2026-03-01/recording-{}.parquet",
        MARCH_NS + SECOND_NS
    );
    assert_eq!(files_below(&dir.join("fleet")), [file]);
}

fn is_refused(outcome: &Outcome, why: &str) {
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(has_four_parts(&outcome.stderr), "{outcome}");
    assert!(outcome.stderr.contains(why), "{why}: {outcome}");
    assert_eq!(outcome.stdout, "", "{outcome}");
}

#[test]
fn what_is_no_recording_is_refused_with_the_reason_and_nothing_is_written() {
    let dir = Dir::new("inputs");
    let whole = dir.join("mail.rec");
    recordings::file(&whole, &header("mail1", "kelp"), &[REQUEST]);
    let bytes = fs::read(&whole).expect("a recording");
    let out = dir.make("out");
    export(&whole, dir.join("mail.parquet")).must_succeed();
    let exported = fs::read(dir.join("mail.parquet")).expect("Parquet");
    let newer = recordings::newer(&bytes);
    let rowless = Made::new(Vec::new(), &Header::default())
        .writer
        .finish()
        .expect("memory");
    for (name, bytes, why) in [
        ("empty", &[][..], "it is empty"),
        ("text", b"hello\n", "it does not begin as an Arrow stream"),
        ("parquet", &exported, "it is a Parquet file"),
        ("head", &bytes[..100], "cut off in its head"),
        ("newer", &newer, "version 9"),
        ("rowless", &rowless, "it has no row"),
    ] {
        fs::write(dir.join(name), bytes).expect("a file");
        is_refused(&export(&dir.join(name), &out), why);
    }
    is_refused(&export(dir.path(), &out), "it is a folder");
    is_refused(&export(&dir.join("not/there"), &out), "No such file");
    assert!(files_below(&out).is_empty());
}

#[test]
fn an_output_that_cannot_be_is_refused_with_what_to_write() {
    let dir = Dir::new("outputs");
    let recording = dir.join("mail.rec");
    recordings::file(&recording, &header("mail1", "kelp"), &[REQUEST]);
    let before = fs::read(&recording).expect("a recording");
    fs::write(dir.join("notes.parquet"), "notes").expect("a file");
    let slash = |name: &str| format!("{}/", dir.join(name).display());
    for (to, why) in [
        (recording.clone(), "is no Parquet file"),
        (dir.join("notes.parquet"), "is no Parquet file"),
        (slash("notes.parquet").into(), "a part of it is a file"),
        (dir.join("fleet"), "may be meant as a file or as a folder"),
        (dir.join("not/there.parquet"), "not does not exist"),
        ("/dev/null".into(), "neither a file nor a folder"),
        ("/proc/mail.parquet".into(), "/proc/mail.parquet"),
        ("/proc".into(), "/proc/host=mail1"),
    ] {
        is_refused(&export(&recording, &to), why);
    }
    assert_eq!(fs::read(&recording).expect("a recording"), before);
    assert_eq!(files_below(dir.path()), ["mail.rec", "notes.parquet"]);
}

#[test]
fn what_its_user_may_not_read_or_write_is_refused() {
    if !is_root() {
        skip(
            "what_its_user_may_not_read_or_write_is_refused",
            "needs another user",
        );
        return;
    }
    let dir = Dir::new("rights");
    let recording = dir.join("mail.rec");
    recordings::file(&recording, &header("mail1", "kelp"), &[REQUEST]);
    let as_nobody = |recording: &Path| {
        let mut nobody = clean("setpriv");
        nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
        nobody.arg(SYNCLATER).arg("export").arg(recording);
        run(nobody.arg("--parquet").arg(dir.join("out/")))
    };
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let outcome = as_nobody(&recording);
    if outcome.status.code() != Some(125) {
        skip(
            "what_its_user_may_not_read_or_write_is_refused",
            "nobody cannot run the binary",
        );
        return;
    }
    is_refused(&outcome, "Permission denied");
    fs::set_permissions(&recording, fs::Permissions::from_mode(0o600)).expect("chmod");
    is_refused(&as_nobody(&recording), "Permission denied");
    assert_eq!(files_below(dir.path()), ["mail.rec"]);
}

#[test]
fn a_full_disk_leaves_no_file_and_no_folder() {
    let dir = Dir::new("full");
    let recording = dir.join("mail.rec");
    mail(&recording, 70_000);
    // In blocks of 1 KiB; as where a quota is reached.
    let script = "trap '' XFSZ; ulimit -f 100; exec \"$@\"";
    let mut limited = clean("bash");
    limited
        .args(["-c", script, "bash", SYNCLATER, "export"])
        .arg(&recording);
    let outcome = run(limited.arg("--parquet").arg(dir.join("fleet/")));
    is_refused(&outcome, "File too large");
    assert!(outcome.stderr.contains("ulimit -f"), "{outcome}");
    assert!(!dir.join("fleet").exists());
}

/// An export that has read half of a recording and waits for the rest, as long as the file is open.
struct Waiting {
    export: Child,
    _input: File,
}

impl Waiting {
    fn new(dir: &Dir, out: &Path) -> Waiting {
        let (pipe, recording) = (dir.join("pipe"), dir.join("mail.rec"));
        if !pipe.exists() {
            mail(&recording, 140_000);
            run(clean("mkfifo").arg(&pipe)).must_succeed();
        }
        let export = command(&pipe, out)
            .stderr(Stdio::null())
            .spawn()
            .expect("an export");
        let bytes = fs::read(&recording).expect("a recording");
        let mut input = File::options().write(true).open(&pipe).expect("a pipe");
        // A pipe holds 64 KiB at most: all but that has been read.
        input
            .write_all(&bytes[..bytes.len() * 2 / 3])
            .expect("a pipe");
        let has_begun = || files_below(dir.path()).iter().any(|f| f.ends_with(".part"));
        assert!(until(LIMIT, has_begun), "it has not begun");
        Waiting {
            export,
            _input: input,
        }
    }

    fn end(mut self, signal: Signal) {
        kill_process(Pid::from_child(&self.export), signal).expect("kill");
        let status = self.export.wait().expect("wait");
        assert_eq!(status.signal(), Some(signal.as_raw()));
    }
}

#[test]
fn an_export_that_is_ended_leaves_what_was_there_and_nothing_else() {
    let dir = Dir::new("ended");
    let out = dir.join("mail.parquet");
    for signal in [Signal::INT, Signal::TERM] {
        Waiting::new(&dir, &out).end(signal);
        assert_eq!(files_below(dir.path()), ["mail.rec", "pipe"]);
    }
    Waiting::new(&dir, &dir.join("fleet/")).end(Signal::HUP);
    assert!(!dir.join("fleet").exists());
    fs::write(&out, "PAR1").expect("a file");
    Waiting::new(&dir, &out).end(Signal::TERM);
    assert_eq!(fs::read(&out).expect("a file"), b"PAR1");
}

#[test]
fn what_a_killed_export_left_goes_with_the_next_one_and_a_living_one_is_left_alone() {
    let dir = Dir::new("killed");
    let out = dir.join("mail.parquet");
    let hidden = ".mail.parquet.part";
    Waiting::new(&dir, &out).end(Signal::KILL);
    assert_eq!(files_below(dir.path()), [hidden, "mail.rec", "pipe"]);
    export(&dir.join("mail.rec"), &out).must_succeed();
    assert_eq!(
        files_below(dir.path()),
        ["mail.parquet", "mail.rec", "pipe"]
    );
    let lives = Waiting::new(&dir, &out);
    is_refused(
        &export(&dir.join("mail.rec"), &out),
        "another process is writing it",
    );
    assert!(files_below(dir.path()).contains(&hidden.to_owned()));
    lives.end(Signal::KILL);
}

#[test]
fn soak_a_request_takes_at_most_25_bytes_after_export() {
    let requests = count(200_000, 10_000_000);
    let dir = Dir::new("small");
    let (recording, out) = (dir.join("mail.rec"), dir.join("mail.parquet"));
    mail(&recording, requests);
    let began = std::time::Instant::now();
    let outcome = export(&recording, &out).must_succeed();
    let took = began.elapsed();
    let size = |path: &Path| fs::metadata(path).expect("a file").len() as f64;
    let (before, after) = (size(&recording), size(&out));
    let (before, each) = (before / requests as f64, after / requests as f64);
    println!("{requests} requests: {before:.1} bytes each, exported {each:.1}, in {took:?}");
    assert!(each <= 25.0, "{each} bytes a request: {outcome}");
    assert!(
        outcome.stdout.contains(&format!("{each:.1} bytes each")),
        "{outcome}"
    );
}
