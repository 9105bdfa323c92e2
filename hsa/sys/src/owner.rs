//! Files and folders that other users may have created, or can change.
//!
//! A program that searches folders, such as `/tmp` or the folders above the current folder, can find what another user
//! has put there. These functions reject such files before their contents are used.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The write permission of all users other than the owner and the members of the group.
const WRITABLE_BY_ALL: u32 = 0o002;
/// In a folder with this bit, only the owners of a file and of the folder can rename or remove the file.
const STICKY: u32 = 0o1000;

/// A file or folder that an untrusted user owns or can change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path} {problem}", path = path.display())]
pub struct Untrusted {
    path: PathBuf,
    problem: String,
}

/// Checks that a file or folder, and the folders above it, belong to trusted users, and that none of them is writable
/// by all users. Does not check the write permission of groups.
///
/// Trusted users are the effective user of this process, root, and the owner of the running
/// program. Checks `path` and the `parents` folders above it, which also determine what `path`
/// refers to. If none of these exists, checks the nearest existing folder, because users who can
/// write to that folder can create `path`. `path` must be absolute.
///
/// # Errors
/// An untrusted user owns a checked file or folder, or all users can write to it. A sticky folder that all users can
/// write to is accepted if the file or folder below it exists.
pub fn check_owner(path: &Path, parents: usize) -> Result<(), Untrusted> {
    let mut child_exists = false;
    for (level, path) in path.ancestors().enumerate() {
        if level > parents && child_exists {
            return Ok(());
        }
        // A file that is missing or cannot be examined cannot be used either.
        let Ok(found) = fs::symlink_metadata(path) else { continue };
        let untrusted = |problem: String| Untrusted { path: path.to_owned(), problem };
        check_user(&found).map_err(untrusted)?;
        if let Ok(target) = fs::metadata(path) {
            check_user(&target).map_err(untrusted)?;
            let is_protected = child_exists && target.mode() & STICKY != 0;
            if target.mode() & WRITABLE_BY_ALL != 0 && !is_protected {
                return Err(untrusted("can be changed by all users".to_owned()));
            }
        }
        child_exists = true;
    }
    Ok(())
}

fn check_user(found: &Metadata) -> Result<(), String> {
    let user = found.uid();
    // SAFETY: the call only reads the effective user of the process.
    let is_own = user == unsafe { libc::geteuid() };
    if is_own || user == 0 || fs::metadata("/proc/self/exe").is_ok_and(|file| file.uid() == user) {
        return Ok(());
    }
    Err(format!("belongs to user {user}, who is neither this user, root nor this program's owner"))
}

/// Opens a regular file of a trusted user (see [`check_owner`]) in a folder that others can write to. Does not follow a
/// symbolic link, and does not wait for the other end of a FIFO.
///
/// # Errors
/// The file is a link, a FIFO, a device or a folder, belongs to an untrusted user, or cannot be opened.
pub fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let check = |found: io::Result<Metadata>| match found {
        Ok(found) if !found.is_file() => Err(io::Error::other("not a regular file")),
        Ok(found) => check_user(&found).map_err(io::Error::other),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    // Check before opening, because opening a device can have effects. Check again afterwards, because another user
    // can replace the file between the first check and the opening.
    check(fs::symlink_metadata(path))?;
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    check(file.metadata())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::{check_owner, open_regular};
    use std::fs::{self, File};
    use std::io::{self, Write};
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
    use std::path::Path;

    const NOBODY: Option<u32> = Some(65534);

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Prints that a test is skipped. The test harness captures the output of `println!`.
    fn report_skipped(name: &str) {
        let _ = writeln!(io::stderr(), "SKIPPED {name}: only root can change owners");
    }

    #[test]
    fn folders_that_all_users_can_change_are_rejected() {
        let temporary = tempfile::tempdir().unwrap();
        let [parent, child] = ["a", "a/b"].map(|name| temporary.path().join(name));
        fs::create_dir_all(&child).unwrap();
        check_owner(&child, 1).unwrap();
        set_mode(&parent, 0o777);
        let error = check_owner(&child, 1).unwrap_err().to_string();
        assert!(error.ends_with("/a can be changed by all users"), "{error}");
        check_owner(&child, 0).unwrap();
        // Other users cannot replace an existing file of a sticky folder, but can create a missing file.
        set_mode(&parent, 0o1777);
        check_owner(&child, 1).unwrap();
        check_owner(&parent.join("missing/file"), 0).unwrap_err();
    }

    #[test]
    fn files_of_other_users_are_rejected() {
        let temporary = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| temporary.path().join(name));
        fs::write(&file, "").unwrap();
        symlink(&file, &link).unwrap();
        check_owner(&link, 1).unwrap();
        if chown(&file, NOBODY, None).is_err() {
            report_skipped("files_of_other_users_are_rejected");
            return;
        }
        for path in [&file, &link] {
            let error = check_owner(path, 0).unwrap_err().to_string();
            assert!(error.contains("belongs to user 65534"), "{error}");
        }
        chown(&file, Some(0), None).unwrap();
        lchown(&link, NOBODY, None).unwrap();
        check_owner(&link, 0).unwrap_err();
    }

    #[test]
    fn open_regular_rejects_links_and_devices() {
        let temporary = tempfile::tempdir().unwrap();
        let [file, link, device] =
            ["file", "link", "device"].map(|name| temporary.path().join(name));
        fs::write(&file, "text").unwrap();
        symlink(&file, &link).unwrap();
        symlink("/dev/zero", &device).unwrap();
        open_regular(&file, File::options().read(true)).unwrap();
        for path in [&link, &device, temporary.path(), Path::new("/dev/zero")] {
            open_regular(path, File::options().read(true)).unwrap_err();
            open_regular(path, File::options().write(true).truncate(true)).unwrap_err();
        }
        assert_eq!(fs::read(&file).unwrap(), b"text");
    }

    #[test]
    fn open_regular_rejects_files_of_other_users() {
        let temporary = tempfile::tempdir().unwrap();
        let file = temporary.path().join("file");
        fs::write(&file, "").unwrap();
        if chown(&file, NOBODY, None).is_err() {
            report_skipped("open_regular_rejects_files_of_other_users");
            return;
        }
        let error = open_regular(&file, File::options().read(true)).unwrap_err().to_string();
        assert!(error.contains("belongs to user 65534"), "{error}");
    }

    #[test]
    fn open_regular_does_not_wait_for_fifos() {
        let temporary = tempfile::tempdir().unwrap();
        let fifo = temporary.path().join("fifo");
        let name = std::ffi::CString::new(fifo.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: the name ends with a zero byte.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        open_regular(&fifo, File::options().read(true)).unwrap_err();
        open_regular(&fifo, File::options().write(true)).unwrap_err();
    }
}
