//! The folder of fetched releases.

use std::path::{Path, PathBuf};

/// Returns the folder of the fetched releases. It contains one folder for each release.
///
/// `HSA_VMM_ROCR` names the folder. The default is `rocr` in cargo's build folder if the running program was built
/// there. Otherwise it is `hsa-vmm/rocr` in the user's cache (`XDG_CACHE_HOME`, or `~/.cache`), or in the current
/// folder if `HOME` is not set.
#[must_use]
pub fn folder() -> PathBuf {
    let folder = configured_folder();
    std::path::absolute(&folder).unwrap_or(folder)
}

fn configured_folder() -> PathBuf {
    if let Some(folder) = std::env::var_os("HSA_VMM_ROCR").filter(|folder| !folder.is_empty()) {
        return folder.into();
    }
    if let Some(build) = program().as_deref().and_then(build_folder) {
        return build.join("rocr");
    }
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || variable("HOME").map(|home| Path::new(&home).join(".cache"));
    cache.or_else(home).unwrap_or_default().join("hsa-vmm/rocr")
}

/// Returns the file of the running program.
///
/// For a program that [`crate::Installation::command`] started, `/proc/self/exe` is the dynamic
/// loader; the program is its first argument.
pub(crate) fn program() -> Option<PathBuf> {
    let file = std::env::current_exe().ok()?;
    let is_loader = file.file_name()?.as_encoded_bytes().starts_with(b"ld-");
    if is_loader { std::env::args_os().next().map(PathBuf::from) } else { Some(file) }
}

/// Finds cargo's build folder above a program, by the files that cargo creates there.
fn build_folder(program: &Path) -> Option<&Path> {
    let has_cargo_files = |folder: &&Path| {
        [".rustc_info.json", "CACHEDIR.TAG"].iter().any(|name| folder.join(name).is_file())
    };
    program.ancestors().skip(1).find(has_cargo_files)
}

#[cfg(test)]
mod tests {
    #[test]
    fn build_folder_is_recognised() {
        let program = super::program().unwrap();
        let build = super::build_folder(&program).unwrap();
        assert!(program.starts_with(build));
        assert!(super::build_folder("/nowhere/at/all".as_ref()).is_none());
    }
}
