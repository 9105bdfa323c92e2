//! Sends shared memory and its description to another process.
//!
//! A shareable handle is a file descriptor. This module sends it in one of two ways:
//!
//! * [`Channel`]: the memory is sent over a connected Unix socket (`SCM_RIGHTS`), with a [`Description`] (a name, the
//!   size, and the GPU that owns the memory), because the descriptor shows only the size.
//! * [`Offer`] and [`Ticket`]: the sender keeps the descriptor, and sends a line of text by any means. The receiver
//!   fetches the descriptor from the sender's process (`pidfd_getfd`). There is no socket to which another process
//!   could connect.
//!
//! Both ways validate received data. The other end must be a process of the same user, or of the users
//! that [`Trust`] selects. The library rejects a message that is malformed, truncated or too long, or that does not
//! have exactly one descriptor, and closes the message's descriptors. The library shuts a channel down after it has
//! received more than one descriptor, or only a part of a message, and if it cannot close a rejected descriptor within
//! one second. The size in the description must equal the size of the memory.
//!
//! The library waits only for a limited time until the other process sends or receives, or until a rejected descriptor
//! is closed. There are two exceptions. If this process has fewer free descriptors than a message contains, the kernel
//! closes the rest while it receives the message. System calls that query a received descriptor have no time limit: the
//! server of a FUSE file system can delay `fstat` and `fstatfs`.
//!
//! A channel works between any two PID namespaces. A ticket is valid within one namespace. In another namespace,
//! fetching the memory fails with
//! [`UnavailableReason::OtherNamespace`](crate::error::UnavailableReason::OtherNamespace). A user who has no number in
//! this process's user namespace is trusted only by [`Trust::Anyone`].
//!
//! AMD's own IPC sends memory to every process that connects to an abstract socket named after the
//! exporter. This module uses no named sockets.

mod description;
mod direction;
mod ticket;

pub use crate::error::MalformedMessage;
pub use crate::trust::{Trust, UntrustedUser};
pub use description::Description;
pub use ticket::{Offer, Ticket, UnknownTicket};

use crate::Vmm;
use crate::error::{Error, ErrorKind, Operation};
use crate::native::{ForeignSocket, Received, close_foreign, peer_of, receive, send, wait};
use crate::vmm::Allocation;
use description::{HEADER_SIZE, Header};
use direction::{Direction, Transfer};
use rustix::event::PollFlags;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{Shutdown, shutdown};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The default time limit of a message.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit to use if the deadline of the requested limit would overflow.
const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// One end of a Unix socket, over which memory is sent and received.
///
/// Several threads can send and receive at the same time. Each message is sent and received as a whole.
///
/// Dropping the channel closes the socket in a new thread and waits at most one second, because the other end can make
/// closing slow.
///
/// ```
/// # use hsa_vmm::{Allocation, AllocationProperties, HandleType, Runtime, Vmm, transport::Channel};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
/// # let vmm = Vmm::open(&runtime)?;
/// # let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
/// let properties = AllocationProperties::on(gpu).shareable_as(HandleType::POSIX_FILE_DESCRIPTOR);
/// let memory = Allocation::create(&vmm, 2 << 20, &properties)?;
///
/// // Usually, the other end is in another process.
/// let (sender, receiver) = Channel::pair()?;
/// sender.send(&memory, "weights")?;
/// let (received, description) = receiver.receive(&vmm)?;
/// assert_eq!((description.name.as_str(), received.size()), ("weights", 2 << 20));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Channel {
    socket: ForeignSocket,
    trust: Trust,
    timeout: Duration,
    sending: Direction,
    receiving: Direction,
    /// Whether this end has shut the connection down.
    is_shut_down: AtomicBool,
}

impl Channel {
    /// Creates a channel over a connected socket. No other code may read from the socket or write to it while the
    /// channel exists.
    #[must_use]
    pub fn over(socket: UnixStream) -> Self {
        let (socket, trust, timeout) = (ForeignSocket::new(socket), Trust::default(), TIMEOUT);
        Self {
            socket,
            trust,
            timeout,
            sending: Direction::default(),
            receiving: Direction::default(),
            is_shut_down: AtomicBool::new(false),
        }
    }

    /// Creates the two ends of a new connection, for a process that is about to fork. Programs that this process starts
    /// do not inherit the ends; for these, create a `UnixStream::pair` and use [`over`](Self::over).
    ///
    /// # Errors
    /// [`ErrorKind::OutOfDescriptors`], [`ErrorKind::System`].
    pub fn pair() -> Result<(Self, Self), Error> {
        let (first, second) = UnixStream::pair().map_err(|error| {
            Error::new(Operation::Connect, ErrorKind::of_io("socketpair", &error))
        })?;
        Ok((Self::over(first), Self::over(second)))
    }

    /// Exchanges memory only with processes of these users; the default is [`Trust::SameUser`].
    ///
    /// The kernel records the user of the other end when a process connects or listens, or when the pair is created.
    /// That process can later pass its end to a process of another user, which this check does not detect.
    #[must_use]
    pub fn with_trust(mut self, trust: Trust) -> Self {
        self.trust = trust;
        self
    }

    /// Limits the time to send or receive a whole message, including the wait for other threads that send or receive
    /// on this channel; the default is 10 seconds.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sends memory that was created with
    /// [`HandleType::POSIX_FILE_DESCRIPTOR`](crate::HandleType::POSIX_FILE_DESCRIPTOR).
    ///
    /// The receiver gets the same memory, which stays allocated when the sender releases it or exits.
    ///
    /// # Errors
    /// Those of [`Allocation::export`] and [`send_descriptor`](Self::send_descriptor).
    pub fn send(&self, allocation: &Allocation, name: &str) -> Result<(), Error> {
        let description = Description::of(allocation, name)
            .map_err(|error| error.with_operation(Operation::Send))?;
        let descriptor =
            allocation.export().map_err(|error| error.with_operation(Operation::Send))?;
        self.send_descriptor(descriptor, &description)
    }

    /// Receives memory.
    ///
    /// # Errors
    /// Those of [`receive_descriptor`](Self::receive_descriptor) and [`Allocation::import`];
    /// [`ErrorKind::SizeMismatch`]. If the received descriptor is not memory, and cannot be closed within one second, this
    /// method shuts the connection down. A forked child leaves the message to its parent: [`ErrorKind::Forked`].
    pub fn receive(&self, vmm: &Vmm) -> Result<(Allocation, Description), Error> {
        Operation::Receive.run(|| vmm.runtime().check_not_forked())?;
        let (descriptor, description) = self.receive_descriptor()?;
        let imported = Allocation::import(vmm, &descriptor);
        // The file may be an arbitrary file of the other process, such as a socket or a file on a slow file system.
        if imported.is_err() {
            self.close(vec![descriptor]);
        }
        let allocation = imported.map_err(|error| error.with_operation(Operation::Receive))?;
        let (described, found) = (description.size, allocation.size() as u64);
        if described != found {
            let mismatch = ErrorKind::SizeMismatch { described, found };
            return Err(Error::new(Operation::Receive, mismatch));
        }
        Ok((allocation, description))
    }

    /// Sends any descriptor with a description. The caller keeps the descriptor.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a name or size that cannot be sent, [`ErrorKind::Untrusted`],
    /// [`ErrorKind::TimedOut`], [`ErrorKind::Disconnected`], [`ErrorKind::System`]. If only a part of the message was
    /// sent, this method shuts the connection down.
    pub fn send_descriptor(
        &self,
        descriptor: impl AsFd,
        description: &Description,
    ) -> Result<(), Error> {
        let message = description.encode()?;
        Operation::Send.run(|| {
            let (_transfer, deadline) = self.begin(&self.sending)?;
            let mut sent = 0;
            let mut send_all = || {
                while sent < message.len() {
                    self.wait(PollFlags::OUT, deadline)?;
                    // The descriptor is sent with the first byte.
                    let descriptor = (sent == 0).then_some(descriptor.as_fd());
                    match send(self.socket.as_fd(), &message[sent..], descriptor) {
                        Ok(count) => sent += count,
                        Err(Errno::INTR | Errno::AGAIN) => {}
                        Err(errno) => return Err(of_socket("sendmsg", errno, sent)),
                    }
                }
                Ok(())
            };
            let result = send_all();
            if result.is_err() && sent > 0 {
                self.shut_down();
            }
            result
        })
    }

    /// Receives any descriptor with a description. Does not check whether the description matches the descriptor.
    ///
    /// # Errors
    /// [`ErrorKind::Untrusted`], [`ErrorKind::TimedOut`], [`ErrorKind::Disconnected`],
    /// [`ErrorKind::Malformed`], [`ErrorKind::UnexpectedDescriptors`], [`ErrorKind::OutOfDescriptors`],
    /// [`ErrorKind::System`]. Every descriptor that was received is closed.
    ///
    /// This method shuts the connection down after an incomplete message, a message that is not of this version's form, and
    /// a message with more than one descriptor, and if a rejected descriptor cannot be closed within one second. Further
    /// calls return [`ErrorKind::Disconnected`]; dropping the channel closes the descriptors that were not received. The
    /// channel stays usable after other errors. If no descriptor is free, the next call receives the message. But if
    /// another thread takes the last free descriptor during the call, the connection is shut down.
    pub fn receive_descriptor(&self) -> Result<(OwnedFd, Description), Error> {
        Operation::Receive.run(|| {
            let (transfer, deadline) = self.begin(&self.receiving)?;
            let mut received = Received::default();
            let message = self.receive_all(&mut received, deadline);
            if message.is_err() && (received.bytes > 0 || !received.descriptors.is_empty()) {
                self.shut_down();
            }
            drop(transfer);
            let decoded = message.and_then(|message| {
                let description = Description::decode(&message).map_err(ErrorKind::Malformed)?;
                let descriptor =
                    received.descriptors.pop().ok_or(ErrorKind::UnexpectedDescriptors(0))?;
                Ok((descriptor, description))
            });
            self.close(received.descriptors);
            decoded
        })
    }

    /// Receives the bytes of a message, and its descriptor. Fails if there is more than one descriptor.
    fn receive_all(
        &self,
        received: &mut Received,
        deadline: Instant,
    ) -> Result<Vec<u8>, ErrorKind> {
        let mut message = vec![0; HEADER_SIZE];
        while received.bytes < message.len() {
            self.wait(PollFlags::IN, deadline)?;
            // Without a free descriptor, the kernel would close the message's descriptor. Leave the message.
            if received.bytes == 0 && self.none_is_free() {
                return Err(ErrorKind::OutOfDescriptors);
            }
            let part = match receive(self.socket.as_fd(), &mut message[received.bytes..]) {
                Ok(part) => part,
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(errno) => return Err(of_socket("recvmsg", errno, received.bytes)),
            };
            received.bytes += part.bytes;
            received.descriptors.extend(part.descriptors);
            if part.truncated {
                // There was no space for all descriptors, in the buffer or in this process's table of descriptors.
                return Err(match self.none_is_free() {
                    true => ErrorKind::OutOfDescriptors,
                    false => ErrorKind::UnexpectedDescriptors(received.descriptors.len() + 1),
                });
            }
            if received.descriptors.len() > 1 {
                return Err(ErrorKind::UnexpectedDescriptors(received.descriptors.len()));
            }
            if part.bytes == 0 {
                return Err(ErrorKind::Disconnected(received.bytes));
            }
            if received.bytes == HEADER_SIZE {
                let header = Header::decode(&message).map_err(ErrorKind::Malformed)?;
                message.resize(header.length as usize, 0);
            }
        }
        Ok(message)
    }

    fn none_is_free(&self) -> bool {
        matches!(fcntl_dupfd_cloexec(&self.socket, 0), Err(Errno::MFILE))
    }

    /// Ends the connection. Does not receive the remaining messages: their descriptors could fill this process's table
    /// of descriptors.
    fn shut_down(&self) {
        self.is_shut_down.store(true, Ordering::Relaxed);
        if let Err(errno) = shutdown(&self.socket, Shutdown::Both) {
            crate::log::event!(DEBUG, %errno, "a channel was not shut down");
        }
    }

    /// Closes received descriptors. Ends the connection if closing takes too long, because each further message could
    /// occupy another thread.
    fn close(&self, descriptors: Vec<OwnedFd>) {
        if !close_foreign(descriptors) {
            self.shut_down();
        }
    }

    fn check_peer(&self) -> Result<(), ErrorKind> {
        let peer = peer_of(&self.socket).map_err(|errno| of_socket("getsockopt", errno, 0))?;
        self.trust.check(peer.user).map_err(ErrorKind::Untrusted)
    }

    /// Checks the peer, and waits until no other thread transfers a message in this direction. Returns the deadline of
    /// the message.
    fn begin<'a>(&self, direction: &'a Direction) -> Result<(Transfer<'a>, Instant), ErrorKind> {
        self.check_peer()?;
        let now = Instant::now();
        let deadline = now.checked_add(self.timeout).unwrap_or(now + MAX_TIMEOUT);
        let transfer = direction.begin(deadline).ok_or(ErrorKind::TimedOut(self.timeout))?;
        if self.is_shut_down.load(Ordering::Relaxed) {
            return Err(ErrorKind::Disconnected(0));
        }
        Ok((transfer, deadline))
    }

    /// Waits until the socket can be used.
    fn wait(&self, events: PollFlags, deadline: Instant) -> Result<(), ErrorKind> {
        match wait(self.socket.as_fd(), events, deadline) {
            Ok(true) => Ok(()),
            Ok(false) => Err(ErrorKind::TimedOut(self.timeout)),
            Err(errno) => Err(ErrorKind::of_system("poll", errno)),
        }
    }
}

/// Returns the error for a failed call on a socket after `bytes` bytes of a message.
fn of_socket(call: &'static str, errno: Errno, bytes: usize) -> ErrorKind {
    match errno {
        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => ErrorKind::Disconnected(bytes),
        errno => ErrorKind::of_system(call, errno),
    }
}
