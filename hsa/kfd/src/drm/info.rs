//! amdgpu's information about a GPU.

use super::DrmFile;
use super::abi::{DeviceInfo, Info, MemoryInfo};
use crate::abi::Plain;
use crate::driver::{Driver, Gpu};
use crate::errno::{EINVAL, Result};
use crate::page_table::PAGE;
use crate::profile::Profile;
use crate::user;

// Queries (`AMDGPU_INFO_*`).
const ACCEL_WORKING: u32 = 0x00;
const HW_IP_COUNT: u32 = 0x03;
const VRAM_USAGE: u32 = 0x10;
const READ_REGISTER: u32 = 0x15;
const DEVICE: u32 = 0x16;
const VISIBLE_VRAM_USAGE: u32 = 0x17;
const MEMORY: u32 = 0x19;

const MAX_REGISTERS: u32 = 128;

/// `AMDGPU_IDS_FLAGS_FUSION`.
const INTEGRATED: u64 = 1;

pub(super) fn info(driver: &Driver, file: &DrmFile, info: &mut Info) -> Result<()> {
    let (address, capacity) = (info.address, info.size as usize);
    if address == 0 || capacity == 0 {
        return Err(EINVAL);
    }
    let (profile, gpu) = (driver.config.profile, &driver.gpus[file.gpu]);
    match info.query {
        ACCEL_WORKING => user::write_struct(address, capacity, &1u32),
        // There are no command rings: all work is submitted through amdkfd.
        HW_IP_COUNT => user::write_struct(address, capacity, &0u32),
        VRAM_USAGE | VISIBLE_VRAM_USAGE => user::write_struct(address, capacity, &gpu.vram.used()),
        READ_REGISTER => read_registers(address, capacity, info.parameters[1]),
        DEVICE => user::write_struct(address, capacity, &device(profile)),
        MEMORY => user::write_struct(address, capacity, &memory(driver, gpu)),
        query => {
            driver.log.unsupported(format_args!("INFO query {query:#x} = EINVAL"));
            Err(EINVAL)
        }
    }
}

/// Reads registers, which are all zero.
fn read_registers(address: u64, capacity: usize, count: u32) -> Result<()> {
    if count > MAX_REGISTERS {
        return Err(EINVAL);
    }
    let zeros = [0; MAX_REGISTERS as usize * 4];
    user::write(address, &zeros[..capacity.min(count as usize * 4)])
}

fn memory(driver: &Driver, gpu: &Gpu) -> MemoryInfo {
    // The total size, the usable size, the used size, and the size of the largest allocation.
    let heap = |size: u64, used: u64| [size, size - used.min(size), used, size - used.min(size)];
    let (size, used) = (gpu.vram.size, gpu.vram.used());
    let (visible, gtt) = (driver.config.profile.visible(size), &driver.gtt);
    let (vram, visible_vram) = (heap(size, used), heap(visible, used));
    MemoryInfo { vram, visible_vram, gtt: heap(gtt.size, gtt.used()) }
}

fn device(profile: &Profile) -> DeviceInfo {
    let zero = DeviceInfo::zero();
    DeviceInfo {
        device_id: profile.device,
        external_revision: profile.revision,
        family: profile.family,
        shader_engines: profile.shader_arrays,
        shader_arrays_per_engine: 1,
        // In kHz: 100 MHz, the rate of GET_CLOCK_COUNTERS.
        counter_frequency: 100_000,
        max_engine_clock: u64::from(profile.clock_mhz) * 1000,
        max_memory_clock: u64::from(profile.memory_clock_mhz) * 1000,
        active_units: profile.compute_units,
        ids_flags: if profile.integrated { INTEGRATED } else { 0 },
        address_offset: 1 << 16,
        address_max: 1 << 47,
        address_alignment: PAGE as u32,
        pte_fragment_size: 2 << 20,
        gart_page_size: PAGE as u32,
        vram_bit_width: profile.memory_width,
        wave_size: profile.wave_size,
        units_per_array: profile.compute_units / profile.shader_arrays,
        high_address_offset: 0xffff_8000_0000_0000,
        high_address_max: 0xffff_ffff_fff0_0000,
        ..zero
    }
}
