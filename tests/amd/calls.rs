//! The exact number of calls of AMD's runtime on each release, counted in the library's log.

use crate::amd_runtime::on_each;
use crate::log::{Fields, subscribe};
use crate::machine::{Library, access, at};
use hsa_vmm::Access;
use hsa_vmm::vmm::NewMapping;
use std::cell::RefCell;
use std::collections::BTreeMap;

thread_local! {
    static COUNTS: RefCell<BTreeMap<String, usize>> = const { RefCell::new(BTreeMap::new()) };
}

fn count_call(fields: Fields) {
    for (_, name) in fields.into_iter().filter(|(field, _)| *field == "calling") {
        let name = name.trim_start_matches("hsa_amd_vmem_").to_owned();
        COUNTS.with_borrow_mut(|counts| *counts.entry(name).or_default() += 1);
    }
}

/// Returns the calls that a function makes, as text: `map 3, set_access 1`.
fn calls_of(function: impl FnOnce()) -> String {
    COUNTS.take();
    function();
    let describe = |(name, count): (String, usize)| format!("{name} {count}");
    COUNTS.take().into_iter().map(describe).collect::<Vec<_>>().join(", ")
}

const SIZE: usize = 64 << 10;
const MAPPING_COUNT: usize = 16;

#[test]
fn batches_make_the_fewest_runtime_calls() {
    on_each("calls::batches_make_the_fewest_runtime_calls", |fixture| {
        subscribe(|metadata| metadata.fields().field("calling").is_some(), count_call);
        let library = Library::load(fixture.runtime());
        let (vmm, quirks) = (&library.vmm, library.vmm.quirks());
        let base = library.reserve(MAPPING_COUNT * SIZE);
        let handle = library.create(0, SIZE);
        let gpus = [0, 1].map(|gpu| access(library.gpu(gpu), Access::ReadWrite));
        let has_aligned_reserve = library.runtime.info().extension.1 >= 6;
        let reserve = if has_aligned_reserve { "address_reserve_align" } else { "address_reserve" };
        let calls = |name: &str, count: usize| format!("{name} {count}");
        let grants = if quirks.set_access_of_several_fails { MAPPING_COUNT } else { 1 };
        let unmaps = if quirks.unmap_of_several_fails { MAPPING_COUNT } else { 1 };
        let mappings: Vec<_> = (0..MAPPING_COUNT)
            .map(|index| NewMapping {
                address: at(base, index * SIZE),
                size: SIZE,
                offset: 0,
                handle,
            })
            .collect();
        let grant = || vmm.set_access(base, SIZE, &gpus).unwrap();
        let look_up = || {
            vmm.get_access(library.gpu(1), base).unwrap();
            vmm.retain_allocation_handle(base).unwrap();
            vmm.release(handle).unwrap();
            vmm.allocation_properties(handle).unwrap();
            vmm.mapping_at(base).unwrap();
        };
        let cpu = [access(library.cpu(0), Access::ReadWrite)];
        let cases: [(&str, &dyn Fn(), String); 14] = [
            ("reserve", &|| assert_ne!(library.reserve(SIZE), base), calls(reserve, 1)),
            ("create", &|| assert_ne!(library.create(0, SIZE), handle), calls("handle_create", 1)),
            ("map", &|| library.map(base, SIZE, handle), calls("map", 1)),
            ("grant", &grant, calls("set_access", 1)),
            ("grant again", &grant, String::new()),
            (
                "grant the CPU",
                &|| vmm.set_access(base, SIZE, &cpu).unwrap(),
                calls("export_shareable_handle", 1),
            ),
            ("look up", &look_up, String::new()),
            ("unmap", &|| vmm.unmap(base, SIZE).unwrap(), calls("unmap", 1)),
            (
                "map many",
                &|| vmm.map_many(&mappings, &gpus).unwrap(),
                format!("map {MAPPING_COUNT}, set_access {grants}"),
            ),
            (
                "grant many again",
                &|| vmm.set_access_many(&[(base, MAPPING_COUNT * SIZE, &gpus)]).unwrap(),
                String::new(),
            ),
            (
                "unmap many",
                &|| vmm.unmap_many(&[(base, MAPPING_COUNT * SIZE)]).unwrap(),
                calls("unmap", unmaps),
            ),
            (
                "map many without access",
                &|| vmm.map_many(&mappings, &[]).unwrap(),
                calls("map", MAPPING_COUNT),
            ),
            (
                "grant the whole range",
                &|| vmm.set_access(base, MAPPING_COUNT * SIZE, &gpus).unwrap(),
                calls("set_access", grants),
            ),
            (
                "unmap the whole range",
                &|| vmm.unmap(base, MAPPING_COUNT * SIZE).unwrap(),
                calls("unmap", unmaps),
            ),
        ];
        for (name, function, expected) in cases {
            assert_eq!(calls_of(function), expected, "{}: {name}", fixture.release());
        }
        assert_eq!(calls_of(|| vmm.release(handle).unwrap()), "handle_release 1");
        assert_eq!(
            calls_of(|| vmm.address_free(base, MAPPING_COUNT * SIZE).unwrap()),
            "address_free 1"
        );
    });
}

/// Both GPUs can access memory mapped in a batch. Another batch unmaps all of it.
#[test]
fn memory_mapped_in_a_batch_is_usable() {
    on_each("calls::memory_mapped_in_a_batch_is_usable", |fixture| {
        let library = Library::load(fixture.runtime());
        let vmm = &library.vmm;
        let bases = [0, 1].map(|_| library.reserve(3 * SIZE));
        let handles = [0, 1].map(|gpu| library.create(gpu, SIZE));
        let grants = [library.cpu(0), library.gpu(0), library.gpu(1)];
        let grants = grants.map(|agent| access(agent, Access::ReadWrite));
        let mappings: Vec<_> = (0..6)
            .map(|index| NewMapping {
                address: at(bases[index % 2], index / 2 * SIZE),
                size: SIZE,
                offset: 0,
                handle: handles[index % 2],
            })
            .collect();
        for round in 0..3_u8 {
            vmm.map_many(&mappings, &grants).unwrap();
            for (index, base) in bases.into_iter().enumerate() {
                let value = round + 10 * index as u8;
                vmm.write(at(base, SIZE), &[value; 16]).unwrap();
                let mut bytes = [0; 16];
                for gpu in 0..2 {
                    vmm.copy_to_host(library.gpu(gpu), &mut bytes, at(base, 2 * SIZE)).unwrap();
                    assert_eq!(
                        bytes,
                        [value; 16],
                        "{}: both addresses show the same memory",
                        fixture.release()
                    );
                }
            }
            vmm.unmap_many(&bases.map(|base| (base, 3 * SIZE))).unwrap();
        }
        let usage = vmm.usage();
        assert_eq!((usage.mappings, usage.handles), (0, 2));
        assert_eq!(vmm.quarantined_ranges(), []);
    });
}
