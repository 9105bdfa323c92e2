//! The cases of hip-tests (`catch/unit/device`, `catch/multiproc`) that launch no kernel. The cases have the same names
//! as in hip-tests.
//!
//! These cases are left out:
//! * `hipIpcOpenMemHandle_Negative_Open_In_Two_Contexts_Same_Device`: a device has only one context;
//! * cases of events, which launch kernels;
//! * `hipMemPool…`: the library has no stream-ordered pools (`tests/share.rs` tests shareable handles);
//! * `NoGpuTst_…`: in `tests/pool_memory.rs`;
//! * null pointers and missing handles where the types exclude them.

#![allow(non_snake_case)]

use super::*;
use crate::fixture::on_all_fixtures;

on_all_fixtures! {
    hipIpcCloseMemHandle_Positive_Reference_Counting(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "counted");
        let handle = exporter.get_handle(address);
        let first = importer.open(&handle);
        assert_eq!(importer.open(&handle), first);
        importer.close(first);
        importer.assert_contains(first, "counted");
        importer.close(first);
        assert_error(&importer.try_run(&format!("close_raw {first}")), INVALID_VALUE);
    }

    hipIpcCloseMemHandle_Negative_Close_In_Originating_Process(fixture) {
        let mut exporter = Setup::on(fixture).peer();
        let address = exporter.allocate(SIZE);
        exporter.get_handle(address);
        assert_error(&exporter.try_run(&format!("close_raw {address}")), INVALID_VALUE);
        exporter.write(address, "untouched");
        exporter.assert_contains(address, "untouched");
    }

    hipIpcGetMemHandle_Positive_Unique_Handles_Separate_Allocations(fixture) {
        let mut exporter = Setup::on(fixture).peer();
        let addresses = [exporter.allocate(1024), exporter.allocate(1024)];
        let [first, second] = addresses.map(|address| exporter.get_handle(address));
        assert_ne!(first.to_bytes(), second.to_bytes());
    }

    hipIpcGetMemHandle_Positive_Unique_Handles_Reused_Memory(fixture) {
        let mut exporter = Setup::on(fixture).peer();
        let (address, old) = exporter.reuse_address();
        assert_ne!(exporter.get_handle(address), old);
    }

    hipIpcGetMemHandle_Negative_Handle_For_Freed_Memory(fixture) {
        let mut exporter = Setup::on(fixture).peer();
        let address = exporter.allocate(SIZE);
        exporter.free(address);
        assert_error(&exporter.try_run(&format!("get_handle {address}")), INVALID_VALUE);
    }

    hipIpcGetMemHandle_Negative_Out_Of_Bound_Pointer(fixture) {
        let mut exporter = Setup::on(fixture).peer();
        let address = exporter.allocate(SIZE);
        assert_error(&exporter.try_run(&format!("get_handle {}", address + SIZE)), INVALID_VALUE);
        assert_error(&exporter.try_run(&format!("get_handle {}", address - 1)), INVALID_VALUE);
    }

    hipIpcOpenMemHandle_Negative_Open_In_Creating_Process(fixture) {
        let mut exporter = Setup::on(fixture).peer();
        let address = exporter.allocate(SIZE);
        let handle = exporter.get_handle(address);
        assert_error(&exporter.try_open(&handle), INVALID_CONTEXT);
    }

    hipIpcMemAccess_Semaphores(fixture) {
        let setup = Setup::on(fixture);
        for owner in 0..2 {
            for user in 0..2 {
                let (mut parent, mut child) = (setup.peer_on(owner), setup.peer_on(user));
                let address = parent.run(&format!("allocate {owner} {SIZE}")).parse().unwrap();
                assert_shared(&mut parent, address, &mut child);
                parent.free(address);
            }
        }
    }

    hipIpcMemAccess_ParameterValidation(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let handle = exporter.get_handle(address);
        assert_error(&exporter.try_run("get_handle 0"), INVALID_VALUE);
        let blank = IpcHandle::from_bytes(&[0; IpcHandle::SIZE]);
        assert_error(&importer.try_open(&blank), INVALID_VALUE);
        for flags in [123, 2, u32::MAX] {
            assert_error(&importer.try_open_raw(&handle, flags), INVALID_VALUE);
        }
        assert_error(&importer.try_run("close_raw 0"), INVALID_VALUE);
        let opened = importer.try_open_raw(&handle, hsa_vmm::ipc::LAZY_ENABLE_PEER_ACCESS).unwrap();
        importer.run(&format!("close_raw {opened}"));
    }
}
