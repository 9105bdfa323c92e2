//! `hsa-vmm man`: the manual, made of what the command understands.

use crate::Ending;
use crate::arguments::Arguments;
use anyhow::Context;
use clap::{Args, CommandFactory};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

#[derive(Args, Debug)]
pub struct Man {
    /// Write all pages into this folder: hsa-vmm.1, hsa-vmm-info.1, …; without one, the first page
    /// is printed (`hsa-vmm man | man -l -`)
    #[arg(value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
}

/// Writes the pages aside first: each then replaces what has its name, also if that is a link.
fn write(command: clap::Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let new = tempfile::Builder::new().prefix(".hsa-vmm-").tempdir_in(folder)?;
    clap_mangen::generate_to(command, &new)?;
    for page in fs::read_dir(&new)? {
        let page = page?;
        fs::rename(page.path(), folder.join(page.file_name()))?;
    }
    Ok(())
}

pub fn run(verb: &Man) -> anyhow::Result<Ending> {
    let command = Arguments::command().disable_help_subcommand(true);
    match &verb.folder {
        Some(folder) => write(command, folder)
            .with_context(|| format!("the pages cannot be written to {}", folder.display()))?,
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            std::io::stdout().write_all(&page)?;
        }
    }
    Ok(Ending::Well)
}
