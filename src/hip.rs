//! HIP's error codes, and the differences between its releases.

use core::str::FromStr;
use derive_more::Display;

/// The release of HIP whose error codes and granularities this library returns.
///
/// [`Error::hip`](crate::Error::hip) has the table of error codes;
/// [`allocation_granularity`](crate::Vmm::allocation_granularity) returns the granularities.
///
/// ```
/// use hsa_vmm::hip::HipProfile;
///
/// assert_eq!("hip6".parse(), Ok(HipProfile::Hip6));
/// ```
#[derive(Clone, Copy, Debug, Default, Display, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HipProfile {
    /// HIP 6: one granularity, `hipErrorOutOfMemory` for invalid arguments of a reservation,
    /// `hipErrorUnknown` for freeing a reservation that still has mappings.
    #[display("hip6")]
    Hip6,
    /// HIP 7.1 and later, as HIP documents it: two granularities, `hipErrorInvalidValue` for invalid
    /// arguments, `hipErrorInvalidDevice` for a device that does not exist.
    #[default]
    #[display("hip7")]
    Hip7,
}

/// The error of parsing text that is not the name of a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid HIP profile `{0}`; use `hip6` or `hip7`")]
pub struct UnknownProfile(String);

impl FromStr for HipProfile {
    type Err = UnknownProfile;

    fn from_str(text: &str) -> Result<Self, UnknownProfile> {
        match text.to_ascii_lowercase().as_str() {
            "hip6" | "6" => Ok(Self::Hip6),
            "hip7" | "7" => Ok(Self::Hip7),
            _ => Err(UnknownProfile(text.to_owned())),
        }
    }
}

/// An error of HIP (`hipError_t`) that virtual memory management, IPC or areas return.
///
/// ```
/// use hsa_vmm::hip::HipError;
///
/// assert_eq!(HipError::InvalidValue.to_string(), "hipErrorInvalidValue (1)");
/// ```
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
#[display("{} ({})", self.name(), self.code())]
#[non_exhaustive]
#[repr(i32)]
pub enum HipError {
    /// `hipErrorInvalidValue`
    InvalidValue = 1,
    /// `hipErrorOutOfMemory`
    OutOfMemory = 2,
    /// `hipErrorNotInitialized`
    NotInitialized = 3,
    /// `hipErrorInvalidDevicePointer`
    InvalidDevicePointer = 17,
    /// `hipErrorNoDevice`
    NoDevice = 100,
    /// `hipErrorInvalidDevice`
    InvalidDevice = 101,
    /// `hipErrorInvalidContext`
    InvalidContext = 201,
    /// `hipErrorOperatingSystem`
    OperatingSystem = 304,
    /// `hipErrorHostMemoryAlreadyRegistered`
    HostMemoryAlreadyRegistered = 712,
    /// `hipErrorNotSupported`
    NotSupported = 801,
    /// `hipErrorUnknown`
    Unknown = 999,
}

impl HipError {
    /// Returns HIP's number.
    pub fn code(self) -> i32 {
        self as i32
    }

    /// Returns HIP's name.
    pub fn name(self) -> String {
        format!("hipError{self:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_have_names() {
        for profile in [HipProfile::Hip6, HipProfile::Hip7] {
            assert_eq!(profile.to_string().parse(), Ok(profile));
        }
        assert!("hip5".parse::<HipProfile>().is_err());
    }

    #[test]
    fn hip_errors_display_name_and_number() {
        for (error, shown) in [
            (HipError::InvalidValue, "hipErrorInvalidValue (1)"),
            (HipError::OutOfMemory, "hipErrorOutOfMemory (2)"),
            (HipError::NotInitialized, "hipErrorNotInitialized (3)"),
            (HipError::InvalidDevicePointer, "hipErrorInvalidDevicePointer (17)"),
            (HipError::NoDevice, "hipErrorNoDevice (100)"),
            (HipError::InvalidDevice, "hipErrorInvalidDevice (101)"),
            (HipError::InvalidContext, "hipErrorInvalidContext (201)"),
            (HipError::OperatingSystem, "hipErrorOperatingSystem (304)"),
            (HipError::HostMemoryAlreadyRegistered, "hipErrorHostMemoryAlreadyRegistered (712)"),
            (HipError::NotSupported, "hipErrorNotSupported (801)"),
            (HipError::Unknown, "hipErrorUnknown (999)"),
        ] {
            assert_eq!(error.to_string(), shown);
        }
    }
}
