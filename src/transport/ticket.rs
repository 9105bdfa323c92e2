//! Memory fetched from the process that offers it.

use super::{Step, TransportError, Trust};
use crate::Vmm;
use crate::process::{began, namespace, users};
use crate::vmm::Allocation;
use core::fmt;
use core::str::FromStr;
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Memory that other processes may fetch while this value lives.
#[derive(Debug)]
pub struct Offer {
    descriptor: OwnedFd,
    ticket: Ticket,
}

/// Where an offer is to be found: a line of text, for whoever is to fetch it.
///
/// It names the process by number, by when it began and by the PID namespace that numbers it, and
/// the descriptor by number and by what it is. A ticket whose process has ended or whose offer was
/// withdrawn is refused, also if other processes and other files have these numbers by now. It is no
/// secret: the system asks who may take descriptors of that process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    process: u32,
    namespace: u64,
    /// In the clock ticks of `/proc/PID/stat`.
    began: u64,
    descriptor: i32,
    device: u64,
    inode: u64,
}

impl Offer {
    /// Offers memory, until this value is dropped. Its properties must have asked for
    /// [`HandleType::PosixFileDescriptor`](crate::HandleType::PosixFileDescriptor).
    ///
    /// # Errors
    /// [`TransportError::Vmm`] if it cannot be exported, [`TransportError::OtherNamespace`] if
    /// `/proc` does not know this process by its number, [`TransportError::System`].
    pub fn of(allocation: &Allocation) -> Result<Self, TransportError> {
        Self::of_descriptor(allocation.export()?)
    }

    /// Offers any descriptor.
    ///
    /// # Errors
    /// As for [`of`](Self::of).
    pub fn of_descriptor(descriptor: OwnedFd) -> Result<Self, TransportError> {
        let system = |errno| TransportError::system(Step::Offer, errno);
        let pid = getpid();
        let process = pid.as_raw_nonzero().get().unsigned_abs();
        let namespace = namespace().map_err(system)?;
        let (device, inode) = identity(&descriptor).map_err(system)?;
        let ticket = Ticket {
            process,
            namespace: namespace.ok_or(TransportError::OtherNamespace { process })?,
            began: began(pid).map_err(system)?.ok_or(system(Errno::SRCH))?,
            descriptor: descriptor.as_raw_fd(),
            device,
            inode,
        };
        Ok(Self { descriptor, ticket })
    }

    /// Where it is to be found.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }
}

impl AsFd for Offer {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Ticket {
    /// The process that offers.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Fetches the memory.
    ///
    /// # Errors
    /// [`TransportError::Withdrawn`], [`TransportError::NotPermitted`],
    /// [`TransportError::Stranger`], [`TransportError::OtherNamespace`],
    /// [`TransportError::OutOfDescriptors`].
    pub fn fetch(&self, vmm: &Vmm, trust: Trust) -> Result<Allocation, TransportError> {
        Ok(Allocation::import(vmm, self.fetch_descriptor(trust)?)?)
    }

    /// Fetches the descriptor, which nothing is known of but that it is the one that was offered.
    ///
    /// # Errors
    /// As for [`fetch`](Self::fetch).
    pub fn fetch_descriptor(&self, trust: Trust) -> Result<OwnedFd, TransportError> {
        let process = self.process;
        let withdrawn = TransportError::Withdrawn { process };
        let failed = |errno| match errno {
            Errno::SRCH | Errno::BADF | Errno::INVAL => TransportError::Withdrawn { process },
            Errno::PERM | Errno::ACCESS => TransportError::NotPermitted { process },
            errno => TransportError::system(Step::Fetch, errno),
        };
        if namespace().map_err(failed)? != Some(self.namespace) {
            return Err(TransportError::OtherNamespace { process });
        }
        // No call takes a negative one.
        if self.descriptor < 0 {
            return Err(withdrawn);
        }
        let pid = i32::try_from(process).ok().and_then(Pid::from_raw).ok_or(withdrawn.clone())?;
        // From here on the number cannot become another process's without being noticed: the
        // descriptor of the process stays that of this one.
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(failed)?;
        if began(pid).map_err(failed)? != Some(self.began) {
            return Err(withdrawn);
        }
        let check = || {
            let users = users(pid).map_err(failed)?.ok_or(withdrawn.clone())?;
            trust.check_all(users).map_err(TransportError::from)
        };
        check()?;
        let descriptor = pidfd_getfd(&pidfd, self.descriptor, PidfdGetfdFlags::empty());
        let descriptor = descriptor.map_err(failed)?;
        // It may have become another user's between the check and the fetch.
        check()?;
        if identity(&descriptor).map_err(failed)? != (self.device, self.inode) {
            return Err(withdrawn);
        }
        Ok(descriptor)
    }
}

/// What tells a file from every other, as long as it is open.
fn identity(descriptor: &OwnedFd) -> Result<(u64, u64), Errno> {
    let status = fstat(descriptor)?;
    Ok((status.st_dev, status.st_ino))
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process, namespace, began, descriptor, device, inode } = self;
        write!(f, "hsa-vmm:{process}:{namespace}:{began}:{descriptor}:{device:x}:{inode:x}")
    }
}

/// Text that is no ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no ticket of hsa-vmm")]
pub struct UnknownTicket;

impl FromStr for Ticket {
    type Err = UnknownTicket;

    fn from_str(text: &str) -> Result<Self, UnknownTicket> {
        let words: Vec<_> = text.split(':').collect();
        let ["hsa-vmm", process, namespace, began, descriptor, device, inode] = words[..] else {
            return Err(UnknownTicket);
        };
        let ticket = || {
            Some(Self {
                process: process.parse().ok()?,
                namespace: namespace.parse().ok()?,
                began: began.parse().ok()?,
                descriptor: descriptor.parse().ok()?,
                device: u64::from_str_radix(device, 16).ok()?,
                inode: u64::from_str_radix(inode, 16).ok()?,
            })
        };
        // One ticket has one text.
        let ticket = ticket().filter(|ticket| ticket.descriptor >= 0);
        ticket.filter(|ticket| ticket.to_string() == text).ok_or(UnknownTicket)
    }
}

#[cfg(test)]
mod tests {
    use super::{Offer, Ticket, UnknownTicket};
    use crate::transport::{TransportError, Trust};
    use std::fs::File;
    use std::os::fd::OwnedFd;

    fn offer() -> Offer {
        Offer::of_descriptor(OwnedFd::from(File::open("/dev/null").unwrap())).unwrap()
    }

    #[test]
    fn a_ticket_is_read_as_it_is_written() {
        let ticket = offer().ticket();
        assert_eq!(ticket.to_string().parse(), Ok(ticket));
        for text in [
            "",
            "hsa-vmm",
            "hsa-vmm:1:2:3:4:5",
            "hsa-vmm:1:2:3:4:5:6:7",
            "hsa-vmm:+1:2:3:4:5:6",
            "hsa-vmm:1:2:3:-4:5:6",
        ] {
            assert_eq!(text.parse::<Ticket>(), Err(UnknownTicket), "{text}");
        }
    }

    #[test]
    fn an_offer_is_fetched_until_it_is_withdrawn() {
        let offer = offer();
        let ticket = offer.ticket();
        drop(ticket.fetch_descriptor(Trust::SameUser).unwrap());
        let withdrawn = Err(TransportError::Withdrawn { process: ticket.process });
        let other = |ticket: Ticket| ticket.fetch_descriptor(Trust::SameUser).map(drop);
        assert_eq!(other(Ticket { began: ticket.began + 1, ..ticket }), withdrawn);
        assert_eq!(other(Ticket { inode: ticket.inode + 1, ..ticket }), withdrawn);
        assert_eq!(other(Ticket { descriptor: -1, ..ticket }), withdrawn);
        let nobody = Ticket { process: u32::MAX, ..ticket };
        let gone = Err(TransportError::Withdrawn { process: u32::MAX });
        assert_eq!(nobody.fetch_descriptor(Trust::SameUser).map(drop), gone);
        let elsewhere = Err(TransportError::OtherNamespace { process: ticket.process });
        assert_eq!(other(Ticket { namespace: ticket.namespace + 1, ..ticket }), elsewhere);
        drop(offer);
        assert_eq!(other(ticket), withdrawn);
    }
}
