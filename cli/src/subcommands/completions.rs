//! `hsa-vmm completions`: generates shell completions from the arguments.

use crate::Exit;
use crate::arguments::Arguments;
use crate::standard_output::StandardOutput;
use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};
use std::io::Write;

pub const COMPLETIONS_EXAMPLES: &str = "\
Where shells look for the scripts:
  hsa-vmm completions bash > /usr/share/bash-completion/completions/hsa-vmm
  hsa-vmm completions zsh  > /usr/share/zsh/vendor-completions/_hsa-vmm
  hsa-vmm completions fish > /usr/share/fish/vendor_completions.d/hsa-vmm.fish";

#[derive(Args, Debug)]
pub struct Completions {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    pub shell: Shell,
}

pub fn run(args: &Completions) -> anyhow::Result<Exit> {
    let mut command = Arguments::command();
    let name = command.get_name().to_owned();
    // `generate` panics if writing fails.
    let mut script = Vec::new();
    generate(args.shell, &mut command, name, &mut script);
    StandardOutput.write_all(&script)?;
    Ok(Exit::Success)
}
