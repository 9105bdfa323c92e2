//! The emulated kernel driver under a program.

use crate::folder::program;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

const OBJECT: &str = "libhsa_kfd.so";

/// How the kernel driver is to be emulated; what is not said is as `HSA_KFD` in the environment
/// says, or one MI300X.
///
/// The words are those of `hsa-kfd`, whose documentation explains them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Emulation {
    gpus: Option<u8>,
    profile: Option<String>,
    vram: Option<String>,
    log: Option<PathBuf>,
    page_tables: Option<PathBuf>,
    faults: Vec<String>,
}

/// The object to preload is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the emulated driver {OBJECT} is not beside the program (looked in: {looked}); build it with \
     `cargo build -p hsa-kfd`, or name it in HSA_VMM_KFD"
)]
pub struct NoObject {
    looked: String,
}

impl Emulation {
    /// A machine with so many GPUs.
    #[must_use]
    pub fn gpus(number: u8) -> Self {
        Self { gpus: Some(number), ..Self::default() }
    }

    /// Whose GPUs: `mi300x`, `mi210`, `rdna3`, `apu`.
    #[must_use]
    pub fn profile(mut self, name: impl Into<String>) -> Self {
        self.profile = Some(name.into());
        self
    }

    /// How much memory a GPU has: `64GiB`, `256MiB`.
    #[must_use]
    pub fn vram(mut self, size: impl Into<String>) -> Self {
        self.vram = Some(size.into());
        self
    }

    /// A file for a line for each call of the driver.
    #[must_use]
    pub fn log(mut self, file: impl Into<PathBuf>) -> Self {
        self.log = Some(file.into());
        self
    }

    /// A file for the GPUs' page tables when a process ends.
    #[must_use]
    pub fn page_tables(mut self, file: impl Into<PathBuf>) -> Self {
        self.page_tables = Some(file.into());
        self
    }

    /// Has calls of the driver go wrong, as `hsa-faults` writes it: `GEM_VA#3=ENOMEM`,
    /// `GEM_VA.MAP=lost`.
    #[must_use]
    pub fn fault(mut self, plan: impl Into<String>) -> Self {
        self.faults.push(plan.into());
        self
    }

    /// Puts the emulated driver under a program, and under the programs that it starts.
    ///
    /// # Errors
    /// Where the object to preload was looked for, and how to build it.
    pub fn apply(&self, command: &mut Command) -> Result<(), NoObject> {
        command.env("LD_PRELOAD", preloaded(&object()?, env::var_os("LD_PRELOAD")));
        let words = [
            self.gpus.map(|number| format!("gpus={number}")),
            self.profile.as_ref().map(|name| format!("profile={name}")),
            self.vram.as_ref().map(|size| format!("vram={size}")),
        ];
        let mut words: Vec<_> = words.into_iter().flatten().collect();
        if !words.is_empty() {
            // Later words win.
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

/// The list of what is preloaded, ours first and once.
fn preloaded(object: &Path, before: Option<OsString>) -> OsString {
    let mut list = object.as_os_str().to_owned();
    for other in env::split_paths(&before.unwrap_or_default()) {
        if !other.as_os_str().is_empty() && other != object {
            list.push(":");
            list.push(other);
        }
    }
    list
}

/// The object to preload: `HSA_VMM_KFD`, or what cargo left beside the program, or what a package
/// put into `../lib/hsa-vmm`.
fn object() -> Result<PathBuf, NoObject> {
    if let Some(named) = env::var_os("HSA_VMM_KFD").filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        return if named.is_file() {
            Ok(absolute(named))
        } else {
            Err(NoObject { looked: named.display().to_string() })
        };
    }
    let program = program();
    let beside = program.as_deref().and_then(Path::parent).unwrap_or(Path::new("."));
    // Cargo leaves a dependency's object in `deps`, where tests are; one that lies beside the
    // program may be of an older build.
    let folders = ["deps", "", "../deps", "../lib/hsa-vmm"].map(|folder| beside.join(folder));
    let found = folders.iter().map(|folder| folder.join(OBJECT)).find(|path| path.is_file());
    found.map(absolute).ok_or_else(|| NoObject {
        looked: folders.map(|folder| folder.display().to_string()).join(", "),
    })
}

/// The program may change its folder before it starts others.
fn absolute(path: PathBuf) -> PathBuf {
    path.canonicalize().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::{Emulation, preloaded};
    use std::process::Command;

    #[test]
    fn existing_preloads_are_kept() {
        let list = |before: &str| preloaded("/a/kfd.so".as_ref(), Some(before.into()));
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
        let listed = String::from_utf8_lossy(&output.stdout);
        let nodes = listed.lines().filter(|name| name.starts_with("renderD")).count();
        assert_eq!(nodes, 3, "{output:?}");
    }
}
