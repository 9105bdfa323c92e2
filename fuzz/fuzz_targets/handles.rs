//! Passes handles, agents and IPC handles with arbitrary bits to the library. Checks that the library rejects unknown
//! values, and that the state of the library does not change.
#![no_main]

use hsa_vmm::ipc::IpcHandle;
use hsa_vmm::simulation::Config;
use hsa_vmm::{
    Access, AccessDescriptor, Address, AgentId, AllocationProperties, Handle, HandleType, Ipc,
    PoolMemory, Runtime, Vmm,
};
use libfuzzer_sys::fuzz_target;

/// The library on a simulation, with a valid handle, a released handle and an IPC handle.
struct Fixture {
    vmm: Vmm,
    ipc: Ipc,
    live: Handle,
    released: Handle,
    address: Address,
    size: usize,
    ipc_handle: IpcHandle,
    _memory: PoolMemory,
}

thread_local! {
    static FIXTURE: Fixture = Fixture::new();
}

impl Fixture {
    fn new() -> Self {
        let runtime = Runtime::simulated(Config::mi300x(2)).expect("the simulation starts");
        let vmm = Vmm::open(&runtime).expect("virtual memory is supported");
        let ipc = Ipc::open(&runtime).expect("IPC is supported");
        let gpu = runtime.gpus().next().expect("the simulation has GPUs").id();
        let size = 2 << 20;
        let [live, released] = [(); 2].map(|()| {
            vmm.create(size, &AllocationProperties::on(gpu)).expect("memory is available")
        });
        vmm.release(released).expect("the handle is valid");
        let address = vmm.address_reserve(size, 0, None).expect("addresses are available");
        let memory = PoolMemory::allocate(&runtime, gpu, size).expect("pool memory is available");
        let ipc_handle = ipc.get_mem_handle(memory.address()).expect("pool memory can be exported");
        Self { vmm, ipc, live, released, address, size, ipc_handle, _memory: memory }
    }

    /// Depending on `choice`, returns a handle with these bits, or one of the fixture's handles in which these
    /// bits are inverted.
    fn handle(&self, bits: u64, choice: u8) -> Handle {
        Handle::from_bits(match choice % 3 {
            0 => bits,
            1 => self.live.to_bits() ^ bits,
            _ => self.released.to_bits() ^ bits,
        })
    }
}

fuzz_target!(|input: (u64, u64, u8, Vec<u8>)| {
    let (bits, agent, choice, bytes) = input;
    FIXTURE.with(|fixture| {
        let (handle, agent) = (fixture.handle(bits, choice), AgentId::from_bits(agent));
        let before = (fixture.vmm.usage(), fixture.vmm.mappings());
        assert_eq!(Handle::from_bits(handle.to_bits()), handle);
        if handle != fixture.live {
            let handle_type = HandleType::POSIX_FILE_DESCRIPTOR;
            assert!(fixture.vmm.map(fixture.address, fixture.size, 0, handle).is_err());
            assert!(fixture.vmm.release(handle).is_err());
            assert!(fixture.vmm.allocation_properties(handle).is_err());
            assert!(fixture.vmm.export_to_shareable_handle(handle, handle_type).is_err());
        }
        let runtime = fixture.vmm.runtime();
        if runtime.agent(agent).is_none() {
            let access = [AccessDescriptor { agent, access: Access::ReadWrite }];
            assert!(fixture.vmm.create(fixture.size, &AllocationProperties::on(agent)).is_err());
            assert!(fixture.vmm.set_access(fixture.address, fixture.size, &access).is_err());
        }
        check_ipc_handle_is_rejected(fixture, &bytes);
        assert_eq!((fixture.vmm.usage(), fixture.vmm.mappings()), before);
        fixture.vmm.check().expect("the state is consistent");
    });
});

/// Checks that opening an IPC handle with these bytes fails. If there are fewer than 64 bytes, the remaining bytes are
/// from a valid handle of this process.
fn check_ipc_handle_is_rejected(fixture: &Fixture, bytes: &[u8]) {
    let mut handle_bytes = fixture.ipc_handle.to_bytes();
    let length = bytes.len().min(handle_bytes.len());
    handle_bytes[..length].copy_from_slice(&bytes[..length]);
    // Opening a handle must not contact another process. Therefore, unless the process ID is negative, replace the
    // process ID by the ID of this process, or by an unused ID.
    let process = i32::from_le_bytes(handle_bytes[48..52].try_into().expect("four bytes"));
    let process = match process {
        0x1000_0000.. => process | 0x4000_0000,
        0.. => std::process::id() as i32,
        _ => process,
    };
    handle_bytes[48..52].copy_from_slice(&process.to_le_bytes());
    let handle = IpcHandle::from_bytes(&handle_bytes);
    assert_eq!(handle.to_bytes(), handle_bytes);
    let error = fixture.ipc.open_mem_handle(&handle, 0);
    let error = error.expect_err("a handle of this process or of a missing process is rejected");
    assert!(!error.to_string().is_empty());
}
