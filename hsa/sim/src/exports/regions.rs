//! Regions: the HSA standard's interface to memory pools. As in AMD's runtime, a region has the handle of its pool.

use super::call;
use crate::agents::Agent;
use crate::attribute::Value;
use crate::instance::Instance;
use crate::pools::Pool;
use crate::status::HsaResult;
use core::ffi::c_void;
use hsa_sys::*;

type Callback = Option<unsafe extern "C" fn(hsa_region_t, *mut c_void) -> hsa_status_t>;

/// The address at which AMD's runtime reports the LDS of a GPU (seen in 6.1.2, 6.4.3 and 7.2.4).
const LDS_BASE: u64 = 1 << 48;
/// The width of the CPU's memory bus in bits, and the clock of the CPU's memory in MHz: those of a DDR5 module.
const CPU_BUS: (u32, u32) = (64, 2400);

const FINE: u32 = HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED;

fn pool(instance: &Instance, region: hsa_region_t) -> HsaResult<Pool> {
    let pool = instance.pool(hsa_amd_memory_pool_t { handle: region.handle });
    pool.ok_or(HSA_STATUS_ERROR_INVALID_REGION)
}

/// Returns the regions that iteration lists for an agent. For a CPU, these are its own regions. For a GPU, these are
/// the regions of all CPUs; for the first GPU, its own regions come before them. Among the regions of CPUs,
/// fine-grained regions come first.
fn regions(instance: &Instance, agent: Agent) -> Vec<Pool> {
    let own = match agent {
        Agent::Gpu(0) => instance.pools(agent).filter(|pool| pool.visible).collect(),
        _ => Vec::new(),
    };
    let owners = instance.agents().filter(|owner| match agent {
        Agent::Cpu(_) => *owner == agent,
        Agent::Gpu(_) => matches!(owner, Agent::Cpu(_)),
    });
    let mut shared: Vec<Pool> = owners.flat_map(|owner| instance.pools(owner)).collect();
    shared.sort_by_key(|pool| pool.flags & FINE == 0);
    own.into_iter().chain(shared).collect()
}

fn attribute_of(instance: &Instance, pool: Pool, attribute: hsa_region_info_t) -> HsaResult<Value> {
    let gpu = match pool.owner {
        Agent::Gpu(number) => Some(&instance.config.gpus[number].hardware),
        Agent::Cpu(_) => None,
    };
    let (width, clock) = match gpu {
        _ if !pool.allocates() => (0, 0),
        Some(hardware) => (hardware.memory_width, hardware.memory_clock),
        None => CPU_BUS,
    };
    let size = |bytes: u64| Value::from(instance.reported_size(bytes));
    Ok(match attribute {
        HSA_REGION_INFO_SEGMENT => pool.segment.into(),
        HSA_REGION_INFO_GLOBAL_FLAGS => pool.flags.into(),
        HSA_REGION_INFO_SIZE => size(instance.pool_size(pool)),
        HSA_REGION_INFO_ALLOC_MAX_SIZE if pool.allocates() => size(instance.pool_size(pool)),
        HSA_REGION_INFO_ALLOC_MAX_SIZE => 0u64.into(),
        HSA_REGION_INFO_RUNTIME_ALLOC_ALLOWED => pool.allocates().into(),
        HSA_REGION_INFO_RUNTIME_ALLOC_GRANULE | HSA_REGION_INFO_RUNTIME_ALLOC_ALIGNMENT => {
            size(instance.granule(pool))
        }
        HSA_AMD_REGION_INFO_HOST_ACCESSIBLE => gpu.is_none().into(),
        HSA_AMD_REGION_INFO_BASE => (if pool.allocates() { 0 } else { LDS_BASE }).into(),
        HSA_AMD_REGION_INFO_BUS_WIDTH => width.into(),
        HSA_AMD_REGION_INFO_MAX_CLOCK_FREQUENCY => clock.into(),
        // AMD's runtime rejects HSA_REGION_INFO_ALLOC_MAX_PRIVATE_WORKGROUP_SIZE too.
        _ => return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT),
    })
}

super::exports! {
    hsa_agent_iterate_regions(agent: hsa_agent_t, callback: Callback, data: *mut c_void) => |instance| {
        let agent = instance.agent(agent)?;
        let callback = callback.ok_or(HSA_STATUS_ERROR_INVALID_ARGUMENT)?;
        for pool in regions(instance, agent) {
            let region = hsa_region_t { handle: instance.pool_handle(pool).handle };
            // SAFETY: `callback` accepts `data`, as the caller promises.
            match unsafe { callback(region, data) } {
                HSA_STATUS_SUCCESS => {}
                status => return Err(status),
            }
        }
        Ok(())
    };

    hsa_region_get_info(
        region: hsa_region_t,
        attribute: hsa_region_info_t,
        value: *mut c_void,
    ) => |instance| {
        let found = attribute_of(instance, pool(instance, region)?, attribute)?;
        // SAFETY: the caller has room for the attribute's type.
        unsafe { found.write(value) }
    };

    hsa_memory_allocate(region: hsa_region_t, size: usize, address: *mut *mut c_void) => |instance| {
        pool(instance, region)?;
        let pool = hsa_amd_memory_pool_t { handle: region.handle };
        // SAFETY: both functions have the same contract.
        unsafe { crate::pool_memory::allocate(instance, pool, size, 0, address) }
    };

    hsa_memory_free(address: *mut c_void) => |instance| {
        // SAFETY: both functions have the same contract.
        unsafe { crate::pool_memory::free(instance, address) }
    };

    // Registration has no effect. AMD's runtime, too, only checks the arguments.
    hsa_memory_register(address: *mut c_void, size: usize) => |_| {
        if size == 0 && !address.is_null() { Err(HSA_STATUS_ERROR_INVALID_ARGUMENT) } else { Ok(()) }
    };

    hsa_memory_deregister(_address: *mut c_void, _size: usize) => |_| Ok(());

    hsa_memory_assign_agent(
        address: *mut c_void,
        agent: hsa_agent_t,
        access: hsa_access_permission_t,
    ) => |instance| {
        let permissions = HSA_ACCESS_PERMISSION_RO..=HSA_ACCESS_PERMISSION_RW;
        if address.is_null() || !permissions.contains(&access) {
            return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT);
        }
        instance.agent(agent).map(drop)
    };
}
