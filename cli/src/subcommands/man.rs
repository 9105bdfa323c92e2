//! `hsa-vmm man`: generates the manual pages from the arguments.

use crate::Exit;
use crate::arguments::Arguments;
use anyhow::Context;
use clap::{Args, CommandFactory};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

#[derive(Args, Debug)]
pub struct Man {
    /// Write all pages to this folder: hsa-vmm.1, hsa-vmm-info.1, …; without a folder, print the
    /// first page (`hsa-vmm man | man -l -`)
    #[arg(value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
}

/// Writes the pages to a temporary folder and moves each to `folder`. Replaces symbolic links instead of
/// following them.
fn write_pages(command: clap::Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let new = tempfile::Builder::new().prefix(".hsa-vmm-").tempdir_in(folder)?;
    clap_mangen::generate_to(command, &new)?;
    for page in fs::read_dir(&new)? {
        let page = page?;
        fs::rename(page.path(), folder.join(page.file_name()))?;
    }
    Ok(())
}

pub fn run(args: &Man) -> anyhow::Result<Exit> {
    let command = Arguments::command().disable_help_subcommand(true);
    match &args.folder {
        Some(folder) => write_pages(command, folder)
            .with_context(|| format!("cannot write the pages to {}", folder.display()))?,
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            std::io::stdout().write_all(&page)?;
        }
    }
    Ok(Exit::Success)
}
