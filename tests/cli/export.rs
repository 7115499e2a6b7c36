//! `synclater export`: every row is there, whole or not at all, and small.

use crate::harness::command::{clean, run};
use crate::harness::dir::Dir;
use crate::harness::limits::count;
use crate::harness::recordings::{header, Made, MailServer};
use crate::sessions::stage::SYNCLATER;
use std::fs::File;
use std::io::BufWriter;

#[test]
fn soak_a_request_takes_at_most_25_bytes_after_export() {
    let requests = count(200_000, 10_000_000);
    let dir = Dir::new("small");
    let recording = dir.join("mail.rec");
    let out = BufWriter::new(File::create(&recording).expect("a file"));
    let mut made = Made::new(out, &header("mail1", "kelp"));
    let mut server = MailServer::new(1);
    server.work(&mut made, requests);
    made.end(server.time_ns);
    let mut command = clean(SYNCLATER);
    command
        .arg("export")
        .arg(&recording)
        .arg("--parquet")
        .arg(dir.join("mail.parquet"));
    let began = std::time::Instant::now();
    let outcome = run(&mut command).must_succeed();
    let size = std::fs::metadata(dir.join("mail.parquet"))
        .expect("a file")
        .len();
    let each = size as f64 / requests as f64;
    let before = std::fs::metadata(&recording).expect("a file").len() as f64 / requests as f64;
    println!(
        "{each:.2} bytes a request, {before:.2} in the recording, {:?}",
        began.elapsed()
    );
    assert!(each <= 25.0, "{each} bytes a request: {outcome}");
}
