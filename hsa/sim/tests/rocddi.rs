//! Generation E (AMD's `libhsa` on `rocddi`): tests each difference from ROCr. `src/generation.rs`
//! names the public source of each difference.
#![allow(clippy::undocumented_unsafe_blocks)] // calls with pointers to locals

mod setup;

use core::ffi::c_int;
use core::ptr::without_provenance_mut;
use setup::*;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const PAGE: usize = 4 * KIB;

/// The newest generation of ROCr. If it differs from generation E, a test runs on both.
const D: &str = "era=d";
/// The generation that this file tests.
const E: &str = "era=e";

/// Reserves pages with the alignment of a page, because generation E rejects the alignment 0.
fn reserve(setup: &Setup, pages: usize) -> usize {
    setup.try_reserve(pages * PAGE, 0, PAGE, 0).expect("a reservation")
}

/// Maps new memory of `pages` pages at a new reservation. Returns the address and the handle.
fn mapped(setup: &Setup, pages: usize) -> (usize, u64) {
    let (base, handle) = (reserve(setup, pages), setup.create(pages * PAGE));
    assert_eq!(setup.map(base, pages * PAGE, handle), OK);
    (base, handle)
}

/// Creates a file of `size` bytes that is not memory of a GPU.
fn file(size: usize) -> OwnedFd {
    let descriptor = unsafe { libc::memfd_create(c"not memory".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(descriptor >= 0);
    assert_eq!(unsafe { libc::ftruncate(descriptor, size as i64) }, 0);
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

#[test]
fn runtime_attributes_are_those_of_libhsa() {
    let setup = start(E);
    let minor = system_info::<u16>(setup.hsa, HSA_AMD_SYSTEM_INFO_EXT_VERSION_MINOR);
    assert_eq!(minor, Ok(33));
    assert_eq!(system_info(setup.hsa, HSA_AMD_SYSTEM_INFO_FABRIC_HANDLES_SUPPORTED), Ok(false));
    assert_eq!(system_info(setup.hsa, HSA_SYSTEM_INFO_VERSION_MINOR), Ok(21u16));
    assert_eq!(system_info(setup.hsa, HSA_AMD_SYSTEM_INFO_SVM_SUPPORTED), Ok(true));
    let d = start(D);
    assert_eq!(system_info(d.hsa, HSA_SYSTEM_INFO_VERSION_MINOR), Ok(1u16));
    assert_eq!(system_info(d.hsa, HSA_AMD_SYSTEM_INFO_SVM_SUPPORTED), Ok(false));
    let grid = |setup: &Setup| {
        agent_info::<[u32; 3]>(setup.hsa, setup.gpus[0], HSA_AGENT_INFO_GRID_MAX_DIM)
            .expect("a size")
    };
    assert_eq!(grid(&setup), [u32::MAX, 0xffff, 0xffff]);
    assert_eq!(grid(&d), [i32::MAX as u32, 0xffff, 0xffff]);
}

#[test]
fn loader_extension_is_reported() {
    type Bits = [[u8; 32]; 4];
    let none = Bits::default();
    let mut loader = none;
    // HSA_EXTENSION_AMD_LOADER is 0x201: bit 1 of byte 64, the first byte of the third array.
    loader[2][0] = 2;
    for (era, expected) in [(D, none), (E, loader)] {
        let setup = start(era);
        assert_eq!(system_info(setup.hsa, HSA_SYSTEM_INFO_EXTENSIONS), Ok(expected), "{era}");
        let of = |agent| agent_info::<Bits>(setup.hsa, agent, HSA_AGENT_INFO_EXTENSIONS);
        assert_eq!((of(setup.cpus[0]), of(setup.gpus[0])), (Ok(none), Ok(expected)), "{era}");
        let attribute = HSA_EXT_AGENT_INFO_IMAGE_LINEAR_ROW_PITCH_ALIGNMENT;
        let alignment = agent_info::<usize>(setup.hsa, setup.gpus[0], attribute);
        let expected = if era == E { Ok(0) } else { Err(INVALID_ARGUMENT) };
        assert_eq!(alignment, expected, "{era}");
    }
}

#[test]
fn extension_33_without_era_is_rocr() {
    let config = |text: &str| text.parse::<hsa_sim::Config>();
    assert_eq!(config("era=e,extension=33"), config(E));
    assert_ne!(config("extension=33"), config(E));
    assert!(config("era=e,extension=22").is_err());
}

#[test]
fn reserve_checks_its_arguments() {
    let (d, e) = (start(D), start(E));
    for (size, alignment, flags) in
        [(PAGE + 1, PAGE, 0), (PAGE, 0, 0), (PAGE, 64, 0), (PAGE, 3 * PAGE, 0), (PAGE, PAGE, 2)]
    {
        let result = e.try_reserve(size, 0, alignment, flags);
        assert_eq!(result, Err(INVALID_ARGUMENT), "{size:#x} {alignment:#x} {flags}");
    }
    assert!(d.try_reserve(PAGE, 0, 0, 0).is_ok());
    // The function without a parameter for the alignment aligns to a page.
    let mut address = core::ptr::null_mut();
    let reserve = e.vmem.hsa_amd_vmem_address_reserve;
    assert_eq!(unsafe { reserve(&mut address, PAGE, 0, 0) }, OK);
    assert_eq!(e.free(address.addr(), PAGE), OK);
    // With NO_REGISTER, generation D returns ordinary memory of the process. Generation E returns
    // an ordinary reservation.
    let no_register = u64::from(HSA_AMD_VMEM_ADDRESS_NO_REGISTER);
    for (setup, is_memory) in [(&d, true), (&e, false)] {
        let base = setup.try_reserve(PAGE, 0, PAGE, no_register).expect("a reservation");
        assert_eq!(readable(base), is_memory);
        assert_eq!(setup.free(base, PAGE), OK);
    }
}

#[test]
fn unknown_flags_are_rejected() {
    for (era, expected) in [(D, OK), (E, INVALID_ARGUMENT)] {
        let setup = start(era);
        let created = setup.try_create(setup.vram[0], PAGE, MEMORY_TYPE_NONE, 1 << 20);
        assert_eq!(created.map_or_else(|status| status, |_| OK), expected, "{era}");
        let handle = hsa_amd_vmem_alloc_handle_t { handle: setup.create(PAGE) };
        let base = without_provenance_mut(reserve(&setup, 1));
        let map = setup.vmem.hsa_amd_vmem_map;
        assert_eq!(unsafe { map(base, PAGE, 0, handle, 1) }, expected, "{era}");
        let (mut descriptor, export) = (-1, setup.vmem.hsa_amd_vmem_export_shareable_handle);
        assert_eq!(unsafe { export(&mut descriptor, handle, 2) }, expected, "{era}");
        // Both generations accept known flags: uncached memory, and an export for other PCIe
        // devices.
        let uncached = u64::from(HSA_AMD_MEMORY_POOL_UNCACHED_FLAG);
        assert!(setup.try_create(setup.vram[0], PAGE, MEMORY_TYPE_NONE, uncached).is_ok());
        assert_eq!(unsafe { export(&mut descriptor, handle, 1) }, OK);
    }
}

#[test]
fn map_starts_at_the_offset() {
    for (era, offsets) in [(D, [0, 0]), (E, [0, 2])] {
        let setup = start(era);
        let (base, handle) = (reserve(&setup, 2), setup.create(3 * PAGE));
        for (page, offset) in [(0, 0), (1, 2)] {
            assert_eq!(setup.map_at(base + page * PAGE, PAGE, offset * PAGE, handle), OK);
        }
        assert_eq!(setup.set(base, 2 * PAGE, &[(setup.gpus[0], RW), (setup.cpus[0], RW)]), OK);
        let found =
            [0, 1].map(|page| setup.simulation.page(0, base + page * PAGE).expect("mapped"));
        assert_eq!(found.map(|page| page.offset as usize / PAGE), offsets, "{era}");
        // The CPU writes to the page of the memory that `offsets` predicts: another mapping shows
        // the value there.
        write(base + PAGE, 42);
        let all = reserve(&setup, 3);
        assert_eq!(setup.map(all, 3 * PAGE, handle), OK);
        assert_eq!(setup.set(all, 3 * PAGE, &[(setup.cpus[0], RW)]), OK);
        assert_eq!(read(all + offsets[1] * PAGE), 42, "{era}");
    }
}

#[test]
fn map_rejects_invalid_ranges_of_memory() {
    let setup = start(E);
    let (base, handle) = (reserve(&setup, 3), setup.create(2 * PAGE));
    for (size, offset) in [
        (3 * PAGE, 0),
        (2 * PAGE, PAGE),
        (PAGE, 2 * PAGE),
        (PAGE, 64),
        (PAGE + 64, 0),
        (PAGE, usize::MAX),
    ] {
        let status = setup.map_at(base, size, offset, handle);
        assert_eq!(status, INVALID_ARGUMENT, "{size:#x} {offset:#x}");
    }
    // Generation E also knows the size of an import. Generation D checks the size only when access
    // is set.
    for (era, expected) in [(D, OK), (E, INVALID_ARGUMENT)] {
        let setup = start(era);
        let descriptor = setup.export(setup.create(PAGE)).expect("a descriptor");
        let imported = setup.import(descriptor).expect("a handle");
        assert_eq!(setup.map(reserve(&setup, 2), 2 * PAGE, imported), expected, "{era}");
    }
}

#[test]
fn unaligned_address_fails_when_access_is_set() {
    let setup = start(E);
    let base = reserve(&setup, 2);
    assert_eq!(setup.map(base + 64, PAGE, setup.create(PAGE)), OK);
    assert_eq!(setup.set(base + 64, PAGE, &[(setup.gpus[0], RW)]), INVALID_ARGUMENT);
    let setup = start(D);
    let base = reserve(&setup, 2);
    assert_eq!(setup.map(base + 64, PAGE, setup.create(PAGE)), HSA_STATUS_ERROR, "D fails earlier");
}

#[test]
fn set_access_requires_whole_mappings() {
    for (era, part, unmapped, unknown) in [
        (D, OK, INVALID_ALLOCATION, OK),
        (E, INVALID_ALLOCATION, INVALID_ALLOCATION, INVALID_ARGUMENT),
    ] {
        let setup = start(era);
        let (base, _) = mapped(&setup, 2);
        assert_eq!(setup.set(base, PAGE, &[(setup.gpus[0], RW)]), part, "{era}");
        assert_eq!(setup.set(reserve(&setup, 1), PAGE, &[(setup.gpus[0], RW)]), unmapped, "{era}");
        assert_eq!(setup.set(base, 2 * PAGE, &[(setup.gpus[1], 8)]), unknown, "{era}");
    }
}

#[test]
fn gpus_get_exact_permissions() {
    let permissions = [(RO, (true, false)), (WO, (false, true)), (RW, (true, true))];
    for era in [D, E] {
        let setup = start(era);
        let (base, _) = mapped(&setup, 1);
        for (permission, exact) in permissions {
            assert_eq!(setup.set(base, PAGE, &[(setup.gpus[0], permission)]), OK);
            let page = setup.simulation.page(0, base).expect("mapped");
            let expected = if era == E { exact } else { (true, true) };
            assert_eq!((page.readable, page.writable), expected, "{era} {permission}");
            assert_eq!(setup.get(base, setup.gpus[0]), Ok(permission));
        }
        assert_eq!(setup.set(base, PAGE, &[(setup.gpus[0], NONE)]), OK);
        assert_eq!(setup.get(base, setup.gpus[0]), Ok(NONE));
        assert_eq!(setup.simulation.page(0, base).is_none(), era == E, "{era}");
    }
}

#[test]
fn calls_wait_for_page_tables() {
    for (era, is_late) in [(D, true), (E, false)] {
        let setup = start(&format!("{era},page-tables=late"));
        let (base, _) = mapped(&setup, 1);
        assert_eq!(setup.set(base, PAGE, &[(setup.gpus[0], RW)]), OK);
        assert_eq!(setup.simulation.page(0, base).is_none(), is_late, "{era}");
    }
    for (era, is_late) in [(D, true), (E, false)] {
        let setup = start(&format!("{era},page-tables=not-flushed"));
        let (base, _) = mapped(&setup, 1);
        assert_eq!(setup.set(base, PAGE, &[(setup.gpus[0], RW)]), OK);
        assert!(setup.simulation.page(0, base).is_some());
        assert_eq!(setup.unmap(base, PAGE), OK);
        assert_eq!(setup.simulation.page(0, base).is_some(), is_late, "{era}");
    }
}

#[test]
fn unmapped_memory_is_freed() {
    let setup = start(E);
    let (base, handle) = mapped(&setup, 1);
    assert_eq!(setup.set(base, PAGE, &[(setup.gpus[0], RW), (setup.cpus[0], RW)]), OK);
    write(base, 42);
    assert_eq!(setup.unmap(base, PAGE), OK);
    // Nothing is mapped at the addresses, which stay reserved.
    assert!(!readable(base));
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the list of mappings");
    let start = format!("{base:x}-");
    let line = maps.lines().find(|line| line.starts_with(&start));
    assert!(!line.unwrap_or_default().contains("memfd"), "{line:?}");
    assert_eq!(setup.release(handle), OK);
    assert_eq!(setup.simulation.usage().vram_used[0], 0);
}

#[test]
fn each_handle_has_a_descriptor() {
    for (era, count) in [(D, 0), (E, 1)] {
        let setup = start(era);
        let handle = setup.create(PAGE);
        assert_eq!(setup.simulation.usage().descriptors, count, "{era}");
        assert_eq!(setup.release(handle), OK);
        assert_eq!(setup.simulation.usage().descriptors, 0, "{era}");
    }
}

#[test]
fn import_accepts_any_file_with_a_size() {
    let setup = start(E);
    assert_eq!(setup.import(file(0).as_raw_fd()), Err(ERROR));
    let not_memory = file(PAGE);
    let imported = setup.import(not_memory.as_raw_fd()).expect("a handle");
    assert_eq!(setup.properties(imported), Ok((0, MEMORY_TYPE_NONE)));
    let base = reserve(&setup, 1);
    assert_eq!(setup.map(base, PAGE, imported), OK);
    assert_eq!(setup.set(base, PAGE, &[(setup.gpus[0], RW)]), ERROR);
    // Imports cannot be exported.
    let descriptor: c_int = setup.export(setup.create(PAGE)).expect("a descriptor");
    let imported = setup.import(descriptor).expect("a handle");
    assert_eq!(setup.export(imported), Err(INCOMPATIBLE));
}

#[test]
fn pointer_info_returns_the_start() {
    for era in [D, E] {
        let setup = start(era);
        let (base, _) = mapped(&setup, 2);
        let info = setup.pointer_info(base + PAGE);
        let (agent, host) = (info.agentBaseAddress.addr(), info.hostBaseAddress.addr());
        let expected = if era == E { (base, 0) } else { (base + PAGE, base + PAGE) };
        assert_eq!((agent, host), expected, "{era}");
        assert_eq!(setup.set(base, 2 * PAGE, &[(setup.cpus[0], RO)]), OK);
        let host = setup.pointer_info(base + PAGE).hostBaseAddress.addr();
        assert_eq!(host, if era == E { base } else { base + PAGE }, "{era}");
    }
}

#[test]
fn allow_access_rejects_virtual_memory() {
    for (era, expected) in [(D, OK), (E, INVALID_ALLOCATION)] {
        let setup = start(era);
        let (base, _) = mapped(&setup, 1);
        assert_eq!(setup.allow(&[setup.gpus[0]], base), expected, "{era}");
    }
}

#[test]
fn memory_of_the_cpu_is_supported() {
    for era in [D, E] {
        let setup = start(era);
        for kind in [MEMORY_TYPE_NONE, MEMORY_TYPE_PINNED] {
            let handle = setup.try_create(setup.system, PAGE, kind, 0).expect("host memory");
            assert_eq!(setup.properties(handle), Ok((setup.system.handle, kind)), "{era}");
            let base = reserve(&setup, 1);
            assert_eq!(setup.map(base, PAGE, handle), OK);
            assert_eq!(setup.set(base, PAGE, &[(setup.gpus[0], RW), (setup.cpus[0], RW)]), OK);
            assert_eq!(setup.get(base, setup.cpus[0]), Ok(RW));
            write(base, 7);
            setup.poke(base, 8);
            assert_eq!(read(base), 8, "the GPU writes the same memory");
        }
    }
    let setup = start("era=b");
    assert_eq!(setup.try_create(setup.system, PAGE, MEMORY_TYPE_NONE, 0), Err(INVALID_ARGUMENT));
}

fn export_fabric(setup: &Setup, handle: u64) -> Result<hsa_fabric_handle_t, hsa_status_t> {
    let mut fabric = hsa_fabric_handle_t { handle: [0; 16] };
    let export = setup.vmem.hsa_amd_vmem_export_fabric_handle.expect("in the table");
    match unsafe { export(&mut fabric, hsa_amd_vmem_alloc_handle_t { handle }, 0) } {
        OK => Ok(fabric),
        status => Err(status),
    }
}

fn import_fabric(setup: &Setup, fabric: hsa_fabric_handle_t) -> Result<u64, hsa_status_t> {
    let mut handle = hsa_amd_vmem_alloc_handle_t { handle: 0 };
    let import = setup.vmem.hsa_amd_vmem_import_fabric_handle.expect("in the table");
    match unsafe { import(fabric, &mut handle) } {
        OK => Ok(handle.handle),
        status => Err(status),
    }
}

#[test]
fn fabric_handles_exist_only_in_generation_d() {
    for era in ["era=c", E] {
        let setup = start(era);
        let handle = setup.create(PAGE);
        assert_eq!(export_fabric(&setup, handle).map(drop), Err(NOT_SUPPORTED), "{era}");
        assert_eq!(export_fabric(&setup, handle + 1).map(drop), Err(INVALID_ALLOCATION), "{era}");
        let any = hsa_fabric_handle_t { handle: [1; 16] };
        assert_eq!(import_fabric(&setup, any), Err(NOT_SUPPORTED), "{era}");
    }
    assert!(start("era=b").vmem.hsa_amd_vmem_export_fabric_handle.is_none());
    let mut config: hsa_sim::Config = D.parse().expect("a configuration");
    config.fabric = false;
    let setup = Setup::new(config);
    assert_eq!(export_fabric(&setup, setup.create(PAGE)).map(drop), Err(NOT_SUPPORTED));
}

#[test]
fn fabric_handle_refers_to_the_same_memory() {
    let exporter = start(D);
    let (base, handle) = mapped(&exporter, 1);
    assert_eq!(exporter.set(base, PAGE, &[(exporter.cpus[0], RW)]), OK);
    let fabric = export_fabric(&exporter, handle).expect("a fabric handle");
    let importer = start(D);
    let imported = import_fabric(&importer, fabric).expect("a handle");
    assert_eq!(importer.properties(imported), Ok((0, MEMORY_TYPE_NONE)));
    assert_eq!(export_fabric(&importer, imported).map(drop), Err(INCOMPATIBLE));
    let at = reserve(&importer, 1);
    assert_eq!(importer.map(at, PAGE, imported), OK);
    assert_eq!(importer.set(at, PAGE, &[(importer.gpus[0], RW)]), OK);
    importer.poke(at, 1234);
    assert_eq!(read(base), 1234);
    // A fabric handle does not keep its memory alive.
    assert_eq!(importer.unmap(at, PAGE), OK);
    assert_eq!((importer.release(imported), exporter.unmap(base, PAGE)), (OK, OK));
    assert_eq!(exporter.release(handle), OK);
    assert_eq!(import_fabric(&importer, fabric), Err(INVALID_ARGUMENT));
}
