//! `hipMalloc` and related functions.

use crate::allocations::{Allocation, Kind, out_of_memory};
use crate::devices::{current_device, memory_size};
use crate::errors;
use crate::pointers::{address, not_null, write_out, write_unless_null};
use crate::process::{process, profile};
use crate::status::{Failure, run};
use crate::streams::find;
use crate::types::{hipError_t, hipStream_t};
use core::ffi::{c_int, c_uint, c_void};
use hsa_vmm::hip::HipProfile;
use hsa_vmm::pool::PoolFlags;
use hsa_vmm::{Agent, AgentId, PoolMemory};

/// Allocates memory of a device, from a pool with `pool_flags`. Writes null for 0 bytes. `flags` are the flags that
/// `hipPointerGetAttributes` returns for the memory.
fn allocate_on_device(
    ptr: *mut *mut c_void,
    size: usize,
    device: impl FnOnce() -> Result<c_int, Failure>,
    (flags, pool_flags): (c_uint, PoolFlags),
) -> Result<(), Failure> {
    // SAFETY: the C caller passes null or a writable pointer (lib.rs).
    unsafe { write_out("ptr", ptr, core::ptr::null_mut()) }?;
    let process = process()?;
    let device = device()?;
    let agent = process.devices.agent(device)?;
    if size == 0 {
        return Ok(());
    }
    let has_pool = |agent: &Agent| agent.pools.iter().any(|pool| pool.flags.contains(pool_flags));
    // On a device without fine-grained memory, allocates coarse-grained memory, as HIP does.
    let pool_flags = match process.runtime.agent(agent).is_some_and(has_pool) {
        true => pool_flags,
        false => PoolFlags::COARSE_GRAINED,
    };
    let memory = PoolMemory::allocate_with(&process.runtime, agent, size, pool_flags)?;
    let allocation = Allocation::new(memory, Kind::Device, flags, device);
    // SAFETY: the C caller passes null or a writable pointer (lib.rs).
    unsafe { write_out("ptr", ptr, process.allocations.insert(allocation)?) }
}

/// The flags for functions that take no flags: 0, which `hipPointerGetAttributes` returns, and the flags of the pool.
const COARSE: (c_uint, PoolFlags) = (0, PoolFlags::COARSE_GRAINED);

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMalloc(ptr: *mut *mut c_void, size: usize) -> hipError_t {
    run("hipMalloc", || allocate_on_device(ptr, size, || Ok(current_device()), COARSE))
}

/// The alignment of rows, as in HIP.
const PITCH_ALIGNMENT: usize = 256;

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMallocPitch(
    ptr: *mut *mut c_void,
    pitch: *mut usize,
    width: usize,
    height: usize,
) -> hipError_t {
    run("hipMallocPitch", || {
        not_null("pitch", pitch)?;
        let row = width.checked_next_multiple_of(PITCH_ALIGNMENT).ok_or_else(|| {
            Failure::invalid_argument("width", format_args!("({width}) exceeds the address space"))
        })?;
        // A size that overflows is larger than any memory.
        let size = row.saturating_mul(height);
        allocate_on_device(ptr, size, || Ok(current_device()), COARSE)?;
        // As in HIP, nothing is written if there are no bytes.
        if size > 0 {
            // SAFETY: the C caller passes null or a writable pointer (lib.rs).
            unsafe { write_out("pitch", pitch, row) }?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMallocAsync(
    ptr: *mut *mut c_void,
    size: usize,
    raw: hipStream_t,
) -> hipError_t {
    run("hipMallocAsync", || allocate_on_device(ptr, size, || Ok(find(raw)?.device), COARSE))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipExtMallocWithFlags(
    ptr: *mut *mut c_void,
    size: usize,
    flags: c_uint,
) -> hipError_t {
    run("hipExtMallocWithFlags", || {
        let pool_flags = match flags {
            0 => PoolFlags::COARSE_GRAINED,
            1 => PoolFlags::FINE_GRAINED,
            2 if size == 8 => return Err(Failure::not_supported("signal memory")),
            2 => return Err(Failure::invalid_argument("size", "of signal memory must be 8")),
            3 => return Err(Failure::not_supported("uncached memory")),
            4 => return Err(Failure::not_supported("contiguous memory")),
            _ => {
                return Err(Failure::invalid_argument(
                    "flags",
                    format_args!("({flags:#x}) are invalid"),
                ));
            }
        };
        allocate_on_device(ptr, size, || Ok(current_device()), (flags, pool_flags))
    })
}

/// Allocates host memory that all devices can access.
fn allocate_on_host(
    ptr: *mut *mut c_void,
    size: usize,
    kind: Kind,
    flags: c_uint,
) -> Result<(), Failure> {
    // SAFETY: the C caller passes null or a writable pointer (lib.rs).
    unsafe { write_out("ptr", ptr, core::ptr::null_mut()) }?;
    let process = process()?;
    process.devices.require()?;
    if size == 0 {
        return Ok(());
    }
    let memory = PoolMemory::allocate(&process.runtime, process.runtime.host().id(), size)?;
    let devices: Vec<AgentId> = process.devices.iter().collect();
    memory.allow(&devices).map_err(out_of_memory)?;
    let allocation = Allocation::new(memory, kind, flags, current_device());
    // SAFETY: the C caller passes null or a writable pointer (lib.rs).
    unsafe { write_out("ptr", ptr, process.allocations.insert(allocation)?) }
}

const UNCACHED: c_uint = 0x1000_0000;

/// The valid flags of `hipHostMalloc`: portable, mapped, write-combined, uncached, NUMA of the user, coherent and
/// non-coherent. Except for uncached, they have no effect in this library.
const HOST_FLAGS: c_uint = 0x7 | UNCACHED | 0x2000_0000 | 0x4000_0000 | 0x8000_0000;

/// The valid flags of `hipHostAlloc`: portable, mapped, write-combined and uncached.
const HOST_ALLOC_FLAGS: c_uint = 0x7 | UNCACHED;

fn host_malloc(
    ptr: *mut *mut c_void,
    size: usize,
    flags: c_uint,
    valid: c_uint,
) -> Result<(), Failure> {
    let both_coherencies = 0x4000_0000 | 0x8000_0000;
    if flags & !valid != 0 || flags & both_coherencies == both_coherencies {
        return Err(Failure::invalid_argument("flags", format_args!("({flags:#x}) are invalid")));
    }
    if flags & UNCACHED != 0 {
        return Err(Failure::not_supported("uncached memory of the host"));
    }
    allocate_on_host(ptr, size, Kind::Host, flags)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipHostMalloc(
    ptr: *mut *mut c_void,
    size: usize,
    flags: c_uint,
) -> hipError_t {
    run("hipHostMalloc", || host_malloc(ptr, size, flags, HOST_FLAGS))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipHostAlloc(ptr: *mut *mut c_void, size: usize, flags: c_uint) -> hipError_t {
    run("hipHostAlloc", || host_malloc(ptr, size, flags, HOST_ALLOC_FLAGS))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMallocHost(ptr: *mut *mut c_void, size: usize) -> hipError_t {
    run("hipMallocHost", || host_malloc(ptr, size, 0, HOST_FLAGS))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemAllocHost(ptr: *mut *mut c_void, size: usize) -> hipError_t {
    run("hipMemAllocHost", || host_malloc(ptr, size, 0, HOST_FLAGS))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMallocManaged(
    ptr: *mut *mut c_void,
    size: usize,
    flags: c_uint,
) -> hipError_t {
    run("hipMallocManaged", || {
        if flags != 1 && flags != 2 {
            let problem = format!("({flags:#x}) must be hipMemAttachGlobal or hipMemAttachHost");
            return Err(Failure::invalid_argument("flags", problem));
        }
        if size == 0 {
            return Err(Failure::invalid_argument("size", "is 0"));
        }
        // As in HIP, `hipPointerGetAttributes` returns no flags.
        allocate_on_host(ptr, size, Kind::Managed, 0)
    })
}

/// Frees memory of a device or of the host. Does nothing for null. As in HIP, each function that frees memory accepts
/// each kind of memory. rocSHMEM relies on this.
fn free(ptr: *mut c_void) -> Result<(), Failure> {
    let process = process()?;
    process.devices.require()?;
    if ptr.is_null() {
        return Ok(());
    }
    process.allocations.free(address(ptr), || process.why_not_freeable(address(ptr)))
}

#[unsafe(no_mangle)]
extern "C" fn hipFree(ptr: *mut c_void) -> hipError_t {
    run("hipFree", || free(ptr))
}

#[unsafe(no_mangle)]
extern "C" fn hipFreeAsync(ptr: *mut c_void, raw: hipStream_t) -> hipError_t {
    run("hipFreeAsync", || {
        process()?;
        // In HIP 6, null is an error, and is checked first.
        if profile() == HipProfile::Hip6 {
            not_null("ptr", ptr)?;
        }
        find(raw)?;
        free(ptr)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipHostFree(ptr: *mut c_void) -> hipError_t {
    run("hipHostFree", || free(ptr))
}

#[unsafe(no_mangle)]
extern "C" fn hipFreeHost(ptr: *mut c_void) -> hipError_t {
    run("hipFreeHost", || free(ptr))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemGetInfo(free: *mut usize, total: *mut usize) -> hipError_t {
    run("hipMemGetInfo", || {
        let process = process()?;
        let agent = process.devices.agent(current_device())?;
        // As in HIP, each pointer may be null. Without pointers, the call succeeds without a query.
        if free.is_null() && total.is_null() {
            return Ok(());
        }
        let Some(available) = process.runtime.available_memory(agent) else {
            let message = "this runtime does not report the amount of free memory";
            return Err(Failure::new(errors::NOT_SUPPORTED, message));
        };
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe {
            write_unless_null(total, process.runtime.agent(agent).map_or(0, memory_size));
            write_unless_null(free, available.saturating_sub(process.hidden_memory));
        }
        Ok(())
    })
}
