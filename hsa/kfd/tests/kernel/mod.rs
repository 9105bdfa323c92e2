//! The calls of the kernel's interface that the tests use.

// No test file uses every item of this module.
#![allow(dead_code)]

pub mod engine;

use std::ffi::CString;
use std::io::Error;
use std::ptr::null_mut;

// Flags of allocations (`KFD_IOC_ALLOC_MEM_FLAGS_*`).
pub const VRAM: u64 = 1;
pub const GTT: u64 = 2;
pub const USERPTR: u64 = 4;
pub const PUBLIC: u64 = 1 << 29;
pub const WRITABLE: u64 = 1 << 31;

// Operations of `GEM_VA` (`AMDGPU_VA_OP_*`).
pub const MAP: u64 = 1;
pub const UNMAP: u64 = 2;
/// The flags of `GEM_VA` for an entry that is readable, writable and executable (`AMDGPU_VM_PAGE_*`).
pub const READ_WRITE_EXECUTE: u64 = 0xe;

/// The calls that the tests make. The names are those of the driver's log.
pub mod calls {
    /// The family of a call (`K` for amdkfd, `d` for DRM), and its number.
    pub type Call = (u8, u8);

    // Calls of amdkfd.
    pub const CREATE_QUEUE: Call = (b'K', 0x02);
    pub const DESTROY_QUEUE: Call = (b'K', 0x03);
    pub const CREATE_EVENT: Call = (b'K', 0x08);
    pub const DESTROY_EVENT: Call = (b'K', 0x09);
    pub const WAIT_EVENTS: Call = (b'K', 0x0c);
    pub const GET_TILE_CONFIG: Call = (b'K', 0x12);
    pub const GET_PROCESS_APERTURES_NEW: Call = (b'K', 0x14);
    pub const ACQUIRE_VM: Call = (b'K', 0x15);
    pub const ALLOC_MEMORY_OF_GPU: Call = (b'K', 0x16);
    pub const FREE_MEMORY_OF_GPU: Call = (b'K', 0x17);
    pub const MAP_MEMORY_TO_GPU: Call = (b'K', 0x18);
    pub const UNMAP_MEMORY_FROM_GPU: Call = (b'K', 0x19);
    pub const GET_DMABUF_INFO: Call = (b'K', 0x1c);
    pub const IMPORT_DMABUF: Call = (b'K', 0x1d);
    pub const SVM: Call = (b'K', 0x20);
    pub const AVAILABLE_MEMORY: Call = (b'K', 0x23);
    pub const EXPORT_DMABUF: Call = (b'K', 0x24);

    // Calls of DRM and amdgpu.
    pub const VERSION: Call = (b'd', 0x00);
    pub const GEM_CLOSE: Call = (b'd', 0x09);
    pub const PRIME_HANDLE_TO_FD: Call = (b'd', 0x2d);
    pub const PRIME_FD_TO_HANDLE: Call = (b'd', 0x2e);
    pub const GEM_CREATE: Call = (b'd', 0x40);
    pub const GEM_MMAP: Call = (b'd', 0x41);
    pub const CS: Call = (b'd', 0x44);
    pub const INFO: Call = (b'd', 0x45);
    pub const GEM_VA: Call = (b'd', 0x48);
}

pub type Result<T> = std::result::Result<T, i32>;

pub fn errno() -> i32 {
    Error::last_os_error().raw_os_error().expect("a number")
}

fn check(result: i32) -> Result<i32> {
    if result < 0 { Err(errno()) } else { Ok(result) }
}

pub fn open(path: &str) -> Result<i32> {
    let path = CString::new(path).expect("no zeros");
    // SAFETY: the path ends with a zero.
    check(unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) })
}

pub fn close(descriptor: i32) -> Result<i32> {
    // SAFETY: the tests close only descriptors that they have opened.
    check(unsafe { libc::close(descriptor) })
}

/// Makes a call whose argument is both input and output.
pub fn call<T: Copy>(
    descriptor: i32,
    (family, number): calls::Call,
    argument: &mut T,
) -> Result<()> {
    let size = size_of::<T>() as u64;
    let code = 3 << 30 | size << 16 | u64::from(family) << 8 | u64::from(number);
    // SAFETY: the code contains the length of the argument.
    check(unsafe { libc::ioctl(descriptor, code, &raw mut *argument) }).map(drop)
}

/// The first GPU of a process.
#[derive(Clone, Copy, Debug)]
pub struct Gpu {
    pub kfd: i32,
    pub drm: i32,
    pub id: u64,
}

impl Gpu {
    /// amdkfd's identifiers of the first and the second GPU.
    pub const ID: u64 = 0x1001;
    pub const SECOND_ID: u64 = 0x1112;

    pub fn open() -> Self {
        let kfd = open("/dev/kfd").expect("/dev/kfd");
        let drm = open("/dev/dri/renderD128").expect("a render node");
        let gpu = Self { kfd, drm, id: Self::ID };
        call(kfd, calls::ACQUIRE_VM, &mut [drm as u64 | gpu.id << 32]).expect("ACQUIRE_VM");
        gpu
    }

    pub fn close(self) {
        close(self.drm).expect("an open descriptor");
        close(self.kfd).expect("an open descriptor");
    }

    /// Allocates memory. Returns the memory's handle, and its offset for `mmap`.
    pub fn alloc(self, size: u64, flags: u64) -> Result<(u64, u64)> {
        self.alloc_at(0, size, flags)
    }

    pub fn alloc_at(self, address: u64, size: u64, flags: u64) -> Result<(u64, u64)> {
        let mut alloc = [address, size, 0, 0, self.id | (flags | WRITABLE) << 32];
        call(self.kfd, calls::ALLOC_MEMORY_OF_GPU, &mut alloc)?;
        Ok((alloc[2], alloc[3]))
    }

    /// Registers memory of the process with the GPU. Returns the memory's handle.
    pub fn register_host(self, host: u64, size: u64) -> Result<u64> {
        let mut alloc = [0, size, 0, host, self.id | (USERPTR | WRITABLE) << 32];
        call(self.kfd, calls::ALLOC_MEMORY_OF_GPU, &mut alloc)?;
        Ok(alloc[2])
    }

    pub fn free(self, handle: u64) -> Result<()> {
        call(self.kfd, calls::FREE_MEMORY_OF_GPU, &mut [handle])
    }

    pub fn export(self, handle: u64) -> Result<i32> {
        let mut export = [handle, (libc::O_CLOEXEC | libc::O_RDWR) as u64];
        call(self.kfd, calls::EXPORT_DMABUF, &mut export)?;
        Ok((export[1] >> 32) as i32)
    }

    /// Imports a dma-buf. Returns the buffer's handle in amdkfd.
    pub fn import(self, descriptor: i32) -> Result<u64> {
        let mut import = [0, 0, self.id | (descriptor as u64) << 32];
        call(self.kfd, calls::IMPORT_DMABUF, &mut import)?;
        Ok(import[1])
    }

    /// Maps memory for the GPU at the address of the allocation.
    pub fn map_memory(self, handle: u64) -> Result<()> {
        let gpus = [self.id as u32];
        call(self.kfd, calls::MAP_MEMORY_TO_GPU, &mut [handle, gpus.as_ptr() as u64, 1])
    }

    pub fn unmap_memory(self, handle: u64) -> Result<()> {
        let gpus = [self.id as u32];
        call(self.kfd, calls::UNMAP_MEMORY_FROM_GPU, &mut [handle, gpus.as_ptr() as u64, 1])
    }

    /// Imports a dma-buf. Returns the buffer's handle in DRM.
    pub fn prime(self, descriptor: i32) -> Result<u64> {
        let mut prime = [0u32, 0, descriptor as u32];
        call(self.drm, calls::PRIME_FD_TO_HANDLE, &mut prime)?;
        Ok(u64::from(prime[0]))
    }

    pub fn gem_close(self, handle: u64) -> Result<()> {
        call(self.drm, calls::GEM_CLOSE, &mut [handle])
    }

    pub fn gem_va(self, handle: u64, operation: u64, address: u64, size: u64) -> Result<()> {
        call(
            self.drm,
            calls::GEM_VA,
            &mut [handle, operation | READ_WRITE_EXECUTE << 32, address, 0, size],
        )
    }

    pub fn available(self) -> u64 {
        let mut available = [0, self.id];
        call(self.kfd, calls::AVAILABLE_MEMORY, &mut available).expect("AVAILABLE_MEMORY");
        available[0]
    }
}

/// Maps a descriptor, readable and writable.
pub fn mmap(descriptor: i32, offset: u64, length: usize) -> Result<*mut u8> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let (flags, offset) = (libc::MAP_SHARED, offset as i64);
    // SAFETY: the kernel chooses unused addresses.
    let mapped = unsafe { libc::mmap(null_mut(), length, protection, flags, descriptor, offset) };
    if mapped == libc::MAP_FAILED { Err(errno()) } else { Ok(mapped.cast()) }
}

/// Returns the lines of a GPU's mappings from the page-table file, and the file's last line.
pub fn page_tables() -> (Vec<String>, String) {
    let path = "/sys/kernel/debug/dri/128/amdgpu_vm_info";
    let text = std::fs::read_to_string(path).expect("page tables");
    let mappings = text.lines().filter(|line| line.starts_with("  ")).map(str::to_owned);
    (mappings.collect(), text.lines().last().expect("a line").to_owned())
}
