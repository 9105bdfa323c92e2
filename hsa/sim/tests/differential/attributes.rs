//! Compares the simulation's attributes of agents, instruction sets and the system with those of AMD's runtimes on the
//! emulated driver: which attributes exist, and their values.
// The unsafe blocks call functions of a runtime's table. A query passes an array with room for the attribute. A
// callback gets the pointer that was passed to `iterate`.
#![allow(clippy::undocumented_unsafe_blocks)]

use crate::comparison::simulation;
use crate::setup::{self, OK};
use core::ffi::c_void;
use hsa_rocr::Emulation;
use hsa_rocr::test::{self, Fixture};
use hsa_sys::*;
use std::fmt::Write as _;
use std::ops::RangeInclusive;

/// The size of the buffer for an attribute. The longest attribute has 128 bytes.
const BUFFER_SIZE: usize = 256;

/// Ranges that contain the numbers of AMD's attributes of agents, and numbers that no header defines.
const AGENT_ATTRIBUTES: [RangeInclusive<u32>; 4] =
    [0..=0x20, 0x3000..=0x3010, 0xA000..=0xA020, 0xA100..=0xA120];
/// Ranges that contain the numbers of the attributes of the system.
const SYSTEM_ATTRIBUTES: [RangeInclusive<u32>; 2] = [0..=0x10, 0x1F0..=0x220];
/// A range that contains the numbers of the attributes of instruction sets.
const ISA_ATTRIBUTES: RangeInclusive<u32> = 0..=0x20;

/// Attributes of agents whose values depend on the machine, the emulation or the run.
const ATTRIBUTES_THAT_DIFFER: &[u32] = &[
    HSA_AGENT_INFO_ISA,
    HSA_AMD_AGENT_INFO_NEAREST_CPU,
    HSA_AMD_AGENT_INFO_HDP_FLUSH,
    HSA_AMD_AGENT_INFO_CLOCK_COUNTERS,
    HSA_AMD_AGENT_INFO_DRIVER_UID,
    HSA_AMD_AGENT_INFO_UUID,
    HSA_AMD_AGENT_INFO_BDFID,
    HSA_AMD_AGENT_INFO_PRODUCT_NAME,
    // The emulated GPU has one cache. Its versions of firmware and chip differ from those of the
    // simulated GPU.
    HSA_AGENT_INFO_CACHE_SIZE,
    HSA_AMD_AGENT_INFO_UCODE_VERSION,
    HSA_AMD_AGENT_INFO_SDMA_UCODE_VERSION,
    HSA_AMD_AGENT_INFO_ASIC_REVISION,
    // AMD's runtime has the HSA extension for images and sets its bit. The simulation sets no bit.
    HSA_AGENT_INFO_EXTENSIONS,
];
/// Attributes that also differ for CPUs, because the emulated driver reports the machine's own CPU.
const CPU_ATTRIBUTES_THAT_DIFFER: &[u32] = &[
    HSA_AGENT_INFO_NAME,
    HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT,
    HSA_AMD_AGENT_INFO_MAX_CLOCK_FREQUENCY,
];
/// Attributes of the system whose values differ.
const SYSTEM_ATTRIBUTES_THAT_DIFFER: &[u32] = &[
    HSA_SYSTEM_INFO_TIMESTAMP,
    HSA_SYSTEM_INFO_EXTENSIONS,
    HSA_AMD_SYSTEM_INFO_BUILD_VERSION,
    // Depend on the machine's kernel and processor.
    HSA_AMD_SYSTEM_INFO_SVM_SUPPORTED,
    HSA_AMD_SYSTEM_INFO_SVM_ACCESSIBLE_BY_DEFAULT,
    HSA_AMD_SYSTEM_INFO_MWAITX_ENABLED,
];

/// The bytes of an attribute, or the status of the failed call.
type AttributeResult = Result<Vec<u8>, hsa_status_t>;

/// Reads an attribute. Returns the bytes that the call writes.
fn read(query: impl Fn(*mut c_void) -> hsa_status_t) -> AttributeResult {
    // Two different fillings show which bytes the call writes.
    let [one, other] = [0x55, 0xAA].map(|filling| {
        let mut bytes = [filling; BUFFER_SIZE];
        (query(bytes.as_mut_ptr().cast()), bytes)
    });
    assert_eq!(one.0, other.0, "two identical calls return the same status");
    if one.0 != OK {
        return Err(one.0);
    }
    let last = (0..BUFFER_SIZE).rposition(|at| one.1[at] != 0x55 || other.1[at] != 0xAA);
    Ok(one.1[..last.map_or(0, |last| last + 1)].to_vec())
}

/// Describes a difference between the results of AMD's runtime and of the simulation, if any. If `compares_values` is
/// false, the values of two successful calls may differ.
fn difference(
    amd: &AttributeResult,
    simulated: &AttributeResult,
    compares_values: bool,
) -> Option<String> {
    match (amd, simulated) {
        (Err(expected), Err(found)) if expected == found => None,
        (Ok(_), Ok(_)) if !compares_values => None,
        // AMD's runtime does not write the final NUL of some strings, nor the last zeros of arrays of limits.
        (Ok(expected), Ok(found))
            if found.starts_with(expected)
                && found[expected.len()..].iter().all(|byte| *byte == 0) =>
        {
            None
        }
        _ => Some(format!("AMD {amd:x?}, simulation {simulated:x?}")),
    }
}

#[test]
fn attributes_agree_with_amds_releases() {
    let emulation = Emulation::with_gpus(2).with_vram("1GiB");
    test::run_on_releases("attributes::attributes_agree_with_amds_releases", &emulation, compare);
}

fn compare(fixture: &Fixture) {
    // SAFETY: the library is AMD's runtime.
    let library =
        unsafe { Library::load(&Search::only(fixture.runtime())) }.expect("AMD's runtime");
    let simulation = simulation(fixture.release());
    let (amd, simulated) = (&library.table().core, &simulation.table().core);
    for hsa in [amd, simulated] {
        assert_eq!(unsafe { (hsa.hsa_init)() }, OK, "hsa_init");
    }
    let mut differences = String::new();
    let mut note = |what: String, found: Option<String>| {
        if let Some(found) = found {
            writeln!(differences, "{what}: {found}").expect("a string can be written");
        }
    };
    for attribute in SYSTEM_ATTRIBUTES.into_iter().flatten() {
        let [amd, simulated] = [amd, simulated]
            .map(|hsa| read(|value| unsafe { (hsa.hsa_system_get_info)(attribute, value) }));
        let same = !SYSTEM_ATTRIBUTES_THAT_DIFFER.contains(&attribute);
        note(format!("system {attribute:#x}"), difference(&amd, &simulated, same));
    }
    let agents = [amd, simulated].map(setup::agents);
    assert_eq!(agents[0].len(), agents[1].len(), "agents");
    for (index, (first, second)) in agents[0].iter().zip(&agents[1]).enumerate() {
        let is_cpu =
            setup::agent_info::<u32>(amd, *first, HSA_AGENT_INFO_DEVICE) == Ok(HSA_DEVICE_TYPE_CPU);
        for attribute in AGENT_ATTRIBUTES.into_iter().flatten() {
            let read = |hsa: &Core, agent| {
                read(|value| unsafe { (hsa.hsa_agent_get_info)(agent, attribute, value) })
            };
            let may_differ = ATTRIBUTES_THAT_DIFFER.contains(&attribute)
                || is_cpu && CPU_ATTRIBUTES_THAT_DIFFER.contains(&attribute);
            let found = difference(&read(amd, *first), &read(simulated, *second), !may_differ);
            note(format!("agent {index} {attribute:#x}"), found);
        }
        let isas = [first_isa(amd, *first), first_isa(simulated, *second)];
        assert_eq!(isas[0].is_some(), isas[1].is_some(), "instruction set of agent {index}");
        let [Some(first), Some(second)] = isas else { continue };
        for attribute in ISA_ATTRIBUTES {
            let read = |hsa: &Core, isa| {
                let query = hsa.hsa_isa_get_info_alt.expect("the function");
                read(|value| unsafe { query(isa, attribute, value) })
            };
            // The name of the simulated GPU ends in a flag for memory error correction
            // (`:sramecc+`). The emulated GPU has no such flag.
            let same = attribute != HSA_ISA_INFO_NAME;
            let found = difference(&read(amd, first), &read(simulated, second), same);
            note(format!("instruction set of agent {index} {attribute:#x}"), found);
        }
    }
    assert!(differences.is_empty(), "attributes that differ:\n{differences}");
}

/// Returns the first instruction set of an agent.
fn first_isa(hsa: &Core, agent: hsa_agent_t) -> Option<hsa_isa_t> {
    unsafe extern "C" fn store(isa: hsa_isa_t, data: *mut c_void) -> hsa_status_t {
        unsafe { data.cast::<Option<hsa_isa_t>>().write(Some(isa)) };
        HSA_STATUS_INFO_BREAK
    }
    let mut found: Option<hsa_isa_t> = None;
    let iterate = hsa.hsa_agent_iterate_isas.expect("the function");
    unsafe { iterate(agent, Some(store), (&raw mut found).cast()) };
    found
}
