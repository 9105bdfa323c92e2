//! Runs a program on the emulated kernel driver.

use crate::object::{Object, absolute};
use crate::{FetchedRelease, NoObject};
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

const OBJECT: Object = Object {
    description: "emulated driver",
    file: "libhsa_kfd.so",
    package: "hsa-kfd",
    variable: "HSA_VMM_KFD",
};

/// The configuration of the emulated kernel driver. Values that are not set come from the variable
/// `HSA_KFD`. The default is one MI300X.
///
/// `hsa-kfd` documents the values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Emulation {
    gpus: Option<u8>,
    profile: Option<String>,
    vram: Option<String>,
    settings: Vec<String>,
    log: Option<PathBuf>,
    page_tables: Option<PathBuf>,
    faults: Vec<String>,
    loader: Option<PathBuf>,
}

impl Emulation {
    /// Emulates a machine with `number` GPUs.
    #[must_use]
    pub fn with_gpus(number: u8) -> Self {
        Self { gpus: Some(number), ..Self::default() }
    }

    /// Sets the model of the GPUs, such as `mi300x`, `mi210`, `rdna3`, `apu`.
    #[must_use]
    pub fn with_profile(mut self, name: impl Into<String>) -> Self {
        self.profile = Some(name.into());
        self
    }

    /// Sets the memory of each GPU, such as `64GiB` or `256MiB`.
    #[must_use]
    pub fn with_vram(mut self, size: impl Into<String>) -> Self {
        self.vram = Some(size.into());
        self
    }

    /// Adds a key of `HSA_KFD` and its value, such as `tlb=on` or `pte_delay=5ms`.
    #[must_use]
    pub fn with_setting(mut self, setting: impl Into<String>) -> Self {
        self.settings.push(setting.into());
        self
    }

    /// Logs each driver call as a line of a file.
    #[must_use]
    pub fn with_log(mut self, file: impl Into<PathBuf>) -> Self {
        self.log = Some(file.into());
        self
    }

    /// Writes the GPUs' page tables to a file at exit.
    #[must_use]
    pub fn with_page_tables(mut self, file: impl Into<PathBuf>) -> Self {
        self.page_tables = Some(file.into());
        self
    }

    /// Adds planned faults of driver calls, in the language of `hsa-faults`, such as
    /// `GEM_VA#3=ENOMEM` or `GEM_VA.MAP=lost`.
    #[must_use]
    pub fn with_faults(mut self, plan: impl Into<String>) -> Self {
        self.faults.push(plan.into());
        self
    }

    /// Makes the program, and the programs that it starts, use the loader and the libraries of a release of AMD's
    /// runtime, including the C library. Replaces the variable `LD_AUDIT`.
    ///
    /// The command for [`apply`](Self::apply) must name the program itself. Do not use a command of
    /// [`FetchedRelease::command`].
    #[must_use]
    pub fn with_runtime_release(mut self, fetched: &FetchedRelease) -> Self {
        self.loader = Some(absolute(fetched.loader().to_owned()));
        self
    }

    /// Makes the program of a command, and the programs that it starts, use the emulated driver.
    ///
    /// # Errors
    /// The shared object was not found, or its path contains a colon or white space.
    pub fn apply(&self, command: &mut Command) -> Result<(), NoObject> {
        let object = OBJECT.find()?;
        OBJECT.check_separators(&object)?;
        command.env("LD_PRELOAD", preload_list(&object, env::var_os("LD_PRELOAD")));
        // UCX, which MPICH and Open MPI use, replaces `mmap` by default. The emulated driver would see no mapping.
        if env::var_os("UCX_MEM_EVENTS").is_none() {
            command.env("UCX_MEM_EVENTS", "no");
        }
        if let Some(loader) = &self.loader {
            command.env("HSA_KFD_LOADER", loader).env("LD_AUDIT", &object);
        }
        let settings = [
            self.gpus.map(|number| format!("gpus={number}")),
            self.profile.as_ref().map(|name| format!("profile={name}")),
            self.vram.as_ref().map(|size| format!("vram={size}")),
        ];
        let settings = settings.into_iter().flatten();
        let mut settings: Vec<_> = settings.chain(self.settings.iter().cloned()).collect();
        if !settings.is_empty() {
            // Later values override earlier ones.
            let inherited = env::var("HSA_KFD").unwrap_or_default();
            settings.splice(..0, Some(inherited).filter(|inherited| !inherited.is_empty()));
            command.env("HSA_KFD", settings.join(","));
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

/// Returns the value of `LD_PRELOAD`: `object`, then the other objects of the inherited value.
fn preload_list(object: &Path, inherited: Option<OsString>) -> OsString {
    let mut list = object.as_os_str().to_owned();
    for other in env::split_paths(&inherited.unwrap_or_default()) {
        if !other.as_os_str().is_empty() && other != object {
            list.push(":");
            list.push(other);
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::{Emulation, OBJECT, preload_list};
    use std::process::Command;

    #[test]
    fn existing_preloads_are_kept() {
        let list = |before: &str| preload_list("/a/kfd.so".as_ref(), Some(before.into()));
        assert_eq!(list(""), "/a/kfd.so");
        assert_eq!(list("/b.so:/c.so"), "/a/kfd.so:/b.so:/c.so");
        assert_eq!(list("/b.so:/a/kfd.so"), "/a/kfd.so:/b.so");
    }

    #[test]
    fn path_that_the_loader_splits_is_rejected() {
        assert!(OBJECT.check_separators("/a-b/kfd.so".as_ref()).is_ok());
        for path in ["/a b/kfd.so", "/a:b/kfd.so", "/a\tb/kfd.so"] {
            let error = OBJECT.check_separators(path.as_ref()).unwrap_err().to_string();
            assert!(error.contains(path) && error.contains("HSA_VMM_KFD"), "{error}");
        }
    }

    #[test]
    fn program_finds_the_emulated_gpus() {
        let mut command = Command::new("ls");
        command.arg("/dev/dri");
        Emulation::with_gpus(3).with_profile("mi210").apply(&mut command).unwrap();
        let output = command.output().unwrap();
        let names = String::from_utf8_lossy(&output.stdout);
        let nodes = names.lines().filter(|name| name.starts_with("renderD")).count();
        assert_eq!(nodes, 3, "{output:?}");
    }
}
