//! What is to be seen of the kernel driver.

use core::fmt;

/// What was found where AMD's kernel driver should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverState {
    /// There is no `/dev/kfd`: no AMD GPU, or its driver is not loaded.
    Missing,
    /// `/dev/kfd` may not be opened by this user.
    Forbidden,
    /// `/dev/kfd` can be opened.
    Present,
}

impl DriverState {
    /// Looks at `/dev/kfd` as the runtime would.
    #[must_use]
    pub fn probe() -> Self {
        match std::fs::OpenOptions::new().read(true).write(true).open("/dev/kfd") {
            Ok(_) => Self::Present,
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Self::Forbidden,
            Err(_) => Self::Missing,
        }
    }
}

impl fmt::Display for DriverState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => {
                "/dev/kfd is missing: this machine has no AMD GPU, or the kernel module amdgpu is \
                 not loaded (in a container: the device was not passed in)"
            }
            Self::Forbidden => {
                "/dev/kfd may not be opened: add this user to the groups `render` and `video`"
            }
            Self::Present => "/dev/kfd is there; the kernel's log may say more (`dmesg`)",
        })
    }
}
