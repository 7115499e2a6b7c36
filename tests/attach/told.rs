//! What attach and detach say, and whether it is so: names, statuses, what could not be done.

use super::*;

#[test]
fn relative_names_mean_the_callers_folder() {
    let stage = Stage::new("relative");
    let mut victim = demand(&stage);
    let here = |words: &[&str]| {
        let mut command = stage.synclater(words);
        command.current_dir(stage.work().parent().expect("above"));
        command.env("SYNCLATER_RUN_DIR", "run");
        command.env("SYNCLATER_STATE_DIR", "state");
        crate::harness::command::run(&mut command).must_succeed()
    };
    let pid = number(victim.pid());
    here(&[
        "attach",
        "--pid",
        &pid,
        "-u",
        "1h",
        "--record",
        "victim.rec",
    ]);
    stage.warm(&mut victim);
    assert_eq!(stage.entries().len(), 1);
    here(&["detach", &stage.id()]);
    let recorded = stage.file("victim.rec").display().to_string();
    let report = stage.ask(&["report", &recorded]).must_succeed();
    assert!(report.stdout.contains("fsync"), "{report}");
}
