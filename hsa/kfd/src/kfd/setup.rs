//! Calls that set a process up, and queries of the driver and its GPUs.

use super::abi::{
    AcquireVm, Aperture, Apertures, AvailableMemory, ClockCounters, MemoryPolicy, RuntimeEnable,
    ScratchBacking, TileConfig, TrapHandler, Version, Xnack,
};
use crate::descriptors::{self, Device};
use crate::driver::Driver;
use crate::errno::{EBUSY, EINVAL, EPERM, Result};
use crate::user;
use std::sync::Arc;

/// Reports version 1.17. Virtual memory management needs 1.15, contiguous allocation 1.16.
pub(crate) fn version(_: &Driver, version: &mut Version) -> Result<()> {
    *version = Version { major: 1, minor: 17 };
    Ok(())
}

pub(crate) fn memory_policy(driver: &Driver, policy: &mut MemoryPolicy) -> Result<()> {
    // 0 is the coherent policy, and 1 is the non-coherent policy.
    if policy.default_policy > 1 || policy.alternate_policy > 1 {
        return Err(EINVAL);
    }
    driver.gpu(policy.gpu_id).map(drop)
}

pub(crate) fn scratch_backing(driver: &Driver, backing: &mut ScratchBacking) -> Result<()> {
    driver.gpu(backing.gpu_id).map(drop)
}

pub(crate) fn trap_handler(driver: &Driver, handler: &mut TrapHandler) -> Result<()> {
    driver.gpu(handler.gpu_id).map(drop)
}

/// The lengths of amdgpu's `tile_mode_array` and `macrotile_mode_array`.
const TILE_MODES: u32 = 32;
const MACRO_TILE_MODES: u32 = 16;

/// Reports the layout of images in memory. amdgpu sets the tile modes, the banks and the ranks only for GPUs before
/// GFX9: for the emulated GPUs, they are zero.
pub(crate) fn tile_config(driver: &Driver, config: &mut TileConfig) -> Result<()> {
    driver.gpu(config.gpu_id)?;
    config.address_config = driver.config.profile.address_config;
    (config.banks, config.ranks) = (0, 0);
    let write_zeros = |address, count: &mut u32, length: u32| {
        *count = (*count).min(length);
        let zeros = [0; TILE_MODES as usize * size_of::<u32>()];
        let size = *count as usize * size_of::<u32>();
        user::write(address, &zeros[..size]).inspect_err(|_| *count = 0)
    };
    write_zeros(config.tiles, &mut config.tile_count, TILE_MODES)?;
    write_zeros(config.macro_tiles, &mut config.macro_tile_count, MACRO_TILE_MODES)
}

/// Reports no capabilities: no debugger can attach.
pub(crate) fn runtime_enable(_: &Driver, enable: &mut RuntimeEnable) -> Result<()> {
    enable.capabilities = 0;
    Ok(())
}

/// Reports that page faults are never retried. A negative number queries the mode.
pub(crate) fn xnack(_: &Driver, xnack: &mut Xnack) -> Result<()> {
    match xnack.enabled {
        ..0 => xnack.enabled = 0,
        0 => {}
        1.. => return Err(EPERM),
    }
    Ok(())
}

pub(crate) fn available_memory(driver: &Driver, memory: &mut AvailableMemory) -> Result<()> {
    let gpu = driver.gpu(memory.gpu_id)?;
    memory.available = driver.config.faults.reported_size(driver.gpus[gpu].vram.available());
    Ok(())
}

/// Reports the GPU's clock, and the system clock in nanoseconds.
pub(crate) fn clock_counters(driver: &Driver, counters: &mut ClockCounters) -> Result<()> {
    driver.gpu(counters.gpu_id)?;
    let now = nanoseconds();
    counters.gpu_clock = gpu_clock();
    counters.cpu_clock = now;
    counters.system_clock = now;
    counters.system_frequency = 1_000_000_000;
    Ok(())
}

/// The length of a tick of a GPU's clock, which runs at 100 MHz.
const GPU_CLOCK_NANOSECONDS: u64 = 10;

/// Returns the time of a GPU's clock in ticks.
pub(crate) fn gpu_clock() -> u64 {
    nanoseconds() / GPU_CLOCK_NANOSECONDS
}

fn nanoseconds() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel only fills the struct.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the address ranges (apertures) of a GPU.
fn aperture(gpu_id: u32) -> Aperture {
    let (lds, scratch, size) = (1 << 48, 2 << 48, 1 << 32);
    Aperture {
        lds_base: lds,
        lds_limit: lds + size - 1,
        scratch_base: scratch,
        scratch_limit: scratch + size - 1,
        gpuvm_base: 0x4000,
        gpuvm_limit: (1 << 47) - 1,
        gpu_id,
        pad: 0,
    }
}

/// Writes the apertures of the GPUs. A count of 0 queries the number of GPUs.
pub(crate) fn apertures(driver: &Driver, arguments: &mut Apertures) -> Result<()> {
    let available = driver.gpus.len();
    if arguments.count == 0 {
        arguments.count = available as u32;
        return Ok(());
    }
    let count = available.min(arguments.count as usize);
    for (index, gpu) in driver.gpus[..count].iter().enumerate() {
        let address = arguments.address.wrapping_add((index * size_of::<Aperture>()) as u64);
        user::write_struct(address, size_of::<Aperture>(), &aperture(gpu.id))?;
    }
    arguments.count = count as u32;
    Ok(())
}

/// Handles `ACQUIRE_VM`: from now on, the process uses the page table of this open render node on
/// the node's GPU.
pub(crate) fn acquire_vm(driver: &Driver, acquire: &mut AcquireVm) -> Result<()> {
    let gpu = driver.gpu(acquire.gpu_id)?;
    let Some(Device::Render(file)) = descriptors::get(acquire.drm_fd as i32) else {
        return Err(EINVAL);
    };
    if file.gpu != gpu {
        return Err(EINVAL);
    }
    let mut state = driver.process.state();
    match &state.drm_files[gpu] {
        Some(current) if Arc::ptr_eq(current, &file) => Ok(()),
        Some(_) => Err(EBUSY),
        None => {
            state.drm_files[gpu] = Some(file);
            Ok(())
        }
    }
}
