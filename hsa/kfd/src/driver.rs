//! The emulated machine: its GPUs, and the process's state in the driver.

use crate::buffer::Buffers;
use crate::config::Config;
use crate::errno::{EINVAL, Result};
use crate::kfd::{DeviceFile, Process};
use crate::log::{self, Log};
use crate::sysfs;
use crate::vram::{LimitedMemory, MemoryUsage};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) const FIRST_RENDER_MINOR: usize = 128;

pub(crate) const DRM_MAJOR: u32 = 226;

/// The major number of `/dev/kfd`: one of the numbers that the kernel assigns dynamically.
pub(crate) const KFD_MAJOR: u32 = 511;

#[derive(Debug)]
pub(crate) struct Gpu {
    /// amdkfd's identifier of the GPU.
    pub(crate) id: u32,
    pub(crate) vram: LimitedMemory,
}

/// The emulated driver of this process.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) config: Config,
    pub(crate) log: Log,
    pub(crate) gpus: Vec<Gpu>,
    /// The system memory that the GPUs can use (GTT).
    pub(crate) gtt: LimitedMemory,
    pub(crate) device_file: DeviceFile,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) process: Process,
    /// The folder with the emulated files of `/dev` and `/sys`.
    pub(crate) tree: String,
}

impl Driver {
    /// Creates the driver that the environment configures. Fails with a message about an invalid
    /// variable.
    fn new() -> std::result::Result<Self, String> {
        let config = Config::from_environment()?;
        let log = Log::from_environment()?;
        let memory = match &config.machine {
            Some(name) => MemoryUsage::shared(name).map_err(|error| {
                format!("HSA_KFD: cannot open the memory of machine {name:?}: {error}")
            })?,
            None => MemoryUsage::unshared(),
        };
        let gpu = |index| {
            let vram = LimitedMemory::new(memory.clone(), index, config.memory);
            Gpu { id: gpu_id(index), vram }
        };
        let gpus: Vec<Gpu> = (0..config.gpus).map(gpu).collect();
        let tree = sysfs::write(&config)
            .map_err(|error| format!("cannot write the files of the emulated driver: {error}"))?;
        let process = Process::new(gpus.len());
        let (device_file, buffers) = (DeviceFile::default(), Buffers::new());
        let gtt = LimitedMemory::new(MemoryUsage::unshared(), 0, sysfs::gtt_memory());
        Ok(Self { config, log, gpus, gtt, device_file, buffers, process, tree })
    }

    /// Returns the index of the GPU that has this identifier in amdkfd.
    pub(crate) fn gpu(&self, id: u32) -> Result<usize> {
        let index = id.checked_sub(FIRST_ID).ok_or(EINVAL)? / ID_STEP;
        let gpu = self.gpus.get(index as usize).filter(|gpu| gpu.id == id);
        gpu.map(|_| index as usize).ok_or(EINVAL)
    }
}

/// The identifier of the first GPU, an arbitrary number. In amdkfd, identifiers are hashes of a GPU's properties.
const FIRST_ID: u32 = 0x1001;
/// The difference between the identifiers of two consecutive GPUs.
const ID_STEP: u32 = 0x111;

/// Returns amdkfd's identifier of a GPU. The identifier has 16 bits to fit into `mmap` offsets.
pub(crate) fn gpu_id(index: usize) -> u32 {
    FIRST_ID + ID_STEP * index as u32
}

static CURRENT: AtomicPtr<Driver> = AtomicPtr::new(std::ptr::null_mut());

/// Returns the lock that a thread holds while it starts the driver.
pub(crate) fn start_lock() -> MutexGuard<'static, ()> {
    static START: Mutex<()> = Mutex::new(());
    START.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn current() -> Option<&'static Driver> {
    // SAFETY: the pointer is null, or `get` has leaked the driver, which is never freed.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// Returns the driver. Starts it on first use. An invalid configuration ends the process: no
/// program may run on a machine other than the configured one.
pub(crate) fn get() -> &'static Driver {
    if let Some(driver) = current() {
        return driver;
    }
    let _start = start_lock();
    if let Some(driver) = current() {
        return driver;
    }
    let driver = Driver::new().unwrap_or_else(|error| {
        log::print_error(format_args!("{error}"));
        // SAFETY: the call ends the process at once, without exit handlers.
        unsafe { libc::_exit(2) }
    });
    let driver: &'static Driver = Box::leak(Box::new(driver));
    CURRENT.store(std::ptr::from_ref(driver).cast_mut(), Ordering::Release);
    driver
}

/// Forgets the parent's driver in a forked child.
pub(crate) fn reset_after_fork() {
    CURRENT.store(std::ptr::null_mut(), Ordering::Release);
}
