//! The library exports memory as file descriptors, and imports it in the same process or in another process.

mod machine;
mod process;

use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::simulation::{Config, Generation};
use hsa_vmm::vmm::Location;
use hsa_vmm::{Access, Address, Allocation, AllocationProperties, Handle, HandleType, Reservation};
use machine::{KIB, Machine, access, at, file_without_memory, without_cpu_mapping};
use process::End;
use process::handover::{receive, send};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

const DESCRIPTOR: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

fn export(machine: &Machine, handle: Handle) -> OwnedFd {
    machine.vmm.export_to_shareable_handle(handle, DESCRIPTOR).expect("an export")
}

/// Maps a handle at new addresses, and grants the CPU access.
fn map_for_cpu(machine: &Machine, handle: Handle, size: usize) -> Address {
    let base = machine.reserve(size);
    machine.map(base, size, handle);
    machine.grant(base, size, machine.cpu(0), Access::ReadWrite);
    base
}

/// Creates memory with a text at its beginning, and maps it for the CPU. Returns the handle and the address.
fn create_with_text(machine: &Machine, size: usize) -> (Handle, Address) {
    let handle = machine.create(0, size);
    let address = map_for_cpu(machine, handle, size);
    machine.vmm.write(address, b"text").unwrap();
    (handle, address)
}

fn unmap_and_free(machine: &Machine, base: Address, size: usize) {
    machine.vmm.unmap(base, size).unwrap();
    machine.vmm.address_free(base, size).unwrap();
}

/// Imports a descriptor, and fails unless its memory begins with the text of [`create_with_text`].
#[track_caller]
fn assert_contains_text(machine: &Machine, shared: impl AsFd, size: usize, context: &str) {
    let imported = machine.vmm.import_from_shareable_handle(shared, DESCRIPTOR);
    let imported = imported.unwrap_or_else(|error| panic!("{context}: {error}"));
    let imported_address = map_for_cpu(machine, imported, size);
    assert_eq!(&text_at(machine, imported_address), b"text", "{context}");
    unmap_and_free(machine, imported_address, size);
    machine.vmm.release(imported).unwrap();
}

fn text_at(machine: &Machine, address: Address) -> [u8; 4] {
    let mut text = [0; 4];
    machine.vmm.read(address, &mut text).unwrap();
    text
}

fn is_close_on_exec(descriptor: &OwnedFd) -> bool {
    // SAFETY: the descriptor is open, and the call only reads its flags.
    let flags = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GETFD) };
    assert!(flags >= 0);
    flags & libc::FD_CLOEXEC != 0
}

/// Runs a test in a process of its own, on a machine of each release. Passes the name of the release, the machine
/// and its granule.
fn run_on_releases(test: impl Fn(&str, &Machine, usize)) {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        test(release, &machine, machine.granule());
    }
}

#[test]
fn import_returns_a_new_handle_of_the_same_memory() {
    run_on_releases(|release, machine, granule| {
        let original = machine.create(0, 2 * granule);
        let original_address = map_for_cpu(machine, original, 2 * granule);
        machine.vmm.write(original_address, b"here").unwrap();
        let shared = export(machine, original);
        let imports = [(); 2]
            .map(|()| machine.vmm.import_from_shareable_handle(&shared, DESCRIPTOR).unwrap());
        assert_ne!(imports[0], imports[1], "{release}");
        assert_ne!(imports[0], original, "{release}");
        for imported in imports {
            assert_eq!(machine.vmm.allocation_size(imported).unwrap(), 2 * granule, "{release}");
            let properties = machine.vmm.allocation_properties(imported).unwrap();
            assert_eq!(properties.handle_types, HandleType::POSIX_FILE_DESCRIPTOR);
            let owner = Location::Agent(machine.gpu(0));
            assert!([owner, Location::Unknown].contains(&properties.location), "{release}");
            let imported_address = map_for_cpu(machine, imported, 2 * granule);
            assert_eq!(&text_at(machine, imported_address), b"here", "{release}");
            machine.vmm.write(at(imported_address, granule), b"back").unwrap();
            assert_eq!(&text_at(machine, at(original_address, granule)), b"back", "{release}");
            // GPUs can also access the imported memory.
            machine.grant(imported_address, 2 * granule, machine.gpu(0), Access::ReadWrite);
            machine.vmm.copy(machine.gpu(0), at(imported_address, 8), imported_address, 4).unwrap();
            assert_eq!(&text_at(machine, at(original_address, 8)), b"here", "{release}");
            unmap_and_free(machine, imported_address, 2 * granule);
            machine.vmm.release(imported).unwrap();
        }
        assert_eq!(&text_at(machine, original_address), b"here", "{release}");
        unmap_and_free(machine, original_address, 2 * granule);
        machine.vmm.release(original).unwrap();
        drop(shared);
        machine.assert_empty();
    });
}

#[test]
fn imported_descriptor_may_be_closed() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        for config in [config.clone(), without_cpu_mapping(config)] {
            let machine = Machine::new(config);
            let granule = machine.granule();
            let original = machine.create(1, granule);
            let shared = export(&machine, original);
            let imported = machine.vmm.import_from_shareable_handle(&shared, DESCRIPTOR).unwrap();
            drop(shared);
            // This file gets the number of the closed descriptor.
            let decoy = File::open("/dev/null").unwrap();
            let imported_address = machine.reserve(granule);
            machine.map(imported_address, granule, imported);
            let gpu = [access(machine.gpu(1), Access::ReadWrite)];
            let granted = machine.vmm.set_access(imported_address, granule, &gpu);
            granted.unwrap_or_else(|error| panic!("{release}: {error}"));
            machine.grant(imported_address, granule, machine.cpu(0), Access::ReadWrite);
            machine.vmm.write(imported_address, b"text").unwrap();
            machine.vmm.release(original).unwrap();
            assert_eq!(
                &text_at(&machine, imported_address),
                b"text",
                "{release}: the import keeps the memory"
            );
            drop(decoy);
            unmap_and_free(&machine, imported_address, granule);
            machine.vmm.release(imported).unwrap();
            machine.assert_empty();
        }
    }
}

#[test]
fn every_export_is_a_new_descriptor() {
    run_on_releases(|release, machine, granule| {
        let (handle, original_address) = create_with_text(machine, granule);
        let first = export(machine, handle);
        let second = export(machine, handle);
        assert_ne!(first.as_raw_fd(), second.as_raw_fd(), "{release}");
        assert!(is_close_on_exec(&first) && is_close_on_exec(&second), "{release}");
        drop(first);
        let third = export(machine, handle);
        for shared in [second, third] {
            assert_contains_text(machine, shared, granule, release);
        }
        unmap_and_free(machine, original_address, granule);
        machine.vmm.release(handle).unwrap();
        machine.assert_empty();
    });
}

#[test]
fn export_keeps_memory_after_release() {
    run_on_releases(|release, machine, granule| {
        let (handle, original_address) = create_with_text(machine, granule);
        let shared = export(machine, handle);
        unmap_and_free(machine, original_address, granule);
        machine.vmm.release(handle).unwrap();
        assert_contains_text(machine, shared, granule, release);
        machine.assert_empty();
    });
}

#[test]
fn imports_can_be_exported() {
    run_on_releases(|release, machine, granule| {
        let original = Allocation::create(&machine.vmm, granule, &machine.shareable_on(0)).unwrap();
        let first = Allocation::import(&machine.vmm, original.export().unwrap()).unwrap();
        let exported = first.export().unwrap_or_else(|error| panic!("{release}: {error}"));
        assert!(is_close_on_exec(&exported), "{release}");
        let second = Allocation::import(&machine.vmm, exported).unwrap();
        let reservation = Reservation::builder(2 * granule).reserve(&machine.vmm).unwrap();
        let mappings =
            [reservation.map(0, &original).unwrap(), reservation.map(granule, &second).unwrap()];
        for mapping in &mappings {
            mapping.grant(&[machine.cpu(0)], Access::ReadWrite).unwrap();
        }
        mappings[0].write(0, b"text").unwrap();
        let mut text = [0; 4];
        mappings[1].read(0, &mut text).unwrap();
        assert_eq!(&text, b"text", "{release}");
        drop((mappings, original, first, second, reservation));
        machine.assert_empty();
    });
}

#[test]
fn descriptors_do_not_leak() {
    if process::rerun_in_own_process() {
        return;
    }
    for (generation, config) in machine::generations() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let base = machine.reserve(2 * granule);
        let before = process::descriptors();
        for _ in 0..1000 {
            let original = machine.create(0, granule);
            let shared = [(); 3].map(|()| export(&machine, original));
            let imported =
                machine.vmm.import_from_shareable_handle(&shared[0], DESCRIPTOR).unwrap();
            drop(shared);
            for (offset, handle) in [(0, original), (granule, imported)] {
                machine.map(at(base, offset), granule, handle);
            }
            let both = [machine.cpu(0), machine.gpu(0)].map(|id| access(id, Access::ReadWrite));
            machine.vmm.set_access(base, 2 * granule, &both).unwrap();
            machine.vmm.unmap(base, 2 * granule).unwrap();
            machine.vmm.release(original).unwrap();
            machine.vmm.release(imported).unwrap();
        }
        // The simulation of generation B learns only now that the memory is not mapped any more.
        assert_eq!(machine.used_by(0), 0, "{generation}");
        assert_eq!(process::descriptors(), before, "{generation}");
        machine.vmm.address_free(base, 2 * granule).unwrap();
        machine.assert_empty();
    }
}

#[test]
fn failed_imports_and_exports_leak_no_descriptor() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let not_shareable =
            machine.vmm.create(granule, &AllocationProperties::on(machine.gpu(0))).unwrap();
        let path = std::env::temp_dir().join(format!("hsa-vmm-share-{}", std::process::id()));
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(granule as u64).unwrap();
        let before = (process::descriptors(), machine.vmm.usage(), machine.simulation.usage());
        for _ in 0..10 {
            let error =
                machine.vmm.export_to_shareable_handle(not_shareable, DESCRIPTOR).unwrap_err();
            assert_eq!(error.problem(), Some(Problem::NotRequested), "{release}");
            let null = File::open("/dev/null").unwrap();
            let error = machine.vmm.import_from_shareable_handle(null, DESCRIPTOR).unwrap_err();
            assert_eq!(error.problem(), Some(Problem::NotImportable), "{release}");
            // Another process could shrink these files. Accesses of the CPU would then raise SIGBUS.
            let memory_file = memfd_create("no memory", MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&memory_file, granule as u64).unwrap();
            for shrinkable in [file.as_fd(), memory_file.as_fd()] {
                let error =
                    machine.vmm.import_from_shareable_handle(shrinkable, DESCRIPTOR).unwrap_err();
                assert_eq!(error.problem(), Some(Problem::NotImportable), "{release}");
            }
        }
        let after = (process::descriptors(), machine.vmm.usage(), machine.simulation.usage());
        assert_eq!(before, after, "{release}");
    }
}

#[test]
fn import_of_an_odd_size_names_the_granule() {
    let machine = Machine::new(Config::mi300x(1));
    let granule = machine.granule();
    let file = file_without_memory(granule + 1);
    let error = machine.vmm.import_from_shareable_handle(file, DESCRIPTOR).unwrap_err();
    assert_eq!(error.argument(), Some(Argument::Size), "{error}");
    assert_eq!(error.problem(), Some(Problem::NotAligned { granule }), "{error}");
}

#[test]
fn import_keeps_the_file_position() {
    if process::rerun_in_own_process() {
        return;
    }
    let machine = Machine::new(Config::mi300x(1));
    let handle = machine.create(0, 4 * KIB);
    let mut shared = File::from(export(&machine, handle));
    std::io::Seek::seek(&mut shared, std::io::SeekFrom::Start(123)).unwrap();
    machine.vmm.import_from_shareable_handle(shared.as_fd(), DESCRIPTOR).unwrap();
    assert_eq!(std::io::Seek::stream_position(&mut shared).unwrap(), 123);
    let mut empty = File::from(memfd_create("empty", MemfdFlags::empty()).unwrap());
    std::io::Seek::seek(&mut empty, std::io::SeekFrom::Start(123)).unwrap();
    let error = machine.vmm.import_from_shareable_handle(empty.as_fd(), DESCRIPTOR).unwrap_err();
    assert_eq!(error.problem(), Some(Problem::NotImportable));
    assert_eq!(std::io::Seek::stream_position(&mut empty).unwrap(), 123);
}

/// ROCm 7.14 does not report the owner of an import. Once the owner has access, ROCm 7.14 rejects grants to other
/// agents. The library therefore maps the memory again for each grant to a GPU except the first.
#[test]
fn import_of_unknown_owner_is_granted_gpu_by_gpu() {
    let config = Config::mi300x(2).with_generation(Generation::C);
    for config in [config.clone(), without_cpu_mapping(config)] {
        for owner in 0..2 {
            let machine = Machine::new(config.clone());
            let (granule, gpus) = (machine.granule(), machine.gpus());
            let descriptor = export(&machine, machine.create(owner, granule));
            let import = machine.vmm.import_from_shareable_handle(descriptor, DESCRIPTOR).unwrap();
            let base = machine.reserve(granule);
            machine.map(base, granule, import);
            let unmaps = || machine.simulation.calls("hsa_amd_vmem_unmap");
            let before = unmaps();
            machine.grant(base, granule, machine.cpu(0), Access::ReadWrite);
            machine.grant(base, granule, gpus[0], Access::ReadWrite);
            assert_eq!(unmaps(), before, "memory of GPU {owner}");
            machine.grant(base, granule, gpus[1], Access::ReadWrite);
            for gpu in 0..2 {
                let page = machine.simulation.page(gpu, base.get());
                assert!(page.is_some_and(|page| page.writable), "memory of GPU {owner}: GPU {gpu}");
            }
        }
    }
}

#[test]
fn another_process_accesses_the_same_memory() {
    if process::rerun_in_own_process() {
        return;
    }
    for (generation, config) in machine::generations() {
        let machine = Machine::new(config.clone());
        let granule = machine.granule();
        let original = machine.create(0, granule);
        let original_address = map_for_cpu(&machine, original, granule);
        machine.vmm.write(original_address, b"ping").unwrap();
        let (mut parent_socket, mut child_socket) = UnixStream::pair().unwrap();
        send(&parent_socket, &export(&machine, original));
        let end = process::in_child(|| {
            let machine = Machine::new(config);
            let imported =
                machine.vmm.import_from_shareable_handle(receive(&child_socket), DESCRIPTOR);
            let imported = imported.unwrap();
            let imported_address = map_for_cpu(&machine, imported, granule);
            assert_eq!(&text_at(&machine, imported_address), b"ping");
            machine.vmm.write(imported_address, b"pong").unwrap();
            unmap_and_free(&machine, imported_address, granule);
            machine.vmm.release(imported).unwrap();
            machine.assert_empty();
            child_socket.write_all(b"!").unwrap();
        });
        assert_eq!(end, End::Success, "{generation}");
        parent_socket.read_exact(&mut [0]).unwrap();
        assert_eq!(&text_at(&machine, original_address), b"pong", "{generation}");
    }
}

#[test]
fn import_is_granted_to_several_gpus() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, mut config) in machine::releases() {
        config.gpus = vec![config.gpus[0].clone(); 3];
        let machine = Machine::new(config);
        let size = machine.granule();
        for owner in 0..3 {
            let original = machine.create(owner, size);
            let imported = machine
                .vmm
                .import_from_shareable_handle(export(&machine, original), DESCRIPTOR)
                .unwrap();
            let base = machine.reserve(size);
            machine.map(base, size, imported);
            // Before the grant to all GPUs, GPU 1 already has access. The loop tests every GPU as the owner.
            machine.grant(base, size, machine.gpu(1), Access::Read);
            let all: Vec<_> =
                machine.gpus().iter().map(|&gpu| access(gpu, Access::ReadWrite)).collect();
            machine.vmm.set_access(base, size, &all).unwrap_or_else(|e| panic!("{release}: {e}"));
            let has_access = |gpu| machine.simulation.page(gpu, base.get()).is_some();
            assert!((0..3).all(has_access), "{release}, GPU {owner}'s memory");
            machine.vmm.revoke(base, size, &[machine.gpu(0)]).unwrap();
            assert_eq!(
                [0, 1, 2].map(has_access),
                [false, true, true],
                "{release}, GPU {owner}'s memory"
            );
            assert_eq!(machine.vmm.quarantined_ranges(), []);
            machine.vmm.unmap(base, size).unwrap();
            machine.vmm.address_free(base, size).unwrap();
            machine.vmm.release(imported).unwrap();
            machine.vmm.release(original).unwrap();
        }
        machine.assert_empty();
    }
}
