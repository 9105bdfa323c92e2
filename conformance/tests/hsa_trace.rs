//! Tests `lint` and `steps` on recordings written by hand, for calls that no program of `cli/tests/record` makes.

use hsa_vmm_conformance::hsa_trace::lint::{Mistake, lint};
use hsa_vmm_conformance::hsa_trace::steps::{
    Action, AddressRef, AgentRef, MemoryRef, PoolRef, Skipped, plan,
};
use hsa_vmm_conformance::hsa_trace::{AgentKind, Recording, program};
use hsa_vmm_conformance::trace::Reader;

const HEADER: &str = r#"{"format":"hsa-vmm-hsa-trace","version":1,"pid":7,"agents":[
{"agent":"0xc0","kind":"cpu","name":"c","pools":[]},
{"agent":"0xa0","kind":"gpu","name":"a","pools":[{"pool":"0xa1"},{"pool":"0xa2"}]},
{"agent":"0xb0","kind":"gpu","name":"b","pools":[{"pool":"0xb1"}]},
{"agent":"0xd0","kind":"other","name":"d","pools":[{"pool":"0xd1"}]}]}"#;

/// Reads a recording of these calls. Each call is a line of JSON without the beginning `{"call":"hsa_amd_`, the closing
/// brace, and the status if the status is 0.
fn recording(calls: &[&str]) -> Recording {
    let mut text = HEADER.replace('\n', "") + "\n";
    for call in calls {
        let status = if call.contains("\"status\"") { "" } else { ",\"status\":0" };
        text += &format!("{{\"call\":\"hsa_amd_{call}{status}}}\n");
    }
    Recording::read(Reader::new((text + "{\"call\":\"end\"}\n").as_bytes()).unwrap()).unwrap()
}

const RESERVE: &str =
    r#"vmem_address_reserve","size":8192,"hint":"0x0","flags":0,"address":"0x10000""#;
const CREATE: &str =
    r#"vmem_handle_create","pool":"0xa2","size":4096,"type":0,"flags":0,"handle":"0x5""#;
const MAP: &str =
    r#"vmem_map","address":"0x10000","size":4096,"offset":0,"handle":"0x5","flags":0"#;
const GRANT: &str = r#"vmem_set_access","address":"0x10000","size":4096,"count":1,"access":[{"agent":"0xa0","permissions":3}]"#;
const GRANT_PEER: &str = r#"vmem_set_access","address":"0x10000","size":4096,"count":1,"access":[{"agent":"0xb0","permissions":3}]"#;
const GRANT_PEER_AND_OWNER: &str = r#"vmem_set_access","address":"0x10000","size":4096,"count":2,"access":[{"agent":"0xb0","permissions":3},{"agent":"0xa0","permissions":3}]"#;
const EXPORT: &str = r#"vmem_export_shareable_handle","handle":"0x5","flags":0,"fd":9"#;
const UNMAP: &str = r#"vmem_unmap","address":"0x10000","size":4096"#;
const RELEASE: &str = r#"vmem_handle_release","handle":"0x5""#;
const RETAIN: &str = r#"vmem_retain_alloc_handle","address":"0x10800","handle":"0x5""#;
const FREE: &str = r#"vmem_address_free","address":"0x10000","size":8192"#;
const FILL: &str = r#"memory_fill","address":"0x10ffc","value":1,"count":1"#;
const COPY: &str = r#"memory_async_copy","destination":"0x99000","source":"0x10000","size":8"#;
const ALLOCATE: &str =
    r#"memory_pool_allocate","pool":"0xa1","size":4096,"flags":0,"address":"0x10000""#;

/// A dma-buf of the process's own pool memory is not reported as memory of another process.
#[test]
fn dmabufs_of_pool_memory_are_skipped() {
    let export = r#"portable_export_dmabuf","address":"0x10000","size":4096,"fd":9"#;
    let close = r#"portable_close_dmabuf","fd":9"#;
    let plan = plan(&recording(&[ALLOCATE, export, close]));
    let actions: Vec<_> = plan.steps.iter().map(|step| step.action.clone()).collect();
    assert_eq!(actions[1..], [const { Err(Skipped::Dmabuf) }; 2]);
}

/// The program had closed the exported descriptor, so that the dma-buf has the same number.
#[test]
fn imports_of_pool_memory_are_skipped() {
    let export = r#"portable_export_dmabuf","address":"0x10000","size":4096,"fd":9"#;
    let import = r#"vmem_import_shareable_handle","fd":9,"handle":"0x6""#;
    let plan = plan(&recording(&[CREATE, EXPORT, ALLOCATE, export, import]));
    assert_eq!(plan.steps[4].action, Err(Skipped::OtherProcess));
}

#[test]
fn lint_finds_mistakes() {
    use Mistake::{Leak, NoAccess, OwnerNotLast, RangeCut, UseAfterRelease};
    let failed_release = RELEASE.to_owned() + ",\"status\":4097";
    let unmap_half = UNMAP.replace("4096", "2048") + ",\"status\":4097";
    let free_half = FREE.replace("8192", "4096") + ",\"status\":4097";
    let other_reserve = RESERVE.replace("0x10000", "0x30000");
    /// Calls, and the mistakes with their lines. The first call is in line 2, after the header.
    type Row<'a> = (&'a [&'a str], &'a [(Mistake, u64)]);
    let rows: &[Row<'_>] = &[
        (&[RESERVE, CREATE, MAP, GRANT, FILL, COPY, UNMAP, RELEASE, FREE], &[]),
        // A handle may be released while its memory is mapped, and then be retained again.
        (&[RESERVE, CREATE, MAP, GRANT, RELEASE, RETAIN, RELEASE, UNMAP, FREE], &[]),
        // The runtime reuses values of handles and addresses.
        (&[CREATE, RELEASE, CREATE, RELEASE], &[]),
        (&[RESERVE, CREATE, MAP, GRANT, UNMAP, RELEASE, FREE, ALLOCATE, FILL], &[]),
        // After the reservation was freed, copies may use other memory at the same address.
        (&[RESERVE, CREATE, MAP, GRANT, UNMAP, RELEASE, FREE, COPY], &[]),
        (&[RESERVE, CREATE, MAP, GRANT, UNMAP, FILL, RELEASE, FREE], &[(UseAfterRelease, 7)]),
        (&[RESERVE, CREATE, MAP, GRANT, UNMAP, COPY, RELEASE, FREE], &[(UseAfterRelease, 7)]),
        (&[RESERVE, CREATE, MAP, GRANT, UNMAP, RELEASE, FREE, UNMAP], &[(UseAfterRelease, 9)]),
        (&[CREATE, RELEASE, &failed_release], &[(UseAfterRelease, 4)]),
        (&[RESERVE, CREATE, MAP, FILL, GRANT, UNMAP, RELEASE, FREE], &[(NoAccess, 5)]),
        (&[RESERVE, CREATE, MAP, UNMAP, RELEASE, FREE], &[(NoAccess, 4)]),
        // The process may have mapped the exported memory for the CPU.
        (&[RESERVE, CREATE, MAP, EXPORT, UNMAP, RELEASE, FREE], &[]),
        (&[RESERVE, CREATE, EXPORT, MAP, UNMAP, RELEASE, FREE], &[(NoAccess, 5)]),
        (&[RESERVE, CREATE, MAP, GRANT, GRANT_PEER, UNMAP, RELEASE, FREE], &[(OwnerNotLast, 6)]),
        (&[RESERVE, CREATE, MAP, GRANT, GRANT_PEER_AND_OWNER, UNMAP, RELEASE, FREE], &[]),
        (&[RESERVE, CREATE, MAP, GRANT, &unmap_half, UNMAP, RELEASE, FREE], &[(RangeCut, 6)]),
        (&[RESERVE, &free_half, FREE], &[(RangeCut, 3)]),
        (&[RESERVE, CREATE, MAP, GRANT, RELEASE], &[(Leak, 2), (Leak, 4)]),
        (&[CREATE, RETAIN, RELEASE], &[(Leak, 2)]),
        (&[&other_reserve, RESERVE, FREE], &[(Leak, 2)]),
    ];
    for (calls, expected) in rows {
        let findings = lint(&recording(calls));
        let found: Vec<_> = findings.iter().map(|it| (it.mistake, it.line)).collect();
        assert_eq!(found, *expected, "{calls:?}: {findings:#?}");
    }
}

/// The library makes these calls to test the runtime while a `Vmm` opens.
#[test]
fn lint_ignores_the_probe_of_this_library() {
    let second = |call: &str| call.replace("0x10000", "0x11000");
    let map_second = second(MAP);
    let owner_first = r#"vmem_set_access","address":"0x11000","size":4096,"count":2,"access":[{"agent":"0xa0","permissions":3},{"agent":"0xb0","permissions":3}]"#;
    let get_access = r#"vmem_get_access","address":"0x10000","agent":"0xb0","permissions":3"#;
    let unmap_both = UNMAP.replace("4096", "8192");
    let probe = [
        RESERVE,
        CREATE,
        MAP,
        &map_second,
        GRANT_PEER,
        GRANT,
        get_access,
        owner_first,
        &unmap_both,
        RELEASE,
        FREE,
    ];
    let rejected = owner_first.to_owned() + ",\"status\":4097";
    let rejected_probe = probe.map(|call| if call == owner_first { &rejected } else { call });
    for calls in [probe, rejected_probe] {
        let findings = lint(&recording(&calls));
        assert!(findings.is_empty(), "{findings:#?}");
    }
    // With one GPU, the probe grants no agent access to the second mapping.
    let probe_of_one =
        [RESERVE, CREATE, MAP, &map_second, GRANT, GRANT, &unmap_both, RELEASE, FREE];
    assert!(lint(&recording(&probe_of_one)).is_empty());
    let unmaps = [UNMAP, &second(UNMAP)];
    let split = [&probe_of_one[..6], &unmaps, &probe_of_one[7..]].concat();
    assert!(lint(&recording(&split)).is_empty());
    let mut used = probe_of_one.to_vec();
    used.insert(6, COPY);
    let findings = lint(&recording(&used));
    assert_eq!(findings.iter().map(|it| it.mistake).collect::<Vec<_>>(), [Mistake::NoAccess]);
    // A copy between the calls uses the memory, so the calls cannot be the library's probe.
    let mut used = probe.to_vec();
    used.insert(8, COPY);
    let findings = lint(&recording(&used));
    assert_eq!(findings.iter().map(|it| it.mistake).collect::<Vec<_>>(), [Mistake::OwnerNotLast]);
}

#[test]
fn steps_refer_to_the_newest_result() {
    let import = r#"vmem_import_shareable_handle","fd":9,"handle":"0x6""#;
    let map_import = MAP.replace("0x5", "0x6");
    let calls = [RESERVE, CREATE, RELEASE, CREATE, MAP, RETAIN, import, &map_import, UNMAP, COPY];
    let plan = plan(&recording(&calls));
    assert_eq!((plan.block_count, plan.handle_count, plan.descriptor_count), (1, 3, 0));
    assert_eq!(plan.agents_needed(AgentKind::Gpu), 1);
    let actions: Vec<_> = plan.steps.iter().map(|step| step.action.clone()).collect();
    let start = AddressRef::Block { block: 0, offset: 0 };
    assert_eq!(actions[2], Ok(Action::Release { memory: MemoryRef::Numbered(0) }));
    let memory = MemoryRef::Numbered(1);
    assert_eq!(actions[4], Ok(Action::Map { at: start, size: 4096, offset: 0, memory, flags: 0 }));
    let inside = AddressRef::Block { block: 0, offset: 0x800 };
    assert_eq!(actions[5], Ok(Action::Retain { memory: Some(2), at: inside }));
    // The imported descriptor comes from another process. Therefore, the import, the mapping of the imported memory and
    // the unmap of this mapping are skipped.
    assert_eq!(actions[6..9], [const { Err(Skipped::OtherProcess) }; 3]);
    assert_eq!(actions[9], Err(Skipped::MovesData));
    assert_eq!(plan.steps[9].line, 11);
}

/// Calls on a range are skipped only while memory of another process is mapped there.
#[test]
fn calls_on_an_imported_range_are_skipped() {
    let import = r#"vmem_import_shareable_handle","fd":9,"handle":"0x6""#;
    let map_import = MAP.replace("0x5", "0x6");
    let failed = format!("{map_import},\"status\":4096");
    let second = map_import.replace("0x10000", "0x11000");
    let unmap_both = UNMAP.replace("4096", "8192");
    let calls = [RESERVE, CREATE, import, &failed, MAP, UNMAP, &map_import, &second, &unmap_both];
    let map_second = MAP.replace("0x10000", "0x11000");
    let plan = plan(&recording(&[&calls[..], &[&map_second]].concat()));
    let skipped: Vec<_> = plan.steps.iter().map(|step| step.action.is_err()).collect();
    assert_eq!(skipped, [false, false, true, true, false, false, true, true, true, false]);
}

/// The descriptor of a failed import may refer to another file: a program can close the exported descriptor, and then
/// open a file that gets the same number. The library does this when it tests the runtime.
#[test]
fn failed_imports_are_skipped() {
    let import = r#"vmem_import_shareable_handle","fd":9,"handle":"0x6""#;
    let failed = r#"vmem_import_shareable_handle","fd":9,"status":4109"#;
    let plan = plan(&recording(&[CREATE, EXPORT, import, failed]));
    assert_eq!(plan.steps[2].action, Ok(Action::Import { memory: Some(1), descriptor: 0 }));
    assert_eq!(plan.steps[3].action, Err(Skipped::FailedImport));
}

/// AMD's runtime dereferences the handles of agents and pools. Therefore, invalid handles become null, and so do agents
/// that are neither CPU nor GPU.
#[test]
fn invalid_agents_and_pools_become_null() {
    for (pool, agent) in [("0x41414141", "0x41414141"), ("0xd1", "0xd0")] {
        let create = CREATE.replace("0xa2", pool).replace("\"handle\":\"0x5\"", "\"status\":4097");
        let grant = GRANT.replace("0xa0", agent) + ",\"status\":4097";
        let recording = recording(&[RESERVE, &create, &grant]);
        let plan = plan(&recording);
        let action = |index: usize| plan.steps[index].action.as_ref().unwrap();
        let Action::Create { pool, .. } = action(1) else { panic!("{:?}", action(1)) };
        assert_eq!(*pool, PoolRef::Invalid);
        let Action::SetAccess { access, .. } = action(2) else { panic!("{:?}", action(2)) };
        assert_eq!(access[..], [(AgentRef::Invalid, 3)]);
        let source = program::source(&recording, &plan);
        assert!(!source.contains("41414141"), "{source}");
    }
}

/// A recorded name cannot put code into the program.
#[test]
fn recorded_name_stays_in_its_comment() {
    let mut recording = recording(&[RESERVE]);
    recording.header.program = "DECLARATIONS */ PROGRAM [MEMORIES]\n#error".to_owned();
    let source = program::source(&recording, &plan(&recording));
    let line = " * Recorded program: DECLARATIONS * / PROGRAM [MEMORIES]#error\n */\n";
    assert!(source.contains(line), "{source}");
}
