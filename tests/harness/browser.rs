//! A real browser without a screen: Chromium, spoken with over a pipe (its DevTools protocol).
//!
//! Promise: it has a profile of its own, every answer has a deadline, and the process group is
//! killed with its guard. What it told of requests, errors and messages is kept to be asked for.
//!
//! What it relies on: `chromium` in PATH. Descriptors 3 and 4 are the pipe; a shell puts them
//! there, because this crate forbids the code that would.

use super::command::{clean, LIMIT};
use super::dir::Dir;
use super::limits::skip;
use rustix::process::{kill_process_group, Pid, Signal};
use serde_json::{json, Value};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::time::Instant;

/// One page in a browser of its own.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: Option<String>,
    asked: u64,
    /// What it told without having been asked.
    pub told: Vec<Value>,
    // Last: the browser has ended before its profile goes.
    profile: Dir,
}

const OPTIONS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-breakpad",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
];

impl Browser {
    /// `None`, and a note that the test `name` is skipped, where there is no Chromium.
    pub fn start(name: &str) -> Option<Browser> {
        let is_there = |dir: &Path| dir.join("chromium").is_file();
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|dir| is_there(&dir)) {
            skip(name, "chromium is not installed");
            return None;
        }
        let profile = Dir::new("browser");
        let mut command = clean("sh");
        command.args([
            "-c",
            "exec \"$@\" 3<&0 4>&1 </dev/null >&2",
            "sh",
            "chromium",
        ]);
        command
            .args(OPTIONS)
            .arg(format!("--user-data-dir={}", profile.path().display()));
        command.arg("about:blank").env("HOME", profile.path());
        // It would leave folders behind elsewhere.
        command.env("TMPDIR", profile.path());
        let log = std::fs::File::create(profile.join("log")).expect("a log");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        let mut child = command.process_group(0).spawn().expect("a browser");
        let to = child.stdin.take().expect("its input");
        let from = hear(child.stdout.take().expect("its output"));
        let mut browser = Browser {
            child,
            to,
            from,
            session: None,
            asked: 0,
            told: Vec::new(),
            profile,
        };
        browser.attach();
        Some(browser)
    }

    fn attach(&mut self) {
        let target = self.call("Target.createTarget", json!({ "url": "about:blank" }));
        let how = json!({ "targetId": target["targetId"], "flatten": true });
        let session = self.call("Target.attachToTarget", how);
        self.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Network", "Log"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
    }

    /// # Panics
    /// If the browser refuses, has ended, or does not answer in time.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.asked += 1;
        let mut message = json!({ "id": self.asked, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let end = Instant::now() + LIMIT;
        write!(self.to, "{message}\0").expect("the browser reads");
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let heard = self.from.recv_timeout(left);
            let answer = heard.unwrap_or_else(|e| panic!("{method}: {e}\n{}", self.log()));
            if answer["id"] == self.asked {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.told.push(answer);
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.profile.join("log")).unwrap_or_default()
    }

    /// Opens a file and waits until it has loaded and been drawn; how long that took, in
    /// milliseconds.
    pub fn open(&mut self, file: &Path) -> f64 {
        let seen = self.told.len();
        let url = format!("file://{}", file.display());
        self.call("Page.navigate", json!({ "url": url }));
        let loaded = |told: &[Value]| told.iter().any(|t| t["method"] == "Page.loadEventFired");
        while !loaded(&self.told[seen..]) {
            let heard = self.from.recv_timeout(LIMIT);
            let event = heard.unwrap_or_else(|e| panic!("{url}: {e}\n{}", self.log()));
            self.told.push(event);
        }
        let drawn = "new Promise((done) => requestAnimationFrame(() =>
            requestAnimationFrame(() => done(performance.now()))))";
        self.ask(drawn).as_f64().expect("a time")
    }

    /// What an expression of JavaScript gives, waited for.
    ///
    /// # Panics
    /// If it throws.
    pub fn ask(&mut self, expression: &str) -> Value {
        let how = json!({
            "expression": expression, "returnByValue": true, "awaitPromise": true,
        });
        let answer = self.call("Runtime.evaluate", how);
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    /// Clicks with a mouse on the middle of an element, which is brought into sight first.
    pub fn click(&mut self, selector: &str) {
        let (x, y) = self.middle_of(selector);
        for kind in ["mousePressed", "mouseReleased"] {
            let what = json!({
                "type": kind, "x": x, "y": y, "button": "left", "clickCount": 1,
            });
            self.call("Input.dispatchMouseEvent", what);
        }
    }

    /// Moves the mouse to a place.
    pub fn point(&mut self, x: f64, y: f64) {
        let what = json!({ "type": "mouseMoved", "x": x, "y": y });
        self.call("Input.dispatchMouseEvent", what);
    }

    /// Taps on a place with a finger.
    pub fn tap(&mut self, x: f64, y: f64) {
        let touch = |kind: &str, points: Value| json!({ "type": kind, "touchPoints": points });
        let begin = touch("touchStart", json!([{ "x": x, "y": y }]));
        self.call("Input.dispatchTouchEvent", begin);
        self.call("Input.dispatchTouchEvent", touch("touchEnd", json!([])));
    }

    fn middle_of(&mut self, selector: &str) -> (f64, f64) {
        let selector = json!(selector);
        let place = self.ask(&format!(
            "(() => {{ const e = document.querySelector({selector});
              if (!e) return null;
              e.scrollIntoView({{ block: 'center', behavior: 'instant' }});
              const r = e.getBoundingClientRect();
              return [r.left + r.width / 2, r.top + r.height / 2]; }})()"
        ));
        let of = |k: usize| place[k].as_f64();
        let found = of(0).zip(of(1));
        found.unwrap_or_else(|| panic!("no {selector} on the page"))
    }

    /// Presses a key as one would who has no mouse.
    pub fn press(&mut self, key: &str) {
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let mut what = json!({ "type": kind, "key": key, "code": key });
            if kind == "keyDown" && !text.is_empty() {
                what["text"] = json!(text);
                what["windowsVirtualKeyCode"] = json!(13);
            }
            self.call("Input.dispatchKeyEvent", what);
        }
    }

    /// Gives the window a size.
    pub fn resize(&mut self, width: u32, height: u32) {
        let size = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
        });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// What the system prefers: `light` or `dark`; and the medium: `screen` or `print`.
    pub fn prefer(&mut self, scheme: &str, medium: &str) {
        // What moves by itself would not be where it was looked for.
        let still = json!({ "name": "prefers-reduced-motion", "value": "reduce" });
        let features = [
            json!({ "name": "prefers-color-scheme", "value": scheme }),
            still,
        ];
        let media = json!({ "media": medium, "features": features });
        self.call("Emulation.setEmulatedMedia", media);
    }

    /// A picture of a part of the page, PNG.
    pub fn picture(&mut self, y: u32, width: u32, height: u32) -> Vec<u8> {
        let clip = json!({ "x": 0, "y": y, "width": width, "height": height, "scale": 1 });
        let how = json!({ "format": "png", "clip": clip, "captureBeyondViewport": true });
        let taken = self.call("Page.captureScreenshot", how);
        from_base64(taken["data"].as_str().expect("a picture"))
    }

    /// Errors and complaints that the page caused.
    pub fn complaints(&self) -> Vec<&Value> {
        let is_one = |t: &&Value| {
            t["method"] == "Runtime.exceptionThrown" || t["method"] == "Log.entryAdded"
        };
        self.told.iter().filter(is_one).collect()
    }

    /// Addresses that were asked for.
    pub fn requests(&self) -> Vec<String> {
        let asked = |t: &&Value| t["method"] == "Network.requestWillBeSent";
        let url = |t: &Value| {
            t["params"]["request"]["url"]
                .as_str()
                .unwrap_or("?")
                .to_owned()
        };
        self.told.iter().filter(asked).map(url).collect()
    }
}

/// Messages end with a zero byte.
fn hear(output: ChildStdout) -> Receiver<Value> {
    let (heard, from) = channel();
    std::thread::spawn(move || {
        for message in BufReader::new(output).split(0) {
            let Ok(message) = message else { return };
            let value = serde_json::from_slice(&message).expect("a browser speaks JSON");
            if heard.send(value).is_err() {
                return;
            }
        }
    });
    from
}

fn from_base64(text: &str) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => Some(c - b'A'),
        b'a'..=b'z' => Some(c - b'a' + 26),
        b'0'..=b'9' => Some(c - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut bits, mut held, mut bytes) = (0u32, 0, Vec::new());
    for six in text.bytes().filter_map(value) {
        bits = bits << 6 | u32::from(six);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held & 0xff) as u8);
        }
    }
    bytes
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its children are in the group; the group may have ended by itself.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

#[test]
fn base64_is_read_back() {
    for (text, bytes) in [
        ("", ""),
        ("Zg==", "f"),
        ("Zm9vYmE=", "fooba"),
        ("Zm9vYmFy", "foobar"),
    ] {
        assert_eq!(from_base64(text), bytes.as_bytes());
    }
}

#[test]
fn a_browser_counts_to_four() {
    let Some(mut browser) = Browser::start("a_browser_counts_to_four") else {
        return;
    };
    assert_eq!(browser.ask("2 + 2"), 4);
}
