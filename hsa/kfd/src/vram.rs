//! Counts the GPU memory that each process uses.
//!
//! Processes of one machine (`HSA_KFD=machine=NAME`) share a small file with a slot for each
//! process. A process locks its slot. The kernel releases the lock when the process ends. Counts in
//! unlocked slots are ignored. Without a name, each process has its own machine.

use crate::config::MAX_GPUS;
use crate::errno::{ENOMEM, Errno, Result};
use crate::{environment, own_descriptors};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The maximum number of processes of a machine.
const MAX_PROCESSES: usize = 512;

/// The unit in which the driver reports available memory, as amdkfd does (`VRAM_AVAILABLITY_ALIGN`).
const AVAILABILITY_UNIT: u64 = 2 << 20;

/// The memory that a process uses on one GPU.
#[derive(Debug, Default)]
struct Usage {
    used: AtomicU64,
    /// The used bytes, with each buffer rounded up to a multiple of [`AVAILABILITY_UNIT`].
    rounded: AtomicU64,
}

/// The memory that a process uses on each GPU.
type Slot = [Usage; MAX_GPUS];

/// The offset of the byte whose lock serialises counting. The bytes that processes lock for their
/// slots follow.
const COUNT_LOCK: i64 = 0;

/// The number of bytes that each process uses of each GPU's memory.
#[derive(Debug)]
pub(crate) struct MemoryUsage {
    slots: &'static [Slot],
    own_slot: usize,
    /// `None` if no other process shares the machine.
    file: Option<File>,
    count_lock: Mutex<()>,
}

impl MemoryUsage {
    /// Creates the state of a machine that no other process shares.
    pub(crate) fn unshared() -> Arc<Self> {
        let slots = Box::leak(Box::new([Slot::default()]));
        Arc::new(Self { slots, own_slot: 0, file: None, count_lock: Mutex::default() })
    }

    /// Opens the file of a named machine, and takes a slot for this process.
    pub(crate) fn shared(name: &str) -> io::Result<Arc<Self>> {
        let user = environment::user();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = own_descriptors::move_file_above_floor(
            options.custom_flags(libc::O_NOFOLLOW).open(path(user, name))?,
        );
        let status = file.metadata()?;
        if status.uid() != user || !status.is_file() {
            return Err(io::Error::from_raw_os_error(libc::EACCES));
        }
        let size = MAX_PROCESSES * size_of::<Slot>();
        file.set_len(size as u64)?;
        let free =
            (0..MAX_PROCESSES).find(|slot| lock(&file, libc::F_OFD_SETLK, byte(*slot)).is_ok());
        let own_slot = free.ok_or_else(|| io::Error::from_raw_os_error(libc::EAGAIN))?;
        let slots = map(&file, size)?;
        // Clear the counts of a previous process.
        for usage in &slots[own_slot] {
            usage.used.store(0, Ordering::Relaxed);
            usage.rounded.store(0, Ordering::Relaxed);
        }
        Ok(Arc::new(Self { slots, own_slot, file: Some(file), count_lock: Mutex::default() }))
    }

    /// Returns whether the process of a slot still runs.
    fn is_live(&self, slot: usize) -> bool {
        let Some(file) = self.file.as_ref().filter(|_| slot != self.own_slot) else { return true };
        is_locked(file, byte(slot))
    }

    /// Adds up one of the counts over all live processes.
    fn sum(&self, count: impl Fn(&Slot) -> &AtomicU64) -> u64 {
        let slots = self.slots.iter().enumerate();
        let counts = slots.map(|(slot, usage)| (slot, count(usage).load(Ordering::Relaxed)));
        counts
            .filter(|(slot, count)| *count > 0 && self.is_live(*slot))
            .map(|(_, count)| count)
            .sum()
    }

    fn used(&self, gpu: usize) -> u64 {
        self.sum(|slot| &slot[gpu].used)
    }

    fn rounded(&self, gpu: usize) -> u64 {
        self.sum(|slot| &slot[gpu].rounded)
    }

    fn claim(&self, gpu: usize, size: u64, limit: u64) -> Result<()> {
        let _guard = self.count_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let file = self.file.as_ref();
        file.map_or(Ok(()), |file| lock(file, libc::F_OFD_SETLKW, COUNT_LOCK))?;
        let total = self.used(gpu).checked_add(size);
        let claimed = match total {
            Some(total) if total <= limit => {
                let usage = &self.slots[self.own_slot][gpu];
                usage.used.fetch_add(size, Ordering::Relaxed);
                usage.rounded.fetch_add(round_up(size), Ordering::Relaxed);
                Ok(())
            }
            _ => Err(ENOMEM),
        };
        file.map_or(Ok(()), |file| unlock(file, COUNT_LOCK))?;
        claimed
    }
}

fn round_up(size: u64) -> u64 {
    size.next_multiple_of(AVAILABILITY_UNIT)
}

impl Drop for MemoryUsage {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            own_descriptors::mark(file.as_raw_fd(), false);
            let (start, size) = (self.slots.as_ptr(), size_of_val(self.slots));
            // SAFETY: `shared` has mapped the slots, and nothing else uses them.
            unsafe { libc::syscall(libc::SYS_munmap, start, size) };
        }
    }
}

/// Returns the path of the file of a user's machine.
fn path(user: u32, name: &str) -> PathBuf {
    environment::temporary_folder().join(format!("hsa-kfd-{user}-{name}.machine"))
}

/// Returns the byte of the file that the process of a slot locks.
fn byte(slot: usize) -> i64 {
    COUNT_LOCK + 1 + slot as i64
}

fn lock_range(kind: libc::c_int, byte: i64) -> libc::flock {
    // SAFETY: all zeros is a value of the struct, which is plain numbers.
    let zero: libc::flock = unsafe { std::mem::zeroed() };
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: byte,
        l_len: 1,
        ..zero
    }
}

/// Performs a lock operation (`F_OFD_*`) of `fcntl`. Retries if a signal interrupts it.
fn lock_operation(file: &File, operation: libc::c_int, range: &mut libc::flock) -> Result<()> {
    let range = &raw mut *range;
    // SAFETY: the kernel reads and writes the struct, which lives until the call returns.
    while unsafe { libc::syscall(libc::SYS_fcntl, file.as_raw_fd(), operation, range) } < 0 {
        let error = Errno::last();
        if error.0 != libc::EINTR {
            return Err(error);
        }
    }
    Ok(())
}

fn lock(file: &File, operation: libc::c_int, byte: i64) -> Result<()> {
    lock_operation(file, operation, &mut lock_range(libc::F_WRLCK, byte))
}

fn unlock(file: &File, byte: i64) -> Result<()> {
    lock_operation(file, libc::F_OFD_SETLK, &mut lock_range(libc::F_UNLCK, byte))
}

fn is_locked(file: &File, byte: i64) -> bool {
    let mut found = lock_range(libc::F_WRLCK, byte);
    lock_operation(file, libc::F_OFD_GETLK, &mut found).is_ok()
        && found.l_type != libc::F_UNLCK as i16
}

/// Maps the slots. A forked child does not inherit the mapping, which would keep the lock alive.
fn map(file: &File, size: usize) -> io::Result<&'static [Slot]> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: without MAP_FIXED the kernel chooses unused addresses.
    let mapped = unsafe {
        libc::syscall(
            libc::SYS_mmap,
            std::ptr::null_mut::<libc::c_void>(),
            size,
            protection,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0i64,
        )
    };
    if mapped == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call only excludes the new mapping from forked children.
    unsafe { libc::madvise(mapped as *mut _, size, libc::MADV_DONTFORK) };
    // SAFETY: `size` bytes of a file that is never truncated are mapped until `MemoryUsage` is dropped. Every
    // process uses the numbers atomically, and every bit pattern is a number.
    Ok(unsafe { std::slice::from_raw_parts(mapped as *const Slot, size / size_of::<Slot>()) })
}

/// The memory of one GPU, or the system memory that the GPUs can use (GTT).
#[derive(Clone, Debug)]
pub(crate) struct LimitedMemory {
    pub(crate) size: u64,
    gpu: usize,
    usage: Arc<MemoryUsage>,
}

impl LimitedMemory {
    pub(crate) fn new(usage: Arc<MemoryUsage>, gpu: usize, size: u64) -> Self {
        Self { size, gpu, usage }
    }

    /// Returns how many bytes all processes use.
    pub(crate) fn used(&self) -> u64 {
        self.usage.used(self.gpu)
    }

    /// Returns how many bytes this process uses.
    pub(crate) fn used_by_this_process(&self) -> u64 {
        self.usage.slots[self.usage.own_slot][self.gpu].used.load(Ordering::Relaxed)
    }

    /// Returns the available bytes as amdkfd reports them. The size of each buffer is rounded up to a multiple of
    /// 2 MiB, and the remaining size down. An allocation can be larger than this number.
    pub(crate) fn available(&self) -> u64 {
        let free = self.size.saturating_sub(self.usage.rounded(self.gpu));
        free - free % AVAILABILITY_UNIT
    }

    /// Counts bytes as used by this process, until the claim is dropped. Returns `ENOMEM` if too
    /// few bytes are free.
    pub(crate) fn claim(&self, size: u64) -> Result<Claim> {
        self.usage.claim(self.gpu, size, self.size)?;
        Ok(Claim { usage: self.usage.clone(), gpu: self.gpu, size })
    }
}

/// Bytes of a [`LimitedMemory`] that are counted as used.
#[derive(Debug)]
pub(crate) struct Claim {
    usage: Arc<MemoryUsage>,
    gpu: usize,
    size: u64,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let usage = &self.usage.slots[self.usage.own_slot][self.gpu];
        usage.used.fetch_sub(self.size, Ordering::Relaxed);
        usage.rounded.fetch_sub(round_up(self.size), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn remove(name: &str) {
        std::fs::remove_file(path(environment::user(), name)).unwrap();
    }

    #[test]
    fn processes_of_a_machine_share_memory() {
        // Each `MemoryUsage` opens the file itself, as each process does.
        let name = format!("test{}", std::process::id());
        let [first, second] =
            [(); 2].map(|()| LimitedMemory::new(MemoryUsage::shared(&name).unwrap(), 1, 100 * MIB));
        let claim = first.claim(60 * MIB).unwrap();
        assert_eq!(second.claim(41 * MIB).map(drop), Err(ENOMEM));
        assert_eq!(
            (second.used(), second.used_by_this_process(), second.available()),
            (60 * MIB, 0, 40 * MIB)
        );
        let rest = second.claim(40 * MIB).unwrap();
        assert_eq!(first.available(), 0);
        drop(rest);
        assert_eq!(first.available(), 40 * MIB);
        drop(claim);
        assert_eq!(first.available(), 100 * MIB);
        remove(&name);
    }

    #[test]
    fn available_memory_is_reported_in_units_of_2_mib() {
        let vram = LimitedMemory::new(MemoryUsage::unshared(), 0, 5 * MIB);
        assert_eq!(vram.available(), 4 * MIB);
        let page = vram.claim(4096).unwrap();
        assert_eq!((vram.used(), vram.available()), (4096, 2 * MIB));
        let second_page = vram.claim(4096).unwrap();
        assert_eq!((vram.used(), vram.available()), (8192, 0));
        assert!(vram.claim(4 * MIB).is_ok(), "the limit counts bytes");
        drop((page, second_page));
        assert_eq!((vram.used(), vram.available()), (0, 4 * MIB));
    }

    #[test]
    fn memory_of_dead_processes_is_reclaimed() {
        let name = format!("gone{}", std::process::id());
        let dead = MemoryUsage::shared(&name).unwrap();
        let live = LimitedMemory::new(MemoryUsage::shared(&name).unwrap(), 0, 100 * MIB);
        dead.claim(0, 70 * MIB, 100 * MIB).unwrap();
        assert_eq!(live.available(), 30 * MIB);
        drop(dead);
        assert_eq!(live.available(), 100 * MIB);
        assert!(live.claim(100 * MIB).is_ok());
        remove(&name);
    }
}
