//! The level of `Vmm`.

use super::{Caller, Layout, Outcome};
use crate::runtime::{BenchRuntime, SIZE};
use hsa_vmm::{
    Access, AccessDescriptor, Address, AgentId, AllocationProperties, Error, Handle, HandleType,
    Vmm,
};
use std::hint::black_box;
use std::os::fd::OwnedFd;

/// The calls of [`Vmm`], and the objects of a round.
#[derive(Debug)]
pub(crate) struct VmmCalls {
    vmm: Vmm,
    gpu: AgentId,
    properties: AllocationProperties,
    grants: Vec<AccessDescriptor>,
    reserved: Vec<Address>,
    created: Vec<Handle>,
    retained: Vec<Handle>,
    exported: Vec<OwnedFd>,
    imported: Vec<Handle>,
    /// The live mappings: base address, size, handle, and the addresses of the mappings.
    live: Option<(Address, usize, Handle, Vec<usize>)>,
}

const DESCRIPTOR: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

impl VmmCalls {
    pub fn new(target: &BenchRuntime, properties: AllocationProperties, calls: usize) -> Self {
        let gpus = target.granted_gpus();
        let grant =
            |&(_, agent): &(usize, AgentId)| AccessDescriptor { agent, access: Access::ReadWrite };
        Self {
            vmm: target.vmm.clone(),
            gpu: gpus[0].1,
            properties,
            grants: gpus.iter().rev().map(grant).collect(),
            reserved: vec![Address::NULL; calls],
            created: vec![Handle::from_bits(0); calls],
            retained: Vec::with_capacity(calls),
            exported: Vec::with_capacity(calls),
            imported: Vec::with_capacity(calls),
            live: None,
        }
    }

    /// Reserves addresses and maps `live` pages of them.
    pub fn map_live(&mut self, live: usize) -> Result<Layout, Box<dyn std::error::Error>> {
        let size = Layout::size(live);
        let base = self.vmm.address_reserve(size, SIZE, None)?;
        let handle = self.vmm.create(SIZE, &self.properties)?;
        let layout = Layout::new(base.get(), live);
        let mut mapped = Vec::with_capacity(live);
        for at in layout.live_addresses() {
            self.vmm.map(Address::new(at), SIZE, 0, handle)?;
            mapped.push(at);
        }
        self.live = Some((base, size, handle, mapped));
        Ok(layout)
    }

    fn cycle_once(&self) -> Result<(), Error> {
        let vmm = &self.vmm;
        let address = vmm.address_reserve(SIZE, SIZE, None)?;
        let handle = vmm.create(SIZE, &self.properties)?;
        vmm.map(address, SIZE, 0, handle)?;
        vmm.set_access(address, SIZE, &self.grants)?;
        black_box(vmm.get_access(self.gpu, address)?);
        vmm.unmap(address, SIZE)?;
        vmm.release(handle)?;
        vmm.address_free(address, SIZE)
    }
}

impl Caller for VmmCalls {
    fn reserve(&mut self, index: usize) -> Outcome {
        self.reserved[index] = self.vmm.address_reserve(SIZE, SIZE, None)?;
        Ok(())
    }

    fn create(&mut self, index: usize) -> Outcome {
        self.created[index] = self.vmm.create(SIZE, &self.properties)?;
        Ok(())
    }

    fn map(&mut self, index: usize, at: usize) -> Outcome {
        Ok(self.vmm.map(Address::new(at), SIZE, 0, self.created[index])?)
    }

    fn set_access(&mut self, _: usize, at: usize) -> Outcome {
        Ok(self.vmm.set_access(Address::new(at), SIZE, &self.grants)?)
    }

    fn get_access(&mut self, at: usize) -> Outcome {
        black_box(self.vmm.get_access(self.gpu, Address::new(at))?);
        Ok(())
    }

    fn retain(&mut self, _: usize, at: usize) -> Outcome {
        self.retained.push(self.vmm.retain_allocation_handle(Address::new(at))?);
        Ok(())
    }

    fn properties(&mut self, index: usize) -> Outcome {
        black_box(self.vmm.allocation_properties(self.created[index])?);
        Ok(())
    }

    fn export(&mut self, index: usize) -> Outcome {
        self.exported.push(self.vmm.export_to_shareable_handle(self.created[index], DESCRIPTOR)?);
        Ok(())
    }

    fn import(&mut self, index: usize) -> Outcome {
        self.imported
            .push(self.vmm.import_from_shareable_handle(&self.exported[index], DESCRIPTOR)?);
        Ok(())
    }

    fn unmap(&mut self, _: usize, at: usize) -> Outcome {
        Ok(self.vmm.unmap(Address::new(at), SIZE)?)
    }

    fn release(&mut self, index: usize) -> Outcome {
        Ok(self.vmm.release(self.created[index])?)
    }

    fn free(&mut self, index: usize) -> Outcome {
        Ok(self.vmm.address_free(self.reserved[index], SIZE)?)
    }

    fn cycle(&mut self) -> Outcome {
        Ok(self.cycle_once()?)
    }

    fn release_extras(&mut self) -> Outcome {
        for handle in self.retained.drain(..).chain(self.imported.drain(..)) {
            self.vmm.release(handle)?;
        }
        self.exported.clear();
        Ok(())
    }
}

impl Drop for VmmCalls {
    fn drop(&mut self) {
        let Some((base, size, handle, mapped)) = self.live.take() else { return };
        // Ignore failures: the measurement is over.
        for at in mapped {
            let _ = self.vmm.unmap(Address::new(at), SIZE);
        }
        let _ = self.vmm.release(handle);
        let _ = self.vmm.address_free(base, size);
    }
}
