//! The cases of hip-tests (`catch/unit/device`, `catch/multiproc`) that need no kernel, under their
//! names there.
//!
//! Not here: `hipIpcOpenMemHandle_Negative_Open_In_Two_Contexts_Same_Device`, as there is no second
//! context of a device; events, which need kernels; `hipMemPool…`, as there are no pools of streams
//! (they share shareable handles: `tests/share.rs`); `NoGpuTst_…`, which is in
//! `tests/pool_memory.rs`; pointers that are null and handles that are missing where the types have
//! none.

#![allow(non_snake_case)]

use super::*;
use crate::fixture::on_all_fixtures;

on_all_fixtures! {
    hipIpcCloseMemHandle_Positive_Reference_Counting(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        exporter.write(address, "counted");
        let handle = exporter.get(address);
        let first = importer.open(&handle);
        assert_eq!(importer.open(&handle), first);
        importer.close(first);
        importer.holds(first, "counted");
        importer.close(first);
        assert_refused(&importer.ask(&format!("close_raw {first}")), INVALID_VALUE);
    }

    hipIpcCloseMemHandle_Negative_Close_In_Originating_Process(fixture) {
        let mut exporter = Setup::on(fixture).peer();
        let address = exporter.allocate(SIZE);
        exporter.get(address);
        assert_refused(&exporter.ask(&format!("close_raw {address}")), INVALID_VALUE);
        exporter.write(address, "untouched");
        exporter.holds(address, "untouched");
    }

    hipIpcGetMemHandle_Positive_Unique_Handles_Separate_Allocations(fixture) {
        let mut exporter = Setup::on(fixture).peer();
        let addresses = [exporter.allocate(1024), exporter.allocate(1024)];
        let [first, second] = addresses.map(|address| exporter.get(address));
        assert_ne!(first.to_bytes(), second.to_bytes());
    }

    hipIpcGetMemHandle_Positive_Unique_Handles_Reused_Memory(fixture) {
        let mut exporter = Setup::on(fixture).peer();
        let (address, old) = exporter.reuse();
        assert_ne!(exporter.get(address), old);
    }

    hipIpcGetMemHandle_Negative_Handle_For_Freed_Memory(fixture) {
        let mut exporter = Setup::on(fixture).peer();
        let address = exporter.allocate(SIZE);
        exporter.free(address);
        assert_refused(&exporter.ask(&format!("get {address}")), INVALID_VALUE);
    }

    hipIpcGetMemHandle_Negative_Out_Of_Bound_Pointer(fixture) {
        let mut exporter = Setup::on(fixture).peer();
        let address = exporter.allocate(SIZE);
        assert_refused(&exporter.ask(&format!("get {}", address + SIZE)), INVALID_VALUE);
        assert_refused(&exporter.ask(&format!("get {}", address - 1)), INVALID_VALUE);
    }

    hipIpcOpenMemHandle_Negative_Open_In_Creating_Process(fixture) {
        let mut exporter = Setup::on(fixture).peer();
        let address = exporter.allocate(SIZE);
        let handle = exporter.get(address);
        assert_refused(&exporter.try_open(&handle), INVALID_CONTEXT);
    }

    hipIpcMemAccess_Semaphores(fixture) {
        let setup = Setup::on(fixture);
        for owner in 0..2 {
            for user in 0..2 {
                let (mut parent, mut child) = (setup.peer_on(owner), setup.peer_on(user));
                let address = parent.ok(&format!("allocate {owner} {SIZE}")).parse().unwrap();
                assert_shared(&mut parent, address, &mut child);
                parent.free(address);
            }
        }
    }

    hipIpcMemAccess_ParameterValidation(fixture) {
        let setup = Setup::on(fixture);
        let (mut exporter, mut importer) = (setup.peer(), setup.peer());
        let address = exporter.allocate(SIZE);
        let handle = exporter.get(address);
        assert_refused(&exporter.ask("get 0"), INVALID_VALUE);
        let blank = IpcHandle::from_bytes(&[0; IpcHandle::SIZE]);
        assert_refused(&importer.try_open(&blank), INVALID_VALUE);
        for flags in [123, 2, u32::MAX] {
            assert_refused(&importer.try_open_raw(&handle, flags), INVALID_VALUE);
        }
        assert_refused(&importer.ask("close_raw 0"), INVALID_VALUE);
        let opened = importer.try_open_raw(&handle, hsa_vmm::ipc::LAZY_ENABLE_PEER_ACCESS).unwrap();
        importer.ok(&format!("close_raw {opened}"));
    }
}
