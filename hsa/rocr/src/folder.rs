//! The folder of fetched releases.

use hsa_sys::{Untrusted, check_owner};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The default folder of the releases cannot be used, because another user can change its contents.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot use {folder} for AMD's runtime: {cause}; set HSA_VMM_ROCR to a folder that only you can write to",
    folder = folder.display()
)]
pub struct UntrustedFolder {
    folder: PathBuf,
    cause: Untrusted,
}

/// Returns the folder of the fetched releases. It contains one folder for each release.
///
/// `HSA_VMM_ROCR` names the folder. The default is `rocr` in cargo's build folder if the running program was built
/// there. Otherwise it is `hsa-vmm/rocr` in the user's cache (`XDG_CACHE_HOME`, or `~/.cache`), or in the current
/// folder if `HOME` is not set.
///
/// # Errors
/// The folder is in the user's cache or in the current folder, and another user can change it or one of its two
/// parents. That user could replace the releases' code.
pub fn folder() -> Result<PathBuf, UntrustedFolder> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let absolute = |folder: PathBuf| std::path::absolute(&folder).unwrap_or(folder);
    if let Some(folder) = variable("HSA_VMM_ROCR") {
        return Ok(absolute(folder.into()));
    }
    if let Some(build) = program().as_deref().and_then(build_folder) {
        return Ok(absolute(build.join("rocr")));
    }
    let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || variable("HOME").map(|home| Path::new(&home).join(".cache"));
    in_cache(&absolute(cache.or_else(home).unwrap_or_else(|| ".".into())))
}

/// Returns the folder of the releases in a cache.
fn in_cache(cache: &Path) -> Result<PathBuf, UntrustedFolder> {
    let folder = cache.join("hsa-vmm/rocr");
    match check_owner(&folder, 2) {
        Ok(()) => Ok(folder),
        Err(cause) => Err(UntrustedFolder { folder, cause }),
    }
}

/// Returns the file of the running program.
///
/// For a program that [`crate::FetchedRelease::command`] started, `/proc/self/exe` is the dynamic
/// loader, and the program is the loader's first argument.
pub(crate) fn program() -> Option<PathBuf> {
    let file = std::env::current_exe().ok()?;
    let is_loader = file.file_name()?.as_encoded_bytes().starts_with(b"ld-");
    if is_loader { std::env::args_os().next().map(PathBuf::from) } else { Some(file) }
}

/// Finds cargo's build folder above a program, by the files that cargo creates there.
///
/// The folder, and cargo's file in it, must belong to the program's owner. The folder must not be writable by all
/// users. Otherwise, a user could turn `/tmp` into the build folder of all programs below `/tmp`.
fn build_folder(program: &Path) -> Option<&Path> {
    let owner = fs::metadata(program).ok()?.uid();
    let is_build_folder = |folder: &&Path| {
        let is_private = fs::metadata(folder)
            .is_ok_and(|found| found.uid() == owner && found.mode() & 0o002 == 0);
        let is_marker = |name: &str| {
            fs::symlink_metadata(folder.join(name))
                .is_ok_and(|found| found.is_file() && found.uid() == owner)
        };
        is_private && [".rustc_info.json", "CACHEDIR.TAG"].into_iter().any(is_marker)
    };
    program.ancestors().skip(1).find(is_build_folder)
}

#[cfg(test)]
mod tests {
    use super::{build_folder, in_cache};
    use crate::test;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::path::Path;

    const NOBODY: Option<u32> = Some(65534);

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn build_folder_is_recognised() {
        let program = super::program().unwrap();
        let build = build_folder(&program).unwrap();
        assert!(program.starts_with(build));
        assert!(build_folder("/nowhere/at/all".as_ref()).is_none());
    }

    #[test]
    fn build_folder_belongs_to_the_program_owner() {
        let name = "build_folder_belongs_to_the_program_owner";
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path();
        let [marker, program] = ["CACHEDIR.TAG", "program"].map(|name| folder.join(name));
        fs::write(&marker, "").unwrap();
        fs::write(&program, "").unwrap();
        assert_eq!(build_folder(&program), Some(folder));
        for mode in [0o777, 0o1777] {
            set_mode(folder, mode);
            assert_eq!(build_folder(&program), None, "{mode:o}");
        }
        set_mode(folder, 0o755);
        if chown(&marker, NOBODY, None).is_err() {
            return test::report(&format!("SKIPPED {name}: only root can change owners"));
        }
        assert_eq!(build_folder(&program), None);
        chown(&program, NOBODY, None).unwrap();
        assert_eq!(build_folder(&program), None);
        chown(folder, NOBODY, None).unwrap();
        assert_eq!(build_folder(&program), Some(folder));
    }

    #[test]
    fn cache_of_another_user_is_rejected() {
        let temporary = tempfile::tempdir().unwrap();
        let cache = temporary.path();
        let folder = in_cache(cache).unwrap();
        assert_eq!(folder, cache.join("hsa-vmm/rocr"));
        // Any user could create the folder.
        set_mode(cache, 0o1777);
        let error = in_cache(cache).unwrap_err().to_string();
        assert!(error.contains("HSA_VMM_ROCR") && error.contains("by all users"), "{error}");
        fs::create_dir_all(&folder).unwrap();
        in_cache(cache).unwrap();
        if chown(folder.parent().unwrap(), NOBODY, None).is_err() {
            let name = "cache_of_another_user_is_rejected";
            return test::report(&format!("SKIPPED {name}: only root can change owners"));
        }
        let error = in_cache(cache).unwrap_err().to_string();
        assert!(error.contains("belongs to user 65534"), "{error}");
    }
}
