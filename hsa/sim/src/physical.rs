//! Physical memory: a size and an owner. Its memory file is created on first use.
//!
//! Therefore, a small machine can simulate GPUs with 192 GiB, and 100,000 handles do not exceed the limit of
//! open files.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Cpu(usize),
    Gpu(usize),
}

/// The unit in which amdkfd reports a GPU's available memory (`VRAM_AVAILABILITY_ALIGN`).
const AVAILABILITY_UNIT: u64 = 2 << 20;

/// Counts how many bytes of an agent's memory are used.
#[derive(Debug)]
pub(crate) struct Account {
    size: u64,
    used: AtomicU64,
    /// The used bytes, with each claim rounded up to a multiple of [`AVAILABILITY_UNIT`].
    rounded: AtomicU64,
}

impl Account {
    pub(crate) fn new(size: u64) -> Arc<Self> {
        Arc::new(Self { size, used: AtomicU64::new(0), rounded: AtomicU64::new(0) })
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Returns the available bytes as amdkfd reports them. The size of each claim is rounded up to
    /// a multiple of 2 MiB, and the remaining size down. A claim can succeed although it is larger
    /// than this number, because the claim itself is not rounded.
    pub(crate) fn available(&self) -> u64 {
        let free = self.size.saturating_sub(self.rounded.load(Relaxed));
        free - free % AVAILABILITY_UNIT
    }

    /// Counts `bytes` as used until the claim is dropped. Returns `None` if fewer bytes are free.
    pub(crate) fn claim(self: &Arc<Self>, bytes: u64) -> Option<Claim> {
        let fits = |used: u64| used.checked_add(bytes).filter(|total| *total <= self.size);
        self.used.fetch_update(Relaxed, Relaxed, fits).ok()?;
        self.rounded.fetch_add(bytes.next_multiple_of(AVAILABILITY_UNIT), Relaxed);
        Some(Claim { account: Arc::clone(self), bytes })
    }
}

/// Bytes that an account counts as used. Dropping the claim frees the bytes.
#[derive(Debug)]
pub(crate) struct Claim {
    account: Arc<Account>,
    bytes: u64,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.account.used.fetch_sub(self.bytes, Relaxed);
        self.account.rounded.fetch_sub(self.bytes.next_multiple_of(AVAILABILITY_UNIT), Relaxed);
    }
}

/// Physical memory. It can be mapped any number of times.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) size: u64,
    pub(crate) owner: Owner,
    /// Identifies the memory of a descriptor. Part of the file's name.
    pub(crate) token: u64,
    file: OnceLock<File>,
    /// `None` if no account of this simulation counts the memory.
    claim: Option<Claim>,
}

/// The start of the names of the files that contain memory.
const NAME_PREFIX: &str = "hsa-sim:";
/// The seals of a file that contains memory: its size never changes, and no seal can be added.
const SEALS: libc::c_int = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;

impl Memory {
    pub(crate) fn new(size: u64, owner: Owner, claim: Claim) -> Arc<Self> {
        let (token, file) = (random(), OnceLock::new());
        Arc::new(Self { size, owner, token, file, claim: Some(claim) })
    }

    /// Creates memory that no account counts: a kernel driver has allocated it, not the runtime.
    pub(crate) fn unclaimed(size: u64, owner: Owner) -> Arc<Self> {
        let (token, file) = (random(), OnceLock::new());
        Arc::new(Self { size, owner, token, file, claim: None })
    }

    /// Creates other memory of the same size and token, for the fault `other`. No account counts
    /// this memory.
    pub(crate) fn substitute(&self) -> Arc<Self> {
        let Self { size, owner, token, .. } = *self;
        Arc::new(Self { size, owner, token, file: OnceLock::new(), claim: None })
    }

    /// Returns how many bytes an account counts as used for this memory. Returns 0 if no account of
    /// this simulation counts the memory.
    pub(crate) fn claimed(&self) -> u64 {
        self.claim.as_ref().map_or(0, |claim| claim.bytes)
    }

    /// Returns the file. Creates it on first use.
    pub(crate) fn file(&self) -> io::Result<&File> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = self.create_file()?;
        // If two threads race, the first file is used. The other file, to which nothing was written, is dropped.
        Ok(self.file.get_or_init(|| file))
    }

    /// Returns the file if it exists. Memory without a file is all zeros.
    pub(crate) fn existing_file(&self) -> Option<&File> {
        self.file.get()
    }

    fn create_file(&self) -> io::Result<File> {
        let (prefix, number) = match self.owner {
            Owner::Cpu(number) => ("cpu", number),
            Owner::Gpu(number) => ("gpu", number),
        };
        let name = format!("{NAME_PREFIX}{prefix}{number}:{:016x}\0", self.token);
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is zero-terminated and lives until the call returns.
        let descriptor = unsafe { libc::memfd_create(name.as_ptr().cast(), flags) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and no other code uses it.
        let file = not_standard_stream(unsafe { File::from_raw_fd(descriptor) })?;
        file.set_len(self.size)?;
        // SAFETY: sealing restricts operations on the file and accesses no memory.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(file)
    }

    /// Reads into a buffer. Memory without a file, and bytes beyond the end, read as zero.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        if let Some(file) = self.existing_file() {
            while done < buffer.len() {
                match file.read_at(&mut buffer[done..], offset + done as u64)? {
                    0 => break,
                    count => done += count,
                }
            }
        }
        buffer[done..].fill(0);
        Ok(())
    }

    /// Writes bytes. The file is created on first use.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file()?.write_all_at(bytes, offset)
    }

    /// Creates a close-on-exec descriptor of the memory.
    pub(crate) fn export(&self, writable: bool) -> io::Result<OwnedFd> {
        let file = self.file()?;
        if writable {
            return file.as_fd().try_clone_to_owned();
        }
        Ok(File::open(path(file.as_raw_fd()))?.into())
    }

    /// Creates a `Memory` for a file that another process or simulation has exported.
    pub(crate) fn adopt(exported: ExportedMemory, file: File) -> Arc<Self> {
        let ExportedMemory { owner, size, token } = exported;
        Arc::new(Self { size, owner, token, file: OnceLock::from(file), claim: None })
    }
}

/// The properties of memory that a descriptor refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExportedMemory {
    pub(crate) owner: Owner,
    pub(crate) size: u64,
    pub(crate) token: u64,
}

fn path(descriptor: RawFd) -> String {
    format!("/proc/self/fd/{descriptor}")
}

/// Recognises a descriptor of a simulation's memory by the seals and the name of its file. Rejects plain memory files.
pub(crate) fn recognise(descriptor: RawFd) -> Option<ExportedMemory> {
    // SAFETY: the call accesses no memory.
    let seals = unsafe { libc::fcntl(descriptor, libc::F_GET_SEALS) };
    if seals < 0 || seals & SEALS != SEALS {
        return None;
    }
    let name = std::fs::read_link(path(descriptor)).ok()?;
    let name = name.to_str()?.strip_prefix("/memfd:")?.strip_prefix(NAME_PREFIX)?;
    let (owner, rest) = name.split_once(':')?;
    let token = u64::from_str_radix(rest.get(..16)?, 16).ok()?;
    let owner = match owner.strip_prefix("gpu") {
        Some(number) => Owner::Gpu(number.parse().ok()?),
        None => Owner::Cpu(owner.strip_prefix("cpu")?.parse().ok()?),
    };
    let size = size_of(descriptor)?;
    Some(ExportedMemory { owner, size, token })
}

/// Returns the size of a descriptor's file.
pub(crate) fn size_of(descriptor: RawFd) -> Option<u64> {
    Some(std::fs::metadata(path(descriptor)).ok()?.len())
}

/// Opens a memory file. The descriptor is not that of a standard stream.
pub(crate) fn open_memory(path: String) -> io::Result<File> {
    not_standard_stream(File::options().read(true).write(true).open(path)?)
}

/// Replaces a descriptor that has the number of a standard stream (0 to 2): a log or other output for a closed
/// stream would be written into the memory.
fn not_standard_stream(file: File) -> io::Result<File> {
    // `try_clone` uses the numbers from 3 on.
    if file.as_raw_fd() > libc::STDERR_FILENO { Ok(file) } else { file.try_clone() }
}

/// Opens a new descriptor of the same memory, always readable and writable.
pub(crate) fn reopen(descriptor: RawFd) -> io::Result<File> {
    // SAFETY: the call accesses no memory.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    if flags & libc::O_ACCMODE != libc::O_RDWR {
        return open_memory(path(descriptor));
    }
    duplicate(descriptor).map(File::from)
}

/// Duplicates a descriptor that the caller of the runtime passed. The copy is not a standard stream (0 to 2).
pub(crate) fn duplicate(descriptor: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call accesses no memory.
    let copy = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and no other code uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Returns whether this process can open a file descriptor now.
pub(crate) fn has_spare_descriptor() -> bool {
    // SAFETY: `eventfd` accesses no memory of the process.
    let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if descriptor < 0 {
        return false;
    }
    // SAFETY: the descriptor is new, and no other code uses it.
    drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    true
}

/// Returns 64 unpredictable bits, never zero.
pub(crate) fn random() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: the kernel writes at most the eight bytes of the array.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    u64::from_ne_bytes(bytes).max(1)
}
