//! Where results go: standard output, or a file that is whole or not there.
//!
//! Whether the file can be written is asked before the work ([`Output::check`]); if it cannot be in
//! the end all the same (a full disk, a folder that is gone), the result goes to standard output.

use crate::screen::Screen;
use anyhow::Context;
use clap::Args;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
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
    // The temporary file is removed at once.
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

/// Replaces the file in one step: readers see the old or the new one, and a full disk leaves the old.
fn put(path: &Path, text: &[u8]) -> io::Result<()> {
    if is_special(path) {
        return fs::OpenOptions::new().write(true).open(path)?.write_all(text);
    }
    let (mut file, path) = beside(path)?;
    file.write_all(text)?;
    file.persist(&path)?;
    Ok(())
}

/// Creates a temporary file in the folder of the one that it will replace, and returns both.
///
/// A symbolic link is followed, and stays.
///
/// The new file belongs to the caller. It keeps the permissions of the caller's own old file, without
/// set-user-id and set-group-id: what another user has put there must not choose them.
fn beside(path: &Path) -> io::Result<(NamedTempFile, PathBuf)> {
    let (path, before) = match fs::metadata(path) {
        Ok(before) => (fs::canonicalize(path)?, Some(before)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if path.is_symlink() {
                let words = "it is a symbolic link to a file that does not exist; name that file";
                return Err(io::Error::new(io::ErrorKind::NotFound, words));
            }
            (path.to_owned(), None)
        }
        // Such as a link of another user in a folder that everybody can write to.
        Err(error) => return Err(error),
    };
    if before.as_ref().is_some_and(fs::Metadata::is_dir) {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let user = rustix::process::geteuid().as_raw();
    let own = before.filter(|before| before.uid() == user);
    let mode = own.map(|before| fs::Permissions::from_mode(before.mode() & 0o777));
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let file = tempfile::Builder::new()
        .prefix(".hsa-vmm-")
        // The umask applies, as for every new file.
        .permissions(mode.clone().unwrap_or_else(|| fs::Permissions::from_mode(0o666)))
        .tempfile_in(folder.unwrap_or(Path::new(".")))?;
    if let Some(mode) = mode {
        // Before anything is written, and as it was, whatever the umask is now.
        file.as_file().set_permissions(mode)?;
    }
    Ok((file, path))
}
