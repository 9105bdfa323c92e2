//! Finds the shared objects of this project that programs load.

use crate::folder::program;
use hsa_sys::check_owner;
use std::env;
use std::path::{Path, PathBuf};

/// A shared object that cargo builds beside the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// The object's description for error messages.
    pub(crate) description: &'static str,
    pub(crate) file: &'static str,
    /// The package that builds the object.
    pub(crate) package: &'static str,
    /// The environment variable that names another file.
    pub(crate) variable: &'static str,
}

/// A shared object that was not found, or that programs cannot load.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoObject(String);

impl Object {
    /// Finds the file that the environment variable names. If the variable is not set, searches beside the program,
    /// where cargo builds the file, and in `../lib/hsa-vmm`, where a package installs the file. Skips a file that
    /// another user can change: if the program is in `/tmp/a`, any user can create `/tmp/deps`.
    pub(crate) fn find(self) -> Result<PathBuf, NoObject> {
        let configured = env::var_os(self.variable).filter(|configured| !configured.is_empty());
        if let Some(configured) = configured {
            let configured = PathBuf::from(configured);
            return if configured.is_file() {
                Ok(absolute(configured))
            } else {
                Err(self.not_found(&configured.display().to_string()))
            };
        }
        let program = program();
        let parent = program.as_deref().and_then(Path::parent).unwrap_or(Path::new("."));
        // Cargo writes the object of a dependency to `deps`, beside tests. An object beside the program
        // may be outdated.
        self.find_in(&["deps", "", "../deps", "../lib/hsa-vmm"].map(|folder| parent.join(folder)))
    }

    /// Returns the first file in these folders that no other user can change.
    fn find_in(self, folders: &[PathBuf]) -> Result<PathBuf, NoObject> {
        let mut searched = Vec::new();
        for folder in folders {
            let file = absolute(folder.join(self.file));
            if !file.is_file() {
                searched.push(folder.display().to_string());
                continue;
            }
            match check_owner(&file, 1) {
                Ok(()) => return Ok(file),
                Err(error) => searched.push(format!("{} ({error})", folder.display())),
            }
        }
        Err(self.not_found(&searched.join(", ")))
    }

    fn not_found(self, searched: &str) -> NoObject {
        let Self { description, file, package, variable } = self;
        NoObject(format!(
            "{description} {file} not found (searched: {searched}); build it with `cargo build -p {package}`, or set \
             {variable} to its path"
        ))
    }

    /// Checks that the dynamic loader does not split the path of the object at a separator of `LD_PRELOAD`.
    pub(crate) fn check_separators(self, path: &Path) -> Result<(), NoObject> {
        let is_separator = |byte: &u8| *byte == b':' || byte.is_ascii_whitespace();
        if !path.as_os_str().as_encoded_bytes().iter().any(is_separator) {
            return Ok(());
        }
        let Self { description, variable, .. } = self;
        Err(NoObject(format!(
            "programs cannot load the {description} {}: its path contains a colon or white space; copy the file to \
             another folder, and set {variable} to its path",
            path.display()
        )))
    }
}

/// Makes a path absolute, because the program may change its current folder.
pub(crate) fn absolute(path: PathBuf) -> PathBuf {
    path.canonicalize().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::Object;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn object_that_others_can_replace_is_skipped() {
        let object = Object { description: "object", file: "o.so", package: "o", variable: "O" };
        let temporary = tempfile::tempdir().unwrap();
        let folders = ["missing", "first", "second"].map(|name| temporary.path().join(name));
        for folder in &folders[1..] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join(object.file), "").unwrap();
        }
        assert_eq!(object.find_in(&folders), Ok(folders[1].join("o.so")));
        fs::set_permissions(&folders[1], fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(object.find_in(&folders), Ok(folders[2].join("o.so")));
        let error = object.find_in(&folders[..2]).unwrap_err().to_string();
        assert!(error.contains("/first can be changed by all users"), "{error}");
    }
}
