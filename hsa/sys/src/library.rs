//! Finds and loads `libhsa-runtime64`.

use crate::loaded::{LoadedLibrary, loaded};
use crate::printable;
use crate::table::{MissingSymbol, Table};
use core::ffi::{CStr, c_void};
use core::fmt;
use core::ptr::NonNull;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The file name of the runtime.
pub const FILE_NAME: &str = "libhsa-runtime64.so.1";

/// The environment variable that names the library to load. If the variable is set, no other file
/// is tried.
pub const RUNTIME_VARIABLE: &str = "HSA_VMM_RUNTIME";

/// The environment variable that names ROCm's folder.
pub const ROCM_VARIABLE: &str = "ROCM_PATH";

/// The folder of ROCm's libraries in a usual installation.
const OPT_ROCM: &str = "/opt/rocm/lib";

/// Returns whether this process has more privileges than its caller (`AT_SECURE`): by set-user-id,
/// set-group-id, file capabilities or a security module.
#[must_use]
pub fn is_privileged() -> bool {
    // SAFETY: the call only reads the auxiliary vector of the process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns an environment variable that selects code or files to load, read or write.
///
/// Returns `None` if the variable is empty. Always returns `None` in a [privileged](is_privileged) process: the
/// caller's environment must not select code that runs with more privileges than the caller has.
#[must_use]
pub fn variable(name: &str) -> Option<OsString> {
    // `secure_getenv` is not used: `std` protects the environment with a lock, which that function does not take.
    let value = if is_privileged() { None } else { std::env::var_os(name) };
    value.filter(|value| !value.is_empty())
}

/// Why a library was selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The program named the file.
    Program,
    /// The environment variable `HSA_VMM_RUNTIME` names the file.
    Variable,
    /// The process had loaded a library of this name already.
    Loaded,
    /// The file is in `ROCM_PATH`.
    RocmPath,
    /// The dynamic linker found the file.
    Linker,
    /// The file is in the `lib` folder of the ROCm that was found when the caller of this crate was built.
    RocmAtBuild,
    /// The file is in `/opt/rocm`.
    OptRocm,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Program => "the program named the file",
            Self::Variable => "HSA_VMM_RUNTIME names it",
            Self::Loaded => "the process had loaded it already",
            Self::RocmPath => "it is in ROCM_PATH",
            Self::Linker => "the dynamic linker found it",
            Self::RocmAtBuild => {
                "it is in the ROCm folder that was found when this program was built"
            }
            Self::OptRocm => "it is in /opt/rocm",
        })
    }
}

/// The files of the runtime to try, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    candidates: Vec<(PathBuf, Origin)>,
    /// Files that are not tried, each with the reason.
    rejected: Vec<RejectedCandidate>,
}

impl Search {
    /// Creates the usual search.
    ///
    /// If `HSA_VMM_RUNTIME` is set, the search tries only that file. Otherwise the search tries, in this order:
    ///
    /// 1. the library that this process has loaded already, for example for HIP;
    /// 2. the `lib` folder of `ROCM_PATH`;
    /// 3. the dynamic linker's own search;
    /// 4. `rocm_libraries`, ROCm's `lib` folder that was found when the caller was built;
    /// 5. `/opt/rocm/lib`.
    ///
    /// The search ignores relative folders, because their contents depend on the current folder. `HSA_VMM_RUNTIME`
    /// can be a relative path. A [privileged](is_privileged) process ignores `HSA_VMM_RUNTIME` and `ROCM_PATH`.
    #[must_use]
    pub fn usual(rocm_libraries: Option<&Path>) -> Self {
        let is_loaded = is_loaded(FILE_NAME);
        Self::new(variable(RUNTIME_VARIABLE), is_loaded, variable(ROCM_VARIABLE), rocm_libraries)
    }

    /// Creates a search that tries only this file.
    #[must_use]
    pub fn only(path: impl Into<PathBuf>) -> Self {
        Self { candidates: vec![(path.into(), Origin::Program)], rejected: Vec::new() }
    }

    /// Returns the files to try, in order, each with the reason to select it. The dynamic linker
    /// searches its own folders for a bare name.
    #[must_use]
    pub fn candidates(&self) -> &[(PathBuf, Origin)] {
        &self.candidates
    }

    fn new(
        runtime: Option<OsString>,
        is_loaded: bool,
        rocm: Option<OsString>,
        rocm_libraries: Option<&Path>,
    ) -> Self {
        if let Some(path) = runtime {
            return Self {
                candidates: vec![(path.into(), Origin::Variable)],
                rejected: Vec::new(),
            };
        }
        let (mut candidates, mut rejected) = (Vec::new(), Vec::new());
        if is_loaded {
            candidates.push((PathBuf::from(FILE_NAME), Origin::Loaded));
        }
        if let Some(rocm) = rocm.map(PathBuf::from) {
            if rocm.is_absolute() {
                candidates.push((rocm.join("lib").join(FILE_NAME), Origin::RocmPath));
            } else {
                let reason = format!("{ROCM_VARIABLE} is not absolute and is ignored");
                rejected.push(RejectedCandidate { path: rocm, reason });
            }
        }
        candidates.push((PathBuf::from(FILE_NAME), Origin::Linker));
        candidates.push((PathBuf::from("libhsa-runtime64.so"), Origin::Linker));
        let found = rocm_libraries.filter(|folder| folder.is_absolute());
        candidates.extend(found.map(|folder| (folder.join(FILE_NAME), Origin::RocmAtBuild)));
        candidates.push((Path::new(OPT_ROCM).join(FILE_NAME), Origin::OptRocm));
        let mut unique = Vec::new();
        candidates
            .retain(|(path, _)| !unique.contains(path) && (unique.push(path.clone()), true).1);
        Self { candidates, rejected }
    }
}

/// A file that could not be loaded or was ignored, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RejectedCandidate {
    /// The file, or a bare name that the dynamic linker searched.
    pub path: PathBuf,
    /// The linker's message, the missing function, or why the file was not tried.
    pub reason: String,
}

/// No runtime could be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct LoadError {
    /// The files that were tried or ignored, in order.
    pub rejected: Vec<RejectedCandidate>,
    /// The HSA libraries that this process had loaded already.
    pub loaded: Vec<LoadedLibrary>,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no {FILE_NAME} could be loaded; ")?;
        if is_privileged() {
            // Before the list, because callers may truncate long messages.
            write!(
                f,
                "this program has more privileges than its caller (set-user-ID, set-group-ID or file capabilities), \
                 so it ignores {RUNTIME_VARIABLE} and {ROCM_VARIABLE}: install the runtime in {OPT_ROCM}, or in a \
                 folder of the dynamic linker (ldconfig), or name the file in the program (Rust: Runtime::load_from; \
                 C: hsavmm_use_runtime); "
            )?;
        }
        write!(f, "tried or ignored:")?;
        for RejectedCandidate { path, reason } in &self.rejected {
            let path = path.to_string_lossy();
            write!(f, "\n  {}: {}", printable(&path), printable(reason))?;
        }
        if !self.loaded.is_empty() {
            write!(f, "\nloaded in this process:")?;
        }
        self.loaded.iter().try_for_each(|library| write!(f, "\n  {library}"))
    }
}

/// A loaded runtime: its functions, and the file that contains them.
///
/// The library stays loaded until the process ends (`RTLD_NODELETE`), because AMD's runtime leaves
/// threads running in its code. Loading does not call `hsa_init`.
#[derive(Debug)]
pub struct Library {
    table: Table,
    path: PathBuf,
    origin: Origin,
    has_rocr_symbol_version: bool,
    // Because of `RTLD_NODELETE`, dropping this field does not unload the library.
    library: libloading::os::unix::Library,
}

impl Library {
    /// Loads the first library of `search` that has all required functions.
    ///
    /// # Errors
    /// [`LoadError`] lists each file that was tried or ignored, and the reason.
    ///
    /// # Safety
    /// Loading runs the library's initialisers and trusts its functions to have the types of
    /// the HSA ABI. The files of `search` must be HSA runtimes.
    pub unsafe fn load(search: &Search) -> Result<Self, LoadError> {
        let mut rejected = search.rejected.clone();
        for (path, origin) in search.candidates() {
            // SAFETY: the caller promises that the file is an HSA runtime.
            match unsafe { Self::open(path, *origin) } {
                Ok(library) => return Ok(library),
                Err(reason) => rejected.push(RejectedCandidate { path: path.clone(), reason }),
            }
        }
        Err(LoadError { rejected, loaded: loaded() })
    }

    /// Returns the table of the library's functions.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the loaded file, as reported by the dynamic linker.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns why this library was selected.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns whether the library exports `hsa_init` with the symbol version `ROCR_1`, as all of AMD's
    /// releases do. Returns false with a C library other than glibc, such as musl.
    #[must_use]
    pub fn has_rocr_symbol_version(&self) -> bool {
        self.has_rocr_symbol_version
    }

    /// Returns the address of an exported function, even if it is not in the table. The address
    /// stays valid until the process ends.
    #[must_use]
    pub fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        symbol(&self.library, name)
    }

    unsafe fn open(path: &Path, origin: Origin) -> Result<Self, String> {
        if path.as_os_str().is_empty() {
            // The dynamic linker would open the program itself.
            return Err("the name is empty".into());
        }
        // RTLD_LOCAL, so that two runtimes can be loaded side by side.
        let open = |flags| {
            let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | flags;
            // SAFETY: the caller of `load` promises that the file is an HSA runtime.
            unsafe { libloading::os::unix::Library::open(Some(path), flags) }
                .map_err(|error| reason(path, &error))
        };
        // Dropping `candidate` unloads a rejected library. Otherwise the dynamic linker would return
        // that library for every later candidate without a folder, because it compares only names.
        let candidate = open(0)?;
        // SAFETY: the addresses are those of an HSA runtime, as the caller promises. They stay valid,
        // because the library is never unloaded if loading the table succeeds.
        let table = unsafe { Table::load(&mut |name| symbol(&candidate, name)) }
            .map_err(|MissingSymbol(name)| format!("does not export `{name}`"))?;
        // Keeps the accepted library loaded. libloading does not define the flag.
        let library = open(libc::RTLD_NODELETE)?;
        let path = file_of(table.core.hsa_init as *const c_void).unwrap_or_else(|| path.into());
        let handle = library.into_raw();
        let has_rocr_symbol_version = has_rocr_symbol_version(handle);
        // SAFETY: `into_raw` has returned the handle, and given up its ownership.
        let library = unsafe { libloading::os::unix::Library::from_raw(handle) };
        Ok(Self { table, path, origin, has_rocr_symbol_version, library })
    }
}

/// Returns whether the process has loaded a library whose `DT_SONAME` is `name`. The dynamic linker then
/// returns that library for the name.
fn is_loaded(name: &str) -> bool {
    let Ok(name) = std::ffi::CString::new(name) else { return false };
    // SAFETY: RTLD_NOLOAD loads nothing: no code of the library runs.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return false;
    }
    // SAFETY: the handle is valid, and is not used afterwards.
    unsafe { libc::dlclose(handle) };
    true
}

/// Returns whether a library exports `hsa_init` with the symbol version of AMD's releases.
#[cfg(target_env = "gnu")]
fn has_rocr_symbol_version(handle: *mut c_void) -> bool {
    let has = |version: &CStr| {
        // SAFETY: the handle belongs to an open library, both strings end with a zero, and nothing calls the
        // address.
        !unsafe { libc::dlvsym(handle, c"hsa_init".as_ptr(), version.as_ptr()) }.is_null()
    };
    // In a library without symbol versions, the dynamic linker finds every version.
    has(c"ROCR_1") && !has(c"NO_SUCH_VERSION")
}

#[cfg(not(target_env = "gnu"))]
fn has_rocr_symbol_version(_handle: *mut c_void) -> bool {
    false
}

fn symbol(library: &libloading::os::unix::Library, name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the call only returns the address; the caller converts the address to its type.
    let symbol = unsafe { library.get::<*mut c_void>(name.to_bytes_with_nul()) }.ok()?;
    NonNull::new(symbol.as_raw_ptr())
}

/// Returns the linker's message, or else libloading's, without the path, which the caller prints.
fn reason(path: &Path, error: &libloading::Error) -> String {
    let message = match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    };
    let prefix = format!("{}: ", path.display());
    message.strip_prefix(&prefix).map(str::to_owned).unwrap_or(message)
}

/// Returns the file that contains `address`.
pub(crate) fn file_of(address: *const c_void) -> Option<PathBuf> {
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
    // SAFETY: the string from `dladdr` lives as long as the library, which the callers keep loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    // Resolve symbolic links.
    Some(path.canonicalize().unwrap_or_else(|_| path.to_path_buf()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(search: &Search) -> Vec<&str> {
        search.candidates().iter().filter_map(|(path, _)| path.to_str()).collect()
    }

    #[test]
    fn runtime_variable_excludes_other_paths() {
        let search = Search::new(Some("/x/lib.so".into()), true, Some("/rocm".into()), None);
        assert_eq!(paths(&search), ["/x/lib.so"]);
    }

    #[test]
    fn search_order_of_rocm_path_and_linker() {
        let search = Search::new(None, false, Some("/rocm".into()), Some(Path::new("/built")));
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
    fn loaded_library_comes_first() {
        let search = Search::new(None, true, Some("/rocm".into()), None);
        let expected = [
            (FILE_NAME, Origin::Loaded),
            ("/rocm/lib/libhsa-runtime64.so.1", Origin::RocmPath),
            ("libhsa-runtime64.so", Origin::Linker),
            ("/opt/rocm/lib/libhsa-runtime64.so.1", Origin::OptRocm),
        ];
        assert!(
            search
                .candidates()
                .iter()
                .map(|(path, origin)| (path.to_str(), *origin))
                .eq(expected.map(|(path, origin)| (Some(path), origin)))
        );
    }

    #[test]
    fn relative_folders_are_ignored() {
        let search = Search::new(None, false, Some("rocm".into()), Some(Path::new("built/lib")));
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
        let search = Search::new(None, false, Some("/opt/rocm".into()), Some(folder));
        assert_eq!(
            paths(&search).iter().filter(|path| path.starts_with("/opt")).count(),
            1,
            "{search:?}"
        );
    }
}
