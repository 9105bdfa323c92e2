//! Runs a program on the emulated kernel driver.

use crate::folder::program;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

const OBJECT: &str = "libhsa_kfd.so";

/// The configuration of the emulated kernel driver. Values that are not set come from the variable
/// `HSA_KFD`; the default is one MI300X.
///
/// `hsa-kfd` documents the values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Emulation {
    gpus: Option<u8>,
    profile: Option<String>,
    vram: Option<String>,
    log: Option<PathBuf>,
    page_tables: Option<PathBuf>,
    faults: Vec<String>,
}

/// The shared object to preload was not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "emulated driver {OBJECT} not found (searched: {searched}); build it with \
     `cargo build -p hsa-kfd`, or set HSA_VMM_KFD to its path"
)]
pub struct NoObject {
    searched: String,
}

impl Emulation {
    /// Emulates a machine with `number` GPUs.
    #[must_use]
    pub fn gpus(number: u8) -> Self {
        Self { gpus: Some(number), ..Self::default() }
    }

    /// Sets the model of the GPUs, such as `mi300x`, `mi210`, `rdna3`, `apu`.
    #[must_use]
    pub fn profile(mut self, name: impl Into<String>) -> Self {
        self.profile = Some(name.into());
        self
    }

    /// Sets the memory of each GPU, such as `64GiB` or `256MiB`.
    #[must_use]
    pub fn vram(mut self, size: impl Into<String>) -> Self {
        self.vram = Some(size.into());
        self
    }

    /// Logs each driver call as a line of a file.
    #[must_use]
    pub fn log(mut self, file: impl Into<PathBuf>) -> Self {
        self.log = Some(file.into());
        self
    }

    /// Writes the GPUs' page tables to a file at exit.
    #[must_use]
    pub fn page_tables(mut self, file: impl Into<PathBuf>) -> Self {
        self.page_tables = Some(file.into());
        self
    }

    /// Adds planned faults of driver calls, in the language of `hsa-faults`, such as
    /// `GEM_VA#3=ENOMEM` or `GEM_VA.MAP=lost`.
    #[must_use]
    pub fn fault(mut self, plan: impl Into<String>) -> Self {
        self.faults.push(plan.into());
        self
    }

    /// Makes the program of a command, and the programs that it starts, use the emulated driver.
    ///
    /// # Errors
    /// The shared object was not found.
    pub fn apply(&self, command: &mut Command) -> Result<(), NoObject> {
        command.env("LD_PRELOAD", preload_list(&object()?, env::var_os("LD_PRELOAD")));
        let words = [
            self.gpus.map(|number| format!("gpus={number}")),
            self.profile.as_ref().map(|name| format!("profile={name}")),
            self.vram.as_ref().map(|size| format!("vram={size}")),
        ];
        let mut words: Vec<_> = words.into_iter().flatten().collect();
        if !words.is_empty() {
            // Later values override earlier ones.
            let before = env::var("HSA_KFD").unwrap_or_default();
            words.splice(..0, Some(before).filter(|before| !before.is_empty()));
            command.env("HSA_KFD", words.join(","));
        }
        if let Some(log) = &self.log {
            command.env("HSA_KFD_LOG", log);
        }
        if let Some(file) = &self.page_tables {
            command.env("HSA_KFD_PAGE_TABLES", file);
        }
        if !self.faults.is_empty() {
            command.env("HSA_KFD_FAULTS", self.faults.join(","));
        }
        Ok(())
    }
}

/// Returns the value of `LD_PRELOAD`: `object`, then the other objects of `before`.
fn preload_list(object: &Path, before: Option<OsString>) -> OsString {
    let mut list = object.as_os_str().to_owned();
    for other in env::split_paths(&before.unwrap_or_default()) {
        if !other.as_os_str().is_empty() && other != object {
            list.push(":");
            list.push(other);
        }
    }
    list
}

/// Finds the shared object: the file in `HSA_VMM_KFD`; else beside the program, where cargo builds
/// it; else in `../lib/hsa-vmm`, where a package installs it.
fn object() -> Result<PathBuf, NoObject> {
    if let Some(named) = env::var_os("HSA_VMM_KFD").filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        return if named.is_file() {
            Ok(absolute(named))
        } else {
            Err(NoObject { searched: named.display().to_string() })
        };
    }
    let program = program();
    let parent = program.as_deref().and_then(Path::parent).unwrap_or(Path::new("."));
    // Cargo puts the object of a dependency in `deps`, beside tests. An object beside the program
    // may be outdated.
    let folders = ["deps", "", "../deps", "../lib/hsa-vmm"].map(|folder| parent.join(folder));
    let found = folders.iter().map(|folder| folder.join(OBJECT)).find(|path| path.is_file());
    found.map(absolute).ok_or_else(|| NoObject {
        searched: folders.map(|folder| folder.display().to_string()).join(", "),
    })
}

/// Makes a path absolute, because the program may change its current folder.
fn absolute(path: PathBuf) -> PathBuf {
    path.canonicalize().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::{Emulation, preload_list};
    use std::process::Command;

    #[test]
    fn existing_preloads_are_kept() {
        let list = |before: &str| preload_list("/a/kfd.so".as_ref(), Some(before.into()));
        assert_eq!(list(""), "/a/kfd.so");
        assert_eq!(list("/b.so:/c.so"), "/a/kfd.so:/b.so:/c.so");
        assert_eq!(list("/b.so:/a/kfd.so"), "/a/kfd.so:/b.so");
    }

    #[test]
    fn program_finds_the_emulated_gpus() {
        let mut command = Command::new("ls");
        command.arg("/dev/dri");
        Emulation::gpus(3).profile("mi210").apply(&mut command).unwrap();
        let output = command.output().unwrap();
        let names = String::from_utf8_lossy(&output.stdout);
        let nodes = names.lines().filter(|name| name.starts_with("renderD")).count();
        assert_eq!(nodes, 3, "{output:?}");
    }
}
