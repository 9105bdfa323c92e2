//! Offers memory to other processes, which fetch its descriptor.

use crate::Vmm;
use crate::error::{Error, ErrorKind, Operation, UnavailableReason};
use crate::native::close_foreign;
use crate::trust::{Process, Trust, pid_namespace};
use crate::vmm::Allocation;
use core::str::FromStr;
use derive_more::Display;
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// An offer of memory to other processes. The offer is valid while this value lives.
///
/// ```
/// use hsa_vmm::transport::{Offer, Ticket};
/// use hsa_vmm::transport::Trust;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let offer = Offer::of_descriptor(std::fs::File::open("/dev/null")?.into())?;
/// let line = offer.ticket().to_string();
///
/// // Usually, in another process.
/// let ticket: Ticket = line.parse()?;
/// let descriptor = ticket.fetch_descriptor(Trust::SameUser)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Offer {
    descriptor: OwnedFd,
    ticket: Ticket,
}

/// The location of an offer: a line of text for the process that fetches the memory.
///
/// The text contains the process's number, start time and PID namespace, and the descriptor's number, device and inode.
/// A ticket is rejected after its process has ended, even if the number is in use again, and after its offer was
/// withdrawn, unless a descriptor with this number again refers to the same inode. Each dma-buf and each memory file has
/// its own inode. Other files can share one: all eventfds, or several opens of a device.
///
/// A ticket of another time namespace is rejected ([`UnavailableReason::NoProcess`]), because start times differ there.
/// The text need not be secret: the kernel decides which processes can fetch descriptors of the offering process.
#[derive(Clone, Copy, Debug, Display, Eq, Hash, PartialEq)]
#[display("hsa-vmm:{process}:{namespace}:{start_time}:{descriptor}:{device:x}:{inode:x}")]
#[non_exhaustive]
pub struct Ticket {
    /// The number of the process that offers the memory.
    pub process: u32,
    namespace: u64,
    /// The start time of the process in clock ticks, from `/proc/PID/stat`.
    start_time: u64,
    descriptor: i32,
    device: u64,
    inode: u64,
}

impl Offer {
    /// Offers memory that was created with
    /// [`HandleType::POSIX_FILE_DESCRIPTOR`](crate::HandleType::POSIX_FILE_DESCRIPTOR).
    ///
    /// # Errors
    /// Those of [`Allocation::export`] and [`of_descriptor`](Self::of_descriptor).
    pub fn of(allocation: &Allocation) -> Result<Self, Error> {
        let descriptor =
            allocation.export().map_err(|error| error.with_operation(Operation::Offer))?;
        Self::of_descriptor(descriptor)
    }

    /// Offers any descriptor.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] with [`UnavailableReason::OtherNamespace`] if `/proc` does not show this
    /// process under its number; [`ErrorKind::System`].
    pub fn of_descriptor(descriptor: OwnedFd) -> Result<Self, Error> {
        let ticket = Ticket::of(&descriptor);
        let ticket = ticket.map_err(|kind| Error::new(Operation::Offer, kind))?;
        Ok(Self { descriptor, ticket })
    }

    /// Returns the ticket with which another process can fetch the memory.
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
    /// Creates the ticket of a descriptor of this process.
    fn of(descriptor: &OwnedFd) -> Result<Self, ErrorKind> {
        let system = |call| move |errno| ErrorKind::of_system(call, errno);
        let pid = getpid();
        let number = pid.as_raw_nonzero().get();
        let not_found =
            ErrorKind::Unavailable { process: number, reason: UnavailableReason::OtherNamespace };
        let namespace = pid_namespace().map_err(system("read"))?.ok_or(not_found.clone())?;
        let this = Process::find(pid).map_err(system("read"))?.ok_or(not_found)?;
        let (device, inode) = identity(descriptor).map_err(system("fstat"))?;
        Ok(Self {
            process: number.unsigned_abs(),
            namespace,
            start_time: this.start_time,
            descriptor: descriptor.as_raw_fd(),
            device,
            inode,
        })
    }

    /// Fetches the memory.
    ///
    /// A forged ticket can name any memory of any process of a trusted user, including this process. Fetch only tickets
    /// of senders that may use this memory.
    ///
    /// # Errors
    /// Those of [`fetch_descriptor`](Self::fetch_descriptor) and [`Allocation::import`].
    pub fn fetch(&self, vmm: &Vmm, trust: Trust) -> Result<Allocation, Error> {
        let descriptor = self.fetch_descriptor(trust)?;
        let imported = Allocation::import(vmm, &descriptor);
        if imported.is_err() {
            close_foreign(vec![descriptor]);
        }
        imported.map_err(|error| error.with_operation(Operation::Fetch))
    }

    /// Fetches the offered descriptor. Does not check that the descriptor is memory, nor that the process has offered it:
    /// a forged ticket can name any open file of the process.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the process has ended, has withdrawn the offer, belongs to a user who is not
    /// trusted, or is in another PID namespace, and if the kernel denies access to the process's descriptors;
    /// [`ErrorKind::OutOfDescriptors`]; [`ErrorKind::System`].
    pub fn fetch_descriptor(&self, trust: Trust) -> Result<OwnedFd, Error> {
        self.try_fetch(trust).map_err(|kind| Error::new(Operation::Fetch, kind))
    }

    fn try_fetch(&self, trust: Trust) -> Result<OwnedFd, ErrorKind> {
        let unavailable =
            |reason| ErrorKind::Unavailable { process: self.process.cast_signed(), reason };
        let withdrawn = || unavailable(UnavailableReason::Withdrawn);
        let no_process = || unavailable(UnavailableReason::NoProcess);
        let failed = |call| {
            move |errno| match errno {
                Errno::SRCH => no_process(),
                Errno::BADF | Errno::INVAL => withdrawn(),
                Errno::PERM | Errno::ACCESS => unavailable(UnavailableReason::NotPermitted),
                errno => ErrorKind::of_system(call, errno),
            }
        };
        if pid_namespace().map_err(failed("read"))? != Some(self.namespace) {
            return Err(unavailable(UnavailableReason::OtherNamespace));
        }
        // A negative number is never a descriptor.
        if self.descriptor < 0 {
            return Err(withdrawn());
        }
        let pid = i32::try_from(self.process).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(no_process)?;
        // The pidfd identifies the process that has the number now, even if another process gets the number later.
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(failed("pidfd_open"))?;
        let check_process = || {
            let process = Process::find(pid).map_err(failed("read"))?;
            let process = process.filter(|process| process.start_time == self.start_time);
            let users = process.ok_or_else(no_process)?.users;
            trust.check_all(users).map_err(|user| unavailable(UnavailableReason::Untrusted(user)))
        };
        check_process()?;
        let descriptor = pidfd_getfd(&pidfd, self.descriptor, PidfdGetfdFlags::empty());
        let descriptor = descriptor.map_err(failed("pidfd_getfd"))?;
        // The process can have changed its users between the check and the call.
        let checked = check_process().and_then(|()| {
            let found = identity(&descriptor).map_err(failed("fstat"))?;
            if found == (self.device, self.inode) { Ok(()) } else { Err(withdrawn()) }
        });
        if let Err(kind) = checked {
            close_foreign(vec![descriptor]);
            return Err(kind);
        }
        Ok(descriptor)
    }
}

/// Returns device and inode, which identify the file while it is open.
fn identity(descriptor: &OwnedFd) -> Result<(u64, u64), Errno> {
    let status = fstat(descriptor)?;
    Ok((status.st_dev, status.st_ino))
}

/// The error of parsing text that is not a [`Ticket`].
///
/// ```
/// use hsa_vmm::transport::{Ticket, UnknownTicket};
///
/// assert_eq!("hello".parse::<Ticket>(), Err(UnknownTicket));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a ticket of hsa-vmm")]
pub struct UnknownTicket;

impl FromStr for Ticket {
    type Err = UnknownTicket;

    fn from_str(text: &str) -> Result<Self, UnknownTicket> {
        let fields: Vec<_> = text.split(':').collect();
        let ["hsa-vmm", process, namespace, start_time, descriptor, device, inode] = fields[..]
        else {
            return Err(UnknownTicket);
        };
        let ticket = || {
            Some(Self {
                process: process.parse().ok()?,
                namespace: namespace.parse().ok()?,
                start_time: start_time.parse().ok()?,
                descriptor: descriptor.parse().ok()?,
                device: u64::from_str_radix(device, 16).ok()?,
                inode: u64::from_str_radix(inode, 16).ok()?,
            })
        };
        // Rejects numbers that are written in another way, such as `+1` or `01`.
        let ticket = ticket().filter(|ticket| ticket.descriptor >= 0);
        ticket.filter(|ticket| ticket.to_string() == text).ok_or(UnknownTicket)
    }
}

#[cfg(test)]
mod tests {
    use super::{Offer, Ticket, UnknownTicket};
    use crate::error::{ErrorKind, UnavailableReason};
    use crate::trust::Trust;
    use std::fs::File;
    use std::os::fd::OwnedFd;

    fn offer() -> Offer {
        Offer::of_descriptor(OwnedFd::from(File::open("/dev/null").unwrap())).unwrap()
    }

    #[test]
    fn parse_inverts_display() {
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
    fn fetch_fails_after_the_offer_is_withdrawn() {
        let offer = offer();
        let ticket = offer.ticket();
        drop(ticket.fetch_descriptor(Trust::SameUser).unwrap());
        let reason = |ticket: Ticket| match ticket
            .fetch_descriptor(Trust::SameUser)
            .unwrap_err()
            .into_kind()
        {
            ErrorKind::Unavailable { process, reason } => {
                assert_eq!(process.cast_unsigned(), ticket.process);
                reason
            }
            other => panic!("{other}"),
        };
        for other in
            [Ticket { inode: ticket.inode + 1, ..ticket }, Ticket { descriptor: -1, ..ticket }]
        {
            assert_eq!(reason(other), UnavailableReason::Withdrawn, "{other}");
        }
        for other in [
            Ticket { start_time: ticket.start_time + 1, ..ticket },
            Ticket { process: u32::MAX, ..ticket },
        ] {
            assert_eq!(reason(other), UnavailableReason::NoProcess, "{other}");
        }
        let foreign = Ticket { namespace: ticket.namespace + 1, ..ticket };
        assert_eq!(reason(foreign), UnavailableReason::OtherNamespace);
        drop(offer);
        assert_eq!(reason(ticket), UnavailableReason::Withdrawn);
    }
}
