//! The file in which a process lists its exports, for other processes to read.
//!
//! A memory file that other processes open through `/proc`, so that no server has to answer them. It has
//! a header, and an entry for each slot. A process that opens memory holds a shared lock on the slot's
//! byte while the runtime maps it; a process that frees memory holds the lock exclusively. Therefore the
//! runtime is never asked for memory that was freed, for which AMD's would wait forever. The kernel
//! unlocks the bytes when a process ends.

use super::handle::{IpcHandle, Registration};
use super::{system, unavailable};
use crate::error::{ErrorKind, Unavailable};
use crate::native::{ByteLock, NativeIpc, lock_byte};
use crate::sync::{Mutex, lock};
use bytemuck::{NoUninit, Pod, Zeroable};
use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
    memfd_create, open, readlink,
};
use rustix::io::{Errno, pread, pwrite};
use rustix::rand::GetRandomFlags;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The name of the file, by which it is identified before it is opened.
const NAME: &str = "hsa-vmm:ipc";
const MAGIC: [u8; 8] = *b"hsavmip2";
/// The size of an entry, and of the header.
const ENTRY: u64 = size_of::<Entry>() as u64;
/// The number of slots, which a handle stores as a `u16`.
const SLOTS: usize = 1 << u16::BITS;
const FILE_SIZE: u64 = ENTRY * (1 + SLOTS as u64);
const SEALS: SealFlags = SealFlags::GROW.union(SealFlags::SHRINK).union(SealFlags::SEAL);

/// The time limit to lock a slot. Longer than the runtime waits for a process that does not answer (10
/// seconds), during which an importer can hold the lock.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The entry of an export, as it is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Entry {
    /// Differs from that of every other export of this process, and most likely of all processes: 32
    /// random bits of the table, and a counter. 0 if there is no export.
    pub generation: u64,
    pub size: u64,
    pub native: NativeIpc,
    pub reserved: [u64; 2],
}

/// The header of the file.
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

fn offset_of(slot: u16) -> u64 {
    ENTRY * (1 + u64::from(slot))
}

/// The table of this process's exports.
#[derive(Debug)]
pub(super) struct Table {
    file: OwnedFd,
    /// The low bits of the inode number of this process's PID namespace.
    namespace: u16,
    next_generation: AtomicU64,
    free: Mutex<FreeSlots>,
}

#[derive(Debug, Default)]
struct FreeSlots {
    used_before: Vec<u16>,
    /// The number of slots that were ever used.
    used: usize,
}

impl Table {
    pub fn new(process: i32, namespace: u16) -> Result<Self, ErrorKind> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create(NAME, flags).map_err(system("memfd_create"))?;
        if file.as_raw_fd() as u32 >= Registration::DESCRIPTORS {
            return Err(ErrorKind::OutOfDescriptors);
        }
        ftruncate(&file, FILE_SIZE).map_err(system("ftruncate"))?;
        fcntl_add_seals(&file, SEALS).map_err(system("fcntl"))?;
        write(file.as_fd(), 0, &Header::of(process)).map_err(system("pwrite"))?;
        // Random, so that no earlier process with this number had the same. Two generations of a table
        // differ in the low 32 bits alone, which the check value always distinguishes.
        let first = random().map_err(system("getrandom"))? << 32 | 1;
        let next_generation = AtomicU64::new(first);
        Ok(Self { file, namespace, next_generation, free: Mutex::default() })
    }

    /// Adds an export.
    pub fn enter(&self, native: NativeIpc, size: u64) -> Result<(Registration, Entry), ErrorKind> {
        let generation = self.next_generation.fetch_add(1, Ordering::Relaxed);
        let slot = {
            let mut free = lock(&self.free);
            let used = free.used;
            free.used_before.pop().or_else(|| {
                let slot = u16::try_from(used).ok()?;
                free.used += 1;
                Some(slot)
            })
        };
        let full = ErrorKind::LimitReached { table: "exported allocations", limit: SLOTS };
        let slot = slot.ok_or(full)?;
        let entry = Entry { generation, size, native, ..Entry::zeroed() };
        write(self.file.as_fd(), offset_of(slot), &entry).map_err(|errno| {
            self.reuse(slot);
            ErrorKind::of_system("pwrite", errno)
        })?;
        let (descriptor, namespace) = (self.file.as_raw_fd() as u32, self.namespace);
        Ok((Registration { descriptor, slot, namespace }, entry))
    }

    fn reuse(&self, slot: u16) {
        lock(&self.free).used_before.push(slot);
    }

    /// Removes an export while `free` frees its memory; if that fails, the export stays.
    ///
    /// # Errors
    /// `AGAIN` if another process has been mapping the memory for too long; `free` was not called.
    pub fn end<T, E>(
        &self,
        slot: u16,
        entry: Entry,
        free: impl FnOnce() -> Result<T, E>,
    ) -> Result<Result<T, E>, Errno> {
        let file = self.file.as_fd();
        let _locked = SlotLock::take(file, slot, ByteLock::Exclusive)?;
        write(file, offset_of(slot), &Entry::zeroed())?;
        let freed = free();
        if freed.is_err() {
            write(file, offset_of(slot), &entry)?;
        } else {
            self.reuse(slot);
        }
        Ok(freed)
    }
}

fn write(file: BorrowedFd<'_>, at: u64, part: &impl NoUninit) -> Result<(), Errno> {
    let bytes = bytemuck::bytes_of(part);
    if pwrite(file, bytes, at)? == bytes.len() { Ok(()) } else { Err(Errno::IO) }
}

/// Returns a random number that no other process can guess.
pub(super) fn random() -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    // The kernel does not interrupt a request this short.
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The lock of a slot.
struct SlotLock<'a> {
    file: BorrowedFd<'a>,
    slot: u16,
}

impl<'a> SlotLock<'a> {
    /// Locks a slot, and waits while another process holds a conflicting lock.
    fn take(file: BorrowedFd<'a>, slot: u16, kind: ByteLock) -> Result<Self, Errno> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match lock_byte(file, offset_of(slot), kind) {
                Err(Errno::AGAIN | Errno::ACCESS) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                taken => return taken.map(|()| Self { file, slot }),
            }
        }
    }
}

impl Drop for SlotLock<'_> {
    fn drop(&mut self) {
        // Closing the file is not enough: a forked child can have the same open file.
        if let Err(errno) = lock_byte(self.file, offset_of(self.slot), ByteLock::Unlocked) {
            crate::log::warning!(%errno, "the lock of an export was not released");
        }
    }
}

/// Calls a function with the generation of another process's export, which cannot be freed meanwhile.
///
/// # Errors
/// [`ErrorKind::Unavailable`] if the export does not exist, is being freed for too long, or may not be
/// read.
pub(super) fn while_exported<T>(
    handle: &IpcHandle,
    registration: Registration,
    act: impl FnOnce(u64) -> Result<T, ErrorKind>,
) -> Result<T, ErrorKind> {
    let IpcHandle { native, size, process, .. } = *handle;
    let file = open_table(process, registration.descriptor)?;
    let locked = SlotLock::take(file.as_fd(), registration.slot, ByteLock::Shared);
    let _locked = locked.map_err(|errno| match errno {
        Errno::AGAIN | Errno::ACCESS => unavailable(process, Unavailable::BeingFreed),
        errno => ErrorKind::of_system("fcntl", errno),
    })?;
    let mut entry = Entry::zeroed();
    let at = offset_of(registration.slot);
    let read = pread(&file, bytemuck::bytes_of_mut(&mut entry), at).map_err(system("pread"))?;
    let generation = entry.generation;
    let matches = generation != 0
        && entry == (Entry { generation, size, native, ..Entry::zeroed() })
        && handle.is_of(generation);
    if read < size_of::<Entry>() || !matches {
        return Err(unavailable(process, Unavailable::Freed));
    }
    act(generation)
}

/// Opens another process's table. A process that exports nothing has none.
fn open_table(process: i32, descriptor: u32) -> Result<OwnedFd, ErrorKind> {
    let path = format!("/proc/{process}/fd/{descriptor}");
    let none = || unavailable(process, Unavailable::Freed);
    let failed = |call| {
        move |errno| match errno {
            Errno::NOENT | Errno::SRCH => unavailable(process, Unavailable::Freed),
            Errno::ACCESS | Errno::PERM => unavailable(process, Unavailable::Forbidden),
            errno => ErrorKind::of_system(call, errno),
        }
    };
    // Nothing with another name is opened: opening a device or a pipe can have any effect.
    let name = readlink(&path, Vec::new()).map_err(failed("readlink"))?;
    let has_name = name.to_str().is_ok_and(|name| {
        let name = name.strip_prefix("/memfd:").unwrap_or_default();
        name.strip_suffix(" (deleted)").unwrap_or(name) == NAME
    });
    if !has_name {
        return Err(none());
    }
    // The descriptor can be another file by now, which must not block.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = open(&path, flags, Mode::empty()).map_err(failed("open"))?;
    let sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS));
    let status = fstat(&file).map_err(system("fstat"))?;
    let mut header = Header::zeroed();
    let is_table = sealed
        && status.st_size as u64 == FILE_SIZE
        && pread(&file, bytemuck::bytes_of_mut(&mut header), 0) == Ok(size_of::<Header>())
        // A child of the exporter has the exporter's table open too.
        && header == Header::of(process);
    if is_table { Ok(file) } else { Err(none()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> i32 {
        std::process::id() as i32
    }

    fn freed<T>(process: i32) -> Result<T, ErrorKind> {
        Err(unavailable(process, Unavailable::Freed))
    }

    /// A handle of an entry in a process's table.
    fn handle(process: i32, registration: Registration, entry: Entry) -> IpcHandle {
        let Entry { generation, size, native, .. } = entry;
        IpcHandle::new(native, size, 0, process, registration, generation)
    }

    fn look(registration: Registration, entry: Entry) -> Result<u8, ErrorKind> {
        while_exported(&handle(own(), registration, entry), registration, |generation| {
            assert_eq!(generation, entry.generation);
            Ok(7)
        })
    }

    #[test]
    fn exports_are_found_until_they_end() {
        let table = Table::new(own(), 7).unwrap();
        let native = [1, 2, 3, 4, 5, 6, 7, 8];
        let (first, entry) = table.enter(native, 100).unwrap();
        assert_eq!(look(first, entry), Ok(7));
        let others = [
            Entry { size: 101, ..entry },
            Entry { native: [1, 2, 3, 4, 5, 6, 7, 9], ..entry },
            Entry { generation: entry.generation + 1, ..entry },
        ];
        for other in others {
            assert_eq!(look(first, other), freed(own()));
        }
        assert_eq!(table.end(first.slot, entry, || Err::<(), u8>(3)), Ok(Err(3)));
        assert_eq!(look(first, entry), Ok(7), "memory that was not freed stays exported");
        let while_ending = || {
            assert_eq!(lock_by_another(&table, first.slot), Err(Errno::AGAIN));
            Ok::<(), u8>(())
        };
        assert_eq!(table.end(first.slot, entry, while_ending), Ok(Ok(())));
        assert_eq!(look(first, entry), freed(own()));
        let (second, new) = table.enter(native, 100).unwrap();
        assert_eq!(second.slot, first.slot, "slots are used again");
        assert_eq!(look(first, entry), freed(own()));
        assert_eq!(look(second, new), Ok(7));
    }

    fn lock_by_another(table: &Table, slot: u16) -> Result<(), Errno> {
        let other = open_table(own(), table.file.as_raw_fd() as u32).unwrap();
        lock_byte(other.as_fd(), offset_of(slot), ByteLock::Shared)
    }

    #[test]
    fn end_waits_while_the_export_is_mapped() {
        let table = Table::new(own(), 7).unwrap();
        let (known, entry) = table.enter([9; 8], 1).unwrap();
        let mapped = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mapping = while_exported(&handle(own(), known, entry), known, |_| {
                let ending = scope.spawn(|| {
                    let free = || Ok::<_, ()>(mapped.load(Ordering::SeqCst));
                    table.end(known.slot, entry, free)
                });
                std::thread::sleep(Duration::from_millis(30));
                mapped.store(true, Ordering::SeqCst);
                Ok(ending)
            });
            assert_eq!(mapping.unwrap().join().unwrap(), Ok(Ok(true)), "freed too early");
        });
    }

    #[test]
    fn other_files_and_slots_are_rejected() {
        let table = Table::new(own(), 7).unwrap();
        let (known, entry) = table.enter([1; 8], 1).unwrap();
        let (reader, _writer) = std::io::pipe().unwrap();
        let forged = memfd_create(NAME, MemfdFlags::CLOEXEC).unwrap();
        for descriptor in [reader.as_raw_fd() as u32, forged.as_raw_fd() as u32, 0x00ff_ffff] {
            let elsewhere = Registration { descriptor, ..known };
            assert_eq!(look(elsewhere, entry), freed(own()));
        }
        for slot in [known.slot + 1, u16::MAX] {
            let elsewhere = Registration { slot, ..known };
            assert_eq!(look(elsewhere, entry), freed(own()));
        }
        // A slot that was never used is not an export of generation 0.
        let nothing = Registration { slot: 9, ..known };
        assert_eq!(look(nothing, Entry::zeroed()), freed(own()));
        for process in [-1, 0, i32::MAX] {
            let found = while_exported(&handle(process, known, entry), known, Ok);
            assert_eq!(found, freed(process));
        }
    }
}
