//! Every public type is `Send`, `Sync` and unwind safe.

use hsa_vmm::simulation::{Config, FaultPlan, Simulation};
use hsa_vmm::*;
use hsa_vmm::{Error, ErrorKind};
use std::path::Path;

#[allow(dead_code, reason = "Rust 1.88 does not see what uses it")]
const fn both<T: Send + Sync + 'static>() {}

/// Requires unwind safety.
#[allow(dead_code, reason = "as above")]
const fn survives<T: std::panic::UnwindSafe + std::panic::RefUnwindSafe>() {}

const _: () = {
    survives::<Runtime>();
    survives::<Vmm>();
    survives::<Allocation>();
    survives::<Mapping>();
    survives::<Reservation>();
};

/// Checked at compile time. A new public type needs a line here.
const _: () = {
    both::<Runtime>();
    both::<runtime::RuntimeInfo>();
    both::<runtime::DriverState>();
    both::<Error>();
    both::<ErrorKind>();
    both::<error::Status>();
    both::<error::Errno>();
    both::<error::Rejected<Mapping>>();
    both::<Agent>();
    both::<AgentId>();
    both::<agent::AgentKind>();
    both::<agent::PciAddress>();
    both::<agent::Link>();
    both::<agent::LinkKind>();
    both::<agent::Peer>();
    both::<agent::Enforcement>();
    both::<Pool>();
    both::<pool::PoolFlags>();
    both::<pool::Segment>();
    both::<hip::HipError>();
    both::<hip::HipProfile>();
    both::<hip::UnknownProfile>();
    both::<transport::Channel>();
    both::<transport::Description>();
    both::<error::Malformed>();
    both::<transport::Offer>();
    both::<transport::UntrustedUser>();
    both::<transport::Ticket>();
    both::<transport::Trust>();
    both::<transport::UnknownTicket>();
    both::<Vmm>();
    both::<vmm::VmmOptions>();
    both::<vmm::Quirk>();
    both::<vmm::Quirks>();
    both::<vmm::Usage>();
    both::<vmm::BrokenInvariant>();
    both::<vmm::MappingInfo>();
    both::<vmm::Quarantined>();
    both::<Error>();
    both::<error::Argument>();
    both::<error::Feature>();
    both::<error::Operation>();
    both::<error::Problem>();
    both::<Access>();
    both::<AccessDescriptor>();
    both::<vmm::NewMapping>();
    both::<Error>();
    both::<GrowableBuffer>();
    both::<buffer::GrowableVec<u32>>();
    both::<buffer::GrowableBuilder>();
    both::<buffer::RingBuffer>();
    both::<buffer::PausableBuffer>();
    both::<buffer::Contents>();
    both::<buffer::PagedBuffer>();
    both::<buffer::PagedBuilder>();
    both::<buffer::PagedStatistics>();
    both::<buffer::PageState>();
    both::<Address>();
    both::<AllocationProperties>();
    both::<vmm::AllocationKind>();
    both::<vmm::Location>();
    both::<vmm::Granularity>();
    both::<Handle>();
    both::<HandleType>();
    both::<Allocation>();
    both::<Mapping>();
    both::<Reservation>();
    both::<vmm::ReservationBuilder>();
    both::<vmm::MapRequest<'static>>();
    both::<PoolMemory>();
    both::<memory::Span>();
    both::<memory::PoolMemoryInfo>();
    both::<report::Report>();
    both::<report::AgentEntry>();
    both::<report::ReservationEntry>();
    both::<report::MappingEntry>();
    both::<report::AccessEntry>();
    both::<report::MemoryEntry>();
    both::<report::Run<'static>>();
    both::<report::Size>();
    both::<report::Free>();
    both::<report::Idle<'static>>();
    both::<Ipc>();
    both::<ipc::IpcHandle>();
    both::<ipc::OpenedMemory>();
    both::<Error>();
    both::<ErrorKind>();
    both::<error::Rejected<ipc::OpenedMemory>>();
    both::<error::Unavailable>();
    both::<error::Value>();
    both::<Area>();
    both::<area::Backing>();
    both::<area::Device>();
    both::<area::MmapOptions>();
    both::<area::AreaFlags>();
    both::<area::AreaMemory>();
    both::<Config>();
    both::<FaultPlan>();
    both::<Simulation>();
};

/// The list above contains every type of the public modules.
#[test]
fn every_public_type_is_listed() {
    let here = include_str!("send_sync.rs");
    let sources = sources("src".as_ref());
    let mut found = 0;
    for line in sources.iter().flat_map(|source| source.lines()) {
        let Some(name) = ["pub struct ", "pub enum "].iter().find_map(|it| line.strip_prefix(it))
        else {
            continue;
        };
        let name = name.split(|c: char| !c.is_alphanumeric()).next().expect("a name");
        // With or without its module, and with type parameters.
        let listed = [">", "<"].map(|end| [format!("<{name}{end}"), format!("::{name}{end}")]);
        let mut listed = listed.iter().flatten();
        assert!(listed.any(|listed| here.contains(listed)), "{name} is not listed");
        found += 1;
    }
    assert!(found > 25, "{found}");
}

/// Returns the source of every public module.
fn sources(folder: &Path) -> Vec<String> {
    const PRIVATE: [&str; 3] = ["native", "ledger", "sync.rs"];
    let mut found = Vec::new();
    for entry in folder.read_dir().expect("the library's sources") {
        let path = entry.expect("an entry").path();
        if PRIVATE.iter().any(|name| path.ends_with(name)) {
            continue;
        }
        if path.is_dir() {
            found.extend(sources(&path));
        } else {
            found.push(std::fs::read_to_string(&path).expect("a source"));
        }
    }
    found
}
