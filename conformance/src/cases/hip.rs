//! HIP in general: error codes, differences between releases, and usage patterns of HIP's tests.

use crate::Context;
use crate::case::{Case, TestResult, ensure, ensure_eq};
use crate::hip_calls::HipCalls as _;
use hsa_vmm::error::Argument;
use hsa_vmm::hip::{HipError, HipProfile};
use hsa_vmm::vmm::Granularity;
use hsa_vmm::{Access, AccessDescriptor, AgentId, AllocationProperties, Runtime, Vmm};

pub(super) const CASES: &[Case] = &[
    Case::of_runtime(
        "hip.errors.have_hips_numbers",
        "HIP: hipError_t",
        "errors have HIP's numbers and names",
        errors_have_hip_codes,
    ),
    Case::new(
        "hip.map_array.not_supported",
        "HIP: hipMemMapArrayAsync; reference 6.2 #67",
        "the error for sparse arrays is not supported; only the C interface has the call",
        |c| c.expect_error(HipError::NotSupported, || c.vmm().map_array_async(1)).map(|_| ()),
    ),
    Case::new(
        "hip.map_array.list_empty",
        "HIP: hipMemMapArrayAsync",
        "the error for an empty list is invalid value; only the C interface has the call",
        |c| c.expect_invalid_argument(Argument::List, || c.vmm().map_array_async(0)),
    ),
    Case::new(
        "hip.profile.bad_reservation",
        "hip-tests: hipMemAddressReserve_Negative (6.x and develop)",
        "an invalid reservation returns out of memory in HIP 6, invalid value in HIP 7",
        reservation_error_depends_on_profile,
    ),
    Case::new(
        "hip.profile.bad_device",
        "hip-tests: hipMemCreate_Negative (6.x and develop); reference 6.2 #13",
        "an invalid device returns invalid value in HIP 6, invalid device in HIP 7",
        device_error_depends_on_profile,
    ),
    Case::new(
        "hip.profile.free_while_mapped",
        "HIP: hipMemAddressFree; reference 6.2 #10",
        "freeing a mapped reservation returns unknown in HIP 6, invalid value in HIP 7",
        free_error_depends_on_profile,
    ),
    Case::new(
        "hip.profile.granularity",
        "HIP: hipMemGetAllocationGranularity",
        "the recommended granularity is the minimum in HIP 6",
        granularity_depends_on_profile,
    ),
    Case::new(
        "hip.use.grows_in_place",
        "hip-tests: hipMemSetAccess_GrowVMM",
        "a range grows in steps, keeps its contents, and is unmapped in one call",
        grows_in_place,
    ),
    Case::new(
        "hip.use.shrinks_from_the_end",
        "HIP: hipMemUnmap",
        "the last granules of a range can be unmapped; the other granules keep their contents",
        shrinks_from_end,
    ),
    Case::new(
        "hip.use.memory_moves",
        "HIP: hipMemMap",
        "memory moves from one range to another without a copy",
        moves_memory,
    ),
    Case::new(
        "hip.use.chunks_granted_to_their_own_gpu",
        "hip-tests: hipMemSetAccess_MapPhysChksFromMulDev",
        "a range has memory of every GPU; each GPU can access its own memory, and the CPU the whole range, if it can access the memory of all GPUs",
        each_gpu_uses_own_part_of_range,
    ),
    Case::new(
        "hip.use.copy_between_gpus",
        "hip-tests: hipMemSetAccess_Vmm2VMMInterDevMemCpy",
        "memory of one GPU is copied to memory of another GPU",
        copies_between_gpus,
    ),
    Case::new(
        "hip.use.many_threads",
        "hip-tests: hipMemSetAccess_Multithreaded",
        "five threads use separate memory at the same time",
        runs_in_many_threads,
    ),
];

fn errors_have_hip_codes(_: &Runtime) -> TestResult {
    for (error, code, name) in [
        (HipError::InvalidValue, 1, "hipErrorInvalidValue"),
        (HipError::OutOfMemory, 2, "hipErrorOutOfMemory"),
        (HipError::NotInitialized, 3, "hipErrorNotInitialized"),
        (HipError::InvalidDevice, 101, "hipErrorInvalidDevice"),
        (HipError::OperatingSystem, 304, "hipErrorOperatingSystem"),
        (HipError::NotSupported, 801, "hipErrorNotSupported"),
        (HipError::Unknown, 999, "hipErrorUnknown"),
    ] {
        ensure_eq!((error.code(), error.name().as_str()), (code, name), "code and name");
    }
    Ok(())
}

/// Checks the error of an invalid call in each profile.
fn check_both_profiles(
    context: &Context,
    invalid_call: impl Fn(&Vmm) -> TestResult<Option<hsa_vmm::Error>>,
    expected: [HipError; 2],
) -> TestResult {
    for (profile, expected) in [HipProfile::Hip6, HipProfile::Hip7].into_iter().zip(expected) {
        let vmm = context.open_vmm(profile)?;
        let error = invalid_call(&vmm)?;
        let found = error.map(|error| error.hip(profile));
        ensure_eq!(found, Some(expected), "in {profile}");
    }
    Ok(())
}

fn reservation_error_depends_on_profile(context: &Context) -> TestResult {
    let invalid_call = |vmm: &Vmm| Ok(vmm.address_reserve(0, 0, None).err());
    check_both_profiles(context, invalid_call, [HipError::OutOfMemory, HipError::InvalidValue])
}

fn device_error_depends_on_profile(context: &Context) -> TestResult {
    let properties = AllocationProperties::on(context.invented_agent());
    let invalid_call = |vmm: &Vmm| Ok(vmm.create(context.granule(), &properties).err());
    check_both_profiles(context, invalid_call, [HipError::InvalidValue, HipError::InvalidDevice])
}

fn free_error_depends_on_profile(context: &Context) -> TestResult {
    let size = context.granule();
    let invalid_call = |vmm: &Vmm| {
        let at = vmm.address_reserve(size, 0, None)?;
        let handle = vmm.create(size, &AllocationProperties::on(context.gpu()))?;
        vmm.map(at, size, 0, handle)?;
        Ok(vmm.address_free(at, size).err())
    };
    check_both_profiles(context, invalid_call, [HipError::Unknown, HipError::InvalidValue])
}

fn granularity_depends_on_profile(context: &Context) -> TestResult {
    let properties = AllocationProperties::on(context.gpu());
    let pool = context.runtime().agent(context.gpu()).and_then(|gpu| gpu.vmem_pool());
    let Some(pool) = pool else { return Ok(()) };
    for (profile, expected) in
        [(HipProfile::Hip6, pool.granule), (HipProfile::Hip7, pool.recommended_granule)]
    {
        let vmm = context.open_vmm(profile)?;
        let found = vmm.allocation_granularity(&properties, Granularity::Recommended)?;
        ensure_eq!(found, expected, "recommended granularity in {profile}");
    }
    Ok(())
}

fn grows_in_place(context: &Context) -> TestResult {
    let at = context.reserve(8)?;
    for granules in 1..=8 {
        let handle = context.create(1)?;
        let last = context.granule_at(at, granules - 1);
        context.map(last, 1, handle)?;
        context.vmm().release(handle)?;
        context.set_access(at, granules, &context.default_agents(), Access::ReadWrite)?;
        context.fill(last, 1, 0xb1b1_b100 + granules as u32)?;
        for chunk in 1..=granules {
            context.check_contents(
                context.granule_at(at, chunk - 1),
                1,
                0xb1b1_b100 + chunk as u32,
            )?;
        }
    }
    context.vmm().unmap(at, 8 * context.granule())?;
    ensure_eq!(context.vmm().usage().handles, 0, "handles at the end");
    Ok(())
}

fn shrinks_from_end(context: &Context) -> TestResult {
    let at = context.reserve(4)?;
    for index in 0..4 {
        let handle = context.create(1)?;
        context.map(context.granule_at(at, index), 1, handle)?;
        context.vmm().release(handle)?;
    }
    context.set_access(at, 4, &context.default_agents(), Access::ReadWrite)?;
    context.fill(at, 4, 0xb2b2_b2b2)?;
    for remaining in (1..4).rev() {
        context.vmm().unmap(context.granule_at(at, remaining), context.granule())?;
        ensure_eq!(context.vmm().usage().handles, remaining, "handles");
        context.check_contents(at, remaining, 0xb2b2_b2b2)?;
    }
    Ok(())
}

fn moves_memory(context: &Context) -> TestResult {
    let (source, handle) = context.map_filled(2, 0xb3b3_b3b3)?;
    let destination = context.reserve(2)?;
    context.vmm().unmap(source, 2 * context.granule())?;
    context.map(destination, 2, handle)?;
    context.set_access(destination, 2, &context.default_agents(), Access::ReadWrite)?;
    context.check_contents(destination, 2, 0xb3b3_b3b3)?;
    Ok(context.vmm().address_free(source, 2 * context.granule())?)
}

fn each_gpu_uses_own_part_of_range(context: &Context) -> TestResult {
    context.other_gpu()?;
    let gpus = context.gpus();
    let at = context.reserve(gpus.len())?;
    for (index, &gpu) in gpus.iter().enumerate() {
        let handle = context.create_on(gpu, 1)?;
        let granule = context.granule_at(at, index);
        context.map(granule, 1, handle)?;
        context.set_access(granule, 1, &[gpu], Access::ReadWrite)?;
        context.fill(granule, 1, 0xb4b4_b4b4)?;
    }
    for (index, &gpu) in gpus.iter().enumerate() {
        context.check_ends(gpu, context.granule_at(at, index), 1, 0xb4b4_b4b4)?;
    }
    if !gpus.iter().all(|&gpu| context.cpu_can_access(gpu)) {
        return Ok(());
    }
    context.set_access(at, gpus.len(), &[context.host()], Access::ReadWrite)?;
    context.check_contents(at, gpus.len(), 0xb4b4_b4b4)?;
    let all = vec![0x5b; gpus.len() * context.granule()];
    context.vmm().write(at, &all)?;
    context.check_contents(at, gpus.len(), 0x5b5b_5b5b)
}

fn copies_between_gpus(context: &Context) -> TestResult {
    let (first, other) = (context.gpu(), context.other_gpu()?);
    let size = context.granule();
    let (source, _) = context.map_filled(1, 0xb5b5_b5b5)?;
    let destination = context.reserve(1)?;
    let handle = context.create_on(other, 1)?;
    context.map(destination, 1, handle)?;
    let agents = |owner: AgentId| [context.gpu_and_cpu(owner), vec![first, other]].concat();
    context.set_access(source, 1, &agents(first), Access::ReadWrite)?;
    context.set_access(destination, 1, &agents(other), Access::ReadWrite)?;
    context.vmm().copy(first, destination, source, size)?;
    context.check_by_cpu_or(other, destination, 1, 0xb5b5_b5b5)?;
    [first, other]
        .iter()
        .try_for_each(|&gpu| context.check_ends(gpu, destination, 1, 0xb5b5_b5b5))?;
    context.fill(destination, 1, 0xb6b6_b6b6)?;
    context.vmm().copy(other, source, destination, size)?;
    context.check_contents(source, 1, 0xb6b6_b6b6)
}

fn runs_in_many_threads(context: &Context) -> TestResult {
    let (vmm, gpu, size) = (context.vmm(), context.gpu(), 2 * context.granule());
    let default_agents = context.default_agents();
    let cpu_can_access_gpu = context.cpu_can_access(gpu);
    let run_thread = |thread: u8| -> TestResult {
        for round in 0..8 {
            let at = vmm.address_reserve(size, 0, None)?;
            let handle = vmm.create(size, &AllocationProperties::on(gpu))?;
            vmm.map(at, size, 0, handle)?;
            let list: Vec<_> = default_agents
                .iter()
                .map(|&agent| AccessDescriptor { agent, access: Access::ReadWrite })
                .collect();
            vmm.set_access(at, size, &list)?;
            let value = thread * 16 + round;
            vmm.fill(at, u32::from_le_bytes([value; 4]), size)?;
            let mut found = vec![0; size];
            match cpu_can_access_gpu {
                true => vmm.read(at, &mut found)?,
                false => vmm.copy_to_host(gpu, &mut found, at)?,
            }
            ensure!(
                found.iter().all(|&byte| byte == value),
                "thread {thread} reads another thread's data"
            );
            vmm.unmap(at, size)?;
            vmm.release(handle)?;
            vmm.address_free(at, size)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..5).map(|thread| scope.spawn(move || run_thread(thread))).collect();
        threads.into_iter().try_for_each(|thread| {
            let panicked = || crate::NotPassed::Failed("a thread panicked".to_owned());
            thread.join().unwrap_or_else(|_| Err(panicked()))
        })
    })
}
