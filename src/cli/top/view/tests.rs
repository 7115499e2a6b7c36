//! The screen on made-up figures: what is on it, and that it fits.

use super::super::keys::{press, Act};
use super::*;
use crate::session::control::Request;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use synclater_recording::report::top::Figures;
use synclater_text::layout::width;

fn line(pid: u32, name: &str, requests_per_s: f64) -> Line {
    Line {
        pid: Some(pid),
        name: name.into(),
        detail: String::new(),
        figures: Figures {
            requests_per_s,
            real_per_s: 3.0,
            time_share: Some(0.25),
            p50_s: Some(0.0012),
            p99_s: Some(0.0081),
            max_s: Some(0.031),
            needless_share: Some(0.5),
            ..Figures::default()
        },
    }
}

fn screen(lines: Vec<Line>) -> Screen {
    let mut screen = Screen::new(By::Process, 1.0, true);
    screen.session = Some(TopSession {
        rules_until: None,
        session: "kelp".into(),
        command: vec!["make".into(), "a target".into()],
        until: "1s".into(),
        lease_left_s: Some(59.7),
        debt: 2300,
        oldest_s: Some(0.25),
        escaped: 2,
    });
    screen.top = Some(Top {
        version: 1,
        time: String::new(),
        session: None,
        seconds: 5.0,
        figures: Figures {
            requests_per_s: 12_345.0,
            real_per_s: 12.0,
            skipped_per_s: 12_333.0,
            p50_s: Some(0.0012),
            p99_s: Some(0.0081),
            max_s: Some(0.031),
            ..Figures::default()
        },
        lost_per_s: 0.0,
        by: "process".into(),
        lines,
        others: None,
    });
    let point = |requests| Point {
        requests,
        p99_ns: Some(requests * 1000),
    };
    screen.history = [0, 5, 40, 20].map(point).to_vec();
    screen
}

fn shown_on(screen: &Screen, columns: u16, rows: u16) -> Vec<String> {
    let area = Rect::new(0, 0, columns, rows);
    let mut buffer = Buffer::empty(area);
    draw(screen, area, &mut buffer);
    let row = |y: u16| {
        (0..columns)
            .map(|x| buffer[(x, y)].symbol())
            .collect::<String>()
    };
    (0..rows).map(|y| row(y).trim_end().to_owned()).collect()
}

fn type_in(screen: &mut Screen, keys: &str) -> Vec<Act> {
    let key = |c: char| match c {
        '\n' => KeyCode::Enter,
        '\t' => KeyCode::Tab,
        '\u{1b}' => KeyCode::Esc,
        '\u{8}' => KeyCode::Backspace,
        c => KeyCode::Char(c),
    };
    let mut press_one = |c| press(screen, KeyEvent::new(key(c), KeyModifiers::NONE));
    keys.chars().map(&mut press_one).collect()
}

#[test]
fn a_screen_of_80_columns_has_figures_graphs_and_the_table() {
    let mut b = line(41, "/usr/bin/b", 12_335.0);
    b.detail = "/usr/bin/b ./some files".into();
    let screen = screen(vec![line(7, "/usr/bin/a", 10.0), b]);
    let rows = shown_on(&screen, 80, 12 + 1);
    let want = "\
kelp  make 'a target'
until 1s, debt 2,300 requests, oldest 0.25 s, lease left 60 s, 2 escaped
12,345 requests/s   12 real/s   12,333 skipped/s                      last 5.0 s
real ones: p50 1.2 ms   p99 8.1 ms   max 31 ms
requests                                                       ▁█▄ ≤ 40/s
p99                                                            ▁█▄ ≤ 40 µs
by [process] file  device  kind  caller
PROCESS                    REQ/S  REAL/S ▼TIME  P50 ms  P99 ms  MAX ms  NEEDLESS
7 a                           10     3.0   25%     1.2     8.1      31       50%
41 b ./some files         12,335     3.0   25%     1.2     8.1      31       50%


? help  q quit  tab group  s sort  / filter  space pause  u dial  S settle";
    assert_eq!(rows.join("\n"), want);
}

#[test]
fn it_fits_whatever_size_there_is_and_no_name_steers_the_terminal() {
    let hostile = "/tmp/\u{1b}[2J\u{202e}\n\u{7}é漢字 and a long name ".repeat(9);
    let mut screen = screen(vec![line(u32::MAX, &hostile, 1e18), line(1, "", 0.01)]);
    screen.note = Some(hostile.clone());
    screen.filter = "tmp".into();
    screen.top.as_mut().expect("some").lost_per_s = 1e12;
    for typing in [
        Typing::Nothing,
        Typing::Filter,
        Typing::Dial,
        Typing::Settle,
    ] {
        screen.typing = typing;
        screen.input = hostile.clone();
        screen.message = Some(hostile.clone());
        for by in By::ALL {
            screen.by = by;
            for (columns, rows) in [
                (80, 24),
                (60, 15),
                (200, 50),
                (20, 5),
                (7, 2),
                (1, 1),
                (0, 0),
            ] {
                let all = shown_on(&screen, columns, rows).join("\n");
                assert!(!all.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{all}");
                let lines = screen.lines(columns.into(), rows.into());
                assert!(lines.len() <= rows.into());
                let widest = lines.iter().map(|(l, _)| width(l)).max().unwrap_or(0);
                assert!(
                    widest <= columns.into(),
                    "{columns}x{rows}: {widest}\n{all}"
                );
            }
        }
    }
    screen.help = true;
    assert!(shown_on(&screen, 80, 24)
        .iter()
        .any(|l| l.contains("NEEDLESS ")));
    assert_eq!(shown_on(&screen, 60, 3).len(), 3);
}

#[test]
fn narrow_screens_keep_the_columns_that_matter_most() {
    let screen = screen(vec![line(7, "/usr/bin/a", 10.0)]);
    let rows = shown_on(&screen, 60, 15);
    assert!(
        rows[7].contains("REQ/S") && rows[7].contains("P99"),
        "{rows:?}"
    );
    assert!(!rows[7].contains("NEEDLESS"), "{rows:?}");
    let rows = shown_on(&screen, 32, 15);
    assert!(
        rows[7].contains("REQ/S") && !rows[7].contains("P99"),
        "{rows:?}"
    );
}

#[test]
fn keys_sort_group_scroll_and_filter_the_table() {
    let many = (0..50).map(|n| line(n, &format!("/bin/p{n:02}"), f64::from(n)));
    let mut screen = screen(many.collect());
    let first = |screen: &Screen| shown_on(screen, 80, 24)[8].clone();
    assert!(first(&screen).starts_with("0 p00 "), "{}", first(&screen));
    // To the right of the last column and round to requests a second.
    type_in(&mut screen, "ssssss");
    assert_eq!(screen.sort, Sort::Requests);
    assert!(first(&screen).starts_with("49 p49 "), "{}", first(&screen));
    press(
        &mut screen,
        KeyEvent::new(KeyCode::Down, KeyModifiers::NONE),
    );
    assert!(first(&screen).starts_with("48 "), "{}", first(&screen));
    type_in(&mut screen, "/P1x\u{8}7\n");
    assert!(first(&screen).starts_with("17 "), "{}", first(&screen));
    assert!(shown_on(&screen, 80, 24)[6].ends_with("filter: P17 (1 of 50)"));
    type_in(&mut screen, "\u{1b}\t\t");
    assert_eq!((screen.by, screen.filter.as_str()), (By::Device, ""));
    type_in(&mut screen, "5");
    assert_eq!(screen.by, By::Caller);
}

#[test]
fn only_a_dial_and_a_confirmed_settle_are_asked_of_the_session() {
    let mut screen = screen(Vec::new());
    let acts = type_in(&mut screen, "u1s\n");
    let asks =
        |act: &Act| matches!(act, Act::Ask(Request::Set { until: Some(u), .. }) if u == "1s");
    assert!(acts[..3].iter().all(|a| matches!(a, Act::Draw)), "{acts:?}");
    assert!(asks(&acts[3]), "{acts:?}");
    for keys in ["u\n", "u1s\u{1b}", "Sn", "S\n", "/now\n"] {
        let acts = type_in(&mut screen, keys);
        assert!(
            acts.iter().all(|a| matches!(a, Act::Draw)),
            "{keys:?} {acts:?}"
        );
        assert_eq!(screen.typing, Typing::Nothing);
    }
    let acts = type_in(&mut screen, "Sy");
    assert!(matches!(acts[1], Act::Ask(Request::Settle)), "{acts:?}");
    assert!(matches!(type_in(&mut screen, "q")[0], Act::Quit));
    let end = press(
        &mut screen,
        KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL),
    );
    assert!(matches!(end, Act::Quit));
}

#[test]
fn what_is_lost_or_wrong_stands_above_the_table_and_nothing_says_so_by_colour_alone() {
    let mut screen = screen(vec![line(7, "/usr/bin/a", 10.0)]);
    screen.colour = false;
    screen.top.as_mut().expect("some").lost_per_s = 1234.4;
    screen.note = Some("the session has not answered for 3 s".into());
    let all = shown_on(&screen, 80, 24).join("\n");
    assert!(all.contains("lost: 1,234 requests/s"), "{all}");
    assert!(all.contains("has not answered for 3 s"), "{all}");
    for (_, style) in screen.lines(80, 24) {
        assert_eq!((style.fg, style.bg), (None, None));
    }
}

#[test]
fn before_the_first_interval_it_says_that_it_waits() {
    let screen = Screen::new(By::File, 1.0, true);
    let all = shown_on(&screen, 80, 24).join("\n");
    assert!(all.contains("waiting for the first interval"), "{all}");
    assert!(all.contains("[file]"), "{all}");
}

#[test]
fn what_is_printed_once_has_the_table_and_no_keys() {
    let mut screen = screen(vec![line(7, "/usr/bin/a", 10.0)]);
    screen.keys = false;
    screen.history.truncate(1);
    let text = text(&screen, 80, usize::MAX);
    assert!(text.contains("\n7 a  "), "{text}");
    assert!(!text.contains("q quit") && !text.contains('≤'), "{text}");
}
