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
        Self::of(&std::fs::OpenOptions::new().read(true).write(true).open("/dev/kfd"))
    }

    fn of<T>(opened: &std::io::Result<T>) -> Self {
        match opened {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};

    #[test]
    fn a_driver_that_may_not_be_used_is_told_from_one_that_is_not_there() {
        let state = |kind: Option<ErrorKind>| {
            DriverState::of(&kind.map_or(Ok(()), |it| Err(Error::from(it))))
        };
        for (kind, expected, advice) in [
            (None, DriverState::Present, "dmesg"),
            (Some(ErrorKind::PermissionDenied), DriverState::Forbidden, "`render` and `video`"),
            (Some(ErrorKind::NotFound), DriverState::Missing, "amdgpu"),
        ] {
            assert_eq!(state(kind), expected);
            assert!(expected.to_string().contains(advice), "{expected}");
        }
    }
}
