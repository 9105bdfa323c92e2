//! The file in which a process says which of its exports are alive.
//!
//! A memory file that other processes open through `/proc`: a page of the exporter's, so to speak,
//! that no server has to read out. It begins with a header, then comes an entry a slot. Who opens
//! memory holds a shared lock on the slot's byte while the runtime maps it; who frees memory holds
//! the lock alone. So the runtime is never asked for memory that has gone, which AMD's answers by
//! waiting for ever. The kernel takes the locks of a process back when it ends.

use super::handle::{IpcHandle, Registration};
use crate::native::{ByteLock, NativeIpc, lock_byte};
use crate::sync::{Mutex, lock};
use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
    memfd_create, open, readlink,
};
use rustix::io::{Errno, pread, pwrite};
use rustix::rand::GetRandomFlags;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The file's name, by which it is known before it is opened.
const NAME: &str = "hsa-vmm:ipc";
const MAGIC: [u8; 8] = *b"hsavmip2";
/// The size of an entry. The header has the place of the first.
const ENTRY: u64 = 64;
/// The size of the file: the header, and an entry for each slot that a handle can name.
const SIZE: u64 = ENTRY * (1 + (1 << u16::BITS));
const SEALS: SealFlags = SealFlags::GROW.union(SealFlags::SHRINK).union(SealFlags::SEAL);

/// How long one waits for another process: longer than the runtime's own patience with a process
/// that does not answer (10 seconds), which an importer may be using up.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);

/// What is said of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// What no other export of this process ever had, nor one of another process, most likely: 32
    /// random bits of the table, and a counter. 0 if there is no export.
    pub generation: u64,
    pub size: u64,
    pub native: NativeIpc,
}

impl Entry {
    const NONE: Self = Self { generation: 0, size: 0, native: [0; 8] };

    fn to_bytes(self) -> [u8; ENTRY as usize] {
        let mut bytes = [0; ENTRY as usize];
        bytes[..8].copy_from_slice(&self.generation.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.size.to_le_bytes());
        for (place, word) in bytes[16..48].chunks_exact_mut(4).zip(self.native) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

fn header(process: i32) -> [u8; ENTRY as usize] {
    let mut bytes = [0; ENTRY as usize];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&process.to_le_bytes());
    bytes
}

fn place(slot: u16) -> u64 {
    ENTRY * (1 + u64::from(slot))
}

/// The exporter's side.
#[derive(Debug)]
pub(super) struct Table {
    file: OwnedFd,
    /// The end of the number of this process's PID namespace.
    namespace: u16,
    next_generation: AtomicU64,
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    slots: Vec<u16>,
    /// The first slot that was never used; `None` if there is none.
    fresh: Option<u16>,
}

impl Table {
    pub fn new(process: i32, namespace: u16) -> Result<Self, Errno> {
        let file = memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        if file.as_raw_fd() as u32 >= Registration::DESCRIPTORS {
            return Err(Errno::MFILE);
        }
        ftruncate(&file, SIZE)?;
        fcntl_add_seals(&file, SEALS)?;
        write(file.as_fd(), 0, &header(process))?;
        // Random, so that no other process with this number had the same; and two generations of a
        // table differ in the low 32 bits alone, which the check value always tells apart.
        let first = AtomicU64::new(random()? << 32 | 1);
        let free = Mutex::new(Free { slots: Vec::new(), fresh: Some(0) });
        Ok(Self { file, namespace, next_generation: first, free })
    }

    /// Enters an export. `NOSPC`: there are too many.
    pub fn enter(&self, native: NativeIpc, size: u64) -> Result<(Registration, Entry), Errno> {
        let generation = self.next_generation.fetch_add(1, Ordering::Relaxed);
        let slot = {
            let mut free = lock(&self.free);
            match (free.slots.pop(), free.fresh) {
                (Some(slot), _) => slot,
                (None, Some(fresh)) => {
                    free.fresh = fresh.checked_add(1);
                    fresh
                }
                (None, None) => return Err(Errno::NOSPC),
            }
        };
        let entry = Entry { generation, size, native };
        let written = write(self.file.as_fd(), place(slot), &entry.to_bytes());
        if let Err(errno) = written {
            self.reuse(slot);
            return Err(errno);
        }
        let (descriptor, namespace) = (self.file.as_raw_fd() as u32, self.namespace);
        Ok((Registration { descriptor, slot, namespace }, entry))
    }

    fn reuse(&self, slot: u16) {
        lock(&self.free).slots.push(slot);
    }

    /// Takes an export out while `free` gives its memory back; if that fails, it stays.
    ///
    /// # Errors
    /// `AGAIN` if another process has been mapping it for too long; `free` was not called.
    pub fn end<T, E>(
        &self,
        slot: u16,
        entry: Entry,
        free: impl FnOnce() -> Result<T, E>,
    ) -> Result<Result<T, E>, Errno> {
        let file = self.file.as_fd();
        let _held = Held::take(file, slot, ByteLock::Alone)?;
        write(file, place(slot), &Entry::NONE.to_bytes())?;
        let freed = free();
        if freed.is_err() {
            write(file, place(slot), &entry.to_bytes())?;
        } else {
            self.reuse(slot);
        }
        Ok(freed)
    }
}

fn write(file: BorrowedFd<'_>, at: u64, bytes: &[u8]) -> Result<(), Errno> {
    if pwrite(file, bytes, at)? == bytes.len() { Ok(()) } else { Err(Errno::IO) }
}

/// A random number that no other process can guess.
pub(super) fn random() -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    // The kernel interrupts no request this short.
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

/// A slot's lock.
struct Held<'a> {
    file: BorrowedFd<'a>,
    slot: u16,
}

impl<'a> Held<'a> {
    /// Takes the lock, waiting as long as others are given.
    fn take(file: BorrowedFd<'a>, slot: u16, kind: ByteLock) -> Result<Self, Errno> {
        let begun = Instant::now();
        loop {
            match lock_byte(file, place(slot), kind) {
                Err(Errno::AGAIN | Errno::ACCESS) if begun.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                taken => return taken.map(|()| Self { file, slot }),
            }
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Given back by hand: a forked child may have the same open file.
        if let Err(errno) = lock_byte(self.file, place(self.slot), ByteLock::Free) {
            crate::log::warning!(%errno, "the lock of an export stays taken");
        }
    }
}

/// Why another process's export could not be looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absent {
    /// There is no such process, or it has no such table.
    Table,
    /// There is such a table, and the export is not in it (any more).
    Export,
    /// The export is being freed, and that does not come to an end.
    Busy,
    /// This user may not look at that process.
    Forbidden,
    /// The operating system refused.
    System(Errno),
}

/// Does something with the generation of another process's export, while it is sure to stay.
pub(super) fn while_exported<T>(
    handle: &IpcHandle,
    registration: Registration,
    act: impl FnOnce(u64) -> T,
) -> Result<T, Absent> {
    let IpcHandle { native, size, process, .. } = *handle;
    let file = table_of(process, registration.descriptor)?;
    let held = Held::take(file.as_fd(), registration.slot, ByteLock::Shared);
    let _held = held.map_err(|errno| match errno {
        Errno::AGAIN | Errno::ACCESS => Absent::Busy,
        errno => Absent::System(errno),
    })?;
    let mut bytes = [0; ENTRY as usize];
    let read = pread(&file, &mut bytes, place(registration.slot)).map_err(Absent::System)?;
    let generation = u64::from_le_bytes(core::array::from_fn(|index| bytes[index]));
    let expected = Entry { generation, size, native };
    let is_it = generation != 0 && bytes == expected.to_bytes() && handle.is_of(generation);
    if read < bytes.len() || !is_it {
        return Err(Absent::Export);
    }
    Ok(act(generation))
}

/// Opens another process's table.
fn table_of(process: i32, descriptor: u32) -> Result<OwnedFd, Absent> {
    let path = format!("/proc/{process}/fd/{descriptor}");
    let refused = |errno| match errno {
        Errno::NOENT | Errno::SRCH => Absent::Table,
        Errno::ACCESS | Errno::PERM => Absent::Forbidden,
        errno => Absent::System(errno),
    };
    // Only what bears the name is opened: opening a device or a pipe could do anything.
    let name = readlink(&path, Vec::new()).map_err(refused)?;
    let bears_name = name.to_str().is_ok_and(|name| {
        let name = name.strip_prefix("/memfd:").unwrap_or_default();
        name.strip_suffix(" (deleted)").unwrap_or(name) == NAME
    });
    if !bears_name {
        return Err(Absent::Table);
    }
    // It may have become something else by now, which must not make this wait.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = open(&path, flags, Mode::empty()).map_err(refused)?;
    let sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS));
    let status = fstat(&file).map_err(Absent::System)?;
    let mut first = [0; ENTRY as usize];
    let is_table = sealed
        && status.st_size as u64 == SIZE
        && pread(&file, &mut first, 0) == Ok(first.len())
        // A child of the exporter has its table open too.
        && first == header(process);
    if is_table { Ok(file) } else { Err(Absent::Table) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> i32 {
        std::process::id() as i32
    }

    /// A handle of an entry in a process's table.
    fn handle(process: i32, registration: Registration, entry: Entry) -> IpcHandle {
        let Entry { generation, size, native } = entry;
        IpcHandle::new(native, size, 0, process, registration, generation)
    }

    fn look(registration: Registration, entry: Entry) -> Result<u8, Absent> {
        while_exported(&handle(own(), registration, entry), registration, |generation| {
            assert_eq!(generation, entry.generation);
            7
        })
    }

    #[test]
    fn an_export_is_found_until_it_ends_and_never_again() {
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
            assert_eq!(look(first, other), Err(Absent::Export));
        }
        assert_eq!(table.end(first.slot, entry, || Err::<(), u8>(3)), Ok(Err(3)));
        assert_eq!(look(first, entry), Ok(7), "what could not be freed stays exported");
        let while_ending = || {
            assert_eq!(lock_by_another(&table, first.slot), Err(Errno::AGAIN));
            Ok::<(), u8>(())
        };
        assert_eq!(table.end(first.slot, entry, while_ending), Ok(Ok(())));
        assert_eq!(look(first, entry), Err(Absent::Export));
        let (second, new) = table.enter(native, 100).unwrap();
        assert_eq!(second.slot, first.slot, "slots are used again");
        assert_eq!(look(first, entry), Err(Absent::Export));
        assert_eq!(look(second, new), Ok(7));
    }

    fn lock_by_another(table: &Table, slot: u16) -> Result<(), Errno> {
        let other = table_of(own(), table.file.as_raw_fd() as u32).unwrap();
        lock_byte(other.as_fd(), place(slot), ByteLock::Shared)
    }

    #[test]
    fn an_export_does_not_end_while_it_is_mapped() {
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
                ending
            });
            assert_eq!(mapping.unwrap().join().unwrap(), Ok(Ok(true)), "freed too early");
        });
    }

    #[test]
    fn what_is_no_table_is_not_opened() {
        let table = Table::new(own(), 7).unwrap();
        let (known, entry) = table.enter([1; 8], 1).unwrap();
        let (reader, _writer) = std::io::pipe().unwrap();
        let forged = memfd_create(NAME, MemfdFlags::CLOEXEC).unwrap();
        for descriptor in [reader.as_raw_fd() as u32, forged.as_raw_fd() as u32, 0x00ff_ffff] {
            let elsewhere = Registration { descriptor, ..known };
            assert_eq!(look(elsewhere, entry), Err(Absent::Table));
        }
        for slot in [known.slot + 1, u16::MAX] {
            let elsewhere = Registration { slot, ..known };
            assert_eq!(look(elsewhere, entry), Err(Absent::Export));
        }
        // An entry that was never made is no export of generation 0.
        let nothing = Registration { slot: 9, ..known };
        assert_eq!(look(nothing, Entry::NONE), Err(Absent::Export));
        for process in [-1, 0, i32::MAX] {
            let found = while_exported(&handle(process, known, entry), known, drop);
            assert_eq!(found, Err(Absent::Table), "{process}");
        }
    }
}
