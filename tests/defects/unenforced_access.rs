//! The runtime's `set_access` records `NONE` and read-only access, but does not change the GPU's page table.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{Fault, NONE, RO, RW, RawRuntime, SIZE, load};
use crate::machine::{Library, access};
use crate::table::{READ_ONLY_IS_WRITABLE, REVOKE_KEEPS_PAGE_TABLE};
use hsa_vmm::Access;
use hsa_vmm::agent::Enforcement;

#[test]
fn revoke_keeps_page_table_on_the_runtime() {
    REVOKE_KEEPS_PAGE_TABLE.check_on_each_release(
        "unenforced_access::revoke_keeps_page_table_on_the_runtime",
        |fixture| {
            let raw = RawRuntime::start(fixture);
            let (base, _) = raw.map_new_memory(SIZE, &[(raw.gpus[1], RW)]);
            raw.set_access(base, SIZE, &[(raw.gpus[1], NONE)]).unwrap();
            assert_eq!(raw.get_access(base, raw.gpus[1]), Ok(NONE), "the recorded permission");
            raw.write_by(raw.gpus[1], base, 7).is_ok() && raw.read_by(raw.gpus[1], base) == Ok(7)
        },
    );
}

#[test]
fn read_only_allows_writes_on_the_runtime() {
    let test = "unenforced_access::read_only_allows_writes_on_the_runtime";
    READ_ONLY_IS_WRITABLE.check_on_each_release(test, |fixture| {
        let raw = RawRuntime::start(fixture);
        let (base, _) = raw.map_new_memory(SIZE, &[(raw.gpus[1], RO), (raw.cpu, RW)]);
        raw.write_by(raw.gpus[1], base, 7).is_ok() && load(base) == 7
    });
}

#[test]
fn revoke_clears_page_table_through_the_library() {
    on_each("unenforced_access::revoke_clears_page_table_through_the_library", |fixture| {
        let library = Library::load(fixture.runtime());
        let vmm = &library.vmm;
        let (base, _) = library.map_new_memory(0, SIZE);
        let [cpu, owner, peer] = [library.cpu(0), library.gpu(0), library.gpu(1)];
        let grants = [cpu, owner, peer].map(|agent| access(agent, Access::ReadWrite));
        vmm.set_access(base, SIZE, &grants).unwrap();
        vmm.write(base, &42u64.to_ne_bytes()).unwrap();
        let raw = RawRuntime::start(fixture);
        assert_eq!(raw.read_by(raw.gpus[1], base.get()), Ok(42), "the peer has access");

        vmm.revoke(base, SIZE, &[peer]).unwrap();
        assert_eq!(vmm.get_access(peer, base).unwrap(), Access::None);
        // The other agents keep their access, and the memory keeps its contents.
        assert_eq!(raw.read_by(raw.gpus[0], base.get()), Ok(42));
        raw.write_by(raw.gpus[0], base.get(), 43).unwrap();
        let mut number = [0; 8];
        vmm.read(base, &mut number).unwrap();
        assert_eq!(u64::from_ne_bytes(number), 43);
        // The page table of the peer has no entry any more.
        vmm.copy(peer, base, base, 8).unwrap_err();
        assert_eq!(raw.read_by(raw.gpus[1], base.get()), Err(Fault));
    });
}

/// The library reports that read-only access is not enforced, and rejects copies that would write.
#[test]
fn read_only_is_reported_through_the_library() {
    on_each("unenforced_access::read_only_is_reported_through_the_library", |fixture| {
        let library = Library::load(fixture.runtime());
        let (gpu, cpu) = (library.gpu(0), library.cpu(0));
        let enforcement = |agent| library.runtime.agent(agent).unwrap().enforcement();
        assert_eq!(enforcement(gpu), Enforcement::Recorded);
        assert_eq!(enforcement(cpu), Enforcement::Enforced);
        let ((source, _), (target, _)) =
            (library.map_new_memory(0, SIZE), library.map_new_memory(0, SIZE));
        library.grant(source, SIZE, gpu, Access::Read);
        library.grant(target, SIZE, gpu, Access::Read);
        library.vmm.copy(gpu, target, source, 8).unwrap_err();
        library.vmm.fill(target, 7, SIZE).unwrap_err();
        library.grant(target, SIZE, gpu, Access::ReadWrite);
        library.vmm.copy(gpu, target, source, 8).unwrap();
    });
}
