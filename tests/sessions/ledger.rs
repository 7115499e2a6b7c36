//! The ledger: what is said after a power cut. The reboot is an entry with another boot id.

use super::stage::Stage;
use serde_json::Value;

const OTHER_BOOT: &str = "11111111-2222-3333-4444-555555555555";

/// Leaves an entry of another boot, made from one that a session really wrote. Returns its id.
fn cut_session(stage: &Stage, dial: &str) -> String {
    let mut victim = stage.demand(&["-u", dial]);
    stage.warm(&mut victim);
    let path = stage.entries().pop().expect("an open entry");
    let text = std::fs::read_to_string(&path).expect("the entry");
    victim.end().must_succeed();
    assert!(!path.exists(), "the entry was not closed");
    let mut entry: Value = serde_json::from_str(&text).expect("JSON");
    entry["boot_id"] = OTHER_BOOT.into();
    std::fs::write(&path, entry.to_string()).expect("an entry");
    entry["id"].as_str().expect("an id").to_owned()
}

#[test]
fn status_names_a_session_that_was_cut() {
    let stage = Stage::new("cut");
    let clean = stage.ask(&["status"]).must_succeed();
    assert_eq!(clean.stdout, "no session was cut or left unsettled\n");
    let id = cut_session(&stage, "exit");
    let status = stage.ask(&["status"]);
    assert_eq!(status.status.code(), Some(1), "{status}");
    for said in [id.as_str(), "demand", "exit", "at least"] {
        assert!(status.stdout.contains(said), "{said}: {status}");
    }
    stage.ask(&["status", "--forget", &id]).must_succeed();
    stage.ask(&["status"]).must_succeed();
}

#[test]
fn status_as_json_has_the_documented_keys() {
    let stage = Stage::new("cut-json");
    let empty = stage.ask(&["status", "--json"]).must_succeed();
    assert_eq!(empty.stdout.trim(), "[]", "{empty}");
    let id = cut_session(&stage, "2h");
    let status = stage.ask(&["status", "--json"]);
    assert_eq!(status.status.code(), Some(1), "{status}");
    let all: Value = serde_json::from_str(&status.stdout).expect("JSON");
    let one = &all[0];
    assert_eq!(one["version"], 1, "{one:#}");
    assert_eq!(one["id"], id.as_str(), "{one:#}");
    assert_eq!(one["boot_id"], OTHER_BOOT, "{one:#}");
    assert_eq!(one["until"], "2h", "{one:#}");
    assert!(
        one["command"].is_array() && one["started"].is_string(),
        "{one:#}"
    );
    assert!(
        one["advice"].as_str().is_some_and(|a| a.len() > 20),
        "{one:#}"
    );
    let fs = one["filesystems"].as_array().expect("file systems");
    assert!(!fs.is_empty() && fs[0]["mount"].is_string(), "{one:#}");
}

#[test]
fn a_running_session_is_neither_cut_nor_forgotten() {
    let stage = Stage::new("alive");
    let mut victim = stage.demand(&[]);
    stage.warm(&mut victim);
    let id = stage.id();
    let status = stage.ask(&["status"]).must_succeed();
    assert_eq!(
        status.stdout, "no session was cut or left unsettled\n",
        "{status}"
    );
    let forget = stage.ask(&["status", "--forget", &id]);
    assert_eq!(forget.status.code(), Some(125), "{forget}");
    assert_eq!(stage.entries().len(), 1);
    victim.end().must_succeed();
}

#[test]
fn a_torn_entry_is_named_and_counts_as_cut() {
    let stage = Stage::new("torn");
    std::fs::write(stage.state().join("kelp.json"), "{\"version\": 1,").expect("an entry");
    let status = stage.ask(&["status"]);
    assert_eq!(status.status.code(), Some(1), "{status}");
    assert!(status.stderr.contains("kelp.json"), "{status}");
}

#[test]
fn a_new_session_does_not_take_the_name_of_a_cut_one() {
    let stage = Stage::new("names");
    let id = cut_session(&stage, "exit");
    for _ in 0..70 {
        stage.ask(&["run", "--quiet", "--", "true"]).must_succeed();
    }
    assert_eq!(stage.entries().len(), 1);
    stage.ask(&["status", "--forget", &id]).must_succeed();
}
