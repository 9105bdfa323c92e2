//! The file in which a process lists its exports, for other processes to read.
//!
//! Other processes open this memory file (memfd) through `/proc`, so that no server is needed. The file has a header,
//! and an entry for each slot. A process that opens memory holds a shared lock on the first byte of the slot's entry
//! while its runtime maps the memory. A process that frees memory holds an exclusive lock on this byte. The lock
//! prevents an importer from mapping freed memory: AMD's runtime would then wait forever. When the process has ended,
//! and all children that it forked while it held the lock, the kernel unlocks the bytes.

use super::handle::{FORMAT, IpcHandle, Registration};
use super::{random, retry, system, unavailable};
use crate::error::{ErrorKind, UnavailableReason};
use crate::native::{
    ByteLock, NativeIpc, above_streams, close_foreign, lock_byte, without_size_signal,
};
use crate::sync::{Mutex, lock};
use bytemuck::{NoUninit, Pod, Zeroable};
use core::ffi::CStr;
use rustix::fs::{
    Dir, FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals,
    fcntl_get_seals, fstat, ftruncate, memfd_create, open, openat, readlinkat,
};
use rustix::io::{Errno, pread, pwrite};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The name of the file, which an importer checks before it opens the file.
const NAME: &str = "hsa-vmm:ipc";
const MAGIC: [u8; 8] = *b"hsavmip3";
/// The size of an entry, and of the header.
const ENTRY_SIZE: u64 = size_of::<Entry>() as u64;
/// The number of slots. A handle stores a slot as a `u16`.
const SLOTS: usize = 1 << u16::BITS;
const FILE_SIZE: u64 = ENTRY_SIZE * (1 + SLOTS as u64);
const SEALS: SealFlags = SealFlags::GROW.union(SealFlags::SHRINK).union(SealFlags::SEAL);

/// The time limit to lock a slot. An importer can hold the lock while it waits for an exporter that does not respond.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The entry of an export in the file.
#[derive(Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct Entry {
    /// A counter that starts at a random number. A generation is unique among the exports of this table, and most
    /// likely among those of all tables. 0 if the slot has no export.
    generation: u64,
    size: u64,
    native: NativeIpc,
    reserved: [u64; 2],
}

impl Entry {
    /// Creates the entry of the export that a handle identifies.
    fn of(handle: &IpcHandle, generation: u64) -> Self {
        Self { generation, size: handle.allocation_size, native: handle.native, reserved: [0; 2] }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    process: i32,
    reserved: [u32; 13],
}

impl Header {
    fn of(process: i32) -> Self {
        Self { magic: MAGIC, process, ..Self::zeroed() }
    }
}

/// Returns the offset in the file of the entry that a handle identifies.
fn offset_of(handle: &IpcHandle) -> u64 {
    ENTRY_SIZE * (1 + u64::from(u16::from_le_bytes(handle.registration.slot)))
}

/// The table of this process's exports.
#[derive(Debug)]
pub(super) struct Table {
    file: OwnedFd,
    process: i32,
    /// The low bits of the inode number of this process's PID namespace.
    namespace: [u8; 2],
    next_generation: AtomicU64,
    /// The first slot that was never used; at least [`SLOTS`] if all were used.
    next_slot: AtomicU64,
    /// Slots that were used before and are free now.
    free_slots: Mutex<Vec<u16>>,
}

impl Table {
    /// Creates this process's file, without exports.
    pub fn new(process: i32, namespace: [u8; 2]) -> Result<Self, ErrorKind> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file =
            memfd_create(NAME, flags).and_then(above_streams).map_err(system("memfd_create"))?;
        without_size_signal(|| ftruncate(&file, FILE_SIZE)).map_err(system("ftruncate"))?;
        fcntl_add_seals(&file, SEALS).map_err(system("fcntl"))?;
        write(file.as_fd(), 0, &Header::of(process)).map_err(system("pwrite"))?;
        // The first generation is random, so that it differs from the generations of an earlier process with the same
        // number. The check value distinguishes 65,536 successive generations.
        let first = random().map_err(system("getrandom"))?.max(1);
        let (next_generation, next_slot) = (AtomicU64::new(first), AtomicU64::new(0));
        Ok(Self {
            file,
            process,
            namespace,
            next_generation,
            next_slot,
            free_slots: Mutex::default(),
        })
    }

    /// Replaces the file. Tests use this to make writing the table fail.
    #[cfg(test)]
    pub fn with_file(self, file: OwnedFd) -> Self {
        Self { file, ..self }
    }

    /// Adds an export of memory of a GPU. Returns its handle, with an offset of 0, and its generation.
    pub fn insert(
        &self,
        native: NativeIpc,
        allocation_size: u64,
    ) -> Result<(IpcHandle, u64), ErrorKind> {
        let generation = self.next_generation.fetch_add(1, Ordering::Relaxed);
        let free_slot = lock(&self.free_slots).pop();
        let never_used = || u16::try_from(self.next_slot.fetch_add(1, Ordering::Relaxed)).ok();
        let (table, advice) = ("exported allocations", "free some");
        let full = ErrorKind::LimitReached { table, limit: SLOTS, advice };
        let slot = free_slot.or_else(never_used).ok_or(full)?;
        let (slot_bytes, namespace) = (slot.to_le_bytes(), self.namespace);
        let registration =
            Registration { slot: slot_bytes, namespace, check: [0; 2], format: FORMAT };
        let process = self.process;
        let handle =
            IpcHandle { native, allocation_size, process, registration, ..IpcHandle::zeroed() };
        let entry = Entry::of(&handle, generation);
        write(self.file.as_fd(), offset_of(&handle), &entry).map_err(|errno| {
            lock(&self.free_slots).push(slot);
            ErrorKind::of_system("pwrite", errno)
        })?;
        Ok((handle.with_check(generation), generation))
    }

    /// Removes an export, and calls `free` to free its memory. During this call, no other process can open the memory.
    /// If `free` fails, restores the export.
    ///
    /// # Errors
    /// [`ErrorKind::BeingOpened`] if another process did not finish mapping the memory within the time limit. In this
    /// case, `free` was not called. Otherwise the error of `free` or of a system call. If the export could not be
    /// restored, other processes cannot open the memory any more.
    pub fn remove(
        &self,
        handle: &IpcHandle,
        generation: u64,
        free: impl FnOnce() -> Result<(), ErrorKind>,
    ) -> Result<(), ErrorKind> {
        let (file, offset) = (self.file.as_fd(), offset_of(handle));
        let locked = SlotLock::take(file, offset, ByteLock::Exclusive, Instant::now() + TIMEOUT);
        let locked = locked.map_err(|errno| match errno {
            Errno::AGAIN | Errno::ACCESS => ErrorKind::BeingOpened,
            errno => ErrorKind::of_system("fcntl", errno),
        })?;
        // The limit of file sizes (`RLIMIT_FSIZE`) forbids writing, but not making a hole, which reads as zeros.
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let cleared = write(file, offset, &Entry::zeroed());
        let cleared = cleared.or_else(|_| fallocate(file, hole, offset, ENTRY_SIZE));
        cleared.map_err(system("fallocate"))?;
        let freed = free();
        if freed.is_err()
            && let Err(errno) = write(file, offset, &Entry::of(handle, generation))
        {
            crate::log::event!(ERROR, %errno, "an export was not restored");
        }
        // The lock belongs to the file and not to this thread. If another thread could use the slot before this thread
        // unlocks it, unlocking could end the other thread's lock.
        drop(locked);
        if freed.is_ok() {
            lock(&self.free_slots).push(u16::from_le_bytes(handle.registration.slot));
        }
        freed
    }
}

/// Writes a value at an offset of the file.
fn write(file: BorrowedFd<'_>, offset: u64, value: &impl NoUninit) -> Result<(), Errno> {
    let bytes = bytemuck::bytes_of(value);
    let written = without_size_signal(|| pwrite(file, bytes, offset))?;
    if written == bytes.len() { Ok(()) } else { Err(Errno::IO) }
}

struct SlotLock<'a> {
    file: BorrowedFd<'a>,
    /// The offset of the slot's entry.
    offset: u64,
}

impl<'a> SlotLock<'a> {
    /// Locks a slot. Waits until the deadline while another process holds a conflicting lock.
    fn take(
        file: BorrowedFd<'a>,
        offset: u64,
        lock: ByteLock,
        deadline: Instant,
    ) -> Result<Self, Errno> {
        let is_locked = |errno| matches!(errno, Errno::AGAIN | Errno::ACCESS);
        let should_retry = |errno| is_locked(errno) && Instant::now() < deadline;
        retry(should_retry, || lock_byte(file, offset, lock)).map(|()| Self { file, offset })
    }
}

impl Drop for SlotLock<'_> {
    fn drop(&mut self) {
        // Closing the file would not unlock the byte if a forked child has the same open file.
        if let Err(errno) = lock_byte(self.file, self.offset, ByteLock::Unlocked) {
            crate::log::event!(WARN, %errno, "the lock of an export was not released");
        }
    }
}

/// Calls a function with the generation of another process's export. The exporter cannot free the memory
/// during the call.
///
/// # Errors
/// [`ErrorKind::Unavailable`] if the export does not exist, if its exporter does not finish freeing it within the time
/// limit, or if this process may not read the table.
pub(super) fn while_exported<T>(
    handle: &IpcHandle,
    act: impl FnOnce(u64) -> Result<T, ErrorKind>,
) -> Result<T, ErrorKind> {
    let (process, offset) = (handle.process, offset_of(handle));
    let failed = |call| move |errno| of_proc(call, process, errno);
    let open_directory =
        || open(format!("/proc/{process}/fd"), OFlags::DIRECTORY | FLAGS, Mode::empty());
    let directory = open_directory().map_err(failed("open"))?;
    let deadline = Instant::now() + TIMEOUT;
    for descriptor in Dir::read_from(&directory).map_err(failed("open"))? {
        let descriptor = descriptor.map_err(failed("getdents64"))?;
        // Closing each file that is not a table can take a second.
        if Instant::now() >= deadline {
            return Err(unavailable(process, UnavailableReason::BeingFreed));
        }
        // A process has several tables if it has opened several runtimes.
        let Some(file) = open_table(process, &directory, descriptor.file_name())? else { continue };
        let locked = SlotLock::take(file.as_fd(), offset, ByteLock::Shared, deadline);
        let _locked = locked.map_err(|errno| match errno {
            Errno::AGAIN | Errno::ACCESS => unavailable(process, UnavailableReason::BeingFreed),
            errno => ErrorKind::of_system("fcntl", errno),
        })?;
        let mut entry = Entry::zeroed();
        let bytes = bytemuck::bytes_of_mut(&mut entry);
        let read = pread(&file, bytes, offset).map_err(system("pread"))?;
        let generation = entry.generation;
        let matches = generation != 0
            && entry == Entry::of(handle, generation)
            && handle.matches_generation(generation);
        if read == size_of::<Entry>() && matches {
            return act(generation);
        }
    }
    Err(unavailable(process, UnavailableReason::Freed))
}

/// The flags with which a table is opened. After the check of its name, the exporter can reuse the descriptor for
/// another file. The flags prevent `open` from blocking on a pipe or a terminal. On a file of a FUSE file system, it can
/// block.
const FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Returns the error for a failed system call on a process's directory in `/proc`.
fn of_proc(call: &'static str, process: i32, errno: Errno) -> ErrorKind {
    match errno {
        Errno::NOENT | Errno::SRCH => unavailable(process, UnavailableReason::Freed),
        Errno::ACCESS | Errno::PERM => unavailable(process, UnavailableReason::Forbidden),
        errno => ErrorKind::of_system(call, errno),
    }
}

/// Opens a file of another process, if it is a table of that process's exports. A table exists only while the process
/// exports memory.
fn open_table(
    process: i32,
    directory: &OwnedFd,
    descriptor: &CStr,
) -> Result<Option<OwnedFd>, ErrorKind> {
    // Checks the name first, because opening a device or a pipe can have side effects.
    let name = match readlinkat(directory, descriptor, Vec::new()) {
        Ok(name) => name,
        // The names `.` and `..` are not links. The process can have closed the file.
        Err(Errno::INVAL | Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(of_proc("readlink", process, errno)),
    };
    let has_name = name.to_str().is_ok_and(|name| {
        let name = name.strip_prefix("/memfd:").unwrap_or_default();
        name.strip_suffix(" (deleted)").unwrap_or(name) == NAME
    });
    if !has_name {
        return Ok(None);
    }
    let file = match openat(directory, descriptor, FLAGS, Mode::empty()) {
        Ok(file) => file,
        Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
            return Err(ErrorKind::of_system("open", errno));
        }
        // The process can have closed the file, or opened another file under this number.
        Err(_) => return Ok(None),
    };
    // Only memory files have seals. On another file, `fstat` and `close` can block, too.
    if !fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS)) {
        close_foreign(vec![file]);
        return Ok(None);
    }
    let status = fstat(&file).map_err(system("fstat"))?;
    let mut header = Header::zeroed();
    let is_table = status.st_size as u64 == FILE_SIZE
        && pread(&file, bytemuck::bytes_of_mut(&mut header), 0) == Ok(size_of::<Header>())
        // A child of the exporter also has the exporter's table open.
        && header == Header::of(process);
    Ok(is_table.then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn this_process() -> i32 {
        std::process::id() as i32
    }

    fn freed<T>(process: i32) -> Result<T, ErrorKind> {
        Err(unavailable(process, UnavailableReason::Freed))
    }

    /// Looks up an export of this generation. Returns 7 if it exists.
    fn look_up((handle, generation): (IpcHandle, u64)) -> Result<u8, ErrorKind> {
        while_exported(&handle.with_check(generation), |found| {
            assert_eq!(found, generation);
            Ok(7)
        })
    }

    #[test]
    fn exports_are_found_until_they_are_removed() {
        let table = Table::new(this_process(), [7, 0]).unwrap();
        let native = [1, 2, 3, 4, 5, 6, 7, 8];
        let (first, generation) = table.insert(native, 100).unwrap();
        assert_eq!(look_up((first, generation)), Ok(7));
        let others = [
            (IpcHandle { allocation_size: 101, ..first }, generation),
            (IpcHandle { native: [1, 2, 3, 4, 5, 6, 7, 9], ..first }, generation),
            (first, generation + 1),
        ];
        for other in others {
            assert_eq!(look_up(other), freed(this_process()));
        }
        assert_eq!(
            table.remove(&first, generation, || Err(ErrorKind::NoCpu)),
            Err(ErrorKind::NoCpu)
        );
        assert_eq!(look_up((first, generation)), Ok(7), "memory that was not freed stays exported");
        let while_removing = || {
            assert_eq!(lock_by_another(&table, &first), Err(Errno::AGAIN));
            Ok(())
        };
        assert_eq!(table.remove(&first, generation, while_removing), Ok(()));
        assert_eq!(look_up((first, generation)), freed(this_process()));
        let second = table.insert(native, 100).unwrap();
        let slots = [first.registration.slot, second.0.registration.slot];
        assert_eq!(slots[0], slots[1], "slots are used again");
        assert_eq!(look_up((first, generation)), freed(this_process()));
        assert_eq!(look_up(second), Ok(7));
    }

    /// Locks the slot of a handle in its table, as another process does.
    fn lock_by_another(table: &Table, handle: &IpcHandle) -> Result<(), Errno> {
        let path = format!("/proc/self/fd/{}", table.file.as_raw_fd());
        // The lock belongs to the open file.
        let other = open(path, OFlags::RDONLY, Mode::empty()).unwrap();
        lock_byte(other.as_fd(), offset_of(handle), ByteLock::Shared)
    }

    /// If a slot were free before it is unlocked, unlocking could end the lock of the next export in this slot.
    #[test]
    fn slots_are_unlocked_before_they_are_free() {
        let table = Table::new(this_process(), [7, 0]).unwrap();
        let (handle, generation) = table.insert([9; 8], 1).unwrap();
        let (freed_sender, freed) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let free_slots = lock(&table.free_slots);
            scope.spawn(|| {
                let free = || {
                    freed_sender.send(()).unwrap();
                    Ok(())
                };
                assert_eq!(table.remove(&handle, generation, free), Ok(()));
            });
            freed.recv().unwrap();
            // The other thread cannot free the slot before this thread unlocks `free_slots`.
            let deadline = Instant::now() + Duration::from_secs(10);
            let should_retry = |errno| errno == Errno::AGAIN && Instant::now() < deadline;
            let unlocked = retry(should_retry, || lock_by_another(&table, &handle));
            drop(free_slots);
            assert_eq!(unlocked, Ok(()));
        });
    }

    #[test]
    fn remove_waits_while_the_export_is_mapped() {
        let table = Table::new(this_process(), [7, 0]).unwrap();
        let (handle, generation) = table.insert([9; 8], 1).unwrap();
        let has_mapped = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let removal = while_exported(&handle, |_| {
                let removal = scope.spawn(|| {
                    table.remove(&handle, generation, || {
                        assert!(has_mapped.load(Ordering::SeqCst), "freed too early");
                        Ok(())
                    })
                });
                std::thread::sleep(Duration::from_millis(30));
                has_mapped.store(true, Ordering::SeqCst);
                Ok(removal)
            });
            assert_eq!(removal.unwrap().join().unwrap(), Ok(()));
        });
    }

    /// Returns the number of descriptors of this process that refer to a file.
    fn count_descriptors_of(file: &OwnedFd) -> usize {
        let identity = |path: &std::path::Path| {
            let status = rustix::fs::stat(path).ok()?;
            Some((status.st_dev, status.st_ino))
        };
        let status = fstat(file).unwrap();
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        descriptors
            .filter(|it| identity(&it.path()) == Some((status.st_dev, status.st_ino)))
            .count()
    }

    /// A process has a table for each runtime, and its descriptors are read in order.
    #[test]
    fn table_is_found_among_other_files() {
        let _unnamed = std::io::pipe().unwrap();
        let forged = memfd_create(NAME, MemfdFlags::CLOEXEC).unwrap();
        let sealed = memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&sealed, FILE_SIZE).unwrap();
        fcntl_add_seals(&sealed, SEALS).unwrap();
        let tables = [(); 3].map(|()| Table::new(this_process(), [7, 0]).unwrap());
        let exports = tables.each_ref().map(|table| table.insert([3; 8], 4096).unwrap());
        for (index, export) in exports.into_iter().enumerate() {
            assert_eq!(look_up(export), Ok(7));
            assert_eq!(tables[index].remove(&export.0, export.1, || Ok(())), Ok(()));
            assert_eq!(look_up(export), freed(this_process()));
        }
        // Files that are not tables do not stay open. Other tests of this process open them, too.
        for file in [&forged, &sealed] {
            let deadline = Instant::now() + Duration::from_secs(10);
            while count_descriptors_of(file) > 1 {
                assert!(Instant::now() < deadline, "{file:?} stays open");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn other_slots_and_processes_are_rejected() {
        let table = Table::new(this_process(), [7, 0]).unwrap();
        let (handle, generation) = table.insert([1; 8], 1).unwrap();
        let with = |registration| (IpcHandle { registration, ..handle }, generation);
        for slot in [u16::from_le_bytes(handle.registration.slot) + 1, u16::MAX] {
            let other = Registration { slot: slot.to_le_bytes(), ..handle.registration };
            assert_eq!(look_up(with(other)), freed(this_process()));
        }
        // A slot that was never used is not an export of generation 0.
        let registration = Registration { slot: [9, 0], ..handle.registration };
        let (process, zeroed) = (handle.process, IpcHandle::zeroed());
        assert_eq!(
            look_up((IpcHandle { process, registration, ..zeroed }, 0)),
            freed(this_process())
        );
        for process in [-1, 0, i32::MAX] {
            let found = while_exported(&IpcHandle { process, ..handle }.with_check(generation), Ok);
            assert_eq!(found, freed(process));
        }
    }
}
