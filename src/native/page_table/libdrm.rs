//! The copy of libdrm that ROCr has loaded.

use super::{DriverError, FailedCall};
use hsa_sys::driver as abi;
use hsa_sys::table::Required;
use libloading::os::unix::{Library, RTLD_NOW};
use rustix::io::Errno;

/// The names of libdrm. AMD's builds of ROCr use a renamed copy of libdrm, even if another library in the process has
/// loaded the system's libdrm.
const NAMES: [&str; 2] = ["librocm_sysdeps_drm_amdgpu.so.1", "libdrm_amdgpu.so.1"];

/// The functions of a loaded copy of libdrm. The copy stays loaded while this value lives.
#[derive(Debug)]
pub(crate) struct Libdrm {
    pub name: &'static str,
    pub initialize: Required<abi::amdgpu_device_initialize_fn>,
    pub deinitialize: Required<abi::amdgpu_device_deinitialize_fn>,
    pub get_fd: Required<abi::amdgpu_device_get_fd_fn>,
    pub import: Required<abi::amdgpu_bo_import_fn>,
    pub free: Required<abi::amdgpu_bo_free_fn>,
    pub va_op: Required<abi::amdgpu_bo_va_op_raw_fn>,
    _library: Library,
}

impl Libdrm {
    /// Returns every loaded copy that has the needed functions, first the copy that ROCr most likely uses. Loads no
    /// library.
    pub fn find_loaded() -> Result<Vec<Self>, DriverError> {
        let (mut found, mut failure) = (Vec::new(), DriverError::NoLibrary);
        for name in NAMES {
            // SAFETY: RTLD_NOLOAD runs no code: the library is already loaded, or the call fails.
            let library = unsafe { Library::open(Some(name), RTLD_NOW | libc::RTLD_NOLOAD) };
            if let Ok(library) = library {
                match Self::of(name, library) {
                    Ok(copy) => found.push(copy),
                    Err(error) => failure = error,
                }
            }
        }
        if found.is_empty() { Err(failure) } else { Ok(found) }
    }

    fn of(name: &'static str, library: Library) -> Result<Self, DriverError> {
        /// Looks up a function.
        ///
        /// # Safety
        /// The function has the type `F`, a function pointer.
        unsafe fn get<F: Copy>(
            (name, library): (&'static str, &Library),
            function: &'static str,
        ) -> Result<F, DriverError> {
            // SAFETY: the caller guarantees that the function has the type `F`.
            let found = unsafe { library.get::<F>(function.as_bytes()) };
            let missing = DriverError::NoFunction { library: name, function };
            found.map(|symbol| *symbol).map_err(|_| missing)
        }
        let named_library = (name, &library);
        // SAFETY: the types are those of libdrm's headers (hsa/sys/tests/driver.rs), stable since 2015.
        unsafe {
            Ok(Self {
                name,
                initialize: get(named_library, "amdgpu_device_initialize")?,
                deinitialize: get(named_library, "amdgpu_device_deinitialize")?,
                get_fd: get(named_library, "amdgpu_device_get_fd")?,
                import: get(named_library, "amdgpu_bo_import")?,
                free: get(named_library, "amdgpu_bo_free")?,
                va_op: get(named_library, "amdgpu_bo_va_op_raw")?,
                _library: library,
            })
        }
    }
}

/// Calls a function of libdrm, logs the call, and converts its result: 0, or a negative error number.
/// `amdgpu_bo_import` can also return -1 with `errno` set. Any other result is invalid (`EIO`). Also logs before the
/// call, so that the log shows a call that never returns.
pub(super) fn check(call: &'static str, function: impl FnOnce() -> i32) -> Result<(), FailedCall> {
    crate::log::event!(TRACE, calling = call);
    let result = function();
    let status = match result {
        0 => Ok(()),
        -1 if call == "amdgpu_bo_import" => {
            Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::PERM))
        }
        -4095..0 => Err(Errno::from_raw_os_error(-result)),
        _ => Err(Errno::IO),
    };
    crate::log::event!(TRACE, call, result);
    status.map_err(|errno| FailedCall { call, errno })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_converts_every_result() {
        let errno = |call, result| match check(call, || result) {
            Err(FailedCall { errno, .. }) => errno,
            other => panic!("{other:?}"),
        };
        assert!(check("amdgpu_bo_free", || 0).is_ok());
        assert_eq!(errno("amdgpu_bo_free", -12), Errno::NOMEM);
        assert_eq!(errno("amdgpu_bo_free", -1), Errno::PERM);
        // SAFETY: `errno` of this thread is always valid.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
        assert_eq!(errno("amdgpu_bo_import", -1), Errno::NOMEM);
        for invalid in [1, i32::MAX, -4096, i32::MIN] {
            assert_eq!(errno("amdgpu_bo_free", invalid), Errno::IO);
        }
    }
}
