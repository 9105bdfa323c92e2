//! Memory over a Unix socket.

use super::description::{HEADER, length};
use super::{Description, Step, TransportError, Trust};
use crate::Vmm;
use crate::native::{discard, peer_of, receive, send, wait};
use crate::vmm::Allocation;
use rustix::event::PollFlags;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{Shutdown, shutdown};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long the other end may do nothing, unless it is said.
const PATIENCE: Duration = Duration::from_secs(10);
/// One end of a Unix socket over which memory is sent and received.
///
/// ```
/// # use hsa_vmm::{Allocation, AllocationProperties, HandleType, Runtime, Vmm, transport::Channel};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// # let vmm = Vmm::open(&runtime)?;
/// # let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
/// let properties = AllocationProperties::on(gpu).shareable_as(HandleType::PosixFileDescriptor);
/// let memory = Allocation::create(&vmm, 2 << 20, &properties)?;
///
/// // Usually, the other end is in another process.
/// let (here, there) = Channel::pair()?;
/// here.send(&vmm, &memory, "weights")?;
/// let (same, description) = there.receive(&vmm)?;
/// assert_eq!((description.name.as_str(), same.size()), ("weights", 2 << 20));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Channel {
    socket: UnixStream,
    trust: Trust,
    patience: Duration,
}

impl Channel {
    /// Uses a connected socket. Nothing else may be read from it or written to it meanwhile.
    #[must_use]
    pub fn over(socket: UnixStream) -> Self {
        Self { socket, trust: Trust::default(), patience: PATIENCE }
    }

    /// Makes both ends at once, for a process that is about to fork or to start another.
    ///
    /// # Errors
    /// [`TransportError::OutOfDescriptors`], [`TransportError::System`].
    pub fn pair() -> Result<(Self, Self), TransportError> {
        let (one, other) = UnixStream::pair().map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            TransportError::system(Step::Connect, errno)
        })?;
        Ok((Self::over(one), Self::over(other)))
    }

    /// Exchanges memory with these processes only; without this, with those of the same user.
    ///
    /// Whose the other end is was settled when it connected or listened, or when the pair was made:
    /// whoever made it may hand an end on.
    #[must_use]
    pub fn trusting(mut self, trust: Trust) -> Self {
        self.trust = trust;
        self
    }

    /// Waits so long for a message, and so long for it to be taken; without this, 10 seconds.
    #[must_use]
    pub fn patient_for(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The socket again.
    #[must_use]
    pub fn into_socket(self) -> UnixStream {
        self.socket
    }

    /// Sends memory. Its properties must have asked for
    /// [`HandleType::PosixFileDescriptor`](crate::HandleType::PosixFileDescriptor).
    ///
    /// The receiver's memory is the same, and stays when the sender's is released or the sender
    /// ends.
    ///
    /// # Errors
    /// [`TransportError`]; nothing was sent, or so little that it is no message.
    pub fn send(
        &self,
        vmm: &Vmm,
        allocation: &Allocation,
        name: &str,
    ) -> Result<(), TransportError> {
        let description = Description::of(vmm, allocation, name)?;
        self.send_descriptor(allocation.export()?, &description)
    }

    /// Receives memory.
    ///
    /// # Errors
    /// [`TransportError`]; every descriptor that arrived is closed. After a part of a message, or a
    /// message with more than one descriptor, the connection is shut down and what is left in it is
    /// discarded: further calls return [`TransportError::Gone`]. While nothing has arrived
    /// ([`TransportError::TimedOut`]), and after a whole message, the channel stays usable.
    pub fn receive(&self, vmm: &Vmm) -> Result<(Allocation, Description), TransportError> {
        let (descriptor, description) = self.receive_descriptor()?;
        let allocation = Allocation::import(vmm, &descriptor)?;
        let (described, found) = (description.size, allocation.size() as u64);
        if described != found {
            return Err(TransportError::OtherSize { described, found });
        }
        Ok((allocation, description))
    }

    /// Sends any descriptor with a description. It stays the caller's.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn send_descriptor(
        &self,
        descriptor: impl AsFd,
        description: &Description,
    ) -> Result<(), TransportError> {
        self.check_peer()?;
        let message = description.encode()?;
        let mut sent = 0;
        let all = self.send_all(descriptor.as_fd(), &message, &mut sent);
        if all.is_err() && sent > 0 {
            self.shut_down();
        }
        all
    }

    fn send_all(
        &self,
        descriptor: BorrowedFd<'_>,
        message: &[u8],
        sent: &mut usize,
    ) -> Result<(), TransportError> {
        let deadline = self.deadline();
        while *sent < message.len() {
            self.wait(Step::Send, PollFlags::OUT, deadline)?;
            // The descriptor goes with the first byte.
            let descriptor = (*sent == 0).then_some(descriptor);
            match send(self.socket.as_fd(), &message[*sent..], descriptor) {
                Ok(more) => *sent += more,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    return Err(TransportError::Gone { step: Step::Send, bytes: *sent });
                }
                Err(errno) => return Err(TransportError::system(Step::Send, errno)),
            }
        }
        Ok(())
    }

    /// Receives any descriptor with a description, which nothing has been compared with yet.
    ///
    /// # Errors
    /// As for [`receive`](Self::receive).
    pub fn receive_descriptor(&self) -> Result<(OwnedFd, Description), TransportError> {
        self.check_peer()?;
        let mut arrived = Arrived::default();
        let whole = self.receive_all(&mut arrived);
        if whole.is_err() && arrived.is_part() {
            self.shut_down();
        }
        let description = Description::decode(&whole?)?;
        let descriptor = arrived.descriptor.ok_or(TransportError::Descriptors(0))?;
        Ok((descriptor, description))
    }

    /// Receives the bytes of a message, and at most one descriptor with them.
    fn receive_all(&self, arrived: &mut Arrived) -> Result<Vec<u8>, TransportError> {
        let deadline = self.deadline();
        let mut message = vec![0; HEADER];
        self.fill(&mut message, arrived, deadline)?;
        if let Some(header) = message.first_chunk::<HEADER>() {
            let all = length(header)?;
            message.resize(all, 0);
            self.fill(&mut message, arrived, deadline)?;
        }
        Ok(message)
    }

    /// Receives bytes until a message is filled.
    fn fill(
        &self,
        message: &mut [u8],
        arrived: &mut Arrived,
        deadline: Instant,
    ) -> Result<(), TransportError> {
        let step = Step::Receive;
        while arrived.bytes < message.len() {
            self.wait(step, PollFlags::IN, deadline)?;
            let gone = TransportError::Gone { step, bytes: arrived.bytes };
            let received = match receive(self.socket.as_fd(), &mut message[arrived.bytes..]) {
                Ok(received) => received,
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(Errno::CONNRESET) => return Err(gone),
                Err(errno) => return Err(TransportError::system(step, errno)),
            };
            arrived.bytes += received.bytes;
            arrived.descriptors += received.descriptors;
            if received.cut_off {
                return Err(self.descriptors_cut_off(arrived.descriptors));
            }
            if arrived.descriptors > 1 {
                return Err(TransportError::Descriptors(arrived.descriptors));
            }
            arrived.descriptor = received.descriptor.or(arrived.descriptor.take());
            if received.bytes == 0 {
                return Err(gone);
            }
        }
        Ok(())
    }

    /// Returns the error for more descriptors than there is room for: in the message, or in this
    /// process.
    fn descriptors_cut_off(&self, arrived: usize) -> TransportError {
        match fcntl_dupfd_cloexec(&self.socket, 0) {
            Err(Errno::MFILE) => TransportError::OutOfDescriptors { step: Step::Receive },
            _ => TransportError::Descriptors(arrived + 1),
        }
    }

    /// Ends the connection, and discards what the other end has put into it: descriptors that wait
    /// there stay open as long as they do.
    fn shut_down(&self) {
        if let Err(errno) = shutdown(&self.socket, Shutdown::Both) {
            crate::log::debug!(%errno, "a channel was not shut down");
        }
        discard(self.socket.as_fd());
    }

    fn check_peer(&self) -> Result<(), TransportError> {
        let step = Step::AskWhoItIs;
        let peer = peer_of(&self.socket).map_err(|errno| TransportError::system(step, errno))?;
        Ok(self.trust.check(peer.user)?)
    }

    fn deadline(&self) -> Instant {
        let now = Instant::now();
        // Patience beyond reckoning is a year's.
        now.checked_add(self.patience).unwrap_or(now + Duration::from_secs(365 * 24 * 3600))
    }

    /// Waits until the socket can be used.
    fn wait(&self, step: Step, what: PollFlags, deadline: Instant) -> Result<(), TransportError> {
        match wait(self.socket.as_fd(), what, deadline) {
            Ok(true) => Ok(()),
            Ok(false) => Err(TransportError::TimedOut { step, patience: self.patience }),
            Err(errno) => Err(TransportError::system(step, errno)),
        }
    }
}

/// What has arrived of a message.
#[derive(Debug, Default)]
struct Arrived {
    bytes: usize,
    descriptors: usize,
    /// The only one.
    descriptor: Option<OwnedFd>,
}

impl Arrived {
    fn is_part(&self) -> bool {
        self.bytes > 0 || self.descriptors > 0
    }
}
