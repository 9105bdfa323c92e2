//! The runtime's status codes with their names, and the state of the kernel driver.

use super::Failure;
use core::fmt;
use derive_more::{Debug, Display};
use hsa_sys as sys;
use rustix::io::Errno;
use std::ffi::OsStr;

/// The status that a function of the runtime returned.
///
/// The value is that of `hsa.h`. Displayed as the constant's name and value:
/// `HSA_STATUS_ERROR_INVALID_ARGUMENT (0x1001)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[debug("{self}")]
pub struct Status(pub u32);

macro_rules! names {
    ($($name:ident)*) => {
        /// Returns the constant's name; `None` for an unknown value.
        pub fn name(self) -> Option<&'static str> {
            match self.0 {
                $(sys::$name => Some(stringify!($name)),)*
                _ => None,
            }
        }
    };
}

impl Status {
    /// The status that this library uses for a function that the runtime does not export. No
    /// runtime returns this value.
    pub(crate) const MISSING_FUNCTION: Self = Self(u32::MAX);
    /// The status that this library uses for a function that returned success, but not its result. No runtime returns
    /// this value.
    pub(crate) const NO_RESULT: Self = Self(u32::MAX - 1);
    /// The status that this library uses for a copy that began, and whose signal then reported a failure. No runtime
    /// returns this value.
    pub(crate) const COPY_FAILED: Self = Self(u32::MAX - 2);
    pub(crate) const NOT_SUPPORTED: Self = Self(sys::HSA_STATUS_ERROR_NOT_SUPPORTED);
    pub(crate) const ERROR: Self = Self(sys::HSA_STATUS_ERROR);
    pub(crate) const INVALID_ARGUMENT: Self = Self(sys::HSA_STATUS_ERROR_INVALID_ARGUMENT);
    pub(crate) const OUT_OF_RESOURCES: Self = Self(sys::HSA_STATUS_ERROR_OUT_OF_RESOURCES);
    pub(crate) const INVALID_ALLOCATION: Self = Self(sys::HSA_STATUS_ERROR_INVALID_ALLOCATION);
    pub(crate) const RESOURCE_BUSY: Self = Self(sys::HSA_STATUS_ERROR_RESOURCE_BUSY);
    pub(crate) const INCOMPATIBLE_ARGUMENTS: Self =
        Self(sys::HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS);

    pub(crate) fn check(self, call: &'static str) -> Result<(), Failure> {
        match self.0 {
            sys::HSA_STATUS_SUCCESS => Ok(()),
            _ => Err(Failure { call, status: self }),
        }
    }

    names! {
        HSA_STATUS_SUCCESS
        HSA_STATUS_INFO_BREAK
        HSA_STATUS_ERROR
        HSA_STATUS_ERROR_INVALID_ARGUMENT
        HSA_STATUS_ERROR_INVALID_QUEUE_CREATION
        HSA_STATUS_ERROR_INVALID_ALLOCATION
        HSA_STATUS_ERROR_INVALID_AGENT
        HSA_STATUS_ERROR_INVALID_REGION
        HSA_STATUS_ERROR_INVALID_SIGNAL
        HSA_STATUS_ERROR_INVALID_QUEUE
        HSA_STATUS_ERROR_OUT_OF_RESOURCES
        HSA_STATUS_ERROR_INVALID_PACKET_FORMAT
        HSA_STATUS_ERROR_RESOURCE_FREE
        HSA_STATUS_ERROR_NOT_INITIALIZED
        HSA_STATUS_ERROR_REFCOUNT_OVERFLOW
        HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS
        HSA_STATUS_ERROR_INVALID_INDEX
        HSA_STATUS_ERROR_INVALID_ISA
        HSA_STATUS_ERROR_INVALID_CODE_OBJECT
        HSA_STATUS_ERROR_INVALID_EXECUTABLE
        HSA_STATUS_ERROR_FROZEN_EXECUTABLE
        HSA_STATUS_ERROR_INVALID_SYMBOL_NAME
        HSA_STATUS_ERROR_VARIABLE_ALREADY_DEFINED
        HSA_STATUS_ERROR_VARIABLE_UNDEFINED
        HSA_STATUS_ERROR_EXCEPTION
        HSA_STATUS_ERROR_INVALID_ISA_NAME
        HSA_STATUS_ERROR_INVALID_CODE_SYMBOL
        HSA_STATUS_ERROR_INVALID_EXECUTABLE_SYMBOL
        HSA_STATUS_ERROR_INVALID_FILE
        HSA_STATUS_ERROR_INVALID_CODE_OBJECT_READER
        HSA_STATUS_ERROR_INVALID_CACHE
        HSA_STATUS_ERROR_INVALID_WAVEFRONT
        HSA_STATUS_ERROR_INVALID_SIGNAL_GROUP
        HSA_STATUS_ERROR_INVALID_RUNTIME_STATE
        HSA_STATUS_ERROR_FATAL
        HSA_STATUS_ERROR_INVALID_MEMORY_POOL
        HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION
        HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION
        HSA_STATUS_ERROR_MEMORY_FAULT
        HSA_STATUS_CU_MASK_REDUCED
        HSA_STATUS_ERROR_OUT_OF_REGISTERS
        HSA_STATUS_ERROR_RESOURCE_BUSY
        HSA_STATUS_ERROR_NOT_SUPPORTED
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({:#x})", self.0),
            None if *self == Self::MISSING_FUNCTION => f.write_str("no status: it is not exported"),
            None if *self == Self::NO_RESULT => f.write_str("success without a result"),
            None if *self == Self::COPY_FAILED => f.write_str("success, but the copy failed"),
            None => write!(f, "the unknown status {:#x}", self.0),
        }
    }
}

/// The state of the device file of AMD's kernel driver.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverState {
    /// `/dev/kfd` does not exist, or no driver serves it: the machine has no AMD GPU, or the driver is not loaded.
    #[display(
        "/dev/kfd is missing or has no driver: this machine has no AMD GPU, or the kernel module amdgpu is not loaded (in \
         a container: the device was not passed in)"
    )]
    Missing,
    /// This user has no permission to open `/dev/kfd`.
    #[display("permission denied for /dev/kfd: add this user to the groups `render` and `video`")]
    Forbidden,
    /// `/dev/kfd` exists, and permission to open it was not denied.
    #[display("/dev/kfd exists; the kernel's log may say more (`dmesg`)")]
    Present,
    /// `hsa-vmm emulate` started this process, but `LD_PRELOAD` no longer names the emulated driver `hsa-kfd`, and there is
    /// no `/dev/kfd`.
    #[display(
        "the emulated driver is not preloaded, because LD_PRELOAD was changed: keep its libhsa_kfd.so in LD_PRELOAD, or \
         set LD_PRELOAD before `hsa-vmm emulate`"
    )]
    NotPreloaded,
    /// The emulated driver `hsa-kfd` is preloaded. It writes nothing to the kernel's log.
    #[display("/dev/kfd is emulated; the driver's log may say more (`hsa-vmm emulate --log FILE`)")]
    Emulated,
}

impl DriverState {
    /// Finds the state by trying to open `/dev/kfd` as the runtime would.
    pub fn probe() -> Self {
        let preloaded = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        let mode = std::env::var_os("HSA_KFD");
        let started_by = std::env::var("HSA_VMM_UNDER").unwrap_or_default();
        match Self::of(&std::fs::OpenOptions::new().read(true).write(true).open("/dev/kfd")) {
            Self::Present if is_emulated(&preloaded, mode.as_deref()) => Self::Emulated,
            Self::Missing
                if started_by.starts_with("emulate") && !is_emulated(&preloaded, None) =>
            {
                Self::NotPreloaded
            }
            state => state,
        }
    }

    fn of<T>(opened: &std::io::Result<T>) -> Self {
        match opened {
            Ok(_) => Self::Present,
            Err(error) => match Errno::from_io_error(error) {
                Some(Errno::ACCESS | Errno::PERM) => Self::Forbidden,
                // `NXIO` and `NODEV` mean that the device file exists, but has no driver.
                Some(Errno::NOENT | Errno::NXIO | Errno::NODEV) => Self::Missing,
                _ => Self::Present,
            },
        }
    }
}

/// Returns whether `LD_PRELOAD` names the emulated driver. With `HSA_KFD=real`, this object emulates nothing.
fn is_emulated(preloaded: &OsStr, mode: Option<&OsStr>) -> bool {
    let is_driver = |object: std::path::PathBuf| object.ends_with("libhsa_kfd.so");
    std::env::split_paths(preloaded).any(is_driver) && mode.is_none_or(|mode| mode != "real")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Error;

    #[test]
    fn emulated_driver_is_recognised() {
        let driver = OsStr::new("/tmp/a.so:/opt/libhsa_kfd.so");
        assert!(is_emulated(driver, None) && is_emulated(driver, Some(OsStr::new("tlb=on"))));
        assert!(!is_emulated(driver, Some(OsStr::new("real"))));
        assert!(!is_emulated(OsStr::new("/tmp/a.so"), None) && !is_emulated(OsStr::new(""), None));
        assert!(!DriverState::Emulated.to_string().contains("dmesg"));
    }

    #[test]
    fn status_displays_name_and_value() {
        let known = Status::RESOURCE_BUSY;
        assert_eq!(known.to_string(), "HSA_STATUS_ERROR_RESOURCE_BUSY (0x2e)");
        assert_eq!(format!("{known:?}"), known.to_string());
        assert_eq!((known.0, Status(0x2e)), (0x2e, known));
        let unknown = Status(0xdead);
        assert_eq!(unknown.to_string(), "the unknown status 0xdead");
        assert_eq!((unknown.0, unknown.name()), (0xdead, None));
        assert_eq!(Status::COPY_FAILED.to_string(), "success, but the copy failed");
    }

    #[test]
    fn only_success_is_ok() {
        let check = |value| Status(value).check("a call");
        assert_eq!(check(sys::HSA_STATUS_SUCCESS), Ok(()));
        for value in [sys::HSA_STATUS_INFO_BREAK, sys::HSA_STATUS_ERROR] {
            let failure = Failure { call: "a call", status: Status(value) };
            assert_eq!(check(value), Err(failure));
        }
    }

    #[test]
    fn driver_state_follows_the_open_error() {
        for (opened, expected, advice) in [
            (Ok(()), DriverState::Present, "dmesg"),
            (Err(Errno::MFILE), DriverState::Present, "dmesg"),
            (Err(Errno::ACCESS), DriverState::Forbidden, "`render` and `video`"),
            (Err(Errno::NOENT), DriverState::Missing, "amdgpu"),
            (Err(Errno::NODEV), DriverState::Missing, "amdgpu"),
        ] {
            assert_eq!(DriverState::of(&opened.map_err(Error::from)), expected);
            assert!(expected.to_string().contains(advice), "{expected}");
        }
    }
}
