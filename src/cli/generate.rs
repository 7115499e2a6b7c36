//! `synclater generate`: what is made from the one table of flags, and the library.

use crate::reach::library;
use anyhow::Context;
use clap_complete::Shell;
use std::path::{Path, PathBuf};

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
  synclater generate completions /etc/bash_completion.d";

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// synclater.1 and one page for each verb.
    Man,
    /// For bash, zsh and fish.
    Completions,
    /// libsynclater.so, for every value of $LIB.
    Library,
}

/// Writes it.
///
/// # Errors
/// Those of writing files.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    let table = super::table();
    match (args.what, &args.dir) {
        (What::Library, None) => anyhow::bail!("generate library needs a folder to write to"),
        (What::Library, Some(dir)) => library::unpack(dir).context("cannot write the library")?,
        (What::Man, None) => clap_mangen::Man::new(table).render(&mut std::io::stdout())?,
        (What::Man, Some(dir)) => {
            std::fs::create_dir_all(dir)
                .with_context(|| format!("cannot make {}", dir.display()))?;
            clap_mangen::generate_to(table, dir).context("cannot write the man pages")?;
        }
        (What::Completions, None) => complete(table, Shell::Bash, None)?,
        (What::Completions, Some(dir)) => {
            for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                complete(super::table(), shell, Some(dir))?;
            }
        }
    }
    Ok(0)
}

fn complete(mut table: clap::Command, shell: Shell, dir: Option<&Path>) -> anyhow::Result<()> {
    match dir {
        None => clap_complete::generate(shell, &mut table, "synclater", &mut std::io::stdout()),
        Some(dir) => {
            std::fs::create_dir_all(dir)
                .with_context(|| format!("cannot make {}", dir.display()))?;
            let path = clap_complete::generate_to(shell, &mut table, "synclater", dir)?;
            if shell == Shell::Bash {
                std::fs::rename(&path, dir.join("synclater.bash"))?;
            }
        }
    }
    Ok(())
}
