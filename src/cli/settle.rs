//! `synclater settle`: pay now.

use super::set::ask_named;
use crate::session::control::{sessions, Request};
use std::os::fd::AsFd;
use std::path::Path;
use synclater_model::report::message::Trouble;
use synclater_sys::{job, mount};

/// Makes durable what was asked for so far: of one session, of file systems, or of all sessions.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Sessions, as `synclater ps` names them, or paths (with a /) on the file systems to settle.
    #[arg(value_name = "SESSION|PATH")]
    what: Vec<String>,
}

const EXAMPLES: &str = "\
EXAMPLES
  synclater settle
  synclater settle kelp
  synclater settle /srv/mail";

/// Settles each; waits for the end.
///
/// # Errors
/// A [`Trouble`] for the first that could not be settled.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    super::clear_stale();
    let all = || sessions().into_iter().map(|s| s.id).collect();
    let what: Vec<String> = if args.what.is_empty() {
        all()
    } else {
        args.what.clone()
    };
    for name in &what {
        let said = if name.contains('/') || name == "." {
            path(name)?
        } else {
            ask_named(name, &Request::Settle)?.said
        };
        super::print(&format!("{name}: {said}\n"))?;
    }
    if what.is_empty() {
        super::print("no sessions\n")?;
    }
    Ok(0)
}

fn path(name: &str) -> Result<String, Trouble> {
    let trouble = |why: String| {
        let state = "nothing is known to be durable that was not before";
        Trouble::new(
            format!("cannot settle {name}"),
            why,
            "look at `dmesg` for write errors",
            state,
        )
    };
    let fd = mount::open_for_sync(Path::new(name)).map_err(|e| trouble(e.to_string()))?;
    if mount::is_block_device(&fd) {
        rustix::fs::fsync(&fd).map_err(|e| trouble(e.to_string()))?;
        return Ok("device settled".into());
    }
    match job::syncfs(fd.as_fd()) {
        0 => Ok("file system settled".into()),
        errno => Err(trouble(
            std::io::Error::from_raw_os_error(errno).to_string(),
        )),
    }
}
