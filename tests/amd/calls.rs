//! The number of calls of AMD's runtime, exact for each release. Counts the calls that the library logs
//! before it makes them.

use crate::amd_runtime::on_each;
use crate::log::{Fields, watch};
use crate::machine::{Library, access, at};
use hsa_vmm::Access;
use hsa_vmm::vmm::NewMapping;
use std::cell::RefCell;
use std::collections::BTreeMap;

thread_local! {
    static MADE: RefCell<BTreeMap<String, usize>> = const { RefCell::new(BTreeMap::new()) };
}

/// Counts the calls of this thread.
fn count(fields: Fields) {
    for (_, name) in fields.into_iter().filter(|(field, _)| *field == "calling") {
        let name = name.trim_start_matches("hsa_amd_vmem_").to_owned();
        MADE.with_borrow_mut(|made| *made.entry(name).or_default() += 1);
    }
}

/// Returns the calls that a function makes, as text: `map 3, set_access 1`.
fn made(act: impl FnOnce()) -> String {
    MADE.take();
    act();
    let words = |(name, count): (String, usize)| format!("{name} {count}");
    MADE.take().into_iter().map(words).collect::<Vec<_>>().join(", ")
}

const SIZE: usize = 64 << 10;
const MANY: usize = 16;

#[test]
fn batches_make_the_fewest_runtime_calls() {
    on_each("calls::batches_make_the_fewest_runtime_calls", |fixture| {
        watch(|metadata| metadata.fields().field("calling").is_some(), count);
        let library = Library::load(fixture.runtime());
        let (vmm, quirks) = (&library.vmm, library.vmm.quirks());
        let base = library.reserve(MANY * SIZE);
        let handle = library.create(0, SIZE);
        let gpus = [0, 1].map(|gpu| access(library.gpu(gpu), Access::ReadWrite));
        let reserve = ["address_reserve", "address_reserve_align"];
        let aligned = library.runtime.info().extension.1 >= 6;
        let of = |name: &str, count: usize| format!("{name} {count}");
        let grants = if quirks.set_access_of_several_fails { MANY } else { 1 };
        let unmaps = if quirks.unmap_of_several_fails { MANY } else { 1 };
        let wanted: Vec<_> = (0..MANY)
            .map(|page| NewMapping { address: at(base, page * SIZE), size: SIZE, handle })
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
        let counted: [(&str, &dyn Fn(), String); 14] = [
            (
                "reserve",
                &|| assert_ne!(library.reserve(SIZE), base),
                of(reserve[usize::from(aligned)], 1),
            ),
            ("create", &|| assert_ne!(library.create(0, SIZE), handle), of("handle_create", 1)),
            ("map", &|| library.map(base, SIZE, handle), of("map", 1)),
            ("grant", &grant, of("set_access", 1)),
            ("grant again", &grant, String::new()),
            (
                "grant the CPU",
                &|| vmm.set_access(base, SIZE, &cpu).unwrap(),
                of("export_shareable_handle", 1),
            ),
            ("look up", &look_up, String::new()),
            ("unmap", &|| vmm.unmap(base, SIZE).unwrap(), of("unmap", 1)),
            (
                "map many",
                &|| vmm.map_many(&wanted, &gpus).unwrap(),
                format!("map {MANY}, set_access {grants}"),
            ),
            (
                "grant many again",
                &|| vmm.set_access_many(&[(base, MANY * SIZE)], &gpus).unwrap(),
                String::new(),
            ),
            (
                "unmap many",
                &|| vmm.unmap_many(&[(base, MANY * SIZE)]).unwrap(),
                of("unmap", unmaps),
            ),
            ("map many without access", &|| vmm.map_many(&wanted, &[]).unwrap(), of("map", MANY)),
            (
                "grant a run",
                &|| vmm.set_access(base, MANY * SIZE, &gpus).unwrap(),
                of("set_access", grants),
            ),
            ("unmap a run", &|| vmm.unmap(base, MANY * SIZE).unwrap(), of("unmap", unmaps)),
        ];
        for (what, act, expected) in counted {
            assert_eq!(made(act), expected, "{}: {what}", fixture.release());
        }
        assert_eq!(made(|| vmm.release(handle).unwrap()), "handle_release 1");
        assert_eq!(made(|| vmm.address_free(base, MANY * SIZE).unwrap()), "address_free 1");
    });
}

/// Both GPUs can access what a batch has mapped, and nothing after it is unmapped.
#[test]
fn memory_mapped_in_a_batch_is_usable() {
    on_each("calls::memory_mapped_in_a_batch_is_usable", |fixture| {
        let library = Library::load(fixture.runtime());
        let vmm = &library.vmm;
        let bases = [0, 1].map(|_| library.reserve(3 * SIZE));
        let handles = [0, 1].map(|gpu| library.create(gpu, SIZE));
        let all = [library.cpu(0), library.gpu(0), library.gpu(1)];
        let all = all.map(|agent| access(agent, Access::ReadWrite));
        let wanted: Vec<_> = (0..6)
            .map(|page| NewMapping {
                address: at(bases[page % 2], page / 2 * SIZE),
                size: SIZE,
                handle: handles[page % 2],
            })
            .collect();
        for round in 0..3_u8 {
            vmm.map_many(&wanted, &all).unwrap();
            for (index, base) in bases.into_iter().enumerate() {
                let value = round + 10 * index as u8;
                vmm.write(at(base, SIZE), &[value; 16]).unwrap();
                let mut bytes = [0; 16];
                for gpu in 0..2 {
                    vmm.copy_to_host(library.gpu(gpu), &mut bytes, at(base, 2 * SIZE)).unwrap();
                    assert_eq!(bytes, [value; 16], "{}: one memory", fixture.release());
                }
            }
            vmm.unmap_many(&bases.map(|base| (base, 3 * SIZE))).unwrap();
        }
        let usage = vmm.usage();
        assert_eq!((usage.mappings, usage.handles), (0, 2));
        assert_eq!(vmm.quarantine(), []);
    });
}
