//! `synclater generate`: what is made from the one table of flags, and the library.

use crate::reach::library;
use crate::voice;
use clap_complete::Shell;
use std::path::{Path, PathBuf};
use synclater_text::layout::shown;
use synclater_text::message::Trouble;

/// Writes man pages, completions, or the preload library.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to write.
    #[arg(value_enum)]
    what: What,

    /// Folder to write to; without it the man page, or bash's completions, go to stdout.
    dir: Option<PathBuf>,
}

const EXAMPLES: &str = "\
EXAMPLES
  synclater generate man
  synclater generate completions > /etc/bash_completion.d/synclater
  synclater generate completions DIR    # for bash, zsh and fish, a file each";

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// synclater.1 and one page for each verb.
    Man,
    /// For bash, zsh and fish.
    Completions,
    /// libsynclater.so and libsynclater-io.so, for every value of $LIB.
    Library,
}

/// Writes it.
///
/// # Errors
/// A [`Trouble`] where files cannot be written.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    let Some(dir) = &args.dir else {
        to_stdout(args.what)?;
        return Ok(0);
    };
    let written = std::fs::create_dir_all(dir).and_then(|()| match args.what {
        What::Man => clap_mangen::generate_to(super::table(), dir),
        What::Library => library::unpack(dir),
        What::Completions => completions(dir),
    });
    written.map_err(|e| {
        let what = format!("cannot write to {}", dir.display());
        let try_ = "name a folder that you can write";
        Trouble::new(
            what,
            e.to_string(),
            try_,
            "files may have been written in part",
        )
    })?;
    let what = match args.what {
        What::Man => "man pages",
        What::Completions => "completions for bash, zsh and fish",
        What::Library => "the library",
    };
    voice::say(&format!(
        "synclater: {what} written to the folder {}\n",
        shown(&dir.to_string_lossy())
    ));
    Ok(0)
}

fn to_stdout(what: What) -> anyhow::Result<()> {
    let mut text = Vec::new();
    match what {
        What::Man => clap_mangen::Man::new(super::table()).render(&mut text)?,
        What::Completions => {
            clap_complete::generate(Shell::Bash, &mut super::table(), "synclater", &mut text);
        }
        What::Library => {
            let try_ = "synclater generate library DIR";
            let why = "it is several files, one for each class of program";
            let what = "no folder for the library";
            return Err(Trouble::new(what, why, try_, "nothing was written").into());
        }
    }
    voice::print(&String::from_utf8_lossy(&text))?;
    Ok(())
}

fn completions(dir: &Path) -> std::io::Result<()> {
    let names = [
        (Shell::Bash, "synclater.bash"),
        (Shell::Zsh, "_synclater"),
        (Shell::Fish, "synclater.fish"),
    ];
    for (shell, name) in names {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut super::table(), "synclater", &mut text);
        std::fs::write(dir.join(name), text)?;
    }
    Ok(())
}
