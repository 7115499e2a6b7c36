//! `synclater report`: its figures are those of the rows, its keys are the contract, and what is no
//! recording is told in words.

use crate::harness::browser::Browser;
use crate::harness::command::{clean, run, Outcome};
use crate::sessions::stage::{as_root, has_four_parts, program, Stage, AS_NOBODY, SYNCLATER};
use serde_json::Value;
use std::path::{Path, PathBuf};
use synclater_recording::record::header::Header;
use synclater_recording::record::row::{Name, Row};
use synclater_recording::record::write::Writer;
use synclater_recording::record::{answered, done, event, kind};

type Recorder = Writer<Vec<u8>>;

const MS: u64 = 1_000_000;
const SECOND: i64 = 1_000_000_000;

fn header() -> Header {
    Header {
        host: "mail1".into(),
        kernel: "6.18.0".into(),
        started: "2026-01-01T00:00:00Z".into(),
        command: vec!["dovecot".into(), "-F".into()],
        until: "now".into(),
        engine: "library".into(),
        ..Header::default()
    }
}

/// A request of `exe` that took so long.
fn request(w: &mut Recorder, exe: &str, path: &str, time_ns: i64, took_ns: u64) -> Row {
    Row {
        event: w.names.name(event::REQUEST),
        time_ns,
        duration_ns: Some(took_ns),
        pid: Some(7),
        tid: Some(7),
        uid: Some(1000),
        exe: w.names.name(exe),
        command: w.names.name(exe),
        kind: w.names.name(kind::FSYNC),
        path: w.names.name(path),
        fstype: w.names.name("ext4"),
        mount: w.names.name("/srv"),
        device: w.names.name("/dev/sda1"),
        parents: w.names.name("sda1 < sda"),
        result: Some(0),
        answered: w.names.name(answered::KERNEL),
        done: w.names.name(done::REAL),
        bytes: Some(4096),
        dirty: Some(true),
        caller: w.names.name("libc.so.6+0x1234"),
        ..Row::default()
    }
}

/// A whole recording of what `fill` adds, in a file.
fn recorded(stage: &Stage, fill: impl FnOnce(&mut Recorder)) -> PathBuf {
    let mut w = Writer::new(Vec::new(), &header()).expect("memory");
    fill(&mut w);
    let end = Row {
        event: w.names.name(event::END),
        time_ns: 10 * SECOND,
        ..Row::default()
    };
    w.push(end).expect("memory");
    let file = stage.file("mail.rec");
    std::fs::write(&file, w.finish().expect("memory")).expect("a file");
    file
}

/// 1,000 deliveries of a message and two indexes; every third message is found clean. One request
/// is put off, one refused, one a hint, and 17 are lost.
fn mail(w: &mut Recorder) {
    for k in 0..1000i64 {
        for (part, path) in [
            format!("/srv/mail/tmp/{k}.msg"),
            "/srv/mail/index".into(),
            "/srv/mail/list".into(),
        ]
        .iter()
        .enumerate()
        {
            let time = k * 8 * MS as i64 + part as i64 * 2 * MS as i64;
            let mut row = request(w, "/usr/lib/dovecot/imap", path, time, MS);
            row.dirty = Some(part > 0 || k % 3 > 0);
            w.push(row).expect("memory");
        }
    }
    let other = |w: &mut Recorder| request(w, "/usr/bin/dpkg", "/srv/x", 9 * SECOND, 5 * MS);
    let mut owed = other(w);
    owed.done = w.names.name(done::OWED);
    let mut refused = other(w);
    (refused.done, refused.errno) = (w.names.name(done::NOTHING), Some(9));
    refused.result = Some(-1);
    let mut hint = other(w);
    hint.kind = w.names.name(kind::SYNC_FILE_RANGE);
    let lost = Row {
        event: w.names.name(event::LOST),
        time_ns: 9 * SECOND,
        pid: Some(7),
        value: Some(17.0),
        ..Row::default()
    };
    for row in [owed, refused, hint, lost] {
        w.push(row).expect("memory");
    }
    sample(w, "/dev/sda1", "utilisation", 0.5);
    sample(w, "", "iowait", 0.25);
    let settle = Row {
        event: w.names.name(event::SETTLE),
        time_ns: 9 * SECOND,
        duration_ns: Some(20 * MS),
        debt: Some(1),
        mount: w.names.name("/srv"),
        fstype: w.names.name("ext4"),
        device: w.names.name("/dev/sda1"),
        parents: w.names.name("sda1 < sda"),
        ..Row::default()
    };
    w.push(settle).expect("memory");
    io(w);
}

fn sample(w: &mut Recorder, device: &str, metric: &str, value: f64) {
    let row = Row {
        event: w.names.name(event::SAMPLE),
        time_ns: SECOND,
        device: match device {
            "" => Name::NONE,
            device => w.names.name(device),
        },
        metric: w.names.name(metric),
        value: Some(value),
        ..Row::default()
    };
    w.push(row).expect("memory");
}

/// One slow write, and 99 that took less than 8,192 ns.
fn io(w: &mut Recorder) {
    let mut slow = request(w, "/usr/bin/dpkg", "/srv/x", 9 * SECOND, 50 * MS);
    slow.event = w.names.name(event::IO);
    slow.kind = w.names.name("write");
    let rest = Row {
        event: w.names.name(event::IO_REST),
        time_ns: 9 * SECOND,
        pid: Some(7),
        kind: slow.kind,
        metric: w.names.name("below_ns_8192"),
        value: Some(99.0),
        ..Row::default()
    };
    w.push(slow).expect("memory");
    w.push(rest).expect("memory");
}

fn report(stage: &Stage, file: &Path, options: &[&str]) -> Outcome {
    run(stage.synclater(&["report"]).args(options).arg(file))
}

fn json(stage: &Stage, file: &Path) -> Value {
    let outcome = report(stage, file, &["--json"]).must_succeed();
    serde_json::from_str(&outcome.stdout).expect("JSON")
}

#[test]
fn figures_are_those_of_the_rows() {
    let stage = Stage::new("figures");
    let r = json(&stage, &recorded(&stage, mail));
    for (key, want) in [
        ("version", 1),
        ("requests", 3002),
        ("real", 3000),
        ("hints", 1),
        ("failed", 1),
        ("lost", 17),
        ("untimed", 0),
        ("needless", 334),
        ("needless_known_of", 3000),
        ("by_file_total", 1003),
        ("by_process_total", 2),
        ("by_kind_total", 1),
        ("by_device_total", 1),
    ] {
        assert_eq!(r[key], want, "{key}: {r:#}");
    }
    for (key, want) in [
        ("wall_s", 10.0),
        ("sync_s", 3.0),
        ("waiting_s", 3.0),
        ("waiting_share", 0.3),
    ] {
        let is = r[key].as_f64().expect(key);
        assert!((is - want).abs() < 1e-6, "{key}: {is}");
    }
    assert_eq!(r["quantiles"]["p9999_ns"], MS, "{r:#}");
    let imap = &r["by_process"][0];
    assert_eq!(
        (&imap["name"], &imap["requests"]),
        (&"Dovecot's imap".into(), &3000.into())
    );
    let index = &r["by_file"][0];
    assert_eq!(
        (&index["name"], &index["p50_ns"]),
        (&"/srv/mail/index".into(), &MS.into())
    );
    assert_eq!(r["by_file"].as_array().map(Vec::len), Some(100));
    let together = &r["together"][0];
    assert_eq!(
        (&together["times"], &together["requests_each"]),
        (&1000.into(), &3.into())
    );
    assert_eq!(together["saves_s"], 2.0, "{together:#}");
    assert_eq!(r["settings"][0]["setting"], "mail_fsync");
    assert_eq!(
        (&r["io"][0]["requests"], &r["io"][0]["p50_ns"]),
        (&100.into(), &8192.into())
    );
    assert_eq!(r["io"][0]["max_ns"], 50 * MS);
}

#[test]
fn what_a_dial_saves_is_the_waiting_less_what_settling_takes() {
    let stage = Stage::new("dials");
    let r = json(&stage, &recorded(&stage, mail));
    let saved = |until: &str| {
        let dials = r["dials"].as_array().expect("dials");
        let dial = dials
            .iter()
            .find(|d| d["until"] == until)
            .expect("the dial");
        let sentence = dial["sentence"].as_str().expect("a sentence");
        assert!(
            sentence.contains("When: ") && sentence.contains("Order: "),
            "{sentence}"
        );
        (dial["saved_s"].as_f64().expect("seconds") * 1000.0).round() as u64
    };
    // The settle took 20 ms, and there is one in each of the 8 seconds of deliveries.
    assert_eq!(
        [saved("1s"), saved("exit"), saved("never")],
        [2840, 2980, 3000]
    );
    // There is no other dial that would save anything.
    assert_eq!(r["dials"].as_array().map(Vec::len), Some(3));
}

/// The keys of an object, in order.
fn keys(object: &Value) -> Vec<&str> {
    let object = object.as_object().expect("an object");
    object.keys().map(String::as_str).collect()
}

fn has_keys(object: &Value, wanted: &[&str]) {
    let missing: Vec<&&str> = wanted.iter().filter(|k| object.get(k).is_none()).collect();
    assert!(missing.is_empty(), "{missing:?} of {:?}", keys(object));
}

#[test]
fn json_has_the_keys_that_others_rely_on() {
    let stage = Stage::new("keys");
    let r = json(&stage, &recorded(&stage, mail));
    let top = "version recording requests real hints failed lost lost_by_process wall_s sync_s \
        waiting_s waiting_share quantiles histogram modes by_file by_process by_kind \
        by_filesystem by_device by_caller by_file_total by_process_total by_kind_total \
        by_filesystem_total by_device_total by_caller_total heatmap needless needless_known_of \
        together thresholds dials settings samples settles io";
    let group = "name requests real needless bytes sync_s share p50_ns p90_ns p99_ns max_ns \
        histogram";
    for (object, wanted) in [
        (&r, top),
        (
            &r["recording"],
            "file host kernel started command until engine complete",
        ),
        (
            &r["quantiles"],
            "min_ns p50_ns p90_ns p99_ns p999_ns p9999_ns max_ns mean_ns",
        ),
        (&r["histogram"][0], "from_ns to_ns n"),
        (&r["modes"][0], "share near_ns from_ns to_ns n"),
        (&r["lost_by_process"][0], "pid exe lost"),
        (&r["by_file"][0], group),
        (&r["by_file"][0], "fstype mount device"),
        (&r["by_process"][0], group),
        (&r["by_process"][0], "pid exe role uid"),
        (&r["by_kind"][0], group),
        (&r["by_filesystem"][0], group),
        (&r["by_filesystem"][0], "fstype device"),
        (&r["by_device"][0], group),
        (&r["by_device"][0], "parents"),
        (&r["by_caller"][0], group),
        (&r["heatmap"], "from_ns step_ns columns edges_ns cells"),
        (
            &r["together"][0],
            "what times requests_each saves_s sentence",
        ),
        (&r["dials"][0], "until saved_s at_stake sentence"),
        (&r["settings"][0], "program setting values risk source"),
        (&r["samples"], "seconds devices machine"),
        (&r["samples"]["machine"], "psi_io_some dirty_bytes iowait"),
        (&r["settles"][0], "mount n sync_s max_ns"),
        (&r["io"][0], "name requests real p50_ns histogram"),
    ] {
        has_keys(
            object,
            &wanted
                .split(' ')
                .filter(|k| !k.is_empty())
                .collect::<Vec<_>>(),
        );
    }
    let device = "device utilisation flushes_per_s write_wait_ms flush_wait_ms";
    has_keys(
        &r["samples"]["devices"][0],
        &device.split(' ').collect::<Vec<_>>(),
    );
    assert!(r.get("modes_sentence").is_none() && r["recording"].get("missing").is_none());
    assert_eq!(r["recording"]["complete"], true);
}

#[test]
fn the_limit_of_etcd_is_applied_to_etcd() {
    let stage = Stage::new("etcd");
    let file = recorded(&stage, |w| {
        for k in 0..100 {
            let wal = "/var/lib/etcd/member/wal/0.wal";
            let took = if k < 98 { 2 * MS } else { 40 * MS };
            let row = request(w, "/usr/bin/etcd", wal, k * 50 * MS as i64, took);
            w.push(row).expect("memory");
        }
    });
    let r = json(&stage, &file);
    let t = &r["thresholds"][0];
    has_keys(
        t,
        &[
            "name",
            "limit_ns",
            "measured_ns",
            "quantile",
            "ok",
            "sentence",
            "source",
        ],
    );
    assert_eq!(
        (&t["ok"], &t["measured_ns"]),
        (&false.into(), &(40 * MS).into())
    );
    let text = report(&stage, &file, &[]).must_succeed().stdout;
    assert!(text.contains("broken: etcd"), "{text}");
}

#[test]
fn two_speeds_are_named_and_one_is_not() {
    let stage = Stage::new("speeds");
    let fill = |slow_each: i64| {
        move |w: &mut Recorder| {
            for k in 0..1000i64 {
                let slow = slow_each > 0 && k % slow_each == 0;
                let took = if slow { 31 * MS } else { MS / 5 } + k as u64 % 89 * 1000;
                let row = request(w, "/usr/bin/imap", "/srv/m", k * 40 * MS as i64, took);
                w.push(row).expect("memory");
            }
        }
    };
    let file = recorded(&stage, fill(12));
    let r = json(&stage, &file);
    let sentence = r["modes_sentence"].as_str().expect("a sentence");
    assert!(
        sentence.starts_with("92 % near 2") && sentence.contains("8 % near 31 ms"),
        "{r:#}"
    );
    let text = report(&stage, &file, &[]).must_succeed().stdout;
    assert!(text.contains(sentence), "{text}");
    let r = json(&stage, &recorded(&stage, fill(0)));
    assert!(r.get("modes_sentence").is_none(), "{r:#}");
}

#[test]
fn the_text_fits_a_terminal_and_says_what_matters() {
    let stage = Stage::new("text");
    let file = recorded(&stage, mail);
    let text = report(&stage, &file, &[]).must_succeed().stdout;
    for said in [
        "3.0 of 10.0 s were spent in syncs (30 %). 3,002 requests, 3,000 made for real, 1 failed.",
        "17 calls were made but not recorded",
        "… and 993 more files",
        "334 of the 3,000",
        "one sync instead of the 3 would",
        "mail_fsync",
        "1 hint (sync_file_range)",
    ] {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(said), "{said}: {text}");
    }
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    let one = report(&stage, &file, &["--by", "caller", "--top", "1"])
        .must_succeed()
        .stdout;
    assert!(
        one.contains("by caller") && !one.contains("by file"),
        "{one}"
    );
}

#[test]
fn a_hostile_name_does_not_reach_the_terminal() {
    let stage = Stage::new("hostile");
    let hostile = "/srv/\x1b[2J\u{9b}31m\n\r\u{202e}x";
    let file = recorded(&stage, |w| {
        for k in 0..30i64 {
            let path = if k % 2 == 0 { hostile } else { "/srv/\x07" };
            let mut row = request(w, hostile, path, k * 8 * MS as i64, MS);
            (row.mount, row.device) = (row.path, row.path);
            (row.parents, row.kind, row.caller) = (row.path, row.path, row.path);
            row.fstype = row.path;
            w.push(row).expect("memory");
            sample(w, hostile, "utilisation", 0.5);
        }
    });
    let all = [
        "file",
        "process",
        "program",
        "kind",
        "filesystem",
        "device",
        "caller",
    ];
    let by: Vec<&str> = all.iter().flat_map(|by| ["--by", *by]).collect();
    for options in [&by[..], &["--json"]] {
        let outcome = report(&stage, &file, options).must_succeed();
        let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!outcome.stdout.contains(steers), "{outcome}");
    }
    assert_eq!(json(&stage, &file)["by_file"][0]["name"], hostile);
}

#[test]
fn a_recording_that_was_cut_off_says_what_is_missing() {
    let stage = Stage::new("cut");
    let mut w = Writer::new(Vec::new(), &header()).expect("memory");
    for k in 0..100i64 {
        let row = request(&mut w, "/usr/bin/imap", "/srv/m", k * 8 * MS as i64, MS);
        w.push(row).expect("memory");
        if k == 59 {
            w.flush().expect("memory");
        }
    }
    let whole = w.finish().expect("memory");
    let file = stage.file("cut.rec");
    for (bytes, requests, why) in [
        (&whole[..], 100, "not ended in order"),
        (&whole[..whole.len() - 100], 60, "cut off"),
    ] {
        std::fs::write(&file, bytes).expect("a file");
        let outcome = report(&stage, &file, &["--json"]).must_succeed();
        let r: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
        assert_eq!(
            (&r["requests"], &r["recording"]["complete"]),
            (&requests.into(), &false.into())
        );
        let missing = r["recording"]["missing"].as_str().expect("what is missing");
        assert!(
            missing.contains(why) && missing.contains("from there on"),
            "{missing}"
        );
        assert!(outcome.stderr.contains(why), "{outcome}");
        let text = report(&stage, &file, &[]).must_succeed().stdout;
        assert!(text.contains("not whole"), "{text}");
    }
}

#[test]
fn who_escaped_is_in_the_recording() {
    if !as_root("who_escaped_is_in_the_recording") {
        return;
    }
    let stage = Stage::new("who-escaped");
    let file = stage.file("a.rec");
    let mut command = stage.with_folders(SYNCLATER);
    command
        .args(["record", "--quiet", "-o"])
        .arg(&file)
        .arg("--");
    command
        .arg(program("hammer_static"))
        .arg(stage.work())
        .args(["1", "7"]);
    run(&mut command).must_succeed();
    let text = report(&stage, &file, &[]).must_succeed().stdout;
    assert!(!text.contains("No sync request was recorded"), "{text}");
    assert!(text.contains("whoever made some escaped"), "{text}");
    assert!(
        text.contains(", 7 requests kept real: a static program"),
        "{text}"
    );
    let escaped = &json(&stage, &file)["escaped"];
    assert_eq!(escaped[0]["requests"], 7, "{escaped}");
    let page = stage.file("a.html");
    report(&stage, &file, &["--html", &page.display().to_string()]).must_succeed();
    if let Some(mut browser) = Browser::start("who_escaped_is_in_the_recording") {
        browser.open(&page);
        let said = browser.ask("document.querySelector('.warning').textContent");
        let said = said.as_str().expect("a text");
        assert!(said.contains("hammer_static, pid"), "{said}");
        assert!(said.contains(": 7 requests, a static program"), "{said}");
    }
    // What was cut off before there was a request says nothing of what was asked for.
    let whole = std::fs::read(&file).expect("a recording");
    let head = (0..whole.len()).rev().find_map(|len| {
        std::fs::write(&file, &whole[..len]).expect("a file");
        let text = report(&stage, &file, &[]).stdout;
        (!text.contains("whoever made some escaped")).then_some(text)
    });
    let head = head.expect("less than all");
    assert!(
        head.contains("No sync request is in what there is of it"),
        "{head}"
    );
}

#[test]
fn a_recording_of_no_request_says_so() {
    let stage = Stage::new("nothing");
    let file = recorded(&stage, |_| {});
    let outcome = report(&stage, &file, &[]).must_succeed();
    assert!(
        outcome.stdout.contains("No sync request was recorded"),
        "{outcome}"
    );
    let r = json(&stage, &file);
    // What is not known is not promised.
    assert_eq!(
        (&r["requests"], &r["dials"]),
        (&0.into(), &serde_json::json!([]))
    );
    assert!(
        r.get("quantiles").is_none() && r.get("wall_s").is_none(),
        "{r:#}"
    );
}

/// The whole of `bytes`, one place of which is `from`, with `to` in its stead.
fn changed(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let places: Vec<usize> = bytes
        .windows(from.len())
        .enumerate()
        .filter(|(_, w)| *w == from)
        .map(|(at, _)| at)
        .collect();
    assert_eq!(places.len(), 1, "{from:?}");
    let mut bytes = bytes.to_vec();
    bytes[places[0]..places[0] + to.len()].copy_from_slice(to);
    bytes
}

/// The head of an Arrow stream of big-endian numbers.
fn big_endian() -> Vec<u8> {
    use arrow_ipc::{Endianness, MessageBuilder, MessageHeader, MetadataVersion, SchemaBuilder};
    let mut f = flatbuffers::FlatBufferBuilder::new();
    let fields: &[flatbuffers::WIPOffset<arrow_ipc::Field>] = &[];
    let fields = f.create_vector(fields);
    let mut schema = SchemaBuilder::new(&mut f);
    schema.add_endianness(Endianness::Big);
    schema.add_fields(fields);
    let schema = schema.finish();
    let mut message = MessageBuilder::new(&mut f);
    message.add_version(MetadataVersion::V5);
    message.add_header_type(MessageHeader::Schema);
    message.add_header(schema.as_union_value());
    let message = message.finish();
    f.finish(message, None);
    let mut body = f.finished_data().to_vec();
    body.resize(body.len().next_multiple_of(8), 0);
    let length = u32::try_from(body.len()).expect("short").to_le_bytes();
    [&[0xff; 4][..], &length, &body].concat()
}

#[test]
fn what_is_no_recording_is_told_in_words() {
    let stage = Stage::new("bad");
    let whole = std::fs::read(recorded(&stage, mail)).expect("a file");
    // A text of one digit, as flatbuffers has it: the version of the form.
    let newer = changed(&whole, b"\x01\0\0\x001\0\0\0", b"\x01\0\0\x009\0\0\0");
    let name = |n: &str| [&(n.len() as u32).to_le_bytes()[..], n.as_bytes(), b"\0"].concat();
    let columnless = changed(&whole, &name("kind"), &name("kinf"));
    for (bytes, why) in [
        (&b""[..], "it is empty"),
        (b"synclater: 4,813 sync requests\n", "no recording"),
        (b"PAR1 and so on", "Parquet"),
        (&whole[..64], "cut off in its head"),
        (&newer, "version 9"),
        (&columnless, "no column kind"),
        (&big_endian(), "big-endian"),
    ] {
        let file = stage.file("bad.rec");
        std::fs::write(&file, bytes).expect("a file");
        for options in [&[][..], &["--json"]] {
            let outcome = report(&stage, &file, options);
            assert_eq!(outcome.status.code(), Some(125), "{outcome}");
            assert!(has_four_parts(&outcome.stderr), "{outcome}");
            assert!(outcome.stderr.contains(why), "{why}: {outcome}");
            assert_eq!(outcome.stdout, "", "{outcome}");
        }
    }
    for (path, why) in [
        (stage.work(), "folder"),
        (stage.file("none"), "No such file"),
    ] {
        let outcome = report(&stage, &path, &[]);
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(
            has_four_parts(&outcome.stderr) && outcome.stderr.contains(why),
            "{outcome}"
        );
    }
}

#[test]
fn a_recording_that_lacks_a_column_is_read_and_says_so() {
    let stage = Stage::new("columns");
    let whole = std::fs::read(recorded(&stage, mail)).expect("a file");
    let name = |n: &str| [&(n.len() as u32).to_le_bytes()[..], n.as_bytes(), b"\0"].concat();
    let file = stage.file("less.rec");
    std::fs::write(&file, changed(&whole, &name("dirty"), &name("dirtz"))).expect("a file");
    let r = json(&stage, &file);
    assert_eq!(
        (&r["requests"], r.get("needless")),
        (&3002.into(), None),
        "{r:#}"
    );
    let missing = r["recording"]["missing"].as_str().expect("what is missing");
    assert!(missing.contains("no dirty"), "{missing}");
}

#[test]
fn a_recording_that_may_not_be_read_is_told_in_words() {
    if !as_root("a_recording_that_may_not_be_read_is_told_in_words") {
        return;
    }
    let stage = Stage::for_nobody("forbidden");
    let file = recorded(&stage, mail);
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .expect("chmod");
    let mut command = clean(AS_NOBODY[0]);
    command.args(&AS_NOBODY[1..]).args([SYNCLATER, "report"]);
    let outcome = run(command.arg(&file));
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(has_four_parts(&outcome.stderr), "{outcome}");
    assert!(outcome.stderr.contains("Permission denied"), "{outcome}");
}
