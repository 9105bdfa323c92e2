//! The error numbers that C programs get (`capi`), for each operation and both profiles.
//!
//! A C function returns [`Error::hip`](hsa_vmm::Error::hip) of its profile, from the library's own
//! table. The checks that only the C interface makes (null pointers, device numbers) are tested in
//! `capi/tests`. Here each mistake is made in a real call where possible, and compared with HIP's
//! documentation, not with that table.

use crate::Context;
use crate::case::{Case, Verdict, ensure_eq};
use crate::hip_calls::HipCalls as _;
use hsa_vmm::ErrorKind;
use hsa_vmm::error::{Feature, Operation, Status};
use hsa_vmm::hip::HipProfile;
use hsa_vmm::vmm::Granularity;
use hsa_vmm::{
    Access, AccessDescriptor, Address, AgentId, AllocationProperties, Error, Handle, HandleType,
    Runtime, Vmm,
};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "hip.codes.address_reserve",
        "HIP: hipMemAddressReserve; hip-tests: hipMemAddressReserve_Negative (6.x and develop)",
        "an invalid reservation is 2 in HIP 6 and 1 in HIP 7; invalid flags are 1 in both",
        reserve,
    ),
    Case::new(
        "hip.codes.address_free",
        "HIP: hipMemAddressFree; hip-tests: hipMemAddressFree_negative; reference 6.2 #10",
        "an invalid range is 1; freeing a mapped reservation is 999 in HIP 6 and 1 in HIP 7",
        free,
    ),
    Case::new(
        "hip.codes.create",
        "HIP: hipMemCreate; hip-tests: hipMemCreate_Negative (6.x and develop)",
        "an invalid device is 1 in HIP 6 and 101 in HIP 7, a CPU 801, too much memory 2, other 1",
        create,
    ),
    Case::new(
        "hip.codes.release_and_retain",
        "HIP: hipMemRelease, hipMemRetainAllocationHandle",
        "invalid handles and addresses are 1",
        release_and_retain,
    ),
    Case::new(
        "hip.codes.map",
        "HIP: hipMemMap; hip-tests: hipMemMap_negative",
        "every invalid argument is 1",
        map,
    ),
    Case::new(
        "hip.codes.unmap",
        "HIP: hipMemUnmap; hip-tests: hipMemUnmap_negative",
        "every invalid argument is 1",
        unmap,
    ),
    Case::new(
        "hip.codes.set_and_get_access",
        "HIP: hipMemSetAccess, hipMemGetAccess; hip-tests: hipMemSetAccess_negative",
        "every invalid argument is 1, also a device that does not exist",
        access,
    ),
    Case::new(
        "hip.codes.granularity_and_properties",
        "HIP: hipMemGetAllocationGranularity, hipMemGetAllocationPropertiesFromHandle",
        "every invalid argument is 1, a CPU 801",
        granularity,
    ),
    Case::new(
        "hip.codes.export_and_import",
        "HIP: hipMemExportToShareableHandle, hipMemImportFromShareableHandle",
        "an invalid export or import is 1, an unsupported handle type 801",
        share,
    ),
    Case::new(
        "hip.codes.map_array",
        "HIP: hipMemMapArrayAsync",
        "sparse arrays are 801, an empty list 1",
        map_array,
    ),
    Case::of_runtime(
        "hip.codes.runtime_fails",
        "HIP: hip_vm.cpp, which returns these when the runtime fails",
        "a failure of the runtime is 2 when creating, 1 when sharing, otherwise 999",
        runtime_fails,
    ),
    Case::of_runtime(
        "hip.codes.nothing_left",
        "HIP: hipErrorOutOfMemory, hipErrorOperatingSystem, hipErrorNotSupported, hipErrorNotInitialized",
        "out of memory is 2, no descriptor 304, not supported 801, after a fork 3",
        nothing_left,
    ),
];

/// A mistake: its description, the call, and its numbers in HIP 6 and HIP 7.
type Mistake<'a> = (&'a str, &'a dyn Fn(&Vmm) -> Result<(), Error>, [i32; 2]);

/// Makes each mistake in both profiles and compares the numbers.
fn check_codes(context: &Context, mistakes: &[Mistake<'_>]) -> Verdict {
    for (index, profile) in [HipProfile::Hip6, HipProfile::Hip7].into_iter().enumerate() {
        let vmm = context.another(profile)?;
        for (what, mistake, expected) in mistakes {
            let usage = vmm.usage();
            let found = mistake(&vmm).map_err(|error| error.hip(vmm.profile()).code());
            ensure_eq!(found, Err(expected[index]), "{what} in {profile}");
            ensure_eq!(vmm.usage(), usage, "what is in use after {what}");
        }
    }
    Ok(())
}

const VALUE: [i32; 2] = [1, 1];

fn reserve(context: &Context) -> Verdict {
    let granule = context.granule();
    check_codes(
        context,
        &[
            ("no size", &|vmm| vmm.address_reserve(0, 0, None).map(|_| ()), [2, 1]),
            ("an odd size", &|vmm| vmm.address_reserve(granule + 1, 0, None).map(|_| ()), [2, 1]),
            ("an odd alignment", &|vmm| vmm.address_reserve(granule, 3, None).map(|_| ()), [2, 1]),
            ("flags", &|vmm| vmm.reserve_with_flags(granule, 0, None, 1).map(|_| ()), VALUE),
            // No machine has this much address space.
            ("too much", &|vmm| vmm.address_reserve(1 << 60, 0, None).map(|_| ()), [2, 2]),
        ],
    )
}

fn free(context: &Context) -> Verdict {
    let granule = context.granule();
    let foreign = context.reserve(1)?;
    check_codes(
        context,
        &[
            ("null", &|vmm| vmm.address_free(Address::NULL, granule), VALUE),
            ("an address that is not reserved", &|vmm| vmm.address_free(foreign, granule), VALUE),
        ],
    )?;
    for (profile, expected) in [(HipProfile::Hip6, 999), (HipProfile::Hip7, 1)] {
        let vmm = context.another(profile)?;
        let (at, handle) = one_mapping(context, &vmm)?;
        for (size, code) in [(0, 1), (2 * granule, 1), (granule, expected)] {
            let found = vmm.address_free(at, size).map_err(|error| error.hip(profile).code());
            ensure_eq!(found, Err(code), "freeing {size:#x} bytes in {profile}");
        }
        vmm.unmap(at, granule)?;
        vmm.release(handle)?;
        vmm.address_free(at, granule)?;
    }
    Ok(())
}

/// Reserves and maps a granule.
fn one_mapping(context: &Context, vmm: &Vmm) -> Verdict<(Address, Handle)> {
    let granule = context.granule();
    let at = vmm.address_reserve(granule, 0, None)?;
    let handle = vmm.create(granule, &AllocationProperties::on(context.gpu()))?;
    vmm.map(at, granule, 0, handle)?;
    Ok((at, handle))
}

fn create(context: &Context) -> Verdict {
    let granule = context.granule();
    let on = AllocationProperties::on;
    let make = |vmm: &Vmm, size, agent| vmm.create(size, &on(agent)).map(|_| ());
    let (gpu, invented, host) = (context.gpu(), context.invented_agent(), context.host());
    check_codes(
        context,
        &[
            ("no size", &|vmm| make(vmm, 0, gpu), VALUE),
            ("an odd size", &|vmm| make(vmm, granule + 1, gpu), VALUE),
            ("too much", &|vmm| make(vmm, 1 << 50, gpu), [2, 2]),
            ("an invented device", &|vmm| make(vmm, granule, invented), [1, 101]),
            ("a CPU", &|vmm| make(vmm, granule, host), [801, 801]),
            ("flags", &|vmm| vmm.create_with_flags(granule, &on(gpu), 1).map(|_| ()), VALUE),
        ],
    )
}

fn release_and_retain(context: &Context) -> Verdict {
    let (at, foreign) = context.mapped(1, 0)?;
    let handles = [Handle::from_bits(0), Handle::from_bits(0x4711), foreign];
    for handle in handles {
        check_codes(
            context,
            &[("releasing an invalid handle", &|vmm| vmm.release(handle), VALUE)],
        )?;
    }
    for address in [Address::NULL, at, Address::new(0x1000)] {
        let retain = |vmm: &Vmm| vmm.retain_allocation_handle(address).map(|_| ());
        check_codes(context, &[("retaining at an address without a mapping", &retain, VALUE)])?;
    }
    Ok(())
}

fn map(context: &Context) -> Verdict {
    let granule = context.granule();
    for profile in [HipProfile::Hip6, HipProfile::Hip7] {
        let vmm = context.another(profile)?;
        let (at, handle) = one_mapping(context, &vmm)?;
        let room = vmm.address_reserve(2 * granule, 0, None)?;
        for (what, address, size, offset, handle, flags) in [
            ("null", Address::NULL, granule, 0, handle, 0),
            ("no size", room, 0, 0, handle, 0),
            ("an odd size", room, granule - 1, 0, handle, 0),
            ("a size larger than the handle", room, 2 * granule, 0, handle, 0),
            ("an offset", room, granule, granule, handle, 0),
            ("flags", room, granule, 0, handle, 1),
            ("no handle", room, granule, 0, Handle::from_bits(0), 0),
            ("a mapped address", at, granule, 0, handle, 0),
            (
                "an odd address",
                context.on(room, 0).checked_add(1).unwrap_or(room),
                granule,
                0,
                handle,
                0,
            ),
        ] {
            let found = vmm.map_with_flags(address, size, offset, handle, flags);
            let found = found.map_err(|error| error.hip(profile).code());
            ensure_eq!(found, Err(1), "{what} in {profile}");
        }
    }
    Ok(())
}

fn unmap(context: &Context) -> Verdict {
    let granule = context.granule();
    for profile in [HipProfile::Hip6, HipProfile::Hip7] {
        let vmm = context.another(profile)?;
        let (at, _) = one_mapping(context, &vmm)?;
        let room = vmm.address_reserve(granule, 0, None)?;
        for (what, address, size) in [
            ("null", Address::NULL, granule),
            ("no size", at, 0),
            ("a part", at, granule / 2),
            ("a size larger than the mapping", at, 2 * granule),
            ("nothing", room, granule),
        ] {
            let found = vmm.unmap(address, size).map_err(|error| error.hip(profile).code());
            ensure_eq!(found, Err(1), "{what} in {profile}");
        }
    }
    Ok(())
}

fn access(context: &Context) -> Verdict {
    let granule = context.granule();
    let list = |agent: AgentId| [AccessDescriptor { agent, access: Access::ReadWrite }];
    for profile in [HipProfile::Hip6, HipProfile::Hip7] {
        let vmm = context.another(profile)?;
        let (at, _) = one_mapping(context, &vmm)?;
        let good = list(context.gpu());
        let code = |error: Error| error.hip(profile).code();
        for (what, address, size, list) in [
            ("null", Address::NULL, granule, &good[..]),
            ("no size", at, 0, &good),
            ("a part", at, granule / 2, &good),
            ("a size larger than the mapping", at, 2 * granule, &good),
            ("no list", at, granule, &[]),
            ("an invented device", at, granule, &list(context.invented_agent())),
        ] {
            let found = vmm.set_access(address, size, list).map_err(code);
            ensure_eq!(found, Err(1), "setting: {what} in {profile}");
        }
        for (what, agent, address) in [
            ("null", context.gpu(), Address::NULL),
            ("an invented device", context.invented_agent(), at),
            ("beyond the end", context.gpu(), context.on(at, 1)),
        ] {
            let found = vmm.get_access(agent, address).map_err(code);
            ensure_eq!(found, Err(1), "getting: {what} in {profile}");
        }
    }
    Ok(())
}

fn granularity(context: &Context) -> Verdict {
    let ask = |vmm: &Vmm, agent| {
        let properties = AllocationProperties::on(agent);
        vmm.allocation_granularity(&properties, Granularity::Minimum).map(|_| ())
    };
    let (invented, host) = (context.invented_agent(), context.host());
    let of = |vmm: &Vmm, bits| vmm.allocation_properties(Handle::from_bits(bits)).map(|_| ());
    check_codes(
        context,
        &[
            ("an invented device", &|vmm| ask(vmm, invented), VALUE),
            ("a CPU", &|vmm| ask(vmm, host), [801, 801]),
            ("no handle", &|vmm| of(vmm, 0), VALUE),
            ("an invented handle", &|vmm| of(vmm, 0x4711), VALUE),
        ],
    )
}

fn share(context: &Context) -> Verdict {
    let kind = HandleType::POSIX_FILE_DESCRIPTOR;
    let nothing = std::fs::File::open("/dev/null")?;
    let export =
        |vmm: &Vmm, handle, kind, flags| vmm.export_with_flags(handle, kind, flags).map(|_| ());
    for profile in [HipProfile::Hip6, HipProfile::Hip7] {
        let vmm = context.another(profile)?;
        let code = |error: Error| error.hip(profile).code();
        let on = AllocationProperties::on(context.gpu());
        let plain = vmm.create(context.granule(), &on)?;
        let shareable = vmm.create(context.granule(), &on.shareable_as(kind))?;
        for (what, found) in [
            ("memory that is not shareable", export(&vmm, plain, kind, 0)),
            ("no handle", export(&vmm, Handle::from_bits(0), kind, 0)),
            ("flags", export(&vmm, shareable, kind, 1)),
        ] {
            ensure_eq!(found.map_err(code), Err(1), "exporting {what} in {profile}");
        }
        let win32 = vmm.import_from_shareable_handle(&nothing, HandleType::WIN32);
        ensure_eq!(win32.map_err(code), Err(801), "importing a handle of Windows in {profile}");
    }
    Ok(())
}

fn map_array(context: &Context) -> Verdict {
    check_codes(
        context,
        &[
            ("sparse arrays", &|vmm| vmm.map_array_async(1), [801, 801]),
            ("an empty list", &|vmm| vmm.map_array_async(0), VALUE),
        ],
    )
}

/// Checks an error's number in both profiles.
fn is_coded(error: Error, expected: i32) -> Verdict {
    for profile in [HipProfile::Hip6, HipProfile::Hip7] {
        ensure_eq!(error.hip(profile).code(), expected, "{error}, in {profile}");
    }
    Ok(())
}

fn runtime_fails(_: &Runtime) -> Verdict {
    for (operation, expected) in [
        (Operation::AddressReserve, 2),
        (Operation::Create, 2),
        (Operation::SetAccess, 1),
        (Operation::GetAccess, 1),
        (Operation::ExportToShareableHandle, 1),
        (Operation::ImportFromShareableHandle, 1),
        (Operation::AddressFree, 999),
        (Operation::Map, 999),
        (Operation::Unmap, 999),
        (Operation::Release, 999),
    ] {
        let status = Status(0x1000);
        let kind = ErrorKind::Runtime { call: "a function", status };
        is_coded(Error::new(operation, kind), expected)?;
    }
    Ok(())
}

fn nothing_left(_: &Runtime) -> Verdict {
    let (operation, status) = (Operation::Create, Status(0x1008));
    let call = "hsa_amd_vmem_handle_create";
    let coded = |kind, expected| is_coded(Error::new(operation, kind), expected);
    coded(ErrorKind::OutOfMemory { call, status, size: 1 }, 2)?;
    coded(ErrorKind::OutOfDescriptors, 304)?;
    coded(ErrorKind::NotSupported(Feature::HandleType), 801)?;
    coded(ErrorKind::Forked, 3)
}
