//! While the parent's runtime is started, a forked child's calls return errors. Values that the child drops do not
//! affect the parent.

use crate::amd_runtime::on_each;
use crate::machine::{Library, access};
use crate::process::{End, in_child};
use hsa_vmm::{Access, Allocation, Error, ErrorKind, HandleType, Reservation, Runtime, Vmm};

const SIZE: usize = 64 << 10;
const DESCRIPTOR: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

#[test]
fn forked_child_gets_errors() {
    on_each("fork::forked_child_gets_errors", |fixture| {
        let library = Library::load(fixture.runtime());
        let vmm = &library.vmm;
        let (base, handle) = library.map_new_memory(0, SIZE);
        let [cpu, gpu] = [library.cpu(0), library.gpu(0)];
        let grants = [cpu, gpu].map(|agent| access(agent, Access::ReadWrite));
        vmm.set_access(base, SIZE, &grants).unwrap();
        vmm.write(base, b"kept").unwrap();
        let shared = vmm.export_to_shareable_handle(handle, DESCRIPTOR).unwrap();
        let end = in_child(|| {
            let results = [
                vmm.address_reserve(SIZE, 0, None).map(drop),
                vmm.address_free(base, SIZE),
                vmm.create(SIZE, &library.shareable_on(0)).map(drop),
                vmm.release(handle),
                vmm.map(base, SIZE, 0, handle),
                vmm.unmap(base, SIZE),
                vmm.set_access(base, SIZE, &grants),
                vmm.get_access(gpu, base).map(drop),
                vmm.revoke(base, SIZE, &[gpu]),
                vmm.allocation_properties(handle).map(drop),
                vmm.export_to_shareable_handle(handle, DESCRIPTOR).map(drop),
                vmm.import_from_shareable_handle(&shared, DESCRIPTOR).map(drop),
                vmm.retain_allocation_handle(base).map(drop),
                vmm.read(base, &mut [0; 4]),
                vmm.write(base, b"lost"),
                vmm.copy(gpu, base, base, 4),
                vmm.fill(base, 0, 4),
                Vmm::open(&library.runtime).map(drop),
            ];
            for (number, result) in results.into_iter().enumerate() {
                let is_forked =
                    matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::Forked));
                assert!(is_forked, "{number}: {result:?}");
            }
        });
        assert_eq!(end, End::Success);
        let mut bytes = [0; 4];
        vmm.read(base, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept");
    });
}

#[test]
fn drops_in_a_forked_child_keep_parent_memory() {
    on_each("fork::drops_in_a_forked_child_keep_parent_memory", |fixture| {
        let library = Library::load(fixture.runtime());
        let reservation = Reservation::builder(SIZE).reserve(&library.vmm).unwrap();
        let memory = Allocation::create(&library.vmm, SIZE, &library.shareable_on(0)).unwrap();
        let mapping = reservation.map(0, &memory).unwrap();
        mapping.grant(&[library.cpu(0), library.gpu(0)], Access::ReadWrite).unwrap();
        mapping.write(0, b"kept").unwrap();
        let mut everything = Some((library, reservation, memory, mapping));
        assert_eq!(in_child(|| drop(everything.take())), End::Success);
        let (library, reservation, memory, mapping) = everything.take().unwrap();
        mapping.grant(&[library.gpu(1)], Access::ReadWrite).unwrap();
        mapping.fill(0, 7, mapping.size()).unwrap();
        let mut word = [0; 4];
        mapping.read(0, &mut word).unwrap();
        assert_eq!(word, 7u32.to_ne_bytes());
        drop((mapping, memory, reservation));
        library.assert_everything_freed();
    });
}

#[test]
fn forked_child_cannot_open_a_runtime() {
    on_each("fork::forked_child_cannot_open_a_runtime", |fixture| {
        // SAFETY: the file is a fetched release of AMD's runtime.
        let load = || unsafe { Runtime::load_from(fixture.runtime()) };
        let library = Library::load(fixture.runtime());
        let (base, _) = library.map_new_memory(0, SIZE);
        library.grant(base, SIZE, library.cpu(0), Access::ReadWrite);
        library.vmm.write(base, b"kept").unwrap();
        let end = in_child(|| assert_eq!(load().unwrap_err().kind(), &ErrorKind::Forked));
        assert_eq!(end, End::Success);
        let mut bytes = [0; 4];
        library.vmm.read(base, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept");
        drop(library);
        // The child starts the runtime that its parent has stopped.
        assert_eq!(in_child(|| drop(load().unwrap())), End::Success);
    });
}
