//! The folder of fetched kernels, and the folder of the kernel module's source.

use hsa_sys::{Untrusted, check_owner};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The default folder of the kernels cannot be used, because another user owns, can change or can create the folder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot use kernels: {0}; set HSA_VMM_VM to a folder that only you can write to")]
pub struct UntrustedFolder(#[from] Untrusted);

/// Returns the folder of the fetched kernels.
///
/// `HSA_VMM_VM` names the folder. The default is `vm` beside the folder of AMD's runtime (`beside`), which is in
/// cargo's build folder or in the user's cache.
///
/// # Errors
/// `HSA_VMM_VM` is not set, and another user owns, can change or can create the default folder.
pub fn folder(beside: &Path) -> Result<PathBuf, UntrustedFolder> {
    if let Some(configured) = env::var_os("HSA_VMM_VM").filter(|configured| !configured.is_empty())
    {
        return Ok(std::path::absolute(&configured).unwrap_or_else(|_| configured.into()));
    }
    let folder = beside.with_file_name("vm");
    check_owner(&folder, 0)?;
    Ok(folder)
}

/// The source of the kernel module was not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the source of the kernel module was not found{}: run this in a clone of the repository, or set HSA_VMM_VM_MODULE \
     to the folder hsa/vm/module of a clone",
    format_rejected(rejected)
)]
pub struct NoSource {
    rejected: Vec<Untrusted>,
}

/// Formats why the folders that were found are not used.
fn format_rejected(rejected: &[Untrusted]) -> String {
    let reasons: Vec<_> = rejected.iter().map(ToString::to_string).collect();
    if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) }
}

/// Finds the folder of the kernel module's source.
///
/// `HSA_VMM_VM_MODULE` names the folder. By default, this function searches for `hsa/vm/module` in the folders above
/// this program, then in the current folder, then in the folders above the current folder.
///
/// The search skips a source that another user can change, because `vm fetch` runs the commands in the module's
/// `Kbuild`.
pub(crate) fn module_source() -> Result<PathBuf, NoSource> {
    if let Some(configured) =
        env::var_os("HSA_VMM_VM_MODULE").filter(|configured| !configured.is_empty())
    {
        return Ok(configured.into());
    }
    let starts = [env::current_exe().ok(), env::current_dir().ok()];
    find_source(starts.iter().flatten().flat_map(|start| start.ancestors()))
}

/// Returns the first source of the module below these folders that only trusted users can change.
fn find_source<'a>(folders: impl Iterator<Item = &'a Path>) -> Result<PathBuf, NoSource> {
    let mut rejected = Vec::new();
    for folder in folders {
        let source = folder.join("hsa/vm/module");
        if !source.join("Kbuild").is_file() {
            continue;
        }
        match check_source(&source) {
            Ok(()) => return Ok(source),
            // The folder can be above both this program and the current folder.
            Err(error) if rejected.contains(&error) => {}
            Err(error) => rejected.push(error),
        }
    }
    Err(NoSource { rejected })
}

/// Checks that only trusted users can change the source folder, its files, and the three folders above the source
/// folder.
fn check_source(source: &Path) -> Result<(), Untrusted> {
    check_owner(source, 3)?;
    // Ignore an error: if the folder cannot be read, compiling the source fails later.
    let files = fs::read_dir(source).into_iter().flatten().flatten();
    files.into_iter().try_for_each(|file| check_owner(&file.path(), 0))
}

#[cfg(test)]
mod tests {
    use super::find_source;
    use std::fs;
    use std::io::{self, Write};
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::path::Path;

    #[test]
    fn module_source_is_found_above_a_folder() {
        let tree = tempfile::tempdir().unwrap();
        let [source, start] = ["hsa/vm/module", "a/b"].map(|name| tree.path().join(name));
        fs::create_dir_all(&source).unwrap();
        fs::create_dir_all(&start).unwrap();
        let find = || find_source(start.ancestors().take(3));
        assert!(!find().unwrap_err().to_string().contains('('));
        fs::write(source.join("Kbuild"), "").unwrap();
        assert_eq!(find().as_ref(), Ok(&source));
    }

    #[test]
    fn module_source_of_other_users_is_not_used() {
        let tree = tempfile::tempdir().unwrap();
        let source = tree.path().join("hsa/vm/module");
        fs::create_dir_all(&source).unwrap();
        fs::write(source.join("Kbuild"), "").unwrap();
        let find = || find_source([tree.path()].into_iter());
        let set_mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        for changed in [tree.path(), &tree.path().join("hsa"), &source, &source.join("Kbuild")] {
            set_mode(changed, 0o777);
            let error = find().unwrap_err().to_string();
            assert!(error.contains(&format!("{} can be", changed.display())), "{error}");
            set_mode(changed, 0o755);
        }
        for changed in [&source, &source.join("Kbuild")] {
            if chown(changed, Some(65534), None).is_err() {
                // The test harness captures the output of `println!`.
                let _ = writeln!(
                    io::stderr(),
                    "SKIPPED module_source_of_other_users_is_not_used: only root can change owners"
                );
                return;
            }
            let error = find().unwrap_err().to_string();
            assert!(error.contains("belongs to user 65534"), "{error}");
            chown(changed, Some(0), None).unwrap();
        }
        find().unwrap();
    }
}
