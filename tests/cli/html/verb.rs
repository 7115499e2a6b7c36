//! `synclater report FILE --html OUT`: from a recording to a page that opens.

use super::{sample, text, texts};
use crate::harness::browser::Browser;
use crate::harness::command::{clean, run, Outcome};
use crate::harness::dir::Dir;
use crate::harness::limits::count;
use crate::sessions::stage::{has_four_parts, SYNCLATER};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A folder with a recording of so many seconds.
fn recorded(wall_s: u64) -> (Dir, PathBuf) {
    let dir = Dir::new("recorded");
    let file = dir.join("mail.rec");
    fs::write(&file, sample::recording(wall_s)).expect("a recording");
    (dir, file)
}

fn report(file: &Path, out: &Path) -> Outcome {
    let mut command = clean(SYNCLATER);
    run(command.arg("report").arg(file).arg("--html").arg(out))
}

fn names_in(dir: &Dir) -> Vec<String> {
    let entries = fs::read_dir(dir.path()).expect("the folder");
    let name = |e: std::io::Result<fs::DirEntry>| e.expect("an entry").file_name();
    let mut names: Vec<String> = entries
        .map(|e| name(e).to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn the_page_appears_whole_in_the_place_of_the_one_before() {
    let (dir, file) = recorded(3);
    let shown = report(&file, Path::new("-")).must_succeed();
    assert!(shown.stdout.starts_with("<!DOCTYPE html>") && shown.stdout.ends_with("</html>\n"));
    let (page, link) = (dir.join("page.html"), dir.join("link.html"));
    fs::write(&page, "before").expect("a file");
    fs::set_permissions(&page, fs::Permissions::from_mode(0o640)).expect("chmod");
    std::os::unix::fs::symlink("page.html", &link).expect("a link");
    let written = report(&file, &link).must_succeed();
    assert_eq!((written.stdout.as_str(), written.stderr.as_str()), ("", ""));
    assert_eq!(fs::read_to_string(&page).expect("the page"), shown.stdout);
    let mode = fs::metadata(&page).expect("the page").permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert!(fs::symlink_metadata(&link).expect("the link").is_symlink());
    assert_eq!(names_in(&dir), ["link.html", "mail.rec", "page.html"]);
}

#[test]
fn a_page_that_cannot_be_written_is_told_and_nothing_is_lost() {
    let (dir, file) = recorded(1);
    let bytes = fs::read(&file).expect("the recording");
    let folder = dir.make("folder");
    let link = dir.join("link");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    let absent = dir.join("not/there.html");
    for out in [&folder, &absent, &file, &link, Path::new("/dev/full")] {
        let outcome = report(&file, out);
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(has_four_parts(&outcome.stderr), "{outcome}");
    }
    assert_eq!(fs::read(&file).expect("the recording"), bytes);
    assert_eq!(names_in(&dir), ["folder", "link", "mail.rec"]);
    let device = fs::metadata("/dev/full").expect("/dev/full");
    assert!(std::os::unix::fs::FileTypeExt::is_char_device(
        &device.file_type()
    ));
}

#[test]
fn a_page_of_a_recording_that_was_cut_off_says_so() {
    let (dir, file) = recorded(3);
    let bytes = fs::read(&file).expect("the recording");
    fs::write(&file, &bytes[..bytes.len() - 9]).expect("a shorter one");
    let page = dir.join("page.html");
    let outcome = report(&file, &page).must_succeed();
    assert!(
        outcome.stderr.starts_with("synclater: not whole: "),
        "{outcome}"
    );
    let Some(mut browser) = Browser::start("a_page_of_a_recording_that_was_cut_off_says_so") else {
        return;
    };
    browser.open(&page);
    let said = text(&mut browser, ".warning");
    assert!(
        said.starts_with("Warning: This recording is not whole. "),
        "{said}"
    );
}

#[test]
fn soak_the_page_of_a_million_requests_is_small_and_opens_in_under_two_seconds() {
    let name = "soak_the_page_of_a_million_requests_is_small_and_opens_in_under_two_seconds";
    let Some(mut browser) = Browser::start(name) else {
        return;
    };
    let (dir, file) = recorded(count(40, 1_240) as u64);
    let page = dir.join("page.html");
    report(&file, &page).must_succeed();
    let size = fs::metadata(&page).expect("the page").len();
    assert!(size <= 3_000_000, "{size} bytes");
    let took_ms = (0..5).map(|_| browser.open(&page)).fold(f64::MAX, f64::min);
    let requests = texts(&mut browser, ".figures dd").remove(0);
    println!("{requests} requests: {size} bytes, drawn after {took_ms:.0} ms");
    assert!(took_ms < 2_000.0, "{took_ms} ms");
    let requests: usize = requests.replace(',', "").parse().expect("a count");
    assert!(requests >= count(30_000, 1_000_000), "{requests}");
    assert!(text(&mut browser, "h1").ends_with(" were spent in syncs"));
    assert!(
        browser.complaints().is_empty(),
        "{:?}",
        browser.complaints()
    );
}
