//! The emulated machine: its GPUs, and what the process holds of them.

use crate::arena::Arena;
use crate::buffer::{Buffers, Vram};
use crate::config::Config;
use crate::errno::{EINVAL, Result};
use crate::kfd::Process;
use crate::log::Log;
use crate::sysfs;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The minor number of the first render node.
pub(crate) const FIRST_RENDER: usize = 128;

/// The major number of DRM's devices.
pub(crate) const DRM_MAJOR: u32 = 226;

/// The major number of `/dev/kfd`, which the kernel hands out as it comes.
pub(crate) const KFD_MAJOR: u32 = 511;

/// One GPU.
#[derive(Debug)]
pub(crate) struct Gpu {
    /// What amdkfd calls it.
    pub(crate) id: u32,
    pub(crate) vram: Arc<Vram>,
}

/// The emulated driver of this process.
#[derive(Debug)]
pub(crate) struct Driver {
    /// The process whose driver it is.
    number: libc::pid_t,
    pub(crate) config: Config,
    pub(crate) log: Log,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) arena: Arc<Arena>,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) process: Process,
    /// The folder that stands for `/`.
    pub(crate) tree: String,
}

impl Driver {
    fn new(number: libc::pid_t) -> Self {
        let config = Config::from_environment();
        let gpu = |index| Gpu { id: gpu_id(index), vram: Vram::new(config.memory) };
        let gpus: Vec<Gpu> = (0..config.gpus).map(gpu).collect();
        let tree = sysfs::write(&config);
        let process = Process::new(gpus.len());
        let (log, arena) = (Log::from_environment(), Arena::new());
        let buffers = Buffers::new(arena.clone());
        Self { number, config, log, gpus, arena, buffers, process, tree }
    }

    /// Which GPU amdkfd calls so.
    pub(crate) fn gpu(&self, id: u32) -> Result<usize> {
        self.gpus.iter().position(|gpu| gpu.id == id).ok_or(EINVAL)
    }
}

/// Sixteen bits, as they are part of what `mmap` takes.
pub(crate) fn gpu_id(index: usize) -> u32 {
    0x1001 + 0x111 * index as u32
}

/// The driver, started when the process first names one of its paths. A child that was forked
/// starts its own, as amdkfd keeps nothing of the parent for it.
pub(crate) fn get() -> &'static Driver {
    static CURRENT: AtomicPtr<Driver> = AtomicPtr::new(std::ptr::null_mut());
    static BIRTH: Mutex<()> = Mutex::new(());
    // SAFETY: asks for a number and touches no memory.
    let process = unsafe { libc::getpid() };
    let current = || {
        // SAFETY: null, or leaked below and never freed.
        let current = unsafe { CURRENT.load(Ordering::Acquire).as_ref() };
        current.filter(|driver| driver.number == process)
    };
    if let Some(driver) = current() {
        return driver;
    }
    let _birth = BIRTH.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(driver) = current() {
        return driver;
    }
    let driver: &'static Driver = Box::leak(Box::new(Driver::new(process)));
    CURRENT.store(std::ptr::from_ref(driver).cast_mut(), Ordering::Release);
    driver
}
