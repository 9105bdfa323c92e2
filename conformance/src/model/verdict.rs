//! Verdicts: success, or all reasons for rejecting a call.

use hsa_vmm::Error;
use hsa_vmm::ErrorKind;
use hsa_vmm::error::Argument;
use hsa_vmm::hip::{HipError, HipProfile};
use std::fmt;

/// Success, or a rejection without any effect.
pub type Verdict<T = ()> = Result<T, Rejection>;

/// A reason for rejecting a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Invalid arguments, and HIP's error code. The library may report any of the arguments.
    Argument(&'static [Argument], HipError),
    /// An unsupported feature.
    NotSupported,
    /// More memory or addresses than available.
    OutOfMemory,
    /// A failure of the runtime.
    Runtime,
}

/// All reasons for rejecting a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejection {
    reasons: Vec<Reason>,
}

impl Rejection {
    pub(super) fn of(reason: Reason) -> Self {
        Self { reasons: vec![reason] }
    }

    /// Returns whether the library's error matches one of the reasons. For invalid arguments, HIP 7's error code must
    /// match, too.
    #[must_use]
    pub fn allows(&self, error: &Error) -> bool {
        self.reasons.iter().any(|reason| match (reason, error.kind()) {
            (Reason::Argument(arguments, hip), ErrorKind::InvalidArgument { argument, .. }) => {
                arguments.contains(argument) && error.hip(HipProfile::Hip7) == *hip
            }
            (Reason::NotSupported, ErrorKind::NotSupported(_))
            | (Reason::OutOfMemory, ErrorKind::OutOfMemory { .. })
            | (Reason::Runtime, ErrorKind::Runtime { .. }) => true,
            _ => false,
        })
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, reason) in self.reasons.iter().enumerate() {
            f.write_str(if index == 0 { "rejected because of " } else { " or " })?;
            match reason {
                Reason::NotSupported => f.write_str("an unsupported feature")?,
                Reason::OutOfMemory => f.write_str("lack of memory")?,
                Reason::Runtime => f.write_str("a failure of the runtime")?,
                Reason::Argument(arguments, hip) => {
                    let names: Vec<_> = arguments.iter().map(Argument::to_string).collect();
                    write!(f, "its {} ({})", names.join("/"), hip.name())?;
                }
            }
        }
        Ok(())
    }
}

pub(super) const ADDRESS: Reason = invalid(&[Argument::Address]);
pub(super) const SIZE: Reason = invalid(&[Argument::Size]);
/// An invalid range: the library may report the address or the size.
pub(super) const RANGE: Reason = invalid(&[Argument::Address, Argument::Size]);
pub(super) const ALIGNMENT: Reason = invalid(&[Argument::Alignment]);
pub(super) const FLAGS: Reason = invalid(&[Argument::Flags]);
pub(super) const OFFSET: Reason = invalid(&[Argument::Offset]);
pub(super) const HANDLE: Reason = invalid(&[Argument::Handle]);
pub(super) const HANDLE_TYPE: Reason = invalid(&[Argument::HandleType]);
pub(super) const DESCRIPTOR: Reason = invalid(&[Argument::Descriptor]);
pub(super) const DESCRIPTORS: Reason = invalid(&[Argument::Descriptors]);
pub(super) const AGENT: Reason = invalid(&[Argument::Agent]);
pub(super) const LOCATION: Reason = invalid(&[Argument::Location]);
pub(super) const DEVICE: Reason = Reason::Argument(&[Argument::Location], HipError::InvalidDevice);
/// Missing access: the library may report the address or the agent.
pub(super) const NOT_GRANTED: Reason = invalid(&[Argument::Address, Argument::Agent]);
pub(super) const SOURCE: Reason = invalid(&[Argument::Source, Argument::Size]);
pub(super) const DESTINATION: Reason = invalid(&[Argument::Destination, Argument::Size]);

const fn invalid(arguments: &'static [Argument]) -> Reason {
    Reason::Argument(arguments, HipError::InvalidValue)
}

/// Checks a call against all of its rules.
#[derive(Debug, Default)]
pub(super) struct Rules {
    rejection: Rejection,
}

impl Rules {
    /// Adds a reason for rejecting the call if the rule is broken.
    pub fn reject_if(mut self, reason: Reason, is_broken: bool) -> Self {
        if is_broken {
            self.rejection.reasons.push(reason);
        }
        self
    }

    pub fn verdict(self) -> Verdict {
        if self.rejection.reasons.is_empty() { Ok(()) } else { Err(self.rejection) }
    }
}
