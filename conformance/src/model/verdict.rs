//! Verdicts: success, or all reasons for rejecting a call.

use hsa_vmm::Error;
use hsa_vmm::ErrorKind;
use hsa_vmm::error::Argument;
use hsa_vmm::hip::{HipError, HipProfile};
use std::fmt;

/// Success, or a rejection without any effect.
pub type Verdict<T = ()> = Result<T, Refusal>;

/// A reason for rejecting a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// An invalid argument, or an invalid combination (an address and a size), and HIP's error.
    Argument(&'static [Argument], HipError),
    /// Something that is not supported.
    NotSupported,
    /// More memory than available.
    OutOfMemory,
}

/// All reasons for rejecting a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    wrongs: Vec<Wrong>,
}

impl Refusal {
    pub(super) fn of(wrong: Wrong) -> Self {
        Self { wrongs: vec![wrong] }
    }

    /// Returns whether an error of the library is one of the reasons, with HIP 7's code.
    #[must_use]
    pub fn explains(&self, error: &Error) -> bool {
        self.wrongs.iter().any(|wrong| match (wrong, error.kind()) {
            (Wrong::Argument(arguments, hip), ErrorKind::InvalidArgument { argument, .. }) => {
                arguments.contains(argument) && error.hip(HipProfile::Hip7) == *hip
            }
            (Wrong::NotSupported, ErrorKind::NotSupported(_))
            | (Wrong::OutOfMemory, ErrorKind::OutOfMemory { .. }) => true,
            _ => false,
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, wrong) in self.wrongs.iter().enumerate() {
            f.write_str(if index == 0 { "rejected because of " } else { " or " })?;
            match wrong {
                Wrong::NotSupported => f.write_str("an unsupported feature")?,
                Wrong::OutOfMemory => f.write_str("lack of memory")?,
                Wrong::Argument(arguments, hip) => {
                    let names: Vec<_> = arguments.iter().map(Argument::to_string).collect();
                    write!(f, "its {} ({})", names.join("/"), hip.name())?;
                }
            }
        }
        Ok(())
    }
}

pub(super) const ADDRESS: Wrong = invalid(&[Argument::Address]);
pub(super) const SIZE: Wrong = invalid(&[Argument::Size]);
/// A range: the library may name its address or its size.
pub(super) const RANGE: Wrong = invalid(&[Argument::Address, Argument::Size]);
pub(super) const ALIGNMENT: Wrong = invalid(&[Argument::Alignment]);
pub(super) const FLAGS: Wrong = invalid(&[Argument::Flags]);
pub(super) const OFFSET: Wrong = invalid(&[Argument::Offset]);
pub(super) const HANDLE: Wrong = invalid(&[Argument::Handle]);
pub(super) const HANDLE_TYPE: Wrong = invalid(&[Argument::HandleType]);
pub(super) const DESCRIPTOR: Wrong = invalid(&[Argument::Descriptor]);
pub(super) const DESCRIPTORS: Wrong = invalid(&[Argument::Descriptors]);
pub(super) const AGENT: Wrong = invalid(&[Argument::Agent]);
pub(super) const LOCATION: Wrong = invalid(&[Argument::Location]);
pub(super) const DEVICE: Wrong = Wrong::Argument(&[Argument::Location], HipError::InvalidDevice);
/// An agent that cannot access an address.
pub(super) const NOT_GRANTED: Wrong = invalid(&[Argument::Address, Argument::Agent]);
pub(super) const SOURCE: Wrong = invalid(&[Argument::Source, Argument::Size]);
pub(super) const DESTINATION: Wrong = invalid(&[Argument::Destination, Argument::Size]);

const fn invalid(arguments: &'static [Argument]) -> Wrong {
    Wrong::Argument(arguments, HipError::InvalidValue)
}

/// Checks a call against all of its rules.
#[derive(Debug, Default)]
pub(super) struct Rules {
    broken: Refusal,
}

impl Rules {
    pub fn refuse(mut self, wrong: Wrong, if_so: bool) -> Self {
        if if_so {
            self.broken.wrongs.push(wrong);
        }
        self
    }

    pub fn verdict(self) -> Verdict {
        if self.broken.wrongs.is_empty() { Ok(()) } else { Err(self.broken) }
    }
}
