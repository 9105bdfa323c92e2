//! Memory shared as file descriptors, within a process and with another one.

mod machine;
mod process;

use hsa_vmm::error::Problem;
use hsa_vmm::simulation::{Config, Generation};
use hsa_vmm::vmm::Location;
use hsa_vmm::{Access, Address, Allocation, AllocationProperties, Handle, HandleType, Reservation};
use machine::{KIB, Machine, access, at, without_cpu_mapping};
use process::End;
use process::handover::{receive, send};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

const FILE: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

fn export(machine: &Machine, handle: Handle) -> OwnedFd {
    machine.vmm.export_to_shareable_handle(handle, FILE).expect("an export")
}

/// Maps a handle at new addresses for the CPU.
fn view(machine: &Machine, handle: Handle, size: usize) -> Address {
    let base = machine.reserve(size);
    machine.map(base, size, handle);
    machine.grant(base, size, machine.cpu(0), Access::ReadWrite);
    base
}

/// Returns memory that contains a text, and its address.
fn written(machine: &Machine, size: usize) -> (Handle, Address) {
    let handle = machine.create(0, size);
    let here = view(machine, handle, size);
    machine.vmm.write(here, b"text").unwrap();
    (handle, here)
}

fn unview(machine: &Machine, base: Address, size: usize) {
    machine.vmm.unmap(base, size).unwrap();
    machine.vmm.address_free(base, size).unwrap();
}

/// Imports a descriptor, and releases the import.
#[track_caller]
fn assert_holds_the_text(machine: &Machine, shared: impl AsFd, size: usize, when: &str) {
    let imported = machine.vmm.import_from_shareable_handle(shared, FILE);
    let imported = imported.unwrap_or_else(|error| panic!("{when}: {error}"));
    let there = view(machine, imported, size);
    assert_eq!(&text_at(machine, there), b"text", "{when}");
    unview(machine, there, size);
    machine.vmm.release(imported).unwrap();
}

fn text_at(machine: &Machine, address: Address) -> [u8; 4] {
    let mut text = [0; 4];
    machine.vmm.read(address, &mut text).unwrap();
    text
}

fn is_closed_on_exec(descriptor: &OwnedFd) -> bool {
    // SAFETY: queries the flags of an open descriptor.
    let flags = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GETFD) };
    assert!(flags >= 0);
    flags & libc::FD_CLOEXEC != 0
}

/// Runs a test on a machine of each release, with its granule, while no other test of this binary
/// runs.
fn on_each_release(test: impl Fn(&str, &Machine, usize)) {
    if process::ran_alone() {
        return;
    }
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        test(release, &machine, machine.granule());
    }
}

#[test]
fn import_returns_a_new_handle_of_the_same_memory() {
    on_each_release(|release, machine, granule| {
        let original = machine.create(0, 2 * granule);
        let here = view(machine, original, 2 * granule);
        machine.vmm.write(here, b"here").unwrap();
        let shared = export(machine, original);
        let imports =
            [(); 2].map(|()| machine.vmm.import_from_shareable_handle(&shared, FILE).unwrap());
        assert_ne!(imports[0], imports[1], "{release}");
        assert_ne!(imports[0], original, "{release}");
        for imported in imports {
            assert_eq!(machine.vmm.allocation_size(imported).unwrap(), 2 * granule, "{release}");
            let properties = machine.vmm.allocation_properties(imported).unwrap();
            assert_eq!(properties.handle_types, HandleType::POSIX_FILE_DESCRIPTOR);
            let owner = Location::Agent(machine.gpu(0));
            assert!([owner, Location::Unknown].contains(&properties.location), "{release}");
            let there = view(machine, imported, 2 * granule);
            assert_eq!(&text_at(machine, there), b"here", "{release}");
            machine.vmm.write(at(there, granule), b"back").unwrap();
            assert_eq!(&text_at(machine, at(here, granule)), b"back", "{release}");
            // GPUs can access it as well.
            machine.grant(there, 2 * granule, machine.gpu(0), Access::ReadWrite);
            machine.vmm.copy(machine.gpu(0), at(there, 8), there, 4).unwrap();
            assert_eq!(&text_at(machine, at(here, 8)), b"here", "{release}");
            unview(machine, there, 2 * granule);
            machine.vmm.release(imported).unwrap();
        }
        assert_eq!(&text_at(machine, here), b"here", "{release}");
        unview(machine, here, 2 * granule);
        machine.vmm.release(original).unwrap();
        drop(shared);
        machine.assert_empty();
    });
}

#[test]
fn imported_descriptor_may_be_closed() {
    if process::ran_alone() {
        return;
    }
    for (release, config) in machine::releases() {
        for config in [config.clone(), without_cpu_mapping(config)] {
            let machine = Machine::new(config);
            let granule = machine.granule();
            let original = machine.create(1, granule);
            let shared = export(&machine, original);
            let imported = machine.vmm.import_from_shareable_handle(&shared, FILE).unwrap();
            drop(shared);
            // Another file has the number now.
            let decoy = File::open("/dev/null").unwrap();
            let there = machine.reserve(granule);
            machine.map(there, granule, imported);
            let gpu = [access(machine.gpu(1), Access::ReadWrite)];
            let granted = machine.vmm.set_access(there, granule, &gpu);
            granted.unwrap_or_else(|error| panic!("{release}: {error}"));
            machine.grant(there, granule, machine.cpu(0), Access::ReadWrite);
            machine.vmm.write(there, b"text").unwrap();
            machine.vmm.release(original).unwrap();
            assert_eq!(&text_at(&machine, there), b"text", "{release}: it outlives the original");
            drop(decoy);
            unview(&machine, there, granule);
            machine.vmm.release(imported).unwrap();
            machine.assert_empty();
        }
    }
}

#[test]
fn every_export_is_a_new_descriptor() {
    on_each_release(|release, machine, granule| {
        let (handle, here) = written(machine, granule);
        let first = export(machine, handle);
        let second = export(machine, handle);
        assert_ne!(first.as_raw_fd(), second.as_raw_fd(), "{release}");
        assert!(is_closed_on_exec(&first) && is_closed_on_exec(&second), "{release}");
        drop(first);
        let third = export(machine, handle);
        for shared in [second, third] {
            assert_holds_the_text(machine, shared, granule, release);
        }
        unview(machine, here, granule);
        machine.vmm.release(handle).unwrap();
        machine.assert_empty();
    });
}

#[test]
fn export_keeps_memory_after_release() {
    on_each_release(|release, machine, granule| {
        let (handle, here) = written(machine, granule);
        let shared = export(machine, handle);
        unview(machine, here, granule);
        machine.vmm.release(handle).unwrap();
        assert_holds_the_text(machine, shared, granule, release);
        machine.assert_empty();
    });
}

#[test]
fn imports_can_be_exported() {
    on_each_release(|release, machine, granule| {
        let original = Allocation::create(&machine.vmm, granule, &machine.on(0)).unwrap();
        let first = Allocation::import(&machine.vmm, original.export().unwrap()).unwrap();
        let again = first.export().unwrap_or_else(|error| panic!("{release}: {error}"));
        assert!(is_closed_on_exec(&again), "{release}");
        let second = Allocation::import(&machine.vmm, again).unwrap();
        let reservation = Reservation::builder(2 * granule).reserve(&machine.vmm).unwrap();
        let views =
            [reservation.map(0, &original).unwrap(), reservation.map(granule, &second).unwrap()];
        for view in &views {
            view.grant(&[machine.cpu(0)], Access::ReadWrite).unwrap();
        }
        views[0].write(0, b"text").unwrap();
        let mut text = [0; 4];
        views[1].read(0, &mut text).unwrap();
        assert_eq!(&text, b"text", "{release}");
        drop((views, original, first, second, reservation));
        machine.assert_empty();
    });
}

#[test]
fn descriptors_do_not_leak() {
    if process::ran_alone() {
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
            let imported = machine.vmm.import_from_shareable_handle(&shared[0], FILE).unwrap();
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
        // Generation B keeps memory until its addresses are freed.
        machine.vmm.address_free(base, 2 * granule).unwrap();
        assert_eq!(process::descriptors(), before, "{generation}");
        machine.assert_empty();
    }
}

#[test]
fn failed_imports_and_exports_leak_no_descriptor() {
    if process::ran_alone() {
        return;
    }
    for (release, config) in machine::releases() {
        let early = config.extension_minor < 16;
        let machine = Machine::new(config);
        let granule = machine.granule();
        let private =
            machine.vmm.create(granule, &AllocationProperties::on(machine.gpu(0))).unwrap();
        let path = std::env::temp_dir().join(format!("hsa-vmm-share-{}", std::process::id()));
        let mut pages = File::options();
        let plain = pages.read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        plain.set_len(granule as u64).unwrap();
        let before = (process::descriptors(), machine.vmm.usage(), machine.simulation.usage());
        for _ in 0..10 {
            let refused = machine.vmm.export_to_shareable_handle(private, FILE).unwrap_err();
            assert_eq!(refused.problem(), Some(Problem::NotRequested), "{release}");
            let nothing = File::open("/dev/null").unwrap();
            let refused = machine.vmm.import_from_shareable_handle(nothing, FILE).unwrap_err();
            assert_eq!(refused.problem(), Some(Problem::NotImportable), "{release}");
            let imported = machine.vmm.import_from_shareable_handle(&plain, FILE);
            if early {
                let refused = imported.unwrap_err();
                assert_eq!(refused.problem(), Some(Problem::NotImportable), "{release}");
                continue;
            }
            // Later runtimes check it when access is granted.
            let imported = imported.unwrap();
            let base = machine.reserve(granule);
            machine.map(base, granule, imported);
            let gpu = [access(machine.gpu(0), Access::ReadWrite)];
            machine.vmm.set_access(base, granule, &gpu).expect_err(release);
            assert_eq!(machine.vmm.get_access(machine.gpu(0), base).unwrap(), Access::None);
            unview(&machine, base, granule);
            machine.vmm.release(imported).unwrap();
        }
        let after = (process::descriptors(), machine.vmm.usage(), machine.simulation.usage());
        assert_eq!(before, after, "{release}");
    }
}

#[test]
fn import_keeps_the_file_position() {
    if process::ran_alone() {
        return;
    }
    let machine = Machine::new(Config::mi300x(1));
    let handle = machine.create(0, 4 * KIB);
    let mut shared = File::from(export(&machine, handle));
    std::io::Seek::seek(&mut shared, std::io::SeekFrom::Start(123)).unwrap();
    machine.vmm.import_from_shareable_handle(shared.as_fd(), FILE).unwrap();
    assert_eq!(std::io::Seek::stream_position(&mut shared).unwrap(), 123);
}

/// ROCm 7.14 does not report the owner of an import, and rejects agents that are granted access after the
/// owner: then the memory is mapped again. The first grant costs no more than elsewhere.
#[test]
fn unowned_import_is_granted_gpu_by_gpu() {
    let config = Config::mi300x(2).with_generation(Generation::C);
    for config in [config.clone(), without_cpu_mapping(config)] {
        for owner in 0..2 {
            let machine = Machine::new(config.clone());
            let (granule, gpus) = (machine.granule(), machine.gpus());
            let descriptor = export(&machine, machine.create(owner, granule));
            let import = machine.vmm.import_from_shareable_handle(descriptor, FILE).unwrap();
            let base = machine.reserve(granule);
            machine.map(base, granule, import);
            let unmaps = || machine.simulation.calls("hsa_amd_vmem_unmap");
            let before = unmaps();
            machine.grant(base, granule, machine.cpu(0), Access::ReadWrite);
            machine.grant(base, granule, gpus[0], Access::ReadWrite);
            assert_eq!(unmaps(), before, "of GPU {owner}");
            machine.grant(base, granule, gpus[1], Access::ReadWrite);
            for gpu in 0..2 {
                let page = machine.simulation.page(gpu, base.get());
                assert!(page.is_some_and(|page| page.writable), "of GPU {owner}: GPU {gpu}");
            }
        }
    }
}

#[test]
fn another_process_uses_the_same_memory() {
    if process::ran_alone() {
        return;
    }
    for (generation, config) in machine::generations() {
        let machine = Machine::new(config.clone());
        let granule = machine.granule();
        let original = machine.create(0, granule);
        let here = view(&machine, original, granule);
        machine.vmm.write(here, b"ping").unwrap();
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        send(&ours, &export(&machine, original));
        let end = process::in_child(|| {
            let machine = Machine::new(config);
            let imported = machine.vmm.import_from_shareable_handle(receive(&theirs), FILE);
            let imported = imported.unwrap();
            let there = view(&machine, imported, granule);
            assert_eq!(&text_at(&machine, there), b"ping");
            machine.vmm.write(there, b"pong").unwrap();
            unview(&machine, there, granule);
            machine.vmm.release(imported).unwrap();
            machine.assert_empty();
            theirs.write_all(b"!").unwrap();
        });
        assert_eq!(end, End::Success, "{generation}");
        ours.read_exact(&mut [0]).unwrap();
        assert_eq!(&text_at(&machine, here), b"pong", "{generation}");
    }
}

#[test]
fn unowned_import_is_granted_to_several_gpus() {
    if process::ran_alone() {
        return;
    }
    for (release, mut config) in machine::releases() {
        config.gpus = vec![config.gpus[0].clone(); 3];
        let machine = Machine::new(config);
        let size = machine.granule();
        for owner in 0..3 {
            let original = machine.create(owner, size);
            let imported =
                machine.vmm.import_from_shareable_handle(export(&machine, original), FILE).unwrap();
            let base = machine.reserve(size);
            machine.map(base, size, imported);
            // The owner is first, in the middle or last; also with a single grant before.
            machine.grant(base, size, machine.gpu(1), Access::Read);
            let all: Vec<_> =
                machine.gpus().iter().map(|&gpu| access(gpu, Access::ReadWrite)).collect();
            machine.vmm.set_access(base, size, &all).unwrap_or_else(|e| panic!("{release}: {e}"));
            let reached = |gpu| machine.simulation.page(gpu, base.get()).is_some();
            assert!((0..3).all(reached), "{release}, GPU {owner}'s memory");
            machine.vmm.revoke(base, size, &[machine.gpu(0)]).unwrap();
            assert_eq!([0, 1, 2].map(reached), [false, true, true], "{release}, GPU {owner}'s");
            assert_eq!(machine.vmm.quarantine(), []);
            machine.vmm.unmap(base, size).unwrap();
            machine.vmm.address_free(base, size).unwrap();
            machine.vmm.release(imported).unwrap();
            machine.vmm.release(original).unwrap();
        }
        machine.assert_empty();
    }
}
