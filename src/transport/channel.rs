//! Memory over a Unix socket.

use super::description::{HEADER, length};
use super::{Description, Step, TransportError, Trust};
use crate::Vmm;
use crate::native::peer_of;
use crate::vmm::Allocation;
use core::mem::MaybeUninit;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long the other end may do nothing, unless it is said.
const PATIENCE: Duration = Duration::from_secs(10);
/// Room for this many descriptors in a message: one, and some more to find out that there are too
/// many. The system closes what there is no room for.
const ROOM: usize = 4;

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
    /// [`TransportError`]; whatever arrived is closed, and the channel is of no more use unless
    /// nothing arrived ([`TransportError::TimedOut`] while waiting).
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
        let deadline = self.deadline();
        let mut sent = 0;
        while sent < message.len() {
            self.wait(Step::Send, PollFlags::OUT, deadline)?;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut rights = SendAncillaryBuffer::new(&mut space);
            let descriptors = [descriptor.as_fd()];
            // The descriptor goes with the first byte.
            if sent == 0 && !rights.push(SendAncillaryMessage::ScmRights(&descriptors)) {
                return Err(TransportError::system(Step::Send, Errno::NOBUFS));
            }
            let bytes = [IoSlice::new(&message[sent..])];
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(&self.socket, &bytes, &mut rights, flags) {
                Ok(more) => sent += more,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    return Err(TransportError::Gone { step: Step::Send, bytes: sent });
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
        let deadline = self.deadline();
        let mut descriptors = Vec::new();
        let mut message = vec![0; HEADER];
        self.fill(&mut message, 0, &mut descriptors, deadline)?;
        if let Some(header) = message.first_chunk::<HEADER>() {
            let all = length(header)?;
            message.resize(all, 0);
            self.fill(&mut message, HEADER, &mut descriptors, deadline)?;
        }
        let description = Description::decode(&message)?;
        let count = descriptors.len();
        match descriptors.pop() {
            Some(descriptor) if count == 1 => Ok((descriptor, description)),
            _ => Err(TransportError::Descriptors(count)),
        }
    }

    /// Receives bytes until a message is filled from some byte on, and the descriptors with them.
    fn fill(
        &self,
        message: &mut [u8],
        from: usize,
        descriptors: &mut Vec<OwnedFd>,
        deadline: Instant,
    ) -> Result<(), TransportError> {
        let mut filled = from;
        while filled < message.len() {
            self.wait(Step::Receive, PollFlags::IN, deadline)?;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ROOM))];
            let mut rights = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let mut bytes = [IoSliceMut::new(&mut message[filled..])];
            let received = match recvmsg(&self.socket, &mut bytes, &mut rights, flags) {
                Ok(received) => received,
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(Errno::CONNRESET) => {
                    return Err(TransportError::Gone { step: Step::Receive, bytes: filled });
                }
                Err(errno) => return Err(TransportError::system(Step::Receive, errno)),
            };
            for message in rights.drain() {
                if let RecvAncillaryMessage::ScmRights(arrived) = message {
                    descriptors.extend(arrived);
                }
            }
            if received.flags.contains(ReturnFlags::CTRUNC) {
                return Err(self.rights_were_cut_off(descriptors.len()));
            }
            if received.bytes == 0 {
                return Err(TransportError::Gone { step: Step::Receive, bytes: filled });
            }
            filled += received.bytes;
        }
        Ok(())
    }

    /// More descriptors were sent than there is room for: in the message, or in this process.
    fn rights_were_cut_off(&self, arrived: usize) -> TransportError {
        match fcntl_dupfd_cloexec(&self.socket, 0) {
            Err(Errno::MFILE) => TransportError::OutOfDescriptors { step: Step::Receive },
            _ => TransportError::Descriptors(arrived + 1),
        }
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
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            let socket: BorrowedFd<'_> = self.socket.as_fd();
            match poll(&mut [PollFd::from_borrowed_fd(socket, what)], Some(&timeout)) {
                Ok(0) => return Err(TransportError::TimedOut { step, patience: self.patience }),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(TransportError::system(step, errno)),
            }
        }
    }
}
