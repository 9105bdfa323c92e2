//! The level of owned values.

use super::{Caller, Layout, Outcome};
use crate::runtime::{BenchRuntime, SIZE};
use hsa_vmm::{
    Access, AgentId, Allocation, AllocationProperties, Error, Mapping, Reservation, Vmm,
};
use std::hint::black_box;
use std::os::fd::OwnedFd;

/// The owned types' calls, and the objects of a round.
#[derive(Debug)]
pub(crate) struct OwnedCalls {
    vmm: Vmm,
    gpus: Vec<AgentId>,
    properties: AllocationProperties,
    reserved: Vec<Option<Reservation>>,
    created: Vec<Option<Allocation>>,
    mapped: Vec<Option<Mapping>>,
    retained: Vec<Allocation>,
    exported: Vec<OwnedFd>,
    imported: Vec<Allocation>,
    live: Vec<Mapping>,
    live_reservation: Option<Reservation>,
}

fn missing_value() -> Box<dyn std::error::Error> {
    "a value that the round needs is missing".into()
}

impl OwnedCalls {
    pub fn new(target: &BenchRuntime, properties: AllocationProperties, calls: usize) -> Self {
        Self {
            vmm: target.vmm.clone(),
            gpus: target.granted_gpus().into_iter().map(|(_, gpu)| gpu).collect(),
            properties,
            reserved: (0..calls).map(|_| None).collect(),
            created: (0..calls).map(|_| None).collect(),
            mapped: (0..calls).map(|_| None).collect(),
            retained: Vec::with_capacity(calls),
            exported: Vec::with_capacity(calls),
            imported: Vec::with_capacity(calls),
            live: Vec::new(),
            live_reservation: None,
        }
    }

    /// Reserves addresses and maps `live` pages of them.
    pub fn map_live(&mut self, live: usize) -> Result<Layout, Box<dyn std::error::Error>> {
        let reservation =
            Reservation::builder(Layout::size(live)).aligned_to(SIZE).reserve(&self.vmm)?;
        let memory = Allocation::create(&self.vmm, SIZE, &self.properties)?;
        let base = reservation.address().get();
        let layout = Layout::new(base, live);
        self.live.reserve(live);
        for at in layout.live_addresses() {
            self.live.push(reservation.map(at - base, &memory)?);
        }
        self.live_reservation = Some(reservation);
        Ok(layout)
    }

    fn cycle_once(&self) -> Result<(), Error> {
        let reservation = Reservation::builder(SIZE).aligned_to(SIZE).reserve(&self.vmm)?;
        let memory = Allocation::create(&self.vmm, SIZE, &self.properties)?;
        let mapping = reservation.map(0, &memory)?;
        mapping.grant(&self.gpus, Access::ReadWrite)?;
        black_box(mapping.access(self.gpus[0])?);
        mapping.unmap()?;
        memory.release()?;
        Ok(reservation.free()?)
    }
}

impl Caller for OwnedCalls {
    fn reserve(&mut self, index: usize) -> Outcome {
        self.reserved[index] =
            Some(Reservation::builder(SIZE).aligned_to(SIZE).reserve(&self.vmm)?);
        Ok(())
    }

    fn create(&mut self, index: usize) -> Outcome {
        self.created[index] = Some(Allocation::create(&self.vmm, SIZE, &self.properties)?);
        Ok(())
    }

    fn map(&mut self, index: usize, at: usize) -> Outcome {
        let (reservation, memory) = (
            self.live_reservation.as_ref().ok_or_else(missing_value)?,
            self.created[index].as_ref().ok_or_else(missing_value)?,
        );
        self.mapped[index] = Some(reservation.map(at - reservation.address().get(), memory)?);
        Ok(())
    }

    fn set_access(&mut self, index: usize, _: usize) -> Outcome {
        let mapping = self.mapped[index].as_ref().ok_or_else(missing_value)?;
        Ok(mapping.grant(&self.gpus, Access::ReadWrite)?)
    }

    fn get_access(&mut self, at: usize) -> Outcome {
        // A program with owned mappings does not look them up by address. Therefore `at` only selects one
        // of the live mappings.
        let mapping = &self.live[at / SIZE % self.live.len()];
        black_box(mapping.access(self.gpus[0])?);
        Ok(())
    }

    fn retain(&mut self, _: usize, at: usize) -> Outcome {
        self.retained.push(Allocation::at(&self.vmm, hsa_vmm::Address::new(at))?);
        Ok(())
    }

    fn properties(&mut self, index: usize) -> Outcome {
        black_box(self.created[index].as_ref().ok_or_else(missing_value)?.properties());
        Ok(())
    }

    fn export(&mut self, index: usize) -> Outcome {
        self.exported.push(self.created[index].as_ref().ok_or_else(missing_value)?.export()?);
        Ok(())
    }

    fn import(&mut self, index: usize) -> Outcome {
        self.imported.push(Allocation::import(&self.vmm, &self.exported[index])?);
        Ok(())
    }

    fn unmap(&mut self, index: usize, _: usize) -> Outcome {
        let mapping = self.mapped[index].take().ok_or_else(missing_value)?;
        Ok(mapping.unmap()?)
    }

    fn release(&mut self, index: usize) -> Outcome {
        let memory = self.created[index].take().ok_or_else(missing_value)?;
        Ok(memory.release()?)
    }

    fn free(&mut self, index: usize) -> Outcome {
        let reservation = self.reserved[index].take().ok_or_else(missing_value)?;
        Ok(reservation.free()?)
    }

    fn cycle(&mut self) -> Outcome {
        Ok(self.cycle_once()?)
    }

    fn release_extras(&mut self) -> Outcome {
        self.retained.clear();
        self.imported.clear();
        self.exported.clear();
        Ok(())
    }
}
