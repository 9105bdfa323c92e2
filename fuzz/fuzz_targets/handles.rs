//! Handles, agents and IPC handles of arbitrary bits: unknown values are rejected without any
//! effect.
#![no_main]

use hsa_vmm::simulation::Config;
use hsa_vmm::ipc::IpcHandle;
use hsa_vmm::{
    Access, AccessDescriptor, Address, AgentId, AllocationProperties, Handle, HandleType, Ipc,
    PoolMemory, Runtime, Vmm,
};
use libfuzzer_sys::fuzz_target;

/// A machine, the library on it, a valid handle and a released one.
struct Fixture {
    vmm: Vmm,
    ipc: Ipc,
    live: Handle,
    gone: Handle,
    address: Address,
    size: usize,
    shared: IpcHandle,
    _memory: PoolMemory,
}

thread_local! {
    static FIXTURE: Fixture = Fixture::new();
}

impl Fixture {
    fn new() -> Self {
        let runtime = Runtime::simulated(Config::mi300x(2)).expect("a simulation");
        let vmm = Vmm::open(&runtime).expect("virtual memory");
        let ipc = Ipc::open(&runtime).expect("IPC");
        let gpu = runtime.gpus().next().expect("a GPU").id();
        let size = 2 << 20;
        let [live, gone] = [(); 2].map(|()| {
            vmm.create(size, &AllocationProperties::on(gpu)).expect("memory")
        });
        vmm.release(gone).expect("the handle is valid");
        let address = vmm.address_reserve(size, 0, None).expect("addresses");
        let memory = PoolMemory::allocate(&runtime, gpu, size).expect("pool memory");
        let shared = ipc.get_mem_handle(memory.address()).expect("a handle");
        Self { vmm, ipc, live, gone, address, size, shared, _memory: memory }
    }

    /// Returns arbitrary bits, or those of a handle with some of them changed.
    fn handle(&self, bits: u64, like: u8) -> Handle {
        Handle::from_bits(match like % 3 {
            0 => bits,
            1 => self.live.to_bits() ^ bits,
            _ => self.gone.to_bits() ^ bits,
        })
    }
}

fuzz_target!(|input: (u64, u64, u8, Vec<u8>)| {
    let (bits, agent, like, bytes) = input;
    FIXTURE.with(|it| {
        let (handle, agent) = (it.handle(bits, like), AgentId::from_bits(agent));
        let before = (it.vmm.usage(), it.vmm.mappings());
        assert_eq!(Handle::from_bits(handle.to_bits()), handle);
        if handle != it.live {
            let kind = HandleType::POSIX_FILE_DESCRIPTOR;
            assert!(it.vmm.map(it.address, it.size, 0, handle).is_err());
            assert!(it.vmm.release(handle).is_err());
            assert!(it.vmm.allocation_properties(handle).is_err());
            assert!(it.vmm.export_to_shareable_handle(handle, kind).is_err());
        }
        let runtime = it.vmm.runtime();
        if runtime.agent(agent).is_none() {
            let all = [AccessDescriptor { agent, access: Access::ReadWrite }];
            assert!(it.vmm.create(it.size, &AllocationProperties::on(agent)).is_err());
            assert!(it.vmm.set_access(it.address, it.size, &all).is_err());
        }
        open(it, &bytes);
        assert_eq!((it.vmm.usage(), it.vmm.mappings()), before);
        it.vmm.check().expect("the state is consistent");
    });
});

/// Opens the bytes of an IPC handle; missing bytes are taken from a handle of this process.
fn open(it: &Fixture, bytes: &[u8]) {
    let mut all = it.shared.to_bytes();
    let length = bytes.len().min(all.len());
    all[..length].copy_from_slice(&bytes[..length]);
    // Use only the number of this process or an invalid one.
    let process = i32::from_le_bytes(all[48..52].try_into().expect("four bytes"));
    let process = match process {
        0x1000_0000.. => process | 0x4000_0000,
        0.. => std::process::id() as i32,
        _ => process,
    };
    all[48..52].copy_from_slice(&process.to_le_bytes());
    let handle = IpcHandle::from_bytes(&all);
    assert_eq!(handle.to_bytes(), all);
    let error = it.ipc.open_mem_handle(&handle, 0).expect_err("of this or no process");
    assert!(!error.to_string().is_empty());
}
