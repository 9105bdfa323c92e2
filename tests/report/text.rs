//! The text of a report.

use super::*;
use hsa_vmm::PoolMemory;

/// Returns the report's text with placeholders for `base` and the handles.
fn text_with_placeholders(machine: &Machine, base: Address, handles: &[Handle]) -> String {
    let mut text = machine.vmm.report().to_string().replace(&base.to_string(), "BASE");
    for (index, handle) in handles.iter().enumerate() {
        text = text.replace(&handle.to_string(), &format!("HANDLE {index}          "));
    }
    text
}

#[test]
fn text_matches_the_expected_report() {
    let machine = machine();
    let (base, handles) = map_granules(&machine, 8, &[0, 1, 4]);
    machine.vmm.name_reservation(base, "kv cache").unwrap();
    machine.vmm.name_handle(handles[2], "odd \"page\"\n").unwrap();
    grant_both_gpus(&machine, base, 2 * GRANULE);
    machine.grant(base, 2 * GRANULE, machine.gpu(1), Access::Read);
    let expected = r#"
1 reservation of 16 MiB; 3 mappings of 6 MiB; memory: 3 allocations of 6 MiB; pool memory: 0 allocations of 0 B

BASE  16 MiB  "kv cache"  6 MiB mapped, 10 MiB free in 2 gaps, the largest 6 MiB (40 % fragmented)
  +0x00000000000      4 MiB  GPU 1 in 2 mappings: GPU 0 rw, GPU 1 r (can write)
  +0x00000400000      4 MiB  free
  +0x00000800000      2 MiB  GPU 1  "odd \"page\"\n": no access
  +0x00000a00000      6 MiB  free

memory
    2 allocations of      2 MiB  GPU 1: 1 reference each, mapped in 1 place
  HANDLE 2                2 MiB  GPU 1  "odd \"page\"\n": 1 reference, mapped in 1 place

idle: allocated, and not in use
  0xADDR      2 MiB  "odd \"page\"\n"  mapping without access
"#;
    let idle_address = at(base, 4 * GRANULE).to_string();
    let text = text_with_placeholders(&machine, base, &handles).replace(&idle_address, "0xADDR");
    assert_eq!(text.trim(), expected.trim());
}

#[test]
fn pool_memory_is_listed_under_one_heading() {
    let machine = machine();
    let [first, second] = [0, 1].map(|gpu| machine.gpu(gpu));
    let allocate = |gpu| PoolMemory::allocate(&machine.runtime, gpu, 2 * MIB).unwrap();
    let (staging, unnamed) = (allocate(first).named("staging"), allocate(second));
    staging.allow(&[second]).unwrap();
    let text = machine.vmm.report().to_string();
    let [first_at, second_at] =
        [&staging, &unnamed].map(|memory| text.find(&memory.address().to_string()));
    let heading = "\npool memory\n";
    assert_eq!(text.matches(heading).count(), 1, "{text}");
    assert!(first_at.min(second_at) > text.find(heading), "{text}");
    assert!(text.contains("2 MiB  GPU 0  \"staging\": accessible to GPU 0, GPU 1\n"), "{text}");
    assert!(text.contains("2 MiB  GPU 1: accessible to GPU 1\n"), "{text}");
}

#[test]
fn equal_idle_entries_share_a_line() {
    let machine = machine();
    let (base, _) = map_granules(&machine, 8, &[0, 1, 4]);
    let other = machine.create(0, 2 * GRANULE);
    let text = machine.vmm.report().to_string();
    let idle = text.split_once("\nidle: allocated, and not in use\n").unwrap().1;
    let [mappings, memory] = idle.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
    assert_eq!(mappings.trim(), "3 of      2 MiB  mapping without access", "{base}");
    assert_eq!(memory.trim(), format!("{other}      4 MiB  memory that is not mapped"));
}

#[test]
fn empty_report_has_only_totals() {
    let machine = machine();
    let text = machine.vmm.report().to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("0 reservations of 0 B; 0 mappings"), "{text}");
}
