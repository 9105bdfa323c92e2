//! `hipMemSetAccess` and `hipMemGetAccess`: what succeeds.

use crate::Context;
use crate::case::{Case, Verdict, ensure, ensure_eq};
use crate::context::offset;
use hsa_vmm::vmm::Argument;
use hsa_vmm::{Access, AccessDescriptor};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "access.set.is_what_get_answers",
        "hip-tests: hipMemSetAccess_SetGet",
        "the access that was set is answered; agents that were not named have none",
        set_get,
    ),
    Case::new(
        "access.set.changes",
        "hip-tests: hipMemSetAccess_ChangeAccessProp",
        "access goes from each value to each other",
        changes,
    ),
    Case::new(
        "access.set.twice_is_once",
        "reference 6.1: invariant 11",
        "setting the same access again changes nothing",
        idempotent,
    ),
    Case::new(
        "access.set.last_of_an_agent_wins",
        "recorded: cuda_h200_edges setaccess_same_device_twice",
        "of an agent that is named twice the last counts",
        last_wins,
    ),
    Case::new(
        "access.set.others_keep_theirs",
        "reference 6.2 #47",
        "agents that are not named keep what they have",
        others_keep,
    ),
    Case::new(
        "access.set.over_several_mappings",
        "hip-tests: hipMemSetAccess_GrowVMM",
        "one call sets the access of a run of mappings",
        several_mappings,
    ),
    Case::new(
        "access.set.on_one_of_several",
        "hip-tests: hipMemSetAccess_SegmentsAccess",
        "setting the access of one mapping leaves its neighbours alone",
        one_of_several,
    ),
    Case::new(
        "access.set.of_one_alias",
        "HIP: hipMemSetAccess",
        "two mappings of one handle have access of their own",
        alias,
    ),
    Case::new(
        "access.get.anywhere_inside",
        "hip-tests: hipMemSetAccess_EntireVMMRangeSetGet",
        "the answer is the same for every address of a mapping",
        anywhere,
    ),
    Case::new(
        "access.get.never_set",
        "recorded: cuda_h200_edges getaccess_before_set",
        "without any grant the answer is none",
        never_set,
    ),
    Case::new(
        "access.cpu.read_and_write",
        "hip-tests: hipMemSetAccess_AccessDirectlyFromHost",
        "the CPU loads and stores what it was granted",
        cpu_writes,
    ),
    Case::new(
        "access.cpu.read_only",
        "recorded: cuda_h200_edges setaccess_read_only",
        "with read access the CPU may read and not write",
        cpu_reads,
    ),
    Case::new(
        "access.cpu.none",
        "recorded: cuda_h200_edges setaccess_none",
        "what was taken from the CPU it may neither read nor write; the contents stay",
        cpu_none,
    ),
    Case::new(
        "access.cpu.comes_and_goes",
        "reference 6.2 #63: ROCR leaves a hole",
        "access of the CPU can be taken and given many times",
        cpu_comes_and_goes,
    ),
    Case::new(
        "access.gpu.copies",
        "hip-tests: hipMemSetAccess_Vmm2VMMMemCpy",
        "a GPU copies between mappings it was granted",
        gpu_copies,
    ),
    Case::new(
        "access.gpu.needs_both_sides",
        "HIP: hipMemSetAccess",
        "a copy by a GPU that lacks access to either side is refused",
        gpu_needs_both,
    ),
    Case::new(
        "access.gpu.read_only",
        "reference 6.2 #43",
        "with read access a GPU copies from memory and not to it",
        gpu_reads,
    ),
    Case::new(
        "access.gpus.both_see_the_same",
        "hip-tests: hipMemSetAccess_MultDevSetGet",
        "two GPUs that are granted in one call see the same memory",
        |c| two_gpus(c, false),
    ),
    Case::new(
        "access.gpus.peer_after_the_owner",
        "reference 6.2 #47, #48",
        "a peer that is granted after the owner sees the memory too",
        |c| two_gpus(c, true),
    ),
    Case::new(
        "access.gpus.peer_before_the_owner",
        "reference 6.2 #48; rocm-systems#9908",
        "the owner can be granted after a peer",
        peer_first,
    ),
    Case::new(
        "access.gpus.over_memory_of_several",
        "reference 6.2 #40",
        "one call sets the access to memory of different GPUs side by side",
        over_several_gpus,
    ),
];

const ALL: [Access; 3] = [Access::None, Access::Read, Access::ReadWrite];

fn set_get(context: &Context) -> Verdict {
    let (at, _) = context.mapped(2, 0x3131_3131)?;
    let gpu = context.gpu();
    for access in ALL {
        context.grant(at, 2, &[gpu], access)?;
        ensure_eq!(context.vmm().get_access(gpu, at)?, access, "access of the GPU");
        for agent in context.runtime().agents() {
            if !context.users().contains(&agent.id()) {
                let found = context.vmm().get_access(agent.id(), at)?;
                ensure_eq!(found, Access::None, "access of {}", agent.id());
            }
        }
    }
    Ok(())
}

fn changes(context: &Context) -> Verdict {
    let (at, _) = context.mapped(1, 0x3232_3232)?;
    for from in ALL {
        for to in ALL {
            for access in [from, to, Access::ReadWrite] {
                context.grant(at, 1, &context.users(), access)?;
                for agent in context.users() {
                    let found = context.vmm().get_access(agent, at)?;
                    ensure_eq!(found, access, "access of {agent}");
                }
            }
            context.holds(at, 1, 0x3232_3232)?;
        }
    }
    Ok(())
}

fn idempotent(context: &Context) -> Verdict {
    let (at, _) = context.mapped(1, 0x3333_3333)?;
    let before = context.vmm().mappings();
    for _ in 0..4 {
        context.grant(at, 1, &context.users(), Access::ReadWrite)?;
        ensure_eq!(context.vmm().mappings(), before, "mappings");
    }
    context.holds(at, 1, 0x3333_3333)
}

fn last_wins(context: &Context) -> Verdict {
    let (at, _) = context.mapped(1, 0x3434_3434)?;
    let agent = context.gpu();
    let list = [Access::None, Access::Read, Access::ReadWrite, Access::Read]
        .map(|access| AccessDescriptor { agent, access });
    context.vmm().set_access(at, context.granule(), &list)?;
    ensure_eq!(context.vmm().get_access(agent, at)?, Access::Read, "access");
    Ok(())
}

fn others_keep(context: &Context) -> Verdict {
    context.needs_cpu()?;
    let (at, _) = context.mapped(1, 0x3535_3535)?;
    context.grant(at, 1, &[context.host()], Access::Read)?;
    let gpu = context.vmm().get_access(context.gpu(), at)?;
    ensure_eq!(gpu, Access::ReadWrite, "access of the GPU");
    context.grant(at, 1, &[context.gpu()], Access::Read)?;
    let host = context.vmm().get_access(context.host(), at)?;
    ensure_eq!(host, Access::Read, "access of the CPU");
    context.holds(at, 1, 0x3535_3535)
}

fn several_mappings(context: &Context) -> Verdict {
    let at = context.reserve(6)?;
    for (start, granules) in [(0, 2), (2, 1), (3, 3)] {
        let handle = context.create(granules)?;
        context.map(context.on(at, start), granules, handle)?;
    }
    context.grant(at, 6, &context.users(), Access::ReadWrite)?;
    for index in 0..6 {
        let access = context.vmm().get_access(context.gpu(), context.on(at, index))?;
        ensure_eq!(access, Access::ReadWrite, "access in granule {index}");
    }
    context.fill(at, 6, 0x3636_3636)?;
    context.holds(at, 6, 0x3636_3636)
}

fn one_of_several(context: &Context) -> Verdict {
    let at = context.reserve(3)?;
    for index in 0..3 {
        let handle = context.create(1)?;
        context.map(context.on(at, index), 1, handle)?;
    }
    context.grant(context.on(at, 1), 1, &context.users(), Access::ReadWrite)?;
    for (index, expected) in [Access::None, Access::ReadWrite, Access::None].iter().enumerate() {
        let found = context.vmm().get_access(context.gpu(), context.on(at, index))?;
        ensure_eq!(found, *expected, "access of mapping {index}");
    }
    context.fill(context.on(at, 1), 1, 0x3737_3737)?;
    context.holds(context.on(at, 1), 1, 0x3737_3737)
}

fn alias(context: &Context) -> Verdict {
    let (at, handle) = context.mapped(1, 0x3838_3838)?;
    let alias = context.reserve(1)?;
    context.map(alias, 1, handle)?;
    let access = context.vmm().get_access(context.gpu(), alias)?;
    ensure_eq!(access, Access::None, "access of the alias");
    context.grant(alias, 1, &context.users(), Access::Read)?;
    context.holds(alias, 1, 0x3838_3838)?;
    let access = context.vmm().get_access(context.gpu(), at)?;
    ensure_eq!(access, Access::ReadWrite, "access of the first");
    context.refuses_argument(Argument::Address, || context.vmm().write(alias, &[1]))
}

fn anywhere(context: &Context) -> Verdict {
    let (at, _) = context.mapped(2, 0x3939_3939)?;
    let size = 2 * context.granule();
    for bytes in [0, 1, context.granule() - 1, context.granule(), size - 1] {
        let access = context.vmm().get_access(context.gpu(), offset(at, bytes))?;
        ensure_eq!(access, Access::ReadWrite, "access {bytes:#x} bytes on");
    }
    Ok(())
}

fn never_set(context: &Context) -> Verdict {
    let at = context.reserve(1)?;
    let handle = context.create(1)?;
    context.map(at, 1, handle)?;
    ensure_eq!(context.vmm().get_access(context.gpu(), at)?, Access::None, "access");
    ensure_eq!(context.vmm().get_access(context.host(), at)?, Access::None, "access of the CPU");
    Ok(())
}

fn cpu_writes(context: &Context) -> Verdict {
    context.needs_cpu()?;
    let (at, handle) = context.mapped(2, 0)?;
    let pattern: Vec<u8> = (0..2 * context.granule()).map(|i| (i % 251) as u8).collect();
    context.vmm().write(at, &pattern)?;
    let mut found = vec![0; pattern.len()];
    context.vmm().read(at, &mut found)?;
    ensure!(found == pattern, "the CPU does not read what it wrote");
    // A GPU sees it, too.
    let copy = context.reserve(2)?;
    let other = context.create(2)?;
    context.map(copy, 2, other)?;
    context.grant(copy, 2, &context.users(), Access::ReadWrite)?;
    context.vmm().copy(context.gpu(), copy, at, pattern.len())?;
    found.fill(0);
    context.vmm().read(copy, &mut found)?;
    ensure!(found == pattern, "the GPU does not copy what the CPU wrote");
    ensure_eq!(context.vmm().retain_allocation_handle(at)?, handle, "handle");
    Ok(())
}

fn cpu_reads(context: &Context) -> Verdict {
    context.needs_cpu()?;
    let (at, _) = context.mapped(1, 0x4141_4141)?;
    context.grant(at, 1, &[context.host()], Access::Read)?;
    context.holds(at, 1, 0x4141_4141)?;
    context.refuses_argument(Argument::Address, || context.vmm().write(at, &[1]))?;
    context.fill(at, 1, 0x4242_4242)?;
    context.holds(at, 1, 0x4242_4242)
}

fn cpu_none(context: &Context) -> Verdict {
    context.needs_cpu()?;
    let (at, _) = context.mapped(1, 0x4343_4343)?;
    context.grant(at, 1, &[context.host()], Access::None)?;
    context.refuses_argument(Argument::Address, || context.vmm().read(at, &mut [0]))?;
    context.refuses_argument(Argument::Address, || context.vmm().write(at, &[1]))?;
    context.grant(at, 1, &[context.host()], Access::ReadWrite)?;
    context.holds(at, 1, 0x4343_4343)
}

fn cpu_comes_and_goes(context: &Context) -> Verdict {
    context.needs_cpu()?;
    let (at, _) = context.mapped(2, 0x4444_4444)?;
    for round in 0..16 {
        context.grant(at, 2, &[context.host()], Access::None)?;
        // Addresses that were given up would be found here.
        let other = context.reserve(1)?;
        ensure!(
            other < at || other >= context.on(at, 2),
            "{other} was reserved inside {at} in round {round}"
        );
        context.grant(at, 2, &[context.host()], Access::ReadWrite)?;
        context.holds(at, 2, 0x4444_4444)?;
    }
    Ok(())
}

fn gpu_copies(context: &Context) -> Verdict {
    let (from, _) = context.mapped(2, 0x4545_4545)?;
    let (to, _) = context.mapped(2, 0x4646_4646)?;
    context.vmm().copy(context.gpu(), to, from, context.granule())?;
    context.holds(to, 1, 0x4545_4545)?;
    context.holds(context.on(to, 1), 1, 0x4646_4646)?;
    context.holds(from, 2, 0x4545_4545)
}

fn gpu_needs_both(context: &Context) -> Verdict {
    let (from, _) = context.mapped(1, 0x4747_4747)?;
    let to = context.reserve(1)?;
    let handle = context.create(1)?;
    context.map(to, 1, handle)?;
    let (vmm, gpu, size) = (context.vmm(), context.gpu(), context.granule());
    context.refuses_argument(Argument::Destination, || vmm.copy(gpu, to, from, size))?;
    context.refuses_argument(Argument::Source, || vmm.copy(gpu, from, to, size))?;
    context.holds(from, 1, 0x4747_4747)
}

fn gpu_reads(context: &Context) -> Verdict {
    let (from, _) = context.mapped(1, 0x4848_4848)?;
    let (to, _) = context.mapped(1, 0x4949_4949)?;
    let (vmm, gpu, size) = (context.vmm(), context.gpu(), context.granule());
    context.grant(from, 1, &[gpu], Access::Read)?;
    context.refuses_argument(Argument::Destination, || vmm.copy(gpu, from, to, size))?;
    context.refuses_argument(Argument::Address, || vmm.fill(from, 1, size))?;
    vmm.copy(gpu, to, from, size)?;
    context.holds(to, 1, 0x4848_4848)
}

fn two_gpus(context: &Context, one_by_one: bool) -> Verdict {
    let other = context.other_gpu()?;
    let owner = context.gpu();
    let at = context.reserve(2)?;
    for index in 0..2 {
        let handle = context.create(1)?;
        context.map(context.on(at, index), 1, handle)?;
    }
    if one_by_one {
        context.grant(at, 2, &context.users(), Access::ReadWrite)?;
        context.fill(at, 2, 0x4a4a_4a4a)?;
        context.grant(at, 2, &[other], Access::ReadWrite)?;
        context.holds(at, 2, 0x4a4a_4a4a)?;
    } else {
        let mut everyone = context.users();
        everyone.push(other);
        context.grant(at, 2, &everyone, Access::ReadWrite)?;
    }
    context.fill(at, 1, 0x4b4b_4b4b)?;
    context.vmm().copy(other, context.on(at, 1), at, context.granule())?;
    context.holds(at, 2, 0x4b4b_4b4b)?;
    for gpu in [owner, other] {
        let access = context.vmm().get_access(gpu, at)?;
        ensure_eq!(access, Access::ReadWrite, "access of {gpu}");
    }
    Ok(())
}

fn peer_first(context: &Context) -> Verdict {
    let other = context.other_gpu()?;
    let at = context.reserve(2)?;
    let handle = context.create(2)?;
    context.map(at, 2, handle)?;
    context.grant(at, 2, &[other], Access::ReadWrite)?;
    context.grant(at, 2, &context.users(), Access::ReadWrite)?;
    context.fill(at, 1, 0x4c4c_4c4c)?;
    context.vmm().copy(other, context.on(at, 1), at, context.granule())?;
    context.holds(at, 2, 0x4c4c_4c4c)
}

fn over_several_gpus(context: &Context) -> Verdict {
    let (owner, other) = (context.gpu(), context.other_gpu()?);
    let at = context.reserve(2)?;
    for (index, gpu) in [owner, other].into_iter().enumerate() {
        let handle = context.create_on(gpu, 1)?;
        context.map(context.on(at, index), 1, handle)?;
    }
    context.grant(at, 2, &[owner, other], Access::ReadWrite)?;
    context.fill(at, 1, 0x4d4d_4d4d)?;
    for gpu in [owner, other] {
        context.vmm().copy(gpu, context.on(at, 1), at, context.granule())?;
    }
    if context.cpu_sees(owner) && context.cpu_sees(other) {
        context.grant(at, 2, &[context.host()], Access::Read)?;
        context.holds(at, 2, 0x4d4d_4d4d)?;
    }
    Ok(())
}
