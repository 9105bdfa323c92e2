//! Writes results to standard output or to a file.
//!
//! [`Output::write`] replaces the file atomically. If writing fails (full disk, removed folder), the result goes to
//! standard output. [`Output::stream`] writes a file in parts. [`Output::check_writable`] checks before long work that
//! the file can be written.

use crate::provenance::{self, Privacy};
use crate::screen::{Screen, note};
use crate::{BadUsage, standard_output};
use anyhow::Context;
use clap::Args;
use std::fmt;
use std::fs;
use std::io::{self, LineWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::NamedTempFile;

/// The option `--output`.
#[derive(Args, Clone, Debug)]
pub struct Output {
    /// Write to this file instead of standard output
    ///
    /// KTAP, and the table of `bringup`, are written result by result. Other results are written at the end.
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    output: Option<PathBuf>,
}

impl Output {
    /// Checks that the result can be written. Call this before long work.
    pub fn check_writable(&self) -> anyhow::Result<()> {
        match &self.output {
            Some(path) => check_writable(path),
            None if standard_output::is_closed() => {
                let message = "standard output is closed; redirect it, or use --output FILE";
                Err(BadUsage(message.to_owned()).into())
            }
            None => Ok(()),
        }
    }

    /// Returns the path of the file, device or pipe. Returns `None` for standard output.
    pub fn path(&self) -> Option<&Path> {
        self.output.as_deref()
    }

    /// Returns whether the result is written to a file, device or pipe instead of standard output.
    pub fn has_path(&self) -> bool {
        self.output.is_some()
    }

    /// Returns the path for results of an unfinished run. Returns `None` for standard output, devices and pipes.
    pub fn partial_path(&self) -> Option<PathBuf> {
        let path = self.output.as_deref().filter(|path| !is_special(path))?;
        let mut name = path.file_name()?.to_owned();
        name.push(".partial");
        Some(path.with_file_name(name))
    }

    /// Opens the output for a result that is written in parts. Each flush syncs a file to the disk.
    pub fn stream(&self) -> anyhow::Result<Screen<'static>> {
        let Some(path) = &self.output else { return Ok(Screen::stdout()) };
        let file =
            fs::File::create(path).map_err(|cause| record_failure(path.display(), &cause))?;
        // Write whole lines, so that the file never ends in the middle of a line.
        Ok(Screen::plain(LineWriter::new(Synced { file, path: path.clone() })))
    }

    /// Opens the output like [`stream`](Self::stream). Removes private data from each text that is written.
    pub fn private_stream(&self, privacy: &Privacy) -> anyhow::Result<Screen<'static>> {
        let mut screen = self.stream()?;
        screen.clean_with(privacy);
        Ok(screen)
    }

    /// Writes the result, with colours on a terminal.
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
        let Err(error) = save(path, &text) else { return Ok(()) };
        let mut out = Screen::stdout();
        out.write_all(&text).and_then(|()| out.flush())?;
        Err(error).context("the result was written to standard output instead")
    }
}

/// Whether a result could not be written.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// Returns whether a result could not be written. The exit status is then the status of invalid usage.
pub fn has_failed() -> bool {
    HAS_FAILED.load(Ordering::Relaxed)
}

/// Records that a result could not be written. Returns an error that names the result's destination: a path, or `to …`.
pub fn record_failure(destination: impl fmt::Display, cause: &io::Error) -> io::Error {
    HAS_FAILED.store(true, Ordering::Relaxed);
    // Some network file systems accept no bytes, instead of reporting that the disk is full.
    let hint = if cause.kind() == io::ErrorKind::WriteZero { " (is the disk full?)" } else { "" };
    io::Error::new(cause.kind(), format!("cannot write {destination}: {cause}{hint}"))
}

/// A file whose content is on the disk after each flush.
struct Synced {
    file: fs::File,
    path: PathBuf,
}

impl Synced {
    /// Records a failure, and adds the path to its error.
    fn named<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|cause| record_failure(self.path.display(), &cause))
    }
}

impl Write for Synced {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Devices and pipes have no position.
        let start = self.file.stream_position().ok();
        // `write_all` returns no `Interrupted`.
        let written = self.file.write_all(bytes);
        if let (Err(_), Some(start)) = (&written, start) {
            // Remove the incomplete text. The error of writing is reported, so ignore further errors.
            let _ = self.file.set_len(start);
            let _ = self.file.seek(SeekFrom::Start(start));
        }
        self.named(written).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.file.sync_data() {
            // Devices and pipes cannot be synced.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            result => self.named(result),
        }
    }
}

/// Checks that this file can be written. Call this before long work.
///
/// # Errors
/// Returns [`BadUsage`] if the file cannot be written.
pub fn check_writable(path: &Path) -> anyhow::Result<()> {
    if is_special(path) {
        return Ok(());
    }
    // Dropping the temporary file removes it.
    let bad_usage = |error| BadUsage(format!("cannot write {}: {error}", path.display()));
    let (file, target) = create_temporary(path).map_err(bad_usage)?;
    note_if_lost(file.as_file(), &std::path::absolute(target)?, path);
    Ok(())
}

/// Checks that these options write to different files, if they are given.
///
/// # Errors
/// Returns [`BadUsage`] if two options name the same file.
pub fn check_different(options: &[(&str, Option<&Path>)]) -> anyhow::Result<()> {
    let target = |path: &Path| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let new_file =
            || Some(folder.unwrap_or(Path::new(".")).canonicalize().ok()?.join(path.file_name()?));
        path.canonicalize().ok().or_else(new_file)
    };
    let given = options.iter().filter_map(|(option, path)| Some((option, (*path)?)));
    let mut found: Vec<(&str, PathBuf)> = Vec::new();
    for (option, path) in given.filter(|(_, path)| !is_special(path)) {
        let Some(target) = target(path) else { continue };
        if let Some((other, _)) = found.iter().find(|(_, it)| *it == target) {
            let path = path.display();
            let message = format!("{other} and {option} write to the same file, {path}");
            return Err(BadUsage(message).into());
        }
        found.push((option, target));
    }
    Ok(())
}

/// Prints a note if a file is lost when the virtual machine ends. `target` is the file's absolute path, and `path` the
/// path as the user wrote it.
pub fn note_if_lost(file: &fs::File, target: &Path, path: &Path) {
    if is_lost_with_machine(file) {
        let folder = target.parent().unwrap_or(target).display();
        let path = path.display();
        note!(
            "{path} is lost when the virtual machine ends; add --results {folder} to the options of `vm`"
        );
    }
}

/// Returns whether a file at this path is lost when the virtual machine of `vm` ends. The file may not exist yet.
pub fn is_lost(path: &Path) -> bool {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    fs::File::open(folder.unwrap_or(Path::new(".")))
        .is_ok_and(|folder| is_lost_with_machine(&folder))
}

/// Returns whether the file is lost when the virtual machine of `vm` ends: there, the host's files are the lower layer
/// of an overlay file system.
fn is_lost_with_machine(file: &fs::File) -> bool {
    const OVERLAYFS: u64 = 0x794c_7630;
    let is_in_machine =
        provenance::outer_command().is_some_and(|(_, words)| words.starts_with("vm "));
    let is_overlay =
        |kind: rustix::fs::FsWord| u64::try_from(kind).is_ok_and(|kind| kind == OVERLAYFS);
    is_in_machine && rustix::fs::fstatfs(file).is_ok_and(|info| is_overlay(info.f_type))
}

/// Writes a file completely or not at all.
pub fn save(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    Ok(replace(path, text).map_err(|cause| record_failure(path.display(), &cause))?)
}

/// Returns whether the path is a device or a pipe, which a file must not replace.
pub fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| !file.is_file() && !file.is_dir())
}

/// Replaces the file atomically: readers see the old or the new content. If the disk is full, the old
/// content remains.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    if is_special(path) {
        return fs::OpenOptions::new().write(true).open(path)?.write_all(text);
    }
    let (mut file, path) = create_temporary(path)?;
    file.write_all(text).map_err(without_path)?;
    file.persist(&path)?;
    Ok(())
}

/// Removes the name of the temporary file from an error.
pub fn without_path(error: io::Error) -> io::Error {
    let text = error.to_string();
    match text.split_once(" at path ") {
        Some((cause, _)) => io::Error::new(error.kind(), cause),
        None => error,
    }
}

/// Creates a temporary file in the folder of the file that it will replace. Returns the temporary file, and the path
/// of the file to replace.
///
/// Follows a symbolic link, so that the link stays and its target is replaced.
///
/// If this process's user owns the old file, the new file gets the permissions of the old file, without set-user-id and
/// set-group-id. The permissions of another user's file are ignored.
fn create_temporary(path: &Path) -> io::Result<(NamedTempFile, PathBuf)> {
    let (path, old) = match fs::metadata(path) {
        Ok(old) => (fs::canonicalize(path)?, Some(old)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if path.is_symlink() {
                let message = "the symbolic link points to a file that does not exist; name that file instead";
                return Err(io::Error::new(io::ErrorKind::NotFound, message));
            }
            (path.to_owned(), None)
        }
        // For example, the kernel does not follow another user's link in a folder that all users can write to.
        Err(error) => return Err(error),
    };
    if old.as_ref().is_some_and(fs::Metadata::is_dir) {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let user = rustix::process::geteuid().as_raw();
    let own_file = old.filter(|old| old.uid() == user);
    let permissions = own_file.map(|old| fs::Permissions::from_mode(old.mode() & 0o777));
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let file = tempfile::Builder::new()
        .prefix(".hsa-vmm-")
        // The umask applies, as for any new file.
        .permissions(permissions.clone().unwrap_or_else(|| fs::Permissions::from_mode(0o666)))
        .tempfile_in(folder.unwrap_or(Path::new(".")))
        .map_err(without_path)?;
    if let Some(permissions) = permissions {
        // Set the old permissions before writing, regardless of the umask.
        file.as_file().set_permissions(permissions)?;
    }
    Ok((file, path))
}
