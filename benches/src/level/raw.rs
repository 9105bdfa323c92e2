//! The benchmarks' lowest level: direct calls of the runtime's functions.

use super::{Caller, Layout, Outcome, call_error};
use crate::run::BenchError;
use crate::runtime::{BenchRuntime, SIZE};
use core::ffi::c_void;
use core::ptr::null_mut;
use hsa_sys::*;
use hsa_vmm::AgentId;

/// The runtime's own functions, and the objects of a round.
#[derive(Debug)]
pub(crate) struct RawCalls {
    vmem: Vmem,
    pool: hsa_amd_memory_pool_t,
    gpu: hsa_agent_t,
    grants: Vec<hsa_amd_memory_access_desc_t>,
    reserved: Vec<*mut c_void>,
    created: Vec<hsa_amd_vmem_alloc_handle_t>,
    retained: Vec<hsa_amd_vmem_alloc_handle_t>,
    exported: Vec<i32>,
    imported: Vec<hsa_amd_vmem_alloc_handle_t>,
    /// The live mappings: base address, size, handle, and the addresses of the mappings.
    live: Option<(*mut c_void, usize, hsa_amd_vmem_alloc_handle_t, Vec<usize>)>,
}

const NO_HANDLE: hsa_amd_vmem_alloc_handle_t = hsa_amd_vmem_alloc_handle_t { handle: 0 };

fn check(call: &str, status: hsa_status_t) -> Outcome {
    if status == HSA_STATUS_SUCCESS {
        Ok(())
    } else {
        Err(call_error(call, format_args!("{status:#x}")))
    }
}

macro_rules! call {
    ($vmem:expr, $name:ident($($argument:expr),*)) => {
        // SAFETY: the arguments are the runtime's own results, and pointers to locals and fields
        // that outlive the call.
        check(stringify!($name), unsafe { ($vmem.$name)($($argument),*) })
    };
}

unsafe extern "C" fn collect<T>(item: T, list: *mut c_void) -> hsa_status_t {
    // SAFETY: `list` is the vector that was passed to the iteration.
    unsafe { &mut *list.cast::<Vec<T>>() }.push(item);
    HSA_STATUS_SUCCESS
}

/// Returns the GPUs, and the first GPU's pool for allocations of coarse-grained memory.
fn discover(core: &Core) -> (Vec<hsa_agent_t>, Option<hsa_amd_memory_pool_t>) {
    let mut agents: Vec<hsa_agent_t> = Vec::new();
    // SAFETY: `collect` receives a vector of the type that it expects.
    unsafe { (core.hsa_iterate_agents)(Some(collect), (&raw mut agents).cast()) };
    agents.retain(|&agent| {
        let mut device_type = [0u32; 8];
        let destination = (&raw mut device_type).cast();
        // SAFETY: the agent is the runtime's own, and the result has 32 bits.
        unsafe { (core.hsa_agent_get_info)(agent, HSA_AGENT_INFO_DEVICE, destination) };
        device_type[0] == HSA_DEVICE_TYPE_GPU
    });
    let mut pools: Vec<hsa_amd_memory_pool_t> = Vec::new();
    if let Some(&gpu) = agents.first() {
        let destination = (&raw mut pools).cast();
        // SAFETY: `collect` receives a vector of the type that it expects.
        unsafe { (core.hsa_amd_agent_iterate_memory_pools)(gpu, Some(collect), destination) };
    }
    let pool = pools.into_iter().find(|&pool| {
        let query = |attribute| {
            let mut value = [0u32; 8];
            let destination = (&raw mut value).cast();
            // SAFETY: the pool is the runtime's own, and the results have at most 32 bits.
            unsafe { (core.hsa_amd_memory_pool_get_info)(pool, attribute, destination) };
            value[0]
        };
        let coarse = HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED;
        query(HSA_AMD_MEMORY_POOL_INFO_SEGMENT) == HSA_AMD_SEGMENT_GLOBAL
            && query(HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED) & 0xff == 1
            && query(HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS) & coarse != 0
    });
    (agents, pool)
}

impl RawCalls {
    pub fn new(target: &BenchRuntime, calls: usize) -> Result<Self, BenchError> {
        let missing = |name: &str| BenchError::Configuration(format!("the runtime has no {name}"));
        let vmem = target.table.vmem.map_err(|function| missing(function.0))?;
        let (gpus, pool) = discover(&target.table.core);
        let gpu = *gpus.first().ok_or_else(|| missing("GPU"))?;
        let grant = |&(number, _): &(usize, AgentId)| hsa_amd_memory_access_desc_t {
            permissions: HSA_ACCESS_PERMISSION_RW,
            agent_handle: gpus[number],
        };
        // The memory's owner comes last, as ROCm 7.14 requires.
        let grants = target.granted_gpus().iter().rev().map(grant).collect();
        Ok(Self {
            vmem,
            pool: pool.ok_or_else(|| missing("pool for memory of a GPU"))?,
            gpu,
            grants,
            reserved: vec![null_mut(); calls],
            created: vec![NO_HANDLE; calls],
            retained: Vec::with_capacity(calls),
            exported: vec![-1; calls],
            imported: Vec::with_capacity(calls),
            live: None,
        })
    }

    /// Reserves addresses and maps `live` pages of them.
    pub fn map_live(&mut self, live: usize) -> Result<Layout, Box<dyn std::error::Error>> {
        let size = Layout::size(live);
        let mut base = null_mut();
        self.reserve_one(&mut base, size)?;
        let handle = self.create_one()?;
        let layout = Layout::new(base as usize, live);
        let mut mapped = Vec::with_capacity(live);
        for at in layout.live_addresses() {
            call!(self.vmem, hsa_amd_vmem_map(at as *mut c_void, SIZE, 0, handle, 0))?;
            mapped.push(at);
        }
        self.live = Some((base, size, handle, mapped));
        Ok(layout)
    }

    fn reserve_one(&self, destination: &mut *mut c_void, size: usize) -> Outcome {
        match self.vmem.hsa_amd_vmem_address_reserve_align {
            Some(function) => {
                // SAFETY: `destination` is writable.
                let status = unsafe { function(destination, size, 0, SIZE as u64, 0) };
                check("hsa_amd_vmem_address_reserve_align", status)
            }
            None => call!(self.vmem, hsa_amd_vmem_address_reserve(destination, size, 0, 0)),
        }
    }

    fn create_one(&self) -> Result<hsa_amd_vmem_alloc_handle_t, Box<dyn std::error::Error>> {
        let mut handle = NO_HANDLE;
        let destination = &mut handle;
        call!(
            self.vmem,
            hsa_amd_vmem_handle_create(self.pool, SIZE, MEMORY_TYPE_PINNED, 0, destination)
        )?;
        Ok(handle)
    }
}

impl Caller for RawCalls {
    fn reserve(&mut self, index: usize) -> Outcome {
        let mut address = null_mut();
        self.reserve_one(&mut address, SIZE)?;
        self.reserved[index] = address;
        Ok(())
    }

    fn create(&mut self, index: usize) -> Outcome {
        self.created[index] = self.create_one()?;
        Ok(())
    }

    fn map(&mut self, index: usize, at: usize) -> Outcome {
        call!(self.vmem, hsa_amd_vmem_map(at as *mut c_void, SIZE, 0, self.created[index], 0))
    }

    fn set_access(&mut self, _: usize, at: usize) -> Outcome {
        let (list, count) = (self.grants.as_ptr(), self.grants.len());
        call!(self.vmem, hsa_amd_vmem_set_access(at as *mut c_void, SIZE, list, count))
    }

    fn get_access(&mut self, at: usize) -> Outcome {
        let mut access = HSA_ACCESS_PERMISSION_NONE;
        call!(self.vmem, hsa_amd_vmem_get_access(at as *mut c_void, &mut access, self.gpu))
    }

    fn retain(&mut self, _: usize, at: usize) -> Outcome {
        let mut handle = NO_HANDLE;
        call!(self.vmem, hsa_amd_vmem_retain_alloc_handle(&mut handle, at as *mut c_void))?;
        self.retained.push(handle);
        Ok(())
    }

    fn properties(&mut self, index: usize) -> Outcome {
        let (mut pool, mut kind) = (self.pool, MEMORY_TYPE_NONE);
        let handle = self.created[index];
        call!(
            self.vmem,
            hsa_amd_vmem_get_alloc_properties_from_handle(handle, &mut pool, &mut kind)
        )
    }

    fn export(&mut self, index: usize) -> Outcome {
        let destination = &mut self.exported[index];
        call!(self.vmem, hsa_amd_vmem_export_shareable_handle(destination, self.created[index], 0))
    }

    fn import(&mut self, index: usize) -> Outcome {
        let mut handle = NO_HANDLE;
        let descriptor = self.exported[index];
        call!(self.vmem, hsa_amd_vmem_import_shareable_handle(descriptor, &mut handle))?;
        self.imported.push(handle);
        Ok(())
    }

    fn unmap(&mut self, _: usize, at: usize) -> Outcome {
        call!(self.vmem, hsa_amd_vmem_unmap(at as *mut c_void, SIZE))
    }

    fn release(&mut self, index: usize) -> Outcome {
        call!(self.vmem, hsa_amd_vmem_handle_release(self.created[index]))
    }

    fn free(&mut self, index: usize) -> Outcome {
        call!(self.vmem, hsa_amd_vmem_address_free(self.reserved[index], SIZE))
    }

    fn cycle(&mut self) -> Outcome {
        let mut address = null_mut();
        self.reserve_one(&mut address, SIZE)?;
        let handle = self.create_one()?;
        call!(self.vmem, hsa_amd_vmem_map(address, SIZE, 0, handle, 0))?;
        self.set_access(0, address as usize)?;
        self.get_access(address as usize)?;
        call!(self.vmem, hsa_amd_vmem_unmap(address, SIZE))?;
        call!(self.vmem, hsa_amd_vmem_handle_release(handle))?;
        call!(self.vmem, hsa_amd_vmem_address_free(address, SIZE))
    }

    fn release_extras(&mut self) -> Outcome {
        for handle in self.retained.drain(..).chain(self.imported.drain(..)) {
            call!(self.vmem, hsa_amd_vmem_handle_release(handle))?;
        }
        for descriptor in &mut self.exported {
            if *descriptor >= 0 {
                // SAFETY: the caller of the export owns the descriptor.
                unsafe { libc::close(*descriptor) };
                *descriptor = -1;
            }
        }
        Ok(())
    }
}

impl Drop for RawCalls {
    fn drop(&mut self) {
        let Some((base, size, handle, mapped)) = self.live.take() else { return };
        // Ignore failures: the measurement is over.
        for at in mapped {
            let _ = call!(self.vmem, hsa_amd_vmem_unmap(at as *mut c_void, SIZE));
        }
        let _ = call!(self.vmem, hsa_amd_vmem_handle_release(handle));
        let _ = call!(self.vmem, hsa_amd_vmem_address_free(base, size));
    }
}
