//! Every public type is `Send` and `Sync`. `Runtime`, `Vmm`, `Allocation`, `Mapping` and `Reservation` are unwind
//! safe.

use hsa_vmm::simulation::{Config, FaultPlan, Simulation};
use hsa_vmm::*;
use hsa_vmm::{Error, ErrorKind};
use std::path::Path;

#[allow(dead_code, reason = "Rust 1.88 ignores uses in constants")]
const fn send_and_sync<T: Send + Sync + 'static>() {}

/// Requires unwind safety.
#[allow(dead_code, reason = "Rust 1.88 ignores uses in constants")]
const fn unwind_safe<T: std::panic::UnwindSafe + std::panic::RefUnwindSafe>() {}

const _: () = {
    unwind_safe::<Runtime>();
    unwind_safe::<Vmm>();
    unwind_safe::<Allocation>();
    unwind_safe::<Mapping>();
    unwind_safe::<Reservation>();
};

/// Checks each public type at compile time. A new public type needs a line here.
const _: () = {
    send_and_sync::<Runtime>();
    send_and_sync::<runtime::RuntimeInfo>();
    send_and_sync::<runtime::DriverState>();
    send_and_sync::<runtime::Implementation>();
    send_and_sync::<Error>();
    send_and_sync::<ErrorKind>();
    send_and_sync::<error::Status>();
    send_and_sync::<error::Errno>();
    send_and_sync::<error::Rejected<Mapping>>();
    send_and_sync::<Agent>();
    send_and_sync::<AgentId>();
    send_and_sync::<agent::AgentKind>();
    send_and_sync::<agent::ComputeProperties>();
    send_and_sync::<agent::PciAddress>();
    send_and_sync::<agent::Link>();
    send_and_sync::<agent::LinkKind>();
    send_and_sync::<agent::Peer>();
    send_and_sync::<agent::Enforcement>();
    send_and_sync::<Pool>();
    send_and_sync::<pool::PoolFlags>();
    send_and_sync::<pool::Segment>();
    send_and_sync::<hip::HipError>();
    send_and_sync::<hip::HipProfile>();
    send_and_sync::<hip::UnknownProfile>();
    send_and_sync::<transport::Channel>();
    send_and_sync::<transport::Description>();
    send_and_sync::<error::MalformedMessage>();
    send_and_sync::<transport::Offer>();
    send_and_sync::<transport::UntrustedUser>();
    send_and_sync::<transport::Ticket>();
    send_and_sync::<transport::Trust>();
    send_and_sync::<transport::UnknownTicket>();
    send_and_sync::<Vmm>();
    send_and_sync::<vmm::VmmOptions>();
    send_and_sync::<vmm::Probe>();
    send_and_sync::<vmm::Probing>();
    send_and_sync::<vmm::FabricHandle>();
    send_and_sync::<vmm::ExportedSegment>();
    send_and_sync::<vmm::Quirk>();
    send_and_sync::<vmm::Quirks>();
    send_and_sync::<vmm::RetireQueue>();
    send_and_sync::<vmm::RetireQueueBuilder>();
    send_and_sync::<vmm::RetireReport>();
    send_and_sync::<vmm::RetireFailure>();
    send_and_sync::<vmm::SignalCondition>();
    send_and_sync::<vmm::Usage>();
    send_and_sync::<vmm::BrokenInvariant>();
    send_and_sync::<vmm::MappingInfo>();
    send_and_sync::<vmm::Quarantined>();
    send_and_sync::<error::Argument>();
    send_and_sync::<error::Feature>();
    send_and_sync::<error::Operation>();
    send_and_sync::<error::Problem>();
    send_and_sync::<Access>();
    send_and_sync::<AccessDescriptor>();
    send_and_sync::<vmm::NewMapping>();
    send_and_sync::<GrowableBuffer>();
    send_and_sync::<buffer::GrowableVec<u32>>();
    send_and_sync::<buffer::GrowableBuilder>();
    send_and_sync::<buffer::DeviceBuffer>();
    send_and_sync::<buffer::RingBuffer>();
    send_and_sync::<buffer::PausableBuffer>();
    send_and_sync::<buffer::PauseMode>();
    send_and_sync::<buffer::PagedBuffer>();
    send_and_sync::<buffer::PagedBuilder>();
    send_and_sync::<buffer::PagedStatistics>();
    send_and_sync::<buffer::PageState>();
    send_and_sync::<Address>();
    send_and_sync::<AllocationProperties>();
    send_and_sync::<vmm::AllocationKind>();
    send_and_sync::<vmm::Location>();
    send_and_sync::<vmm::Granularity>();
    send_and_sync::<Handle>();
    send_and_sync::<HandleType>();
    send_and_sync::<Allocation>();
    send_and_sync::<Mapping>();
    send_and_sync::<Reservation>();
    send_and_sync::<vmm::ReservationBuilder>();
    send_and_sync::<vmm::MapRequest<'static>>();
    send_and_sync::<PoolMemory>();
    send_and_sync::<memory::Span>();
    send_and_sync::<memory::PoolMemoryInfo>();
    send_and_sync::<report::Report>();
    send_and_sync::<report::AgentEntry>();
    send_and_sync::<report::ReservationEntry>();
    send_and_sync::<report::MappingEntry>();
    send_and_sync::<report::AccessEntry>();
    send_and_sync::<report::MemoryEntry>();
    send_and_sync::<report::ReservationPart<'static>>();
    send_and_sync::<report::Size>();
    send_and_sync::<report::FreeSpace>();
    send_and_sync::<report::IdleItem<'static>>();
    send_and_sync::<Ipc>();
    send_and_sync::<ipc::IpcHandle>();
    send_and_sync::<ipc::OpenedMemory>();
    send_and_sync::<error::Rejected<ipc::OpenedMemory>>();
    send_and_sync::<error::UnavailableReason>();
    send_and_sync::<error::Value>();
    send_and_sync::<Area>();
    send_and_sync::<area::Backing>();
    send_and_sync::<area::Device>();
    send_and_sync::<area::MmapOptions>();
    send_and_sync::<area::AreaFlags>();
    send_and_sync::<area::AreaMemory>();
    send_and_sync::<Config>();
    send_and_sync::<FaultPlan>();
    send_and_sync::<Simulation>();
};

/// The compile-time check of this file lists every type of the public modules.
#[test]
fn every_public_type_is_listed() {
    let list = include_str!("send_sync.rs");
    let sources = sources("src".as_ref());
    let mut found = 0;
    for line in sources.iter().flat_map(|source| source.lines()) {
        let Some(name) =
            ["pub struct ", "pub enum "].iter().find_map(|prefix| line.strip_prefix(prefix))
        else {
            continue;
        };
        let name = name.split(|c: char| !c.is_alphanumeric()).next().expect("a name");
        // The list names a type with or without its module, and with or without type parameters.
        let patterns = [">", "<"].map(|end| [format!("<{name}{end}"), format!("::{name}{end}")]);
        let mut patterns = patterns.iter().flatten();
        assert!(patterns.any(|pattern| list.contains(pattern)), "{name} is not listed");
        found += 1;
    }
    assert!(found > 25, "{found}");
}

/// Returns the text of every source file, without private modules.
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
