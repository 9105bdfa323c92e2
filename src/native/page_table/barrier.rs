//! The two ways to wait until changes of page tables have taken effect.

use super::{DriverError, FailedCall, ioctl, open_device};
use crate::native::library_lock::allocate_unlocked;
use crate::native::{Failure, Native, NativeAgent};
use crate::sync::{Mutex, lock};
use core::ptr::null_mut;
use hsa_sys::driver as abi;
use rustix::io::Errno;
use rustix::ioctl::opcode;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::fs::File;
use std::path::Path;

const PAGE_SIZE: usize = 4096;
/// The size in bytes of the address range of the page. It is a multiple of every page size of Linux.
const RESERVED_SIZE: usize = 64 << 10;

/// A way to wait until all earlier changes of GPUs' page tables have taken effect. After the wait, the entries are
/// written, and no TLB contains old entries.
#[derive(Debug)]
pub(crate) enum Barrier {
    Kfd(KfdPage),
    /// Used if `/dev/kfd` is not available.
    Pinned(PinnedPage),
}

impl Barrier {
    pub fn wait<E: From<FailedCall> + From<Failure>>(&self, native: &Native) -> Result<(), E> {
        match self {
            Self::Kfd(page) => Ok(page.wait()?),
            Self::Pinned(page) => Ok(page.wait(native)?),
        }
    }
}

/// A page of system memory that only this type uses. A wait maps the page on the GPUs; the next wait unmaps it. Mapping
/// and unmapping both wait for all earlier changes of the page tables of `gpus`, and flush their TLBs.
///
/// Mapping a mapped page would not wait, because amdkfd skips GPUs that already have the page. Therefore waits
/// alternate between the two calls.
#[derive(Debug)]
pub(crate) struct KfdPage {
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
    /// A call has failed, so that the page may be mapped on some GPUs.
    Unknown,
}

/// The errors after which a call of amdkfd is repeated: a signal interrupted it.
const RETRIED: &[Errno] = &[Errno::INTR];

impl KfdPage {
    /// Allocates the page for some GPUs. `gpus` are their identifiers on `/dev/kfd`.
    pub fn open(gpus: &[u32]) -> Result<Self, DriverError> {
        let kfd = open_device(Path::new("/dev/kfd"))?;
        // SAFETY: without MAP_FIXED the kernel chooses unused addresses.
        let reserved = unsafe {
            mmap_anonymous(null_mut(), RESERVED_SIZE, ProtFlags::empty(), MapFlags::PRIVATE)
        };
        let failed = |errno| FailedCall { call: "mmap", errno };
        let address = reserved.map_err(failed)?.expose_provenance();
        let mut new =
            Self { kfd, gpus: gpus.into(), page: 0, address, state: Mutex::new(State::Unmapped) };
        let mut alloc = abi::kfd_ioctl_alloc_memory_of_gpu_args {
            va_addr: address as u64,
            size: PAGE_SIZE as u64,
            handle: 0,
            mmap_offset: 0,
            gpu_id: gpus.first().copied().unwrap_or(0),
            flags: abi::KFD_IOC_ALLOC_MEM_FLAGS_GTT | abi::KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE,
        };
        // SAFETY: this is the argument of ALLOC_MEMORY_OF_GPU.
        unsafe {
            let opcode = opcode::read_write::<abi::kfd_ioctl_alloc_memory_of_gpu_args>(b'K', 0x16);
            ioctl(&new.kfd, "ALLOC_MEMORY_OF_GPU", opcode, &mut alloc, RETRIED)
        }?;
        new.page = alloc.handle;
        Ok(new)
    }

    /// Waits by mapping or unmapping the page.
    pub fn wait(&self) -> Result<(), FailedCall> {
        let mut state = lock(&self.state);
        let old_state = std::mem::replace(&mut *state, State::Unknown);
        if old_state != State::Mapped {
            self.set_mapped(true)?;
        }
        if old_state != State::Unmapped {
            self.set_mapped(false)?;
        }
        *state = if old_state == State::Unmapped { State::Mapped } else { State::Unmapped };
        Ok(())
    }

    /// Maps the page on the GPUs, or unmaps it.
    fn set_mapped(&self, mapped: bool) -> Result<(), FailedCall> {
        let (call, number) = match mapped {
            true => ("MAP_MEMORY_TO_GPU", 0x18),
            false => ("UNMAP_MEMORY_FROM_GPU", 0x19),
        };
        let opcode = opcode::read_write::<abi::kfd_ioctl_map_memory_to_gpu_args>(b'K', number);
        let argument = &mut abi::kfd_ioctl_map_memory_to_gpu_args {
            handle: self.page,
            device_ids_array_ptr: self.gpus.as_ptr().expose_provenance() as u64,
            n_devices: self.gpus.len() as u32,
            n_success: 0,
        };
        // SAFETY: this is the argument of both calls, and the list lives until the call returns.
        unsafe { ioctl(&self.kfd, call, opcode, argument, RETRIED) }
    }

    /// Frees the page. First tries to unmap it if it may be mapped on a GPU: the kernel frees no mapped page, and rejects
    /// the unmap if no GPU has mapped the page.
    fn free(&mut self) -> Result<(), FailedCall> {
        let state = *self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        if state != State::Unmapped {
            let _ = self.set_mapped(false);
        }
        let mut free = abi::kfd_ioctl_free_memory_of_gpu_args { handle: self.page };
        let opcode = opcode::write::<abi::kfd_ioctl_free_memory_of_gpu_args>(b'K', 0x17);
        // SAFETY: this is the argument of FREE_MEMORY_OF_GPU.
        unsafe { ioctl(&self.kfd, "FREE_MEMORY_OF_GPU", opcode, &mut free, RETRIED) }
    }
}

impl Drop for KfdPage {
    fn drop(&mut self) {
        if self.page != 0
            && let Err(error) = self.free()
        {
            // The addresses stay reserved, because the page may still be mapped there on a GPU.
            crate::log::event!(WARN, %error, "a page was not freed");
            return;
        }
        // SAFETY: `open` has reserved the range, and the page is not mapped on any GPU.
        let _ =
            unsafe { munmap(std::ptr::with_exposed_provenance_mut(self.address), RESERVED_SIZE) };
    }
}

/// A page of this process. Each wait locks the page for the GPUs, and unlocks it (`hsa_amd_memory_lock`). No other code
/// uses the page.
#[derive(Debug)]
pub(crate) struct PinnedPage {
    page: Mutex<Box<Page>>,
    gpus: Vec<NativeAgent>,
}

#[derive(Debug)]
#[repr(align(4096))]
struct Page([u8; PAGE_SIZE]);

fn new_page() -> Box<Page> {
    allocate_unlocked(|| Box::new(Page([0; PAGE_SIZE])), |page| &page.0)
}

impl PinnedPage {
    /// Creates the page, and waits once. Fails if the runtime cannot lock memory.
    pub fn new(native: &Native, gpus: Vec<NativeAgent>) -> Result<Self, Failure> {
        let page = Self { page: Mutex::new(new_page()), gpus };
        page.wait(native)?;
        Ok(page)
    }

    /// Waits by locking and unlocking the page. If the page cannot be unlocked, leaks the page and allocates another
    /// page. Locking the same page again would only increment a counter, and would not wait.
    fn wait(&self, native: &Native) -> Result<(), Failure> {
        let mut page = lock(&self.page);
        let start = page.0.as_ptr().expose_provenance();
        // SAFETY: the page stays allocated until it is unlocked, and nothing else locks it.
        unsafe { native.lock(start, PAGE_SIZE, &self.gpus) }?;
        // SAFETY: the page was just locked, and no GPU has been given its address.
        if let Err(Failure { call, status }) = unsafe { native.unlock_or_retry(start) } {
            crate::log::event!(WARN, call, %status, "a page of this process stays locked");
            std::mem::forget(std::mem::replace(&mut *page, new_page()));
        }
        Ok(())
    }
}
