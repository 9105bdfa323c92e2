//! Waits until changes of page tables have taken effect.

use super::Unavailable;
use crate::sync::{Mutex, lock};
use core::ptr::null_mut;
use hsa_sys::driver as abi;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// The size of the page.
const PAGE: usize = 4096;
/// The size of the address range of the page: a multiple of every page size of Linux.
const RESERVED: usize = 64 << 10;

/// A page of system memory that only this type uses. Mapping and unmapping it alternately waits for all
/// earlier changes of the page tables of some GPUs, and flushes their TLBs.
///
/// Repeating the same call would do nothing: amdkfd skips GPUs that already have the page.
#[derive(Debug)]
pub(crate) struct Barrier {
    kfd: File,
    gpus: Box<[u32]>,
    /// The page's handle in amdkfd.
    page: u64,
    /// The start of the reserved addresses.
    address: usize,
    state: Mutex<State>,
}

/// Whether the page is mapped on the GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unmapped,
    Mapped,
    /// A call has failed for some GPUs.
    Unknown,
}

/// Makes an `ioctl` whose argument is both input and output (`_IOWR`), again if a signal interrupts it.
///
/// # Safety
/// The call has this argument.
unsafe fn call<T>(
    kfd: &File,
    name: &'static str,
    number: u8,
    argument: &mut T,
) -> Result<(), Unavailable> {
    let code = rustix::ioctl::opcode::read_write::<T>(b'K', number);
    loop {
        // SAFETY: the caller's promise. Not rustix's `ioctl`, which the emulated driver cannot intercept.
        let result =
            unsafe { libc::ioctl(kfd.as_raw_fd(), code as libc::Ioctl, &raw mut *argument) };
        if result >= 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        match Errno::from_io_error(&error).unwrap_or(Errno::IO) {
            Errno::INTR => {}
            errno => return Err(Unavailable::Call { call: name, errno }),
        }
    }
}

impl Barrier {
    /// Allocates the page for some GPUs of this process, identified as on `/dev/kfd`.
    pub fn open(gpus: &[u32]) -> Result<Self, Unavailable> {
        let path = PathBuf::from("/dev/kfd");
        let kfd = match File::options().read(true).write(true).open(&path) {
            Ok(kfd) => kfd,
            Err(error) => return Err(Unavailable::file(path, &error)),
        };
        // SAFETY: without MAP_FIXED the kernel chooses unused addresses.
        let reserved =
            unsafe { mmap_anonymous(null_mut(), RESERVED, ProtFlags::empty(), MapFlags::PRIVATE) };
        let failed = |errno| Unavailable::Call { call: "mmap", errno };
        let address = reserved.map_err(failed)?.expose_provenance();
        let mut barrier =
            Self { kfd, gpus: gpus.into(), page: 0, address, state: Mutex::new(State::Unmapped) };
        let mut alloc = abi::kfd_ioctl_alloc_memory_of_gpu_args {
            va_addr: address as u64,
            size: PAGE as u64,
            handle: 0,
            mmap_offset: 0,
            gpu_id: gpus.first().copied().unwrap_or(0),
            flags: abi::KFD_IOC_ALLOC_MEM_FLAGS_GTT | abi::KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE,
        };
        // SAFETY: this is the argument of ALLOC_MEMORY_OF_GPU.
        unsafe { call(&barrier.kfd, "ALLOC_MEMORY_OF_GPU", 0x16, &mut alloc) }?;
        barrier.page = alloc.handle;
        Ok(barrier)
    }

    /// Waits until all earlier changes of the GPUs' page tables have taken effect: the entries are written,
    /// and no TLB contains an older one.
    pub fn wait(&self) -> Result<(), Unavailable> {
        let mut state = lock(&self.state);
        let before = std::mem::replace(&mut *state, State::Unknown);
        if before != State::Mapped {
            self.map()?;
        }
        if before != State::Unmapped {
            self.unmap()?;
        }
        *state = if before == State::Unmapped { State::Mapped } else { State::Unmapped };
        Ok(())
    }

    fn map(&self) -> Result<(), Unavailable> {
        // SAFETY: this is the argument of MAP_MEMORY_TO_GPU, and the list lives until the call returns.
        unsafe { call(&self.kfd, "MAP_MEMORY_TO_GPU", 0x18, &mut self.argument()) }
    }

    fn unmap(&self) -> Result<(), Unavailable> {
        // SAFETY: as above; UNMAP_MEMORY_FROM_GPU has the same argument.
        unsafe { call(&self.kfd, "UNMAP_MEMORY_FROM_GPU", 0x19, &mut self.argument()) }
    }

    fn argument(&self) -> abi::kfd_ioctl_map_memory_to_gpu_args {
        abi::kfd_ioctl_map_memory_to_gpu_args {
            handle: self.page,
            device_ids_array_ptr: self.gpus.as_ptr().expose_provenance() as u64,
            n_devices: self.gpus.len() as u32,
            n_success: 0,
        }
    }
}

impl Drop for Barrier {
    fn drop(&mut self) {
        if self.page != 0 {
            if *self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner)
                != State::Unmapped
            {
                let _ = self.unmap();
            }
            let mut free = abi::kfd_ioctl_free_memory_of_gpu_args { handle: self.page };
            let code =
                rustix::ioctl::opcode::write::<abi::kfd_ioctl_free_memory_of_gpu_args>(b'K', 0x17);
            // SAFETY: this is the argument of FREE_MEMORY_OF_GPU.
            unsafe { libc::ioctl(self.kfd.as_raw_fd(), code as libc::Ioctl, &raw mut free) };
        }
        // SAFETY: `open` has reserved the range, and no GPU has the page any more.
        let _ = unsafe { munmap(std::ptr::with_exposed_provenance_mut(self.address), RESERVED) };
    }
}
