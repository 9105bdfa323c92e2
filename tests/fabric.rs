//! Fabric handles: 64 bytes by which another machine imports physical memory.

mod machine;

use hsa_vmm::error::{Argument, Feature, Problem};
use hsa_vmm::hsa_sys::HSA_STATUS_ERROR_OUT_OF_RESOURCES;
use hsa_vmm::simulation::{Config, Generation};
use hsa_vmm::vmm::{FabricHandle, Location, VmmOptions};
use hsa_vmm::{Access, AllocationProperties, Error, ErrorKind, Handle, HandleType};
use machine::Machine;

fn config() -> Config {
    Config::mi300x(2).with_generation(Generation::D)
}

fn machine_with_fabric() -> Machine {
    Machine::new(config())
}

/// Creates memory on the first GPU, and requests a fabric handle for it.
fn create_for_fabric(machine: &Machine, size: usize) -> Result<Handle, Error> {
    let properties = AllocationProperties::on(machine.gpu(0)).shareable_as(HandleType::FABRIC);
    machine.vmm.create(size, &properties)
}

#[test]
fn importer_uses_the_same_memory() {
    let (exporter, importer) = (machine_with_fabric(), machine_with_fabric());
    let size = exporter.granule() * 3;
    let handle = create_for_fabric(&exporter, size).unwrap();
    let exported = exporter.vmm.export_to_fabric_handle(handle).unwrap();
    assert_eq!(exported.size(), Some(size));
    // A real program would send the bytes to another machine here.
    let received = FabricHandle::from_bytes(exported.to_bytes());
    let imported = importer.vmm.import_from_fabric_handle(&received).unwrap();
    assert_ne!(imported, handle);
    assert_eq!(importer.vmm.allocation_size(imported).unwrap(), size);
    let properties = importer.vmm.allocation_properties(imported).unwrap();
    assert_eq!(properties.location, Location::Unknown);
    assert_eq!(properties.handle_types, HandleType::FABRIC);

    let (base, imported_base) = (exporter.reserve(size), importer.reserve(size));
    exporter.map(base, size, handle);
    exporter.grant(base, size, exporter.gpu(0), Access::ReadWrite);
    importer.map(imported_base, size, imported);
    importer.grant(imported_base, size, importer.gpu(0), Access::ReadWrite);
    importer.vmm.copy_from_host(importer.gpu(0), imported_base, &[42; 100]).unwrap();
    let mut bytes = [0; 100];
    exporter.vmm.copy_to_host(exporter.gpu(0), &mut bytes, base).unwrap();
    assert_eq!(bytes, [42; 100]);

    // The CPU can also access the memory.
    importer.grant(imported_base, size, importer.cpu(0), Access::Read);
    // SAFETY: the memory is mapped and readable, and the GPU has finished writing.
    assert_eq!(unsafe { imported_base.as_ptr().cast_const().cast::<u8>().read_volatile() }, 42);

    importer.vmm.unmap(imported_base, size).unwrap();
    importer.vmm.release(imported).unwrap();
    importer.vmm.address_free(imported_base, size).unwrap();
    exporter.vmm.unmap(base, size).unwrap();
    exporter.vmm.release(handle).unwrap();
    exporter.vmm.address_free(base, size).unwrap();
    exporter.assert_empty();
    importer.assert_empty();
    // The fabric handle does not keep the memory alive.
    let error = importer.vmm.import_from_fabric_handle(&received).unwrap_err();
    assert_eq!(error.problem(), Some(Problem::UnknownFabricMemory), "{error}");
}

#[test]
fn invalid_handles_are_rejected() {
    let machine = machine_with_fabric();
    let granule = machine.granule();
    let import = |handle: FabricHandle| machine.vmm.import_from_fabric_handle(&handle).unwrap_err();
    for byte in [0, 255] {
        // These handles contain no size, like the handles that HIP exports.
        let error = import(FabricHandle::from_bytes([byte; FabricHandle::SIZE]));
        assert_eq!(error.argument(), Some(Argument::FabricHandle));
        assert_eq!(error.problem(), Some(Problem::NoSize), "{error}");
    }
    let forged = FabricHandle::from_bytes([1; FabricHandle::SIZE]);
    assert_eq!(import(forged.with_size(granule)).problem(), Some(Problem::UnknownFabricMemory));
    for (size, problem) in [(0, Problem::Zero), (granule + 1, Problem::NotAligned { granule })] {
        assert_eq!(import(forged.with_size(size)).problem(), Some(problem));
    }
    // This memory was created without a request for a fabric handle.
    let handle = machine.create(0, granule);
    let error = machine.vmm.export_to_fabric_handle(handle).unwrap_err();
    assert_eq!(error.problem(), Some(Problem::NotRequested), "{error}");
    let for_fabric = create_for_fabric(&machine, granule).unwrap();
    let descriptor = HandleType::POSIX_FILE_DESCRIPTOR;
    let error = machine.vmm.export_to_shareable_handle(for_fabric, descriptor).unwrap_err();
    assert_eq!(error.problem(), Some(Problem::NotRequested), "{error}");
    machine.vmm.release(for_fabric).unwrap();
    let error = machine.vmm.export_to_fabric_handle(for_fabric).unwrap_err();
    assert_eq!(error.argument(), Some(Argument::Handle), "{error}");
    // HIP rejects a request for both handle types.
    let both = machine.shareable_on(0).shareable_as(HandleType::FABRIC);
    let error = machine.vmm.create(granule, &both).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotSupported(Feature::HandleType));
    machine.vmm.release(handle).unwrap();
    machine.assert_empty();
}

#[test]
fn error_names_the_missing_capability() {
    let mut without_fabric = Config::mi300x(1).with_generation(Generation::D);
    without_fabric.fabric = false;
    let config_of = |generation| Config::mi300x(1).with_generation(generation);
    let function = "hsa_amd_vmem_export_fabric_handle";
    for (config, feature, text) in [
        (config_of(Generation::A), Feature::Function(function), function),
        (config_of(Generation::B), Feature::Function(function), function),
        (config_of(Generation::C), Feature::Fabric, "HSA_AMD_SYSTEM_INFO_FABRIC_HANDLES_SUPPORTED"),
        (without_fabric, Feature::Fabric, "UALink"),
        (config_of(Generation::E), Feature::Fabric, "over a fabric"),
    ] {
        let machine = Machine::new(config);
        let forged = FabricHandle::from_bytes([0; FabricHandle::SIZE]).with_size(4096);
        let import = machine.vmm.import_from_fabric_handle(&forged).map(drop);
        for result in [create_for_fabric(&machine, machine.granule()).map(drop), import] {
            let error = result.unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::NotSupported(feature), "{error}");
            assert!(error.to_string().contains(text), "{error}");
        }
        machine.assert_empty();
    }
}

#[test]
fn failed_export_can_be_repeated() {
    let machine = machine_with_fabric();
    let handle = create_for_fabric(&machine, machine.granule()).unwrap();
    let plan = hsa_vmm::simulation::FaultPlan::none();
    let plan = plan.fail("hsa_amd_vmem_export_fabric_handle", 1, HSA_STATUS_ERROR_OUT_OF_RESOURCES);
    machine.simulation.set_faults(plan);
    let error = machine.vmm.export_to_fabric_handle(handle).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::OutOfMemory { .. }), "{error}");
    machine.vmm.export_to_fabric_handle(handle).unwrap();
    machine.vmm.release(handle).unwrap();
    machine.assert_empty();
}

/// Control of page tables needs a dma-buf of the memory, which memory that was imported over a fabric does not have.
#[test]
fn imports_are_rejected_with_control_of_page_tables() {
    let exporter = machine_with_fabric();
    let size = exporter.granule();
    let handle = create_for_fabric(&exporter, size).unwrap();
    let exported = exporter.vmm.export_to_fabric_handle(handle).unwrap();
    let options = VmmOptions::new();
    for (options, is_controlled) in [
        (options, false),
        (options.with_barrier(true), false),
        (options.with_page_tables(true), true),
        (options.with_no_execute(true), true),
    ] {
        let importer = Machine::with_options(config(), options);
        let imported = importer.vmm.import_from_fabric_handle(&exported);
        let Ok(imported) = imported else {
            let error = imported.unwrap_err();
            let feature = Feature::FabricImportWithPageTables;
            assert_eq!(*error.kind(), ErrorKind::NotSupported(feature), "{error}");
            assert!(is_controlled, "{options:?}: {error}");
            continue;
        };
        assert!(!is_controlled, "{options:?}");
        let base = importer.reserve(size);
        importer.map(base, size, imported);
        for access in [Access::ReadWrite, Access::Read, Access::None] {
            importer.grant(base, size, importer.gpu(0), access);
        }
        let error = importer.vmm.export_address_range(base, size).unwrap_err();
        let feature = Feature::DmaBufOfFabricImport;
        assert_eq!(*error.kind(), ErrorKind::NotSupported(feature), "{error}");
        importer.vmm.unmap(base, size).unwrap();
        importer.vmm.release(imported).unwrap();
        importer.vmm.address_free(base, size).unwrap();
        importer.assert_empty();
    }
    exporter.vmm.release(handle).unwrap();
    exporter.assert_empty();
}
