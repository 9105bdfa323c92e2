//! What amdgpu tells of a GPU.

use super::DrmFile;
use super::abi::{Device, Info, Memory};
use crate::driver::{Driver, Gpu};
use crate::errno::{EINVAL, Result};
use crate::profile::Profile;
use crate::request;

const ACCEL_WORKING: u32 = 0x00;
const HW_IP_COUNT: u32 = 0x03;
const READ_REGISTER: u32 = 0x15;
const DEVICE: u32 = 0x16;
const MEMORY: u32 = 0x19;

pub(super) fn info(driver: &Driver, file: &DrmFile, info: &mut Info) -> Result<()> {
    let (address, room) = (info.address, info.size as usize);
    let profile = driver.config.profile;
    // SAFETY: the caller says that it has `size` bytes at the address.
    unsafe {
        match info.query {
            ACCEL_WORKING => request::give(address, room, &1u32),
            // There are no command rings: everything goes through amdkfd.
            HW_IP_COUNT => request::give(address, room, &0u32),
            READ_REGISTER => registers(address, room, info.parameters[1]),
            DEVICE => request::give(address, room, &device(profile)),
            MEMORY => request::give(address, room, &memory(&driver.gpus[file.gpu])),
            query => {
                driver.log.missing(format_args!("INFO query {query:#x}"));
                Err(EINVAL)
            }
        }
    }
}

/// Registers all read as zero.
///
/// # Safety
///
/// There is room for `room` bytes at the address.
unsafe fn registers(address: u64, room: usize, count: u32) -> Result<()> {
    if count as usize * 4 > room {
        return Err(EINVAL);
    }
    for index in 0..u64::from(count) {
        // SAFETY: each is within the room.
        unsafe { request::give(address + index * 4, 4, &0u32) }?;
    }
    Ok(())
}

fn memory(gpu: &Gpu) -> Memory {
    let (size, available) = (gpu.vram.size, gpu.vram.available());
    let vram = [size, available, size - available, available];
    Memory { vram, visible_vram: vram, gtt: [size, size, 0, size] }
}

fn device(profile: &Profile) -> Device {
    // SAFETY: `Plain`: all zeros is a value.
    let zero: Device = unsafe { std::mem::zeroed() };
    Device {
        device_id: profile.device,
        external_revision: profile.revision,
        family: profile.family,
        shader_engines: profile.shader_arrays,
        shader_arrays_per_engine: 1,
        // In kHz: 100 MHz, as GET_CLOCK_COUNTERS counts.
        counter_frequency: 100_000,
        max_engine_clock: u64::from(profile.clock_mhz) * 1000,
        max_memory_clock: u64::from(profile.memory_clock_mhz) * 1000,
        active_units: profile.compute_units,
        address_offset: 1 << 16,
        address_max: 1 << 47,
        address_alignment: 4096,
        pte_fragment_size: 2 << 20,
        gart_page_size: 4096,
        vram_bit_width: profile.memory_width,
        wave_size: profile.wave_size,
        units_per_array: profile.compute_units / profile.shader_arrays,
        high_address_offset: 0xffff_8000_0000_0000,
        high_address_max: 0xffff_ffff_fff0_0000,
        ..zero
    }
}
