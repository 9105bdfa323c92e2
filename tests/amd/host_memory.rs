//! Physical memory of the host: the library allocates the memory through the driver, and the runtime imports the
//! memory.

use crate::amd_runtime::{fail_driver_calls, on_each};
use crate::machine::{Library, access, at};
use crate::process::handover::{receive, send};
use crate::process::{Child, End, descriptors};
use crate::segments::{Reader, pattern};
use hsa_rocr::Emulation;
use hsa_rocr::test::{Fixture, run_on_releases};
use hsa_vmm::buffer::{PagedBuffer, PausableBuffer, PauseMode};
use hsa_vmm::error::{Errno, Feature};
use hsa_vmm::vmm::Location;
use hsa_vmm::{Access, Address, AllocationProperties, ErrorKind, Handle, HandleType};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

const SIZE: usize = 256 << 10;
const DESCRIPTOR: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

fn host_properties() -> AllocationProperties {
    AllocationProperties::at(Location::Host).shareable_as(DESCRIPTOR)
}

/// Maps a handle for the CPU and both GPUs.
fn map_for_all(library: &Library, handle: Handle) -> Address {
    let base = library.reserve(SIZE);
    library.map(base, SIZE, handle);
    let agents = [library.cpu(0), library.gpu(0), library.gpu(1)];
    let all = agents.map(|id| access(id, Access::ReadWrite));
    library.vmm.set_access(base, SIZE, &all).unwrap();
    base
}

#[test]
fn all_agents_see_the_same_bytes() {
    run_on_releases(
        "host_memory::all_agents_see_the_same_bytes",
        &Emulation::with_gpus(2),
        |fixture| {
            let mut reader = Reader::start();
            let library = Library::load(fixture.runtime());
            let vmm = &library.vmm;
            let mut before = None;
            for round in 0..5 {
                let handle = vmm.create(SIZE, &host_properties()).unwrap();
                let base = map_for_all(&library, handle);
                assert_eq!(vmm.location_at(base), Some(Location::Host));
                let mut bytes = vec![1; SIZE];
                vmm.read(base, &mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| *byte == 0), "new memory is zero");
                let written = pattern(round, SIZE);
                vmm.write(base, &written).unwrap();
                for gpu in library.gpus() {
                    vmm.copy_to_host(gpu, &mut bytes, base).unwrap();
                    assert!(bytes == written, "{gpu}");
                    vmm.copy_from_host(gpu, at(base, 100), b"from a GPU").unwrap();
                    vmm.read(at(base, 100), &mut bytes[..10]).unwrap();
                    assert_eq!(&bytes[..10], b"from a GPU", "{gpu}");
                    vmm.write(base, &written).unwrap();
                }
                let segments = vmm.export_address_range(at(base, 77), SIZE / 2).unwrap();
                assert!(reader.read_all(&segments) == written[77..77 + SIZE / 2]);
                drop(segments);
                vmm.revoke(base, SIZE, &[library.gpu(0)]).unwrap();
                vmm.fill(base, 7, SIZE).unwrap();
                vmm.copy_to_host(library.gpu(1), &mut bytes, base).unwrap();
                assert!(bytes.chunks(4).all(|word| word == [7, 0, 0, 0]));
                vmm.unmap(base, SIZE).unwrap();
                vmm.release(handle).unwrap();
                vmm.address_free(base, SIZE).unwrap();
                library.assert_everything_freed();
                assert_eq!(*before.get_or_insert(descriptors()), descriptors(), "round {round}");
            }
            reader.finish();
        },
    );
}

#[test]
fn another_process_shares_the_memory() {
    let name = "host_memory::another_process_shares_the_memory";
    run_on_releases(name, &Emulation::with_gpus(2), share_with_another_process);
}

/// For GPUs without peer access, AMD's runtime reports imported memory of the host as it reports a GPU's memory. All
/// agents must be granted access nevertheless.
#[test]
fn memory_is_shared_without_peer_access() {
    let name = "host_memory::memory_is_shared_without_peer_access";
    let emulation = Emulation::with_gpus(2).with_profile("apu");
    run_on_releases(name, &emulation, share_with_another_process);
}

fn share_with_another_process(fixture: &Fixture) {
    let (mut exporter_socket, mut importer_socket) = UnixStream::pair().unwrap();
    let importer = Child::start(|| {
        let library = Library::load(fixture.runtime());
        let descriptor = receive(&importer_socket);
        let imported = library.vmm.import_from_shareable_handle(descriptor, DESCRIPTOR);
        let base = map_for_all(&library, imported.unwrap());
        let mut bytes = vec![0; SIZE];
        library.vmm.copy_to_host(library.gpu(1), &mut bytes, base).unwrap();
        assert!(bytes == pattern(1, SIZE));
        library.vmm.write(base, &pattern(2, SIZE)).unwrap();
        importer_socket.write_all(b"!").unwrap();
        0
    });
    let exporter = Child::start(|| {
        let library = Library::load(fixture.runtime());
        let handle = library.vmm.create(SIZE, &host_properties()).unwrap();
        let base = map_for_all(&library, handle);
        library.vmm.write(base, &pattern(1, SIZE)).unwrap();
        send(
            &exporter_socket,
            &library.vmm.export_to_shareable_handle(handle, DESCRIPTOR).unwrap(),
        );
        exporter_socket.read_exact(&mut [0]).unwrap();
        let mut bytes = vec![0; SIZE];
        library.vmm.copy_to_host(library.gpu(0), &mut bytes, base).unwrap();
        assert!(bytes == pattern(2, SIZE));
        0
    });
    assert_eq!([exporter.wait(), importer.wait()], [End::Success; 2]);
}

/// A fault plan, and a function that returns whether an error has the kind that the plan should cause.
type PlannedFailure = (&'static str, fn(&ErrorKind) -> bool);

const FAILURES: [PlannedFailure; 6] = [
    ("GEM_CREATE=ENOMEM", |kind| {
        matches!(kind, ErrorKind::OutOfMemory { call: "GEM_CREATE", status: None, size: SIZE })
    }),
    // This failure need not be lasting, so that memory of the host counts as supported.
    ("GEM_CREATE=EIO", |kind| {
        matches!(kind, ErrorKind::System { call: "GEM_CREATE", errno: Errno::IO })
    }),
    (
        "GEM_CREATE=EINVAL",
        |kind| matches!(kind, ErrorKind::NotSupported(Feature::HostMemory(what)) if what.contains("GEM_CREATE")),
    ),
    ("PRIME_HANDLE_TO_FD=EMFILE", |kind| *kind == ErrorKind::OutOfDescriptors),
    (
        "GET_DMABUF_INFO=EINVAL",
        |kind| matches!(kind, ErrorKind::NotSupported(Feature::HostMemory(what)) if what.contains("imports")),
    ),
    ("IMPORT_DMABUF=ENOMEM", |_| true),
];

#[test]
fn failed_driver_calls_leave_nothing_behind() {
    on_each("host_memory::failed_driver_calls_leave_nothing_behind", |fixture| {
        for (plan, is_expected) in FAILURES {
            let end = crate::process::in_child(|| {
                fail_driver_calls(plan);
                let library = Library::load(fixture.runtime());
                let before = descriptors();
                for _ in 0..3 {
                    let error = library.vmm.create(SIZE, &host_properties()).unwrap_err();
                    assert!(is_expected(error.kind()), "{plan}: {error:?}");
                    assert_eq!(descriptors(), before, "{plan}");
                }
                library.assert_everything_freed();
            });
            assert_eq!(end, End::Success, "{plan}, {}", fixture.release());
        }
    });
}

/// A size larger than the host's memory fails with `OutOfMemory`, not with `NotSupported`. This also holds before any
/// host memory was created.
#[test]
fn too_large_memory_is_out_of_memory() {
    let name = "host_memory::too_large_memory_is_out_of_memory";
    run_on_releases(name, &Emulation::with_gpus(1), |fixture| {
        let library = Library::load(fixture.runtime());
        let vmm = &library.vmm;
        // SAFETY: the call only returns a number.
        let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) } as usize;
        // The driver allocates at most half of the machine's memory.
        let three_quarters = (pages / 4 * 3 * 4096).next_multiple_of(SIZE);
        let sizes = [three_quarters, 1 << 40, 1 << 47, 1 << 62, 1 << 63, usize::MAX - (SIZE - 1)];
        let create_too_large = || {
            sizes.map(|size| {
                let error = vmm.create(size, &host_properties()).unwrap_err();
                assert!(
                    matches!(error.kind(), ErrorKind::OutOfMemory { size: asked, .. } if *asked == size),
                    "{size:#x}: {error}"
                );
                error.kind().clone()
            })
        };
        let first = create_too_large();
        let handle = vmm.create(SIZE, &host_properties()).unwrap();
        assert_eq!(create_too_large(), first);
        vmm.release(handle).unwrap();
        library.assert_everything_freed();
    });
}

#[test]
fn buffers_use_host_memory() {
    on_each("host_memory::buffers_use_host_memory", |fixture| {
        let library = Library::load(fixture.runtime());
        let (vmm, properties) = (&library.vmm, host_properties());
        let agents = [library.cpu(0), library.gpu(0)];
        let mut bytes = [0; 4];
        let mut pausable = PausableBuffer::create(vmm, SIZE, &properties).unwrap();
        pausable.grant(&agents, Access::ReadWrite).unwrap();
        pausable.write(SIZE - 4, b"kept").unwrap();
        pausable.pause(PauseMode::Save).unwrap();
        pausable.resume().unwrap();
        pausable.read(SIZE - 4, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept");

        let paged = PagedBuffer::builder(4 * SIZE).with_page_size(SIZE).with_zero_page();
        let paged = paged.reserve(vmm, &properties).unwrap();
        paged.grant(&agents, Access::ReadWrite).unwrap();
        paged.map(1..2).unwrap();
        let page = paged.page_size();
        paged.write(page, b"page").unwrap();
        paged.share_pages(1..2, &paged, 0).unwrap();
        paged.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"page");
        assert!(paged.zero_page_is_clean().unwrap());
        drop((pausable, paged));
        library.assert_everything_freed();
    });
}
