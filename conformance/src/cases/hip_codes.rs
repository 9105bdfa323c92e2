//! The error codes that C programs receive (`capi`), for each operation and both profiles.
//!
//! A C function returns the code that [`Error::hip`](hsa_vmm::Error::hip) looks up in the library's table.
//! The checks that only the C interface makes (null pointers, device numbers) are tested in
//! `capi/tests`. Most cases here make real calls. The expected codes come from HIP's documentation, not
//! from the library's table.

use crate::Context;
use crate::case::{Case, TestResult, ensure_eq};
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
        "an invalid reservation returns 2 in HIP 6 and 1 in HIP 7; invalid flags return 1 in both",
        returns_reserve_codes,
    ),
    Case::new(
        "hip.codes.address_free",
        "HIP: hipMemAddressFree; hip-tests: hipMemAddressFree_negative; reference 6.2 #10",
        "an invalid range returns 1; freeing a mapped reservation returns 999 in HIP 6 and 1 in HIP 7",
        returns_free_codes,
    ),
    Case::new(
        "hip.codes.create",
        "HIP: hipMemCreate; hip-tests: hipMemCreate_Negative (6.x and develop)",
        "an invalid device returns 1 in HIP 6 and 101 in HIP 7; a CPU returns 801, a size that is too large 2, and other errors 1",
        returns_create_codes,
    ),
    Case::new(
        "hip.codes.release_and_retain",
        "HIP: hipMemRelease, hipMemRetainAllocationHandle",
        "invalid handles and addresses return 1",
        returns_release_and_retain_codes,
    ),
    Case::new(
        "hip.codes.map",
        "HIP: hipMemMap; hip-tests: hipMemMap_negative",
        "every invalid argument returns 1",
        returns_map_codes,
    ),
    Case::new(
        "hip.codes.unmap",
        "HIP: hipMemUnmap; hip-tests: hipMemUnmap_negative",
        "every invalid argument returns 1",
        returns_unmap_codes,
    ),
    Case::new(
        "hip.codes.set_and_get_access",
        "HIP: hipMemSetAccess, hipMemGetAccess; hip-tests: hipMemSetAccess_negative",
        "every invalid argument returns 1, including a device that does not exist",
        returns_access_codes,
    ),
    Case::new(
        "hip.codes.granularity_and_properties",
        "HIP: hipMemGetAllocationGranularity, hipMemGetAllocationPropertiesFromHandle",
        "every invalid argument returns 1, and a CPU returns 801",
        returns_granularity_and_properties_codes,
    ),
    Case::new(
        "hip.codes.export_and_import",
        "HIP: hipMemExportToShareableHandle, hipMemImportFromShareableHandle",
        "an invalid export or import returns 1, and an unsupported handle type returns 801",
        returns_export_and_import_codes,
    ),
    Case::new(
        "hip.codes.map_array",
        "HIP: hipMemMapArrayAsync",
        "the error for sparse arrays has the code 801, and the error for an empty list has the code 1",
        returns_map_array_codes,
    ),
    Case::of_runtime(
        "hip.codes.runtime_fails",
        "HIP: hip_vm.cpp, which returns these codes when the runtime fails",
        "a failure of the runtime returns 2 for reserve, create and allocate, 1 for access and sharing, otherwise 999",
        returns_runtime_failure_codes,
    ),
    Case::of_runtime(
        "hip.codes.nothing_left",
        "HIP: hipErrorOutOfMemory, hipErrorOperatingSystem, hipErrorNotSupported, hipErrorNotInitialized",
        "lack of memory returns 2, lack of descriptors 2 for create and 304 for export, an unsupported feature 801, and a call after a fork 3",
        returns_other_failure_codes,
    ),
];

/// An invalid call: its description, the call, and its codes in HIP 6 and HIP 7.
type InvalidCall<'a> = (&'a str, &'a dyn Fn(&Vmm) -> Result<(), Error>, [i32; 2]);

/// Makes each call in both profiles and compares the codes. The calls must change nothing.
fn check_codes(context: &Context, invalid_calls: &[InvalidCall<'_>]) -> TestResult {
    for (index, profile) in [HipProfile::Hip6, HipProfile::Hip7].into_iter().enumerate() {
        let vmm = context.open_vmm(profile)?;
        for (description, invalid_call, expected) in invalid_calls {
            let usage = vmm.usage();
            let found = invalid_call(&vmm).map_err(|error| error.hip(vmm.profile()).code());
            ensure_eq!(found, Err(expected[index]), "{description} in {profile}");
            ensure_eq!(vmm.usage(), usage, "usage after {description}");
        }
    }
    Ok(())
}

/// `hipErrorInvalidValue` in both profiles.
const INVALID_VALUE: [i32; 2] = [1, 1];

fn returns_reserve_codes(context: &Context) -> TestResult {
    let granule = context.granule();
    check_codes(
        context,
        &[
            ("size 0", &|vmm| vmm.address_reserve(0, 0, None).map(|_| ()), [2, 1]),
            ("extra byte", &|vmm| vmm.address_reserve(granule + 1, 0, None).map(|_| ()), [2, 1]),
            ("alignment 3", &|vmm| vmm.address_reserve(granule, 3, None).map(|_| ()), [2, 1]),
            (
                "flags",
                &|vmm| vmm.reserve_with_flags(granule, 0, None, 1).map(|_| ()),
                INVALID_VALUE,
            ),
            // No machine has this much address space.
            ("too large a size", &|vmm| vmm.address_reserve(1 << 60, 0, None).map(|_| ()), [2, 2]),
        ],
    )
}

fn returns_free_codes(context: &Context) -> TestResult {
    let granule = context.granule();
    let reserved_by_other_vmm = context.reserve(1)?;
    check_codes(
        context,
        &[
            ("null", &|vmm| vmm.address_free(Address::NULL, granule), INVALID_VALUE),
            (
                "an address that is not reserved",
                &|vmm| vmm.address_free(reserved_by_other_vmm, granule),
                INVALID_VALUE,
            ),
        ],
    )?;
    for (profile, expected) in [(HipProfile::Hip6, 999), (HipProfile::Hip7, 1)] {
        let vmm = context.open_vmm(profile)?;
        let (at, handle) = map_one_granule(context, &vmm)?;
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

/// Reserves a granule of addresses, and maps new memory there.
fn map_one_granule(context: &Context, vmm: &Vmm) -> TestResult<(Address, Handle)> {
    let granule = context.granule();
    let at = vmm.address_reserve(granule, 0, None)?;
    let handle = vmm.create(granule, &AllocationProperties::on(context.gpu()))?;
    vmm.map(at, granule, 0, handle)?;
    Ok((at, handle))
}

fn returns_create_codes(context: &Context) -> TestResult {
    let granule = context.granule();
    let properties = AllocationProperties::on;
    let create = |vmm: &Vmm, size, agent| vmm.create(size, &properties(agent)).map(|_| ());
    let (gpu, invented, host) = (context.gpu(), context.invented_agent(), context.host());
    check_codes(
        context,
        &[
            ("size 0", &|vmm| create(vmm, 0, gpu), INVALID_VALUE),
            ("unaligned size", &|vmm| create(vmm, granule + 1, gpu), INVALID_VALUE),
            ("too large a size", &|vmm| create(vmm, 1 << 50, gpu), [2, 2]),
            ("an invented device", &|vmm| create(vmm, granule, invented), [1, 101]),
            ("a CPU", &|vmm| create(vmm, granule, host), [801, 801]),
            (
                "flags",
                &|vmm| vmm.create_with_flags(granule, &properties(gpu), 1).map(|_| ()),
                INVALID_VALUE,
            ),
        ],
    )
}

fn returns_release_and_retain_codes(context: &Context) -> TestResult {
    let (at, handle_of_other_vmm) = context.map_filled(1, 0)?;
    let handles = [Handle::from_bits(0), Handle::from_bits(0x4711), handle_of_other_vmm];
    for handle in handles {
        check_codes(
            context,
            &[("releasing an invalid handle", &|vmm| vmm.release(handle), INVALID_VALUE)],
        )?;
    }
    for address in [Address::NULL, at, Address::new(0x1000)] {
        let retain = |vmm: &Vmm| vmm.retain_allocation_handle(address).map(|_| ());
        check_codes(
            context,
            &[("retaining at an address without a mapping", &retain, INVALID_VALUE)],
        )?;
    }
    Ok(())
}

fn returns_map_codes(context: &Context) -> TestResult {
    let granule = context.granule();
    for profile in [HipProfile::Hip6, HipProfile::Hip7] {
        let vmm = context.open_vmm(profile)?;
        let (at, handle) = map_one_granule(context, &vmm)?;
        let reserved = vmm.address_reserve(2 * granule, 0, None)?;
        for (description, address, size, offset, handle, flags) in [
            ("null", Address::NULL, granule, 0, handle, 0),
            ("size 0", reserved, 0, 0, handle, 0),
            ("unaligned size", reserved, granule - 1, 0, handle, 0),
            ("a size larger than the handle", reserved, 2 * granule, 0, handle, 0),
            ("an offset past the handle", reserved, granule, granule, handle, 0),
            ("flags", reserved, granule, 0, handle, 1),
            ("handle 0", reserved, granule, 0, Handle::from_bits(0), 0),
            ("a mapped address", at, granule, 0, handle, 0),
            (
                "unaligned address",
                context.granule_at(reserved, 0).checked_add(1).unwrap_or(reserved),
                granule,
                0,
                handle,
                0,
            ),
        ] {
            let found = vmm.map_with_flags(address, size, offset, handle, flags);
            let found = found.map_err(|error| error.hip(profile).code());
            ensure_eq!(found, Err(1), "{description} in {profile}");
        }
    }
    Ok(())
}

fn returns_unmap_codes(context: &Context) -> TestResult {
    let granule = context.granule();
    for profile in [HipProfile::Hip6, HipProfile::Hip7] {
        let vmm = context.open_vmm(profile)?;
        let (at, _) = map_one_granule(context, &vmm)?;
        let reserved = vmm.address_reserve(granule, 0, None)?;
        for (description, address, size) in [
            ("null", Address::NULL, granule),
            ("size 0", at, 0),
            ("a part of a mapping", at, granule / 2),
            ("a size larger than the mapping", at, 2 * granule),
            ("an unmapped range", reserved, granule),
        ] {
            let found = vmm.unmap(address, size).map_err(|error| error.hip(profile).code());
            ensure_eq!(found, Err(1), "{description} in {profile}");
        }
    }
    Ok(())
}

fn returns_access_codes(context: &Context) -> TestResult {
    let granule = context.granule();
    let list = |agent: AgentId| [AccessDescriptor { agent, access: Access::ReadWrite }];
    for profile in [HipProfile::Hip6, HipProfile::Hip7] {
        let vmm = context.open_vmm(profile)?;
        let (at, _) = map_one_granule(context, &vmm)?;
        let valid = list(context.gpu());
        let code = |error: Error| error.hip(profile).code();
        for (description, address, size, list) in [
            ("null", Address::NULL, granule, &valid[..]),
            ("size 0", at, 0, &valid),
            ("a part of a mapping", at, granule / 2, &valid),
            ("a size larger than the mapping", at, 2 * granule, &valid),
            ("an empty list", at, granule, &[]),
            ("an invented device", at, granule, &list(context.invented_agent())),
        ] {
            let found = vmm.set_access(address, size, list).map_err(code);
            ensure_eq!(found, Err(1), "setting: {description} in {profile}");
        }
        for (description, agent, address) in [
            ("null", context.gpu(), Address::NULL),
            ("an invented device", context.invented_agent(), at),
            ("beyond the end", context.gpu(), context.granule_at(at, 1)),
        ] {
            let found = vmm.get_access(agent, address).map_err(code);
            ensure_eq!(found, Err(1), "getting: {description} in {profile}");
        }
    }
    Ok(())
}

fn returns_granularity_and_properties_codes(context: &Context) -> TestResult {
    let query_granularity = |vmm: &Vmm, agent| {
        let properties = AllocationProperties::on(agent);
        vmm.allocation_granularity(&properties, Granularity::Minimum).map(|_| ())
    };
    let (invented, host) = (context.invented_agent(), context.host());
    let query_properties =
        |vmm: &Vmm, bits| vmm.allocation_properties(Handle::from_bits(bits)).map(|_| ());
    check_codes(
        context,
        &[
            ("an invented device", &|vmm| query_granularity(vmm, invented), INVALID_VALUE),
            ("a CPU", &|vmm| query_granularity(vmm, host), [801, 801]),
            ("handle 0", &|vmm| query_properties(vmm, 0), INVALID_VALUE),
            ("an invented handle", &|vmm| query_properties(vmm, 0x4711), INVALID_VALUE),
        ],
    )
}

fn returns_export_and_import_codes(context: &Context) -> TestResult {
    let kind = HandleType::POSIX_FILE_DESCRIPTOR;
    let file = std::fs::File::open("/dev/null")?;
    let export =
        |vmm: &Vmm, handle, kind, flags| vmm.export_with_flags(handle, kind, flags).map(|_| ());
    for profile in [HipProfile::Hip6, HipProfile::Hip7] {
        let vmm = context.open_vmm(profile)?;
        let code = |error: Error| error.hip(profile).code();
        let properties = AllocationProperties::on(context.gpu());
        let plain = vmm.create(context.granule(), &properties)?;
        let shareable = vmm.create(context.granule(), &properties.shareable_as(kind))?;
        for (description, found) in [
            ("memory that is not shareable", export(&vmm, plain, kind, 0)),
            ("handle 0", export(&vmm, Handle::from_bits(0), kind, 0)),
            ("flags", export(&vmm, shareable, kind, 1)),
        ] {
            ensure_eq!(found.map_err(code), Err(1), "exporting {description} in {profile}");
        }
        let not_memory = vmm.import_from_shareable_handle(&file, kind);
        ensure_eq!(not_memory.map_err(code), Err(1), "importing a device in {profile}");
        let win32 = vmm.import_from_shareable_handle(&file, HandleType::WIN32);
        ensure_eq!(win32.map_err(code), Err(801), "importing a Windows handle in {profile}");
    }
    Ok(())
}

fn returns_map_array_codes(context: &Context) -> TestResult {
    check_codes(
        context,
        &[
            ("sparse arrays", &|vmm| vmm.map_array_async(1), [801, 801]),
            ("an empty list", &|vmm| vmm.map_array_async(0), INVALID_VALUE),
        ],
    )
}

/// Checks an error's code in both profiles.
fn check_code(error: Error, expected: i32) -> TestResult {
    for profile in [HipProfile::Hip6, HipProfile::Hip7] {
        ensure_eq!(error.hip(profile).code(), expected, "{error}, in {profile}");
    }
    Ok(())
}

fn returns_runtime_failure_codes(_: &Runtime) -> TestResult {
    for (operation, expected) in [
        (Operation::AddressReserve, 2),
        (Operation::Create, 2),
        (Operation::Allocate, 2),
        (Operation::SetAccess, 1),
        (Operation::GetAccess, 1),
        (Operation::ExportToShareableHandle, 1),
        (Operation::ImportFromShareableHandle, 1),
        (Operation::ExportAddressRange, 1),
        (Operation::AddressFree, 999),
        (Operation::Map, 999),
        (Operation::Unmap, 999),
        (Operation::Release, 999),
    ] {
        // `HSA_STATUS_ERROR`.
        let status = Status(0x1000);
        let kind = ErrorKind::Runtime { call: "a function", status };
        check_code(Error::new(operation, kind), expected)?;
    }
    Ok(())
}

fn returns_other_failure_codes(_: &Runtime) -> TestResult {
    // `HSA_STATUS_ERROR_OUT_OF_RESOURCES`.
    let (operation, status) = (Operation::Create, Status(0x1008));
    let call = "hsa_amd_vmem_handle_create";
    let check = |kind, expected| check_code(Error::new(operation, kind), expected);
    check(ErrorKind::OutOfMemory { call, status: Some(status), size: 1 }, 2)?;
    check(ErrorKind::OutOfDescriptors, 2)?;
    let export = Operation::ExportToShareableHandle;
    check_code(Error::new(export, ErrorKind::OutOfDescriptors), 304)?;
    check(ErrorKind::NotSupported(Feature::HandleType), 801)?;
    check(ErrorKind::Forked, 3)
}
