//! Where results go: standard output, or a file that is whole or not there.
//!
//! Whether the file can be written is asked before the work ([`Output::check`]); if it cannot be in
//! the end all the same (a full disk, a folder that is gone), the result goes to standard output.

use crate::screen::Screen;
use anyhow::Context;
use clap::Args;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Where the result goes.
#[derive(Args, Debug)]
pub struct Output {
    /// Write to this file instead of standard output; it is written whole or not at all
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    output: Option<PathBuf>,
}

impl Output {
    /// Says before long work whether its result could be kept.
    pub fn check(&self) -> anyhow::Result<()> {
        self.output.as_deref().map_or(Ok(()), check)
    }

    /// Writes the result, with colours where it goes to a terminal.
    pub fn write(
        &self,
        write: impl FnOnce(&mut Screen<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let Some(path) = &self.output else {
            let mut out = Screen::stdout();
            write(&mut out)?;
            return Ok(out.flush()?);
        };
        let mut text = Vec::new();
        write(&mut Screen::plain(&mut text))?;
        let Err(error) = keep(path, &text) else { return Ok(()) };
        let mut out = Screen::stdout();
        out.write_all(&text).and_then(|()| out.flush())?;
        Err(error).context("the result is on standard output, and in no file")
    }
}

/// Says before long work whether its result could be kept in this file.
pub fn check(path: &Path) -> anyhow::Result<()> {
    if is_special(path) {
        return Ok(());
    }
    // It goes at once.
    beside(path).map(drop).with_context(|| cannot(path))
}

/// Writes a file, whole or not at all.
pub fn keep(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    put(path, text).with_context(|| cannot(path))
}

fn cannot(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// A device or a pipe, which is written to and not replaced.
fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|it| !it.is_file() && !it.is_dir())
}

/// Who reads the file meanwhile sees the old one; a full disk leaves that as it was.
fn put(path: &Path, text: &[u8]) -> io::Result<()> {
    if is_special(path) {
        return fs::OpenOptions::new().write(true).open(path)?.write_all(text);
    }
    // A link stays one.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut file = beside(&path)?;
    file.write_all(text)?;
    if let Ok(before) = fs::metadata(&path) {
        file.as_file().set_permissions(before.permissions())?;
    }
    file.persist(&path)?;
    Ok(())
}

/// A new file in the same folder, so that it can take the place of another in one step.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    if path.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    tempfile::Builder::new()
        .prefix(".hsa-vmm-")
        // As the shell would make it; what is masked is masked.
        .permissions(fs::Permissions::from_mode(0o666))
        .tempfile_in(folder.unwrap_or(Path::new(".")))
}
