//! Whether a call is to be done, and if not, for which reasons.

use hsa_vmm::Error;
use hsa_vmm::ErrorKind;
use hsa_vmm::error::Argument;
use hsa_vmm::hip::{HipError, HipProfile};
use std::fmt;

/// Done, or refused without any effect.
pub type Verdict<T = ()> = Result<T, Refusal>;

/// Something that is wrong with a call, and would be reason enough to refuse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// An argument, or several that are wrong together (an address and a size), and HIP's error.
    Argument(&'static [Argument], HipError),
    /// Something that is not done here.
    NotSupported,
    /// More than there is.
    OutOfMemory,
}

/// Everything that is wrong with a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    wrongs: Vec<Wrong>,
}

impl Refusal {
    pub(super) fn of(wrong: Wrong) -> Self {
        Self { wrongs: vec![wrong] }
    }

    /// Whether an error of the library names something that is wrong with the call, and as HIP 7
    /// would.
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
            f.write_str(if index == 0 { "refused for " } else { " or " })?;
            match wrong {
                Wrong::NotSupported => f.write_str("what is not supported")?,
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
/// A range, of which address and size may each be called wrong.
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
/// An agent that may not use an address.
pub(super) const NOT_GRANTED: Wrong = invalid(&[Argument::Address, Argument::Agent]);
pub(super) const SOURCE: Wrong = invalid(&[Argument::Source, Argument::Size]);
pub(super) const DESTINATION: Wrong = invalid(&[Argument::Destination, Argument::Size]);

const fn invalid(arguments: &'static [Argument]) -> Wrong {
    Wrong::Argument(arguments, HipError::InvalidValue)
}

/// Holds a call against its rules, all of them.
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
