//! Creating and sharing memory rejects bad input.

use crate::setup::{DESCRIPTOR, Setup, check_rejections, invented_agent, no_agent, state};
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::vmm::{Granularity, Location};
use hsa_vmm::{AgentId, AllocationProperties, Error, ErrorKind, HandleType};
use std::fs::File;

fn create(s: &Setup, size: usize, agent: AgentId) -> Result<(), Error> {
    s.machine.vmm.create(size, &AllocationProperties::on(agent)).map(drop)
}

#[test]
fn create_rejects_bad_input() {
    check_rejections(&[
        ("no size", |s| create(s, 0, s.machine.gpu(0)), Argument::Size, |_| Problem::Zero),
        (
            "one byte",
            |s| create(s, 1, s.machine.gpu(0)),
            Argument::Size,
            |s| Problem::NotAligned { granule: s.granule },
        ),
        (
            "the largest size",
            |s| create(s, usize::MAX, s.machine.gpu(0)),
            Argument::Size,
            |s| Problem::NotAligned { granule: s.granule },
        ),
        (
            "a GPU of another runtime",
            |s| create(s, s.granule, s.foreign_machine.gpu(0)),
            Argument::Location,
            |_| Problem::UnknownAgent,
        ),
        (
            "an invented GPU",
            |s| create(s, s.granule, invented_agent(s)),
            Argument::Location,
            |_| Problem::UnknownAgent,
        ),
        (
            "no agent",
            |s| create(s, s.granule, no_agent()),
            Argument::Location,
            |_| Problem::UnknownAgent,
        ),
        (
            "no location",
            |s| {
                let mut properties = s.machine.shareable_on(0);
                properties.location = Location::Unknown;
                s.machine.vmm.create(s.granule, &properties).map(drop)
            },
            Argument::Location,
            |_| Problem::MissingLocation,
        ),
        (
            "the granularity of an invented GPU",
            |s| {
                let properties = AllocationProperties::on(invented_agent(s));
                s.machine.vmm.allocation_granularity(&properties, Granularity::Minimum).map(drop)
            },
            Argument::Location,
            |_| Problem::UnknownAgent,
        ),
        (
            "the granularity of a GPU of another runtime",
            |s| {
                let properties = AllocationProperties::on(s.foreign_machine.gpu(0));
                let vmm = &s.machine.vmm;
                vmm.allocation_granularity(&properties, Granularity::Recommended).map(drop)
            },
            Argument::Location,
            |_| Problem::UnknownAgent,
        ),
    ]);
}

/// Some of HIP's functions have a `flags` argument, which must be zero. The C interface checks this argument with
/// `check_flags`.
#[test]
fn flags_must_be_zero() {
    use hsa_vmm::error::Operation;
    for operation in [
        Operation::AddressReserve,
        Operation::Create,
        Operation::Map,
        Operation::ExportToShareableHandle,
    ] {
        assert_eq!(operation.check_flags(0), Ok(()));
        for flags in [1, 8, u64::MAX] {
            let error = operation.check_flags(flags).unwrap_err();
            let (argument, problem) = (Some(Argument::Flags), Problem::UndefinedFlags(0));
            assert_eq!((error.argument(), error.problem()), (argument, Some(problem)));
            assert_eq!(error.operation(), operation);
            assert!(error.to_string().contains(&format!("flags {flags:#x}")), "{error}");
        }
    }
}

#[test]
fn create_of_too_much_is_out_of_memory() {
    let s = Setup::new();
    let gpu = s.machine.gpu(0);
    let vram = s.machine.simulation.config().gpus[0].vram as usize;
    for size in [vram, vram + s.granule, 1 << 60, usize::MAX & !(s.granule - 1)] {
        let before = (s.machine.vmm.usage(), s.machine.simulation.usage());
        let result = create(&s, size, gpu);
        assert!(
            matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::OutOfMemory { .. })),
            "{size:#x}: {result:?}"
        );
        assert_eq!((s.machine.vmm.usage(), s.machine.simulation.usage()), before, "{size:#x}");
    }
}

#[test]
fn sharing_rejects_bad_input() {
    check_rejections(&[
        (
            "a type that was not requested",
            |s| s.machine.vmm.export_to_shareable_handle(s.private_handle, DESCRIPTOR).map(drop),
            Argument::HandleType,
            |_| Problem::NotRequested,
        ),
        (
            "another type that was not requested",
            |s| {
                let fabric = HandleType::FABRIC;
                s.machine.vmm.export_to_shareable_handle(s.handle, fabric).map(drop)
            },
            Argument::HandleType,
            |_| Problem::NotRequested,
        ),
        (
            "a descriptor of `/dev/null`",
            |s| {
                let null = File::open("/dev/null").unwrap();
                s.machine.vmm.import_from_shareable_handle(null, DESCRIPTOR).map(drop)
            },
            Argument::Descriptor,
            |_| Problem::NotImportable,
        ),
        (
            "a pipe",
            |s| {
                let (pipe, _) = std::io::pipe().unwrap();
                s.machine.vmm.import_from_shareable_handle(pipe, DESCRIPTOR).map(drop)
            },
            Argument::Descriptor,
            |_| Problem::NotImportable,
        ),
        (
            "a regular file",
            |s| {
                let file = File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
                s.machine.vmm.import_from_shareable_handle(file.unwrap(), DESCRIPTOR).map(drop)
            },
            Argument::Descriptor,
            |_| Problem::NotImportable,
        ),
    ]);
}

#[test]
fn unsupported_calls_never_reach_the_runtime() {
    let s = Setup::new();
    type Call = fn(&Setup) -> Result<(), Error>;
    let calls: &[(&str, Call)] = &[
        ("memory of the CPU", |s| create(s, s.granule, s.machine.cpu(0))),
        ("the granularity of the CPU", |s| {
            let properties = AllocationProperties::on(s.machine.cpu(0));
            s.machine.vmm.allocation_granularity(&properties, Granularity::Minimum).map(drop)
        }),
        ("memory to be shared on Windows", |s| {
            let properties = s.machine.shareable_on(0).shareable_as(HandleType::WIN32);
            s.machine.vmm.create(s.granule, &properties).map(drop)
        }),
        ("memory to be shared on Windows by KMT handle", |s| {
            let properties = s.machine.shareable_on(0).shareable_as(HandleType::WIN32_KMT);
            s.machine.vmm.create(s.granule, &properties).map(drop)
        }),
        ("memory to be shared over a fabric", |s| {
            let properties = s.machine.shareable_on(0).shareable_as(HandleType::FABRIC);
            s.machine.vmm.create(s.granule, &properties).map(drop)
        }),
        ("memory to be shared as an unknown type", |s| {
            let mut properties = s.machine.shareable_on(0);
            properties.handle_types = HandleType::from_bits_retain(1 << 20);
            s.machine.vmm.create(s.granule, &properties).map(drop)
        }),
        ("an import from Windows", |s| {
            let file = File::open("/dev/null").unwrap();
            s.machine.vmm.import_from_shareable_handle(file, HandleType::WIN32).map(drop)
        }),
        ("an import from a fabric", |s| {
            let file = File::open("/dev/null").unwrap();
            s.machine.vmm.import_from_shareable_handle(file, HandleType::FABRIC).map(drop)
        }),
        ("uncached memory before extension 1.18", |s| {
            let mut properties = s.machine.shareable_on(0);
            properties.kind = hsa_vmm::vmm::AllocationKind::Uncached;
            s.machine.vmm.create(s.granule, &properties).map(drop)
        }),
    ];
    for (name, call) in calls {
        let before = state(&s.machine);
        let result = call(&s);
        assert!(
            matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::NotSupported(_))),
            "{name}: {result:?}"
        );
        assert_eq!(state(&s.machine), before, "{name}");
    }
}
