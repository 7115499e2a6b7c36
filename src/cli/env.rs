//! `synclater env`: the variables to set where synclater cannot be the parent.

use crate::reach::launch;
use crate::reach::library::{self, Variant};
use crate::voice;
use synclater_policy::dial::Until;
use synclater_text::message::Trouble;

/// Prints the variables to set where synclater cannot be the parent: containers, CI images, and
/// daemons that clear the environment of their processes.
///
/// The library alone has no session: no lease, no ledger, nothing is settled. It answers requests
/// on every file system and block device.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What the library alone does: never or now.
    #[arg(short, long, value_name = "WHEN", default_value = "never")]
    until: Until,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
EXAMPLES
  synclater env
  eval \"$(synclater env -u never)\"
  synclater env --json";

/// Prints shell lines; what is not for the shell stands in comments.
///
/// # Errors
/// A [`Trouble`] for another dial, or where the library has no place.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    if !matches!(args.until, Until::Now | Until::Never) {
        return Err(Trouble::new(
            format!("the library alone cannot do --until {}", args.until),
            "nobody settles without a session",
            "-u never, -u now, or synclater run",
            "nothing was changed",
        )
        .into());
    }
    let library = library::locate(Variant::Ordinary).map_err(|why| {
        let what = "there is no folder for the preload library";
        Trouble::new(what, why, "synclater doctor", "nothing was changed")
    })?;
    let preload = launch::preload(&library, None);
    let preload = preload.to_string_lossy();
    if args.json {
        let object = serde_json::json!({
            "version": 1, "LD_PRELOAD": preload, "SYNCLATER_UNTIL": args.until.to_string(),
            "import": IMPORT,
        });
        voice::print(&format!("{object:#}\n"))?;
        return Ok(0);
    }
    voice::print(&format!(
        "# The library alone: every process that inherits these.\n\
         export LD_PRELOAD='{preload}'\n\
         export SYNCLATER_UNTIL={}\n\
         # In a Dockerfile (the library must be in the image: make install):\n\
         #   ENV LD_PRELOAD='{preload}' SYNCLATER_UNTIL={}\n\
         # A session's daemons that clear the environment: have them pass on the names.\n\
         # Dovecot, in dovecot.conf:\n\
         #   import_environment = $import_environment {IMPORT}\n\
         # Postfix, in main.cf:\n\
         #   import_environment = MAIL_CONFIG MAIL_DEBUG MAIL_LOGTAG TZ LANG=C {IMPORT}\n\
         # sudo, in sudoers:\n\
         #   Defaults env_keep += \"{IMPORT}\"\n",
        args.until, args.until
    ))?;
    Ok(0)
}

/// What a daemon of a session has to pass on.
const IMPORT: &str = "LD_PRELOAD SYNCLATER_PAGE SYNCLATER_UNTIL";
