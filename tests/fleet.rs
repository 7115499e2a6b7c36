//! docs/fleet.md: its queries are run by DuckDB on a fleet in which the answers were planted.
//!
//! Promise: each block of SQL in the document is run as it stands there, and has a planted answer.
//! Where DuckDB cannot be had (`tools/setup test` installs it), the tests are skipped and say so.

use crate::harness::command::{clean, run};
use crate::harness::dir::Dir;
use crate::harness::limits::skip;
use crate::harness::recordings::{
    file, header, Chance, Made, Request, DAY_NS, MARCH_NS, REQUEST, SECOND_NS,
};
use crate::sessions::stage::SYNCLATER;
use serde_json::{json, Value};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Where tools/setup puts it.
fn duckdb(name: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    let python = target.expect("the target folder").join("duckdb/bin/python");
    if !python.exists() {
        skip(name, "DuckDB is not installed: tools/setup test");
        return None;
    }
    Some(python)
}

/// Runs statements in one session of DuckDB; gives the rows of each. `work` is the working folder.
fn query(python: &Path, work: &Path, statements: &[String]) -> Vec<Vec<Value>> {
    const SCRIPT: &str = "\
import duckdb, json, sys
session = duckdb.connect()
def rows(statement):
    return [list(row) for row in session.execute(statement).fetchall()]
answers = [rows(s) for s in json.load(open(sys.argv[1]))]
print(json.dumps(answers, default=str))
";
    let path = work.join("statements.json");
    std::fs::write(&path, json!(statements).to_string()).expect("a file");
    let mut command = clean(python);
    command.args(["-c", SCRIPT]).arg(&path).current_dir(work);
    let outcome = run(&mut command).must_succeed();
    serde_json::from_str(&outcome.stdout).expect("JSON")
}

/// Blocks of SQL with the heading each stands under.
fn blocks() -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/fleet.md");
    let text = std::fs::read_to_string(path).expect("docs/fleet.md");
    let mut found = Vec::new();
    let mut heading = String::new();
    let mut block: Option<String> = None;
    for line in text.lines() {
        match (&mut block, line) {
            (None, "```sql") => block = Some(String::new()),
            (None, _) if line.starts_with('#') => {
                heading = line.trim_start_matches(['#', ' ']).to_owned();
            }
            (None, _) => {}
            (Some(_), "```") => found.extend(block.take().map(|b| (heading.clone(), b))),
            (Some(sql), _) => {
                sql.push_str(line);
                sql.push('\n');
            }
        }
    }
    found
}

/// What the first row of each query begins with.
fn planted() -> Vec<(&'static str, Vec<Value>)> {
    vec![
        ("Which host waits most", vec![json!("mail2")]),
        (
            "Which device is slow",
            vec![json!("mail2"), json!("/dev/sdb1")],
        ),
        (
            "Which file costs most",
            vec![json!("mail2"), json!("/spool/deferred")],
        ),
        (
            "Which file costs most",
            vec![json!("mail2"), json!("/spool")],
        ),
        ("Which hour is slow", vec![json!("2026-03-02 03:00:00")]),
        (
            "Which device is erratic",
            vec![json!("mail3"), json!("/dev/sdb1")],
        ),
        (
            "What the slow requests of several hosts have in common",
            vec![json!("san7"), json!(2)],
        ),
        (
            "What became slower since a date",
            vec![json!("mail1"), json!("/dev/sda1"), json!("fdatasync")],
        ),
        (
            "Which program syncs for nothing",
            vec![json!("/usr/sbin/rsyslogd"), json!(864), json!(2592)],
        ),
        (
            "What a dial would save the fleet",
            vec![json!("mail2"), json!("qmgr")],
        ),
        (
            "Which recordings are not whole",
            vec![
                json!("mail3"),
                json!("moss-20260301T000000Z.parquet"),
                json!(17.0),
                json!(false),
            ],
        ),
    ]
}

/// The requests of one host in the first four days of March 2026, one of each sort every five
/// minutes; the answers are planted here.
fn requests(host: &'static str) -> Vec<Request<'static>> {
    let mut chance = Chance(host.len() as u64 + u64::from(host.as_bytes()[4]));
    let san = if host == "mail1" { "san1" } else { "san7" };
    let parents = match san {
        "san1" => "sdb1 < sdb < san1",
        _ => "sdb1 < sdb < san7",
    };
    let system = Request {
        path: "/srv/index.log",
        parents: "sda",
        kind: "fdatasync",
        ..REQUEST
    };
    let log = Request {
        exe: "/usr/sbin/rsyslogd",
        path: "/srv/log/mail.log",
        kind: "fsync",
        dirty: Some(host != "mail1"),
        ..system
    };
    let spool = Request {
        exe: "/usr/lib/postfix/sbin/qmgr",
        path: "/spool/deferred",
        mount: "/spool",
        device: "/dev/sdb1",
        parents,
        ..REQUEST
    };
    let active = Request {
        path: "/spool/active",
        ..spool
    };
    let mut found = Vec::new();
    for turn in 0..4 * 288 {
        let time_ns = MARCH_NS + turn * 300 * SECOND_NS;
        let after = time_ns >= MARCH_NS + 2 * DAY_NS;
        let backup =
            (MARCH_NS + 27 * 3600 * SECOND_NS..MARCH_NS + 28 * 3600 * SECOND_NS).contains(&time_ns);
        let slower = if host == "mail1" && after { 2e6 } else { 1e6 };
        let on_spool = match host {
            "mail2" => 20e6,
            "mail3" if turn % 12 == 5 => 31e6,
            "mail3" => 0.2e6,
            _ => 1e6,
        };
        let on_system = if backup { 120e6 } else { slower };
        let all = [
            (system, on_system),
            (log, 1e6),
            (spool, on_spool),
            (active, on_spool * 0.9),
        ];
        for (at, (request, median_ns)) in all.into_iter().enumerate() {
            // One of four turns has no request for the log.
            if at == 1 && turn % 4 == 3 {
                continue;
            }
            found.push(Request {
                time_ns: time_ns + at as i64 * SECOND_NS,
                took_ns: chance.around(median_ns),
                ..request
            });
        }
    }
    found
}

/// Makes recordings of three hosts and exports them; gives how many rows there are.
fn fleet(work: &Path) -> u64 {
    let mut rows = 0;
    for (host, session) in [("mail1", "kelp"), ("mail2", "fern"), ("mail3", "moss")] {
        let path = work.join(format!("{host}.rec"));
        let mut made = Made::new(File::create(&path).expect("a file"), &header(host, session));
        let requests = requests(host);
        requests.iter().for_each(|r| made.push(r));
        if host == "mail3" {
            made.lost(7, 17, MARCH_NS + DAY_NS);
            rows += 1;
        }
        made.end(MARCH_NS + 4 * DAY_NS - 1);
        rows += requests.len() as u64 + 1;
        export(&path, &work.join("fleet/"));
    }
    rows
}

fn export(recording: &Path, to: &Path) {
    let mut command = clean(SYNCLATER);
    command
        .arg("export")
        .arg(recording)
        .arg("--parquet")
        .arg(to);
    run(&mut command).must_succeed();
}

#[test]
fn each_query_of_the_document_has_a_planted_answer() {
    let found: Vec<String> = blocks().into_iter().skip(1).map(|(h, _)| h).collect();
    let planted: Vec<_> = planted().into_iter().map(|(heading, _)| heading).collect();
    assert_eq!(found, planted);
}

#[test]
fn each_query_of_the_document_finds_what_was_planted_first() {
    let Some(python) = duckdb("each_query_of_the_document_finds_what_was_planted_first") else {
        return;
    };
    let dir = Dir::new("fleet");
    let rows = fleet(dir.path());
    let count = "SELECT count(*), count(DISTINCT host), count(DISTINCT date) FROM recorded";
    let mut statements: Vec<String> = blocks().into_iter().map(|(_, sql)| sql).collect();
    statements.push(count.to_owned());
    let mut answers = query(&python, dir.path(), &statements);
    let counted = answers.pop().expect("counts");
    assert_eq!(counted, [json!([rows, 3, 4])]);
    for ((heading, want), answer) in planted().into_iter().zip(&answers[1..]) {
        let first = answer.first().and_then(Value::as_array);
        let first = first.unwrap_or_else(|| panic!("{heading}: no row"));
        assert_eq!(first[..want.len()], want, "{heading}: {answer:#?}");
    }
}

#[test]
fn a_recording_that_is_exported_again_is_not_doubled() {
    let Some(python) = duckdb("a_recording_that_is_exported_again_is_not_doubled") else {
        return;
    };
    let dir = Dir::new("again");
    let days = |n: i64| -> Vec<Request> {
        let time = |i: i64| MARCH_NS + i * DAY_NS / 10;
        let request = |i| Request {
            time_ns: time(i),
            ..REQUEST
        };
        (0..n * 10).map(request).collect()
    };
    for n in 1..4 {
        file(&dir.join("mail.rec"), &header("a/b=1 %", "kelp"), &days(n));
        export(&dir.join("mail.rec"), &dir.join("fleet/"));
    }
    let statements = [
        blocks()[0].1.clone(),
        "SELECT host, count(*), min(date), max(date), count(DISTINCT filename) \
         FROM recorded WHERE event = 'request' GROUP BY host"
            .to_owned(),
        "SELECT column_name, column_type FROM (DESCRIBE recorded) \
         WHERE column_name IN ('time', 'duration_ns', 'path', 'dirty', 'value', 'result')"
            .to_owned(),
        "SELECT DISTINCT decode(value) FROM parquet_kv_metadata('fleet/*/*/*.parquet') \
         WHERE decode(key) = 'synclater.host'"
            .to_owned(),
    ];
    let answers = query(&python, dir.path(), &statements);
    assert_eq!(
        answers[1],
        [json!(["a/b=1 %", 30, "2026-03-01", "2026-03-03", 3])]
    );
    let types = [
        ["time", "TIMESTAMP WITH TIME ZONE"],
        ["duration_ns", "UBIGINT"],
        ["path", "VARCHAR"],
        ["result", "BIGINT"],
        ["dirty", "BOOLEAN"],
        ["value", "DOUBLE"],
    ];
    assert_eq!(json!(answers[2]), json!(types));
    assert_eq!(answers[3], [json!(["a/b=1 %"])]);
}
