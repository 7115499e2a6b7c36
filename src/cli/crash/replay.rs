//! `synclater crash --replay`: a state that failed, mounted for a look.

use crate::crash::kept::{self, NoReplay};
use crate::voice;
use std::path::Path;
use synclater_text::layout::{command_line, shown};
use synclater_text::message::Trouble;

/// Mounts it, and says where.
///
/// # Errors
/// A [`Trouble`] where it is not kept, or cannot be mounted.
pub fn run(id: &str, json: bool) -> anyhow::Result<i32> {
    let replayed = kept::replay(id).map_err(|e| trouble(id, e))?;
    let (about, at) = (&replayed.about, quoted(&replayed.at));
    let acknowledged = quoted(&replayed.acknowledged);
    let made: Vec<String> = replayed.made.iter().map(|dir| quoted(dir)).collect();
    let text = if json {
        let all = serde_json::json!({
            "version": 1,
            "id": id,
            "fs": about.fs,
            "mounted": replayed.at,
            "made": replayed.made,
            "acknowledged": replayed.acknowledged,
            "check": about.check,
            "sentence": about.sentence,
            "said": about.said,
        });
        serde_json::to_string_pretty(&all)? + "\n"
    } else {
        format!(
            "{}\ncheck:        {}\nmounted at:   {at}\nacknowledged: {acknowledged}\n\
             to check it:  {}\n\
             when done:    umount {at} && rmdir {}\n",
            about.sentence,
            shown(&about.said),
            again(&about.check, &replayed.at, &replayed.acknowledged),
            made.join(" "),
        )
    };
    voice::print(&text)?;
    Ok(0)
}

/// A path as one would type it.
fn quoted(path: &Path) -> String {
    command_line(&[path.display().to_string()])
}

/// The command line of the check for what is mounted.
fn again(check: &str, at: &Path, acknowledged: &Path) -> String {
    let (at, acknowledged) = (quoted(at), quoted(acknowledged));
    match check.strip_prefix("builtin:") {
        Some("none") => "the report says what differs".to_owned(),
        Some(name) => format!("synclater crash-check {name} {at} {acknowledged}"),
        None => format!("{} {at} {acknowledged}", shown(check)),
    }
}

fn trouble(id: &str, e: NoReplay) -> Trouble {
    let what = shown(&format!("cannot show the state {id}"));
    const NOTHING: &str = "nothing is mounted, nothing was changed";
    match e {
        NoReplay::Unknown(why) => Trouble::new(
            what,
            why,
            "take the words from the end of a report",
            NOTHING,
        ),
        NoReplay::InTheWay(at) => {
            let at = at.display();
            let try_ = format!("if you are done with it: umount {at} ; rmdir {at}");
            Trouble::new(
                what,
                format!("{at} is there already"),
                try_,
                "that is as it was",
            )
        }
        NoReplay::Failed(doing, e) => {
            let try_ = "it needs root, loop devices, and room in TMPDIR";
            Trouble::new(what, format!("{doing}: {e}"), try_, NOTHING)
        }
    }
}
