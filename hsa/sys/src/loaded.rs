//! Lists the HSA libraries that are loaded in this process.

use crate::bindings::*;
use crate::library::file_of;
use crate::printable;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::fmt;
use core::mem::{size_of, transmute};
use std::ffi::CString;
use std::path::{Path, PathBuf};

/// An HSA library that is loaded in this process, by this crate or by other code.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadedLibrary {
    /// The file, as reported by the dynamic linker. The file may have been replaced since.
    pub path: PathBuf,
    /// The build that the library reports if it is started, or else the build that the file contains.
    pub build: Option<String>,
    /// The version of AMD's extension. `None` if the library is not started or does not report the
    /// version.
    pub extension: Option<(u16, u16)>,
}

impl fmt::Display for LoadedLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.to_string_lossy();
        write!(f, "{} (", printable(&path))?;
        match &self.build {
            Some(build) => write!(f, "build {}, ", printable(build))?,
            None => write!(f, "unknown build, ")?,
        }
        match self.extension {
            Some((major, minor)) => write!(f, "extension {major}.{minor})"),
            None => write!(f, "not started or without AMD's extension)"),
        }
    }
}

/// Lists the HSA libraries that are loaded in this process, in the order of loading. An HSA library is a library that
/// defines `hsa_init`.
///
/// Starts no library. Queries the build and the extension of each library that is started.
#[must_use]
pub fn loaded() -> Vec<LoadedLibrary> {
    let mut names: Vec<CString> = Vec::new();
    // SAFETY: `add_name` receives a vector of the type that it expects, and does not unwind.
    unsafe { libc::dl_iterate_phdr(Some(add_name), (&raw mut names).cast()) };
    names.iter().filter_map(|name| describe(name)).collect()
}

/// Adds the name of a loaded object to the list.
///
/// # Safety
/// `info` must be an object of `dl_iterate_phdr`, and `data` the list.
unsafe extern "C" fn add_name(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the caller promises both types; the list is borrowed while the iteration runs.
    let (info, names) = unsafe { (&*info, &mut *data.cast::<Vec<CString>>()) };
    // The program itself has an empty name.
    if !info.dlpi_name.is_null() {
        // SAFETY: the name of a loaded object is a string.
        let name = unsafe { CStr::from_ptr(info.dlpi_name) };
        if !name.is_empty() {
            names.push(name.to_owned());
        }
    }
    0
}

/// Describes the object if it defines `hsa_init`.
fn describe(name: &CStr) -> Option<LoadedLibrary> {
    let object = Object::of(name)?;
    let init = object.symbol(c"hsa_init")?;
    // `dlsym` also searches the object's dependencies.
    if !object.defines(init) {
        return None;
    }
    let path = file_of(init)?;
    let build = object.reported_build().or_else(|| build_of_file(&path));
    let major = object.system_info::<u16>(HSA_AMD_SYSTEM_INFO_EXT_VERSION_MAJOR);
    let minor = object.system_info::<u16>(HSA_AMD_SYSTEM_INFO_EXT_VERSION_MINOR);
    Some(LoadedLibrary { path, build, extension: major.zip(minor) })
}

/// A `dlopen` handle, which keeps a loaded object loaded.
struct Object<'a> {
    name: &'a CStr,
    handle: *mut c_void,
}

impl<'a> Object<'a> {
    /// Opens the loaded object of this name. Returns `None` if the object was unloaded.
    fn of(name: &'a CStr) -> Option<Self> {
        // SAFETY: RTLD_NOLOAD loads nothing: no code of the object runs.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        (!handle.is_null()).then_some(Self { name, handle })
    }

    fn symbol(&self, name: &CStr) -> Option<*const c_void> {
        // SAFETY: the handle is valid, and only the address is used.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        (!address.is_null()).then_some(address.cast_const())
    }

    /// Returns whether an address belongs to this object.
    fn defines(&self, address: *const c_void) -> bool {
        let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: `info` is writable and of the right type; `dladdr` accepts any address.
        let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) } != 0;
        // SAFETY: all zeroes are a valid Dl_info, and dladdr may have filled it.
        let file = unsafe { info.assume_init() }.dli_fname;
        // SAFETY: `dladdr` returns the name of a loaded object: this object, or one of its
        // dependencies. The handle from `dlopen` keeps all of them loaded.
        found && !file.is_null() && unsafe { CStr::from_ptr(file) } == self.name
    }

    /// Reads an attribute. Returns `None` if the library is not started or does not know the attribute.
    fn system_info<T: Copy + Default>(&self, attribute: hsa_system_info_t) -> Option<T> {
        const { assert!(size_of::<T>() <= size_of::<u64>()) };
        let address = self.symbol(c"hsa_system_get_info")?;
        if !self.defines(address) {
            return None;
        }
        // SAFETY: an object that defines `hsa_init` and this function is an HSA library, loaded by code
        // that this process trusts. Its function has the type of the HSA ABI.
        let query: crate::table::Required<hsa_system_get_info_fn> = unsafe { transmute(address) };
        let mut value = [0u64; 64];
        // SAFETY: the value has room for every attribute. Without `hsa_init` the function returns
        // HSA_STATUS_ERROR_NOT_INITIALIZED.
        let status = unsafe { query(attribute, value.as_mut_ptr().cast()) };
        // SAFETY: the value is larger than `T`, aligned, and initialised; `T` is a number or a pointer.
        (status == HSA_STATUS_SUCCESS).then(|| unsafe { value.as_ptr().cast::<T>().read() })
    }

    fn reported_build(&self) -> Option<String> {
        let address = self.system_info::<usize>(HSA_AMD_SYSTEM_INFO_BUILD_VERSION)?;
        let build = address as *const c_char;
        if build.is_null() {
            return None;
        }
        // SAFETY: not null; HSA documents the attribute's value as a string constant.
        let build = unsafe { CStr::from_ptr(build) }.to_string_lossy();
        Some(build.trim_matches('"').to_owned())
    }
}

impl Drop for Object<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is from dlopen, and is not used afterwards.
        unsafe { libc::dlclose(self.handle) };
    }
}

/// Finds the build of AMD's ROCr in the library's file, without loading the file. The build is a string
/// constant such as `1.15.0-local-build-unknown`. In the file, the string is in quotation marks.
/// The result has no quotation marks.
#[must_use]
pub fn build_of_file(path: &Path) -> Option<String> {
    let bytes = std::fs::read(path).ok()?;
    let mut strings = bytes.split(|&byte| byte == 0);
    strings.find_map(|string| {
        let build = string.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        let text = core::str::from_utf8(build).ok()?;
        is_build(text).then(|| text.to_owned())
    })
}

/// Returns whether a text begins with a version of at least three numbers, followed by a hyphen.
fn is_build(text: &str) -> bool {
    let Some((version, _)) = text.split_once('-') else { return false };
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    version.split('.').count() >= 3 && version.split('.').all(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_is_found_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("library.so");
        for (contents, build) in [
            (
                &b"\x7fELF\0\"1.15.0-local-build-unknown\"\0code\0"[..],
                Some("1.15.0-local-build-unknown"),
            ),
            (b"\0\"1.18.0.70204-93-abcdef\"\0", Some("1.18.0.70204-93-abcdef")),
            (b"\x001.15.0-no-quotes\0\"not-a-version\"\0\"1.15\"\0\"..-\"\0\"", None),
            (b"", None),
        ] {
            std::fs::write(&file, contents).unwrap();
            assert_eq!(build_of_file(&file).as_deref(), build);
        }
        assert_eq!(build_of_file(&folder.path().join("missing")), None);
    }
}
