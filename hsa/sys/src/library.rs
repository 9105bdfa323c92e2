//! Finds and loads `libhsa-runtime64`.

use crate::printable;
use crate::table::{MissingSymbol, Table};
use core::ffi::{CStr, c_void};
use core::fmt;
use core::ptr::NonNull;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The file name of the runtime.
pub const FILE_NAME: &str = "libhsa-runtime64.so.1";

/// The environment variable that names the library to load; if set, no other file is tried.
pub const RUNTIME_VARIABLE: &str = "HSA_VMM_RUNTIME";

/// The environment variable that names ROCm's folder.
pub const ROCM_VARIABLE: &str = "ROCM_PATH";

/// Returns whether this process has more privileges than its caller: set-user-id, set-group-id,
/// file capabilities, or by a security module (`AT_SECURE`).
#[must_use]
pub fn is_privileged() -> bool {
    // SAFETY: only reads the auxiliary vector of the process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns an environment variable that selects code or files to load, read or write.
///
/// `None` if it is empty, and always in a [privileged](is_privileged) process: the caller's
/// environment must not choose what runs with its privileges.
#[must_use]
pub fn variable(name: &str) -> Option<OsString> {
    // Not `secure_getenv`: std reads the environment under its lock.
    let value = if is_privileged() { None } else { std::env::var_os(name) };
    value.filter(|value| !value.is_empty())
}

/// The files to try, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    candidates: Vec<PathBuf>,
    /// Files that are not tried, with the reason.
    rejected: Vec<Attempt>,
}

impl Search {
    /// Searches the usual folders: only `HSA_VMM_RUNTIME` if set; else the `lib` folder of
    /// `ROCM_PATH`, the linker's own search, `build_folder` (ROCm's folder at build time) and
    /// `/opt/rocm/lib`.
    ///
    /// Relative folders are rejected: their contents depend on the current folder. A file in
    /// `HSA_VMM_RUNTIME` can be relative, as for the dynamic linker. A [privileged](is_privileged)
    /// process ignores both variables.
    #[must_use]
    pub fn usual(build_folder: Option<&Path>) -> Self {
        Self::from(variable(RUNTIME_VARIABLE), variable(ROCM_VARIABLE), build_folder)
    }

    /// Tries only this file.
    #[must_use]
    pub fn only(path: impl Into<PathBuf>) -> Self {
        Self { candidates: vec![path.into()], rejected: Vec::new() }
    }

    /// Returns the files to try, in order. The dynamic linker searches for a bare name.
    #[must_use]
    pub fn candidates(&self) -> &[PathBuf] {
        &self.candidates
    }

    fn from(runtime: Option<OsString>, rocm: Option<OsString>, build: Option<&Path>) -> Self {
        if let Some(path) = runtime {
            return Self::only(path);
        }
        let (mut candidates, mut rejected) = (Vec::new(), Vec::new());
        if let Some(rocm) = rocm.map(PathBuf::from) {
            if rocm.is_absolute() {
                candidates.push(rocm.join("lib").join(FILE_NAME));
            } else {
                let reason = format!("{ROCM_VARIABLE} is not absolute and is ignored");
                rejected.push(Attempt { path: rocm, reason });
            }
        }
        candidates.push(PathBuf::from(FILE_NAME));
        candidates.push(PathBuf::from("libhsa-runtime64.so"));
        let build = build.filter(|folder| folder.is_absolute());
        candidates.extend(build.map(|folder| folder.join(FILE_NAME)));
        candidates.push(Path::new("/opt/rocm/lib").join(FILE_NAME));
        let mut unique = Vec::new();
        candidates.retain(|path| !unique.contains(path) && (unique.push(path.clone()), true).1);
        Self { candidates, rejected }
    }
}

/// A file that was tried or rejected, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The file, or a bare name that the dynamic linker searched.
    pub path: PathBuf,
    /// The linker's message, or the missing function.
    pub reason: String,
}

/// No runtime could be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct LoadError {
    /// All attempts, in order.
    pub attempts: Vec<Attempt>,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no {FILE_NAME} could be loaded; tried:")?;
        for Attempt { path, reason } in &self.attempts {
            let path = path.to_string_lossy();
            write!(f, "\n  {}: {}", printable(&path), printable(reason))?;
        }
        Ok(())
    }
}

/// A loaded runtime: its functions, and the file they come from.
///
/// The library stays loaded until the process ends (`RTLD_NODELETE`), because AMD's runtime leaves
/// threads running in its code. Loading does not call `hsa_init`.
#[derive(Debug)]
pub struct Library {
    table: Table,
    path: PathBuf,
    // Dropped last. Because of `RTLD_NODELETE` this does not unload the library.
    library: libloading::os::unix::Library,
}

impl Library {
    /// Loads the first library of `search` that has all required functions.
    ///
    /// # Errors
    /// [`LoadError`] lists each tried file and the reason.
    ///
    /// # Safety
    /// Loading runs the library's initialisers and trusts its functions to have the types of
    /// the HSA ABI. The files of `search` must be HSA runtimes.
    pub unsafe fn load(search: &Search) -> Result<Self, LoadError> {
        let mut attempts = search.rejected.clone();
        for path in search.candidates() {
            // SAFETY: the caller promises that the file is an HSA runtime.
            match unsafe { Self::open(path) } {
                Ok(library) => return Ok(library),
                Err(reason) => attempts.push(Attempt { path: path.clone(), reason }),
            }
        }
        Err(LoadError { attempts })
    }

    /// Returns the functions.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the loaded file, as reported by the dynamic linker.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the address of an exported function, even if it is not in the table. The address
    /// stays valid until the process ends.
    #[must_use]
    pub fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        symbol(&self.library, name)
    }

    unsafe fn open(path: &Path) -> Result<Self, String> {
        if path.as_os_str().is_empty() {
            // The dynamic linker would open the program itself.
            return Err("the name is empty".into());
        }
        // libloading does not define NODELETE. LOCAL, so that two runtimes can be loaded side by
        // side.
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
        // SAFETY: the caller of `load` promises that the file is an HSA runtime.
        let library = unsafe { libloading::os::unix::Library::open(Some(path), flags) }
            .map_err(|error| reason(path, &error))?;
        let mut resolve = |name: &CStr| symbol(&library, name);
        // SAFETY: the addresses are those of an HSA runtime, as the caller promises, and stay valid
        // because the library is never unloaded.
        let table = unsafe { Table::load(&mut resolve) }
            .map_err(|MissingSymbol(name)| format!("does not export `{name}`"))?;
        let path = file_of(table.core.hsa_init as *const c_void).unwrap_or_else(|| path.into());
        Ok(Self { table, path, library })
    }
}

fn symbol(library: &libloading::os::unix::Library, name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: only returns the address; the caller converts it to its type.
    let symbol = unsafe { library.get::<*mut c_void>(name.to_bytes_with_nul()) }.ok()?;
    NonNull::new(symbol.as_raw_ptr())
}

/// Returns the linker's message, if any. Removes the path, which the caller prints.
fn reason(path: &Path, error: &libloading::Error) -> String {
    let message = match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    };
    let prefix = format!("{}: ", path.display());
    message.strip_prefix(&prefix).map(str::to_owned).unwrap_or(message)
}

/// Returns the file that contains `address`.
fn file_of(address: *const c_void) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `info` is writable and of the right type; `dladdr` accepts any address.
    if unsafe { libc::dladdr(address, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: all zeroes are a valid Dl_info, and dladdr filled it.
    let info = unsafe { info.assume_init() };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the string from `dladdr` lives as long as the library, which is never unloaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    // Resolve symbolic links.
    Some(path.canonicalize().unwrap_or_else(|_| path.to_path_buf()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(search: &Search) -> Vec<&str> {
        search.candidates().iter().filter_map(|path| path.to_str()).collect()
    }

    #[test]
    fn runtime_variable_excludes_other_paths() {
        let search = Search::from(Some("/x/lib.so".into()), Some("/rocm".into()), None);
        assert_eq!(paths(&search), ["/x/lib.so"]);
    }

    #[test]
    fn search_order_of_rocm_path_and_linker() {
        let search = Search::from(None, Some("/rocm".into()), Some(Path::new("/built")));
        assert_eq!(
            paths(&search),
            [
                "/rocm/lib/libhsa-runtime64.so.1",
                "libhsa-runtime64.so.1",
                "libhsa-runtime64.so",
                "/built/libhsa-runtime64.so.1",
                "/opt/rocm/lib/libhsa-runtime64.so.1",
            ]
        );
    }

    #[test]
    fn relative_folders_are_rejected() {
        let search = Search::from(None, Some("rocm".into()), Some(Path::new("built/lib")));
        assert_eq!(
            paths(&search),
            ["libhsa-runtime64.so.1", "libhsa-runtime64.so", "/opt/rocm/lib/libhsa-runtime64.so.1",]
        );
        let [rejected] = &search.rejected[..] else { panic!("{search:?}") };
        assert_eq!(rejected.path, Path::new("rocm"));
        assert!(rejected.reason.contains("ROCM_PATH is not absolute"), "{rejected:?}");
    }

    #[test]
    fn each_file_is_tried_once() {
        let folder = Path::new("/opt/rocm/lib");
        let search = Search::from(None, Some("/opt/rocm".into()), Some(folder));
        assert_eq!(
            paths(&search).iter().filter(|path| path.starts_with("/opt")).count(),
            1,
            "{search:?}"
        );
    }
}
