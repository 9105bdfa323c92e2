//! Any sequence of calls on the simulation: no crash, sound books, nothing left behind.
#![no_main]

use arbitrary::Arbitrary;
use hsa_vmm::simulation::{Config, Era};
use hsa_vmm::{
    Access, AccessDescriptor, Address, AgentId, AllocationProperties, Handle, HandleType, Runtime,
    Vmm,
};
use libfuzzer_sys::fuzz_target;
use std::os::fd::OwnedFd;

const PAGE: usize = 4096;
const SLOTS: usize = 4;

#[derive(Arbitrary, Debug)]
struct Input {
    era: u8,
    own_cpu_view: bool,
    calls: Vec<Call>,
}

/// A place: an offset in pages in one of the reservations, or any number at all.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Place {
    In { reservation: u8, page: u8 },
    Odd { reservation: u8, offset: u16 },
    Any(usize),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Which {
    Slot(u8),
    Any(u64),
}

#[derive(Arbitrary, Debug)]
enum Call {
    Reserve { slot: u8, pages: u8, alignment: u8 },
    Free { place: Place, pages: u8 },
    Create { slot: u8, pages: u8, gpu: bool },
    Release(Which),
    Map { place: Place, pages: u8, offset: u8, which: Which },
    Unmap { place: Place, pages: u8 },
    SetAccess { place: Place, pages: u8, grants: Vec<(u8, u8)> },
    GetAccess { place: Place, agent: u8 },
    Revoke { place: Place, pages: u8, agents: Vec<u8> },
    Retain { slot: u8, place: Place },
    Export { slot: u8, which: Which },
    Import { slot: u8, from: u8 },
    Write { place: Place, size: u8 },
    Read { place: Place, size: u8 },
    Fill { place: Place, pages: u8, value: u32 },
    Copy { to: Place, from: Place, pages: u8, agent: u8 },
}

struct State {
    vmm: Vmm,
    reservations: [Address; SLOTS],
    handles: [Handle; SLOTS],
    descriptors: [Option<OwnedFd>; SLOTS],
    agents: Vec<AgentId>,
}

impl State {
    fn address(&self, place: Place) -> Address {
        let base = |reservation: u8| self.reservations[reservation as usize % SLOTS].get();
        Address::new(match place {
            Place::In { reservation, page } => {
                base(reservation).wrapping_add((page % 32) as usize * PAGE)
            }
            Place::Odd { reservation, offset } => base(reservation).wrapping_add(offset as usize),
            Place::Any(address) => address,
        })
    }

    fn handle(&self, which: Which) -> Handle {
        match which {
            Which::Slot(slot) => self.handles[slot as usize % SLOTS],
            Which::Any(bits) => Handle::from_bits(bits),
        }
    }

    fn agent(&self, agent: u8) -> AgentId {
        let invented = AgentId::from_bits(u64::from(agent) << 30);
        self.agents.get(agent as usize % (self.agents.len() + 1)).copied().unwrap_or(invented)
    }

    fn run(&mut self, call: Call) {
        let size = |pages: u8| (pages % 32) as usize * PAGE;
        match call {
            Call::Reserve { slot, pages, alignment } => {
                let alignment = if alignment == 0 { 0 } else { 1 << (alignment % 24) };
                if let Ok(address) = self.vmm.address_reserve(size(pages), alignment, None, 0) {
                    assert!(alignment == 0 || address.get() % alignment == 0);
                    self.reservations[slot as usize % SLOTS] = address;
                }
            }
            Call::Free { place, pages } => {
                let _ = self.vmm.address_free(self.address(place), size(pages));
            }
            Call::Create { slot, pages, gpu } => {
                let properties = AllocationProperties::on(self.agents[1 + usize::from(gpu)])
                    .shareable_as(HandleType::PosixFileDescriptor);
                if let Ok(handle) = self.vmm.create(size(pages), &properties, 0) {
                    self.handles[slot as usize % SLOTS] = handle;
                }
            }
            Call::Release(which) => {
                let _ = self.vmm.release(self.handle(which));
            }
            Call::Map { place, pages, offset, which } => {
                let offset = if offset > 250 { PAGE } else { 0 };
                let (address, handle) = (self.address(place), self.handle(which));
                if self.vmm.map(address, size(pages), offset, handle, 0).is_ok() {
                    for &agent in &self.agents {
                        assert_eq!(self.vmm.get_access(agent, address), Ok(Access::None));
                    }
                }
            }
            Call::Unmap { place, pages } => {
                let _ = self.vmm.unmap(self.address(place), size(pages));
            }
            Call::SetAccess { place, pages, grants } => {
                let grants: Vec<_> = grants
                    .iter()
                    .take(8)
                    .map(|&(agent, access)| AccessDescriptor {
                        agent: self.agent(agent),
                        access: [Access::None, Access::Read, Access::ReadWrite]
                            [access as usize % 3],
                    })
                    .collect();
                let address = self.address(place);
                if self.vmm.set_access(address, size(pages), &grants).is_ok()
                    && let Some(last) = grants.last()
                {
                    assert_eq!(self.vmm.get_access(last.agent, address), Ok(last.access));
                }
            }
            Call::GetAccess { place, agent } => {
                let _ = self.vmm.get_access(self.agent(agent), self.address(place));
            }
            Call::Revoke { place, pages, agents } => {
                let agents: Vec<_> =
                    agents.iter().take(8).map(|&agent| self.agent(agent)).collect();
                let _ = self.vmm.revoke(self.address(place), size(pages), &agents);
            }
            Call::Retain { slot, place } => {
                if let Ok(handle) = self.vmm.retain_allocation_handle(self.address(place)) {
                    self.handles[slot as usize % SLOTS] = handle;
                }
            }
            Call::Export { slot, which } => {
                let kind = HandleType::PosixFileDescriptor;
                self.descriptors[slot as usize % SLOTS] =
                    self.vmm.export_to_shareable_handle(self.handle(which), kind, 0).ok();
            }
            Call::Import { slot, from } => {
                if let Some(descriptor) = &self.descriptors[from as usize % SLOTS] {
                    let kind = HandleType::PosixFileDescriptor;
                    if let Ok(handle) = self.vmm.import_from_shareable_handle(descriptor, kind) {
                        self.handles[slot as usize % SLOTS] = handle;
                    }
                }
            }
            Call::Write { place, size } => {
                let (address, bytes) = (self.address(place), vec![size; size as usize]);
                if self.vmm.write(address, &bytes).is_ok() {
                    let mut back = vec![0; size as usize];
                    self.vmm.read(address, &mut back).expect("what may be written may be read");
                    assert_eq!(back, bytes);
                }
            }
            Call::Read { place, size } => {
                let _ = self.vmm.read(self.address(place), &mut vec![0; size as usize]);
            }
            Call::Fill { place, pages, value } => {
                let _ = self.vmm.fill(self.address(place), value, size(pages));
            }
            Call::Copy { to, from, pages, agent } => {
                let (to, from) = (self.address(to), self.address(from));
                if to != from {
                    let _ = self.vmm.copy(self.agent(agent), to, from, size(pages));
                }
            }
        }
    }
}

fuzz_target!(|input: Input| {
    let era = [Era::A, Era::B, Era::C, Era::D][input.era as usize % 4];
    let mut config = Config::mi300x(2).with_era(era);
    config.dmabuf_cpu_mapping = input.own_cpu_view;
    let runtime = Runtime::simulated(config).expect("a slot is free");
    let vmm = Vmm::open(&runtime).expect("the simulation has virtual memory");
    let agents: Vec<_> = runtime.agents().iter().map(|agent| agent.id()).collect();
    let mut state = State {
        vmm,
        reservations: [Address::NULL; SLOTS],
        handles: [Handle::from_bits(0); SLOTS],
        descriptors: [const { None }; SLOTS],
        agents,
    };
    for call in input.calls.into_iter().take(64) {
        state.run(call);
        state.vmm.check().expect("the books are sound");
        assert_eq!(state.vmm.quarantine(), [], "nothing failed in the runtime");
    }
    drop(state);
    let usage = runtime.simulation().expect("this is one").usage();
    assert_eq!((usage.reservations, usage.handles, usage.mappings), (0, 0, 0), "all given back");
});
