//! System calls for the exchange of memory with other processes: Unix sockets, locks on bytes of a
//! file, and the signal mask.
//!
//! This module reads a peer's credentials through libc, because rustix's type cannot represent the process number 0.
//! The kernel reports this number for a process that has no number in this process's PID namespace.

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr::{null, null_mut};
use libc::{pthread_create, pthread_detach, pthread_setname_np};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, getsockname, recvmsg, sendmsg,
    sockopt::socket_acceptconn,
};
use rustix::process::getpid;
use std::io::{IoSlice, IoSliceMut};
use std::mem::ManuallyDrop;
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

/// The maximum number of descriptors in a message (`SCM_MAX_FD`). If the buffer were smaller, the kernel would close
/// the remaining descriptors during the receiving call. Closing can block; see [`close_foreign`].
const MAX_DESCRIPTORS: usize = 253;
/// The maximum time for which [`close_foreign`] waits.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// The process at the other end of a socket. This is the process that called `connect`, `listen` or `socketpair`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The process number; `None` if the process has no number in the PID namespace of this process.
    pub process: Option<NonZero<i32>>,
    /// The effective user of the process at the time of that call, as a number in this process's user namespace.
    pub user: u32,
}

/// Returns the process at the other end (`SO_PEERCRED`).
pub(crate) fn peer_of(socket: impl AsFd) -> Result<Peer, Errno> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    // SAFETY: any bytes are a valid ucred.
    unsafe { get_option(socket.as_fd(), libc::SO_PEERCRED, &mut credentials) }?;
    Ok(Peer { process: NonZero::new(credentials.pid), user: credentials.uid })
}

/// Returns whether the process at the other end has ended (`SO_PEERPIDFD`). If so, another process can have its
/// number. Returns `None` if the kernel is older than Linux 6.5.
pub(crate) fn peer_has_ended(socket: impl AsFd) -> Result<Option<bool>, Errno> {
    let mut pidfd: libc::c_int = -1;
    // SAFETY: any bytes are a valid number.
    match unsafe { get_option(socket.as_fd(), libc::SO_PEERPIDFD, &mut pidfd) } {
        Ok(()) => {}
        Err(Errno::NOPROTOOPT) => return Ok(None),
        // The process has ended, and its parent has waited for it.
        Err(Errno::SRCH | Errno::INVAL | Errno::NODATA) => return Ok(Some(true)),
        Err(errno) => return Err(errno),
    }
    if pidfd < 0 {
        return Ok(Some(true));
    }
    // SAFETY: the kernel has just opened the descriptor for this call, and nothing else owns it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    // The pidfd becomes readable when the process ends.
    wait(pidfd.as_fd(), PollFlags::IN, Instant::now()).map(Some)
}

/// Returns whether a descriptor is a socket that this process has created and that listens at this abstract address.
/// Returns `false` for a socket from another process. Other threads can close or reuse the descriptor during the
/// call.
pub(crate) fn listens_at(number: RawFd, address: &SocketAddrUnix) -> bool {
    if number < 0 {
        return false;
    }
    // SAFETY: the number is not -1. The calls below only query the socket, and neither read from it nor change it. If
    // the descriptor was closed, the calls fail; if it was reused, they describe the new socket.
    let socket = unsafe { BorrowedFd::borrow_raw(number) };
    let own = getpid().as_raw_nonzero().get();
    let bound = getsockname(socket).and_then(SocketAddrUnix::try_from);
    bound.is_ok_and(|bound| bound.abstract_name() == address.abstract_name())
        && socket_acceptconn(socket) == Ok(true)
        && peer_of(socket).is_ok_and(|peer| peer.process.map(NonZero::get) == Some(own))
}

/// Closes a descriptor of this process in programs that the process starts.
pub(crate) fn close_on_exec(number: RawFd) {
    // SAFETY: `listens_at` has accepted the number, so it is not -1. If another thread has reused the descriptor since
    // then, programs that this process starts lack that descriptor. This cannot violate memory safety.
    let socket = unsafe { BorrowedFd::borrow_raw(number) };
    if let Err(errno) = fcntl_setfd(socket, FdFlags::CLOEXEC) {
        crate::log::event!(WARN, %errno, "programs that this process starts inherit the socket of AMD's server");
    }
}

/// Reads an option of a socket.
///
/// # Safety
/// Every sequence of bytes must be a valid value of `T`.
unsafe fn get_option<T>(
    socket: BorrowedFd<'_>,
    option: libc::c_int,
    value: &mut T,
) -> Result<(), Errno> {
    let mut size = size_of::<T>() as libc::socklen_t;
    // SAFETY: the descriptor is open while borrowed; `value` is writable and has `size` bytes, and the
    // caller guarantees that any bytes are valid.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut *value).cast(),
            &raw mut size,
        )
    };
    check(result)
}

/// Converts the result of a libc function. If the result is not 0, the error is in `errno`.
fn check(result: libc::c_int) -> Result<(), Errno> {
    if result == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Waits until a descriptor is ready. Returns `false` if the deadline passes first.
pub(crate) fn wait(
    descriptor: BorrowedFd<'_>,
    events: PollFlags,
    deadline: Instant,
) -> Result<bool, Errno> {
    let ready = retry_on_intr(|| {
        // Waits without a limit if the kernel's type cannot represent the time.
        let timeout = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
        poll(&mut [PollFd::from_borrowed_fd(descriptor, events)], timeout.as_ref())
    })?;
    Ok(ready > 0)
}

/// Sends bytes, and `descriptor` with the first byte. Returns the number of sent bytes. Does not block, and raises no
/// `SIGPIPE`.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: &[BorrowedFd<'_>] = descriptor.as_slice();
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::NOBUFS);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
}

/// The received part of a message.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// The number of bytes; 0 if the other end has disconnected.
    pub bytes: usize,
    pub descriptors: Vec<OwnedFd>,
    /// Whether the kernel has closed received descriptors, because the buffer or this process's table of descriptors
    /// was full.
    pub truncated: bool,
}

/// Receives the available part of a message. Does not block.
pub(crate) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors = descriptors.flatten().collect();
    let truncated = received.flags.contains(ReturnFlags::CTRUNC);
    Ok(Received { bytes: received.bytes, descriptors, truncated })
}

/// A socket to which another process can send descriptors. Closing such a socket also closes the descriptors that were
/// not received, so dropping this value calls [`close_foreign`].
#[derive(Debug)]
pub(crate) struct ForeignSocket(ManuallyDrop<OwnedFd>);

impl ForeignSocket {
    pub fn new(socket: impl Into<OwnedFd>) -> Self {
        Self(ManuallyDrop::new(socket.into()))
    }
}

impl AsFd for ForeignSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for ForeignSocket {
    fn drop(&mut self) {
        // SAFETY: nothing uses the field after `drop`.
        close_foreign(vec![unsafe { ManuallyDrop::take(&mut self.0) }]);
    }
}

/// Closes descriptors of another process's files in a new thread, and waits at most [`CLOSE_TIME`]. The other
/// process can make closing slow. Closing a socket with `SO_LINGER` waits until the data is sent; closing a file of a
/// FUSE file system waits until the file system's server answers. If no thread can be created, the descriptors stay
/// open. Returns whether all descriptors are closed.
pub(crate) fn close_foreign(descriptors: Vec<OwnedFd>) -> bool {
    if descriptors.is_empty() {
        return true;
    }
    // The thread sends without allocating: at the kernel's limit of mappings, an allocation in a new thread can fail.
    let (sender, closed) = std::sync::mpsc::sync_channel(1);
    let closing = Box::into_raw(Box::new(Closing { descriptors, sender }));
    let mut thread = MaybeUninit::uninit();
    // Not a thread of the standard library: at the kernel's limit of mappings, such a thread can end the process, because
    // it maps a stack for its signal handlers.
    // SAFETY: `thread` is writable. The new thread owns `closing`.
    match unsafe { pthread_create(thread.as_mut_ptr(), null(), close_in_thread, closing.cast()) } {
        0 => {
            // SAFETY: the thread was created, and nothing joins it.
            unsafe {
                pthread_setname_np(thread.assume_init(), c"hsa-vmm close".as_ptr());
                pthread_detach(thread.assume_init());
            }
            closed.recv_timeout(CLOSE_TIME).is_ok()
        }
        errno => {
            let errno = Errno::from_raw_os_error(errno);
            crate::log::event!(WARN, %errno, "received descriptors stay open");
            // `closing` is leaked, so that nothing is closed.
            false
        }
    }
}

/// What a thread of [`close_foreign`] closes.
struct Closing {
    descriptors: Vec<OwnedFd>,
    sender: SyncSender<()>,
}

extern "C" fn close_in_thread(closing: *mut c_void) -> *mut c_void {
    // SAFETY: `close_foreign` passes a box to this thread only.
    let Closing { descriptors, sender } = *unsafe { Box::from_raw(closing.cast::<Closing>()) };
    drop(descriptors);
    let _ = sender.send(());
    null_mut()
}

/// A change of the lock on a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteLock {
    /// Locks the byte shared; the file must be open for reading.
    Shared = libc::F_RDLCK as isize,
    /// Locks the byte exclusively; the file must be open for writing.
    Exclusive = libc::F_WRLCK as isize,
    /// Unlocks the byte.
    Unlocked = libc::F_UNLCK as isize,
}

/// Changes the lock on a byte of a file (`F_OFD_SETLK`). Does not block.
///
/// The lock belongs to the open file and not to the process, so threads of one process that open the file separately
/// exclude each other. The kernel unlocks the byte when the last descriptor of the open file is closed, even if the
/// process is killed.
///
/// # Errors
/// `AGAIN` or `ACCESS` if another open file has a conflicting lock.
pub(crate) fn lock_byte(file: BorrowedFd<'_>, byte: u64, lock: ByteLock) -> Result<(), Errno> {
    let range = libc::flock {
        l_type: lock as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: i64::try_from(byte).map_err(|_| Errno::OVERFLOW)?,
        l_len: 1,
        // Must be 0 for `F_OFD_SETLK`.
        l_pid: 0,
    };
    // SAFETY: the descriptor is open while borrowed, and the kernel only reads the range.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) })
}

/// The signals that [`with_signals_blocked`] does not block: the kernel sends some of them for a fault of a thread, and
/// users end programs with the others.
const UNBLOCKED: [libc::c_int; 9] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGQUIT,
    libc::SIGHUP,
];

/// Calls a function with the signals of this thread blocked, except [`UNBLOCKED`]. Threads that the function starts keep
/// the signals blocked.
pub(crate) fn with_signals_blocked<T>(act: impl FnOnce() -> T) -> T {
    let mut signals = MaybeUninit::uninit();
    let mut previous_mask = MaybeUninit::uninit();
    // SAFETY: the first call initialises the set that the other calls use. These calls do not fail for a valid
    // signal. `previous_mask` is writable.
    let blocked = unsafe {
        libc::sigfillset(signals.as_mut_ptr());
        for signal in UNBLOCKED {
            libc::sigdelset(signals.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, signals.as_ptr(), previous_mask.as_mut_ptr())
    };
    let result = act();
    if blocked == 0 {
        // SAFETY: the call above has initialised `previous_mask`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, previous_mask.as_ptr(), core::ptr::null_mut())
        };
    }
    result
}

/// Calls a function that writes to a file or changes its size. If the file would exceed the process's limit
/// (`RLIMIT_FSIZE`), the function fails with `EFBIG`. Without this wrapper, the kernel's signal `SIGXFSZ` would also
/// end the process.
pub(crate) fn without_size_signal<T>(act: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    with_signals_blocked(|| {
        let result = act();
        if matches!(result, Err(Errno::FBIG)) {
            // The kernel has sent the signal to this thread. Discards the signal while it is blocked.
            let mut signals = MaybeUninit::uninit();
            let no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: `sigemptyset` initialises the set that the other calls use; the time is readable.
            unsafe {
                libc::sigemptyset(signals.as_mut_ptr());
                libc::sigaddset(signals.as_mut_ptr(), libc::SIGXFSZ);
                libc::sigtimedwait(signals.as_ptr(), null_mut(), &raw const no_time);
            }
        }
        result
    })
}
