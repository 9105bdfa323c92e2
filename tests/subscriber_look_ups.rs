//! A subscriber of log events can look up the library's state during an operation without a deadlock.

mod log;

use hsa_vmm::simulation::Config;
use hsa_vmm::{Access, Allocation, AllocationProperties, PoolMemory, Reservation, Runtime, Vmm};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

static STATE: OnceLock<(Runtime, Vmm)> = OnceLock::new();
/// The number of events at which `look_up` has looked up the state.
static LOOK_UPS: AtomicUsize = AtomicUsize::new(0);
/// The number of events at which `look_up` has begun. If a look-up panics, the library catches the panic, and this
/// number stays greater than [`LOOK_UPS`].
static BEGUN: AtomicUsize = AtomicUsize::new(0);

fn look_up(_: log::Fields) {
    let Some((runtime, vmm)) = STATE.get() else { return };
    BEGUN.fetch_add(1, Ordering::Relaxed);
    let _ = (
        runtime.pool_memory(),
        vmm.mappings(),
        vmm.snapshot(),
        vmm.usage(),
        vmm.quarantined_ranges(),
    );
    LOOK_UPS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn subscriber_may_look_up_the_state() {
    log::subscribe(|metadata| metadata.target().starts_with("hsa_vmm"), look_up);
    let runtime = Runtime::simulated(Config::mi300x(2)).unwrap();
    let vmm = Vmm::open(&runtime).unwrap();
    let leaking = Vmm::open(&runtime).unwrap();
    let gpus: Vec<_> = runtime.gpus().map(|gpu| gpu.id()).collect();
    STATE.set((runtime.clone(), vmm.clone())).unwrap();
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let size = vmm.reservation_granule();
        let reservation = Reservation::builder(size).reserve(&vmm).unwrap();
        let memory = Allocation::create(&vmm, size, &AllocationProperties::on(gpus[0])).unwrap();
        let mapping = reservation.map(0, &memory).unwrap();
        mapping.grant(&[gpus[1], runtime.host().id()], Access::ReadWrite).unwrap();
        mapping.write(0, &[1; 9]).unwrap();
        memory.export().map(drop).unwrap_err();
        mapping.unmap().unwrap();
        let pool_memory = PoolMemory::allocate(&runtime, gpus[0], size).unwrap();
        pool_memory.allow(&[gpus[1]]).unwrap();
        pool_memory.fill(0, 1, size).unwrap();
        pool_memory.free().unwrap();
        leaking.address_reserve(size, 0, None).unwrap();
        leaking.create(size, &AllocationProperties::on(gpus[0])).unwrap();
        let before = LOOK_UPS.load(Ordering::Relaxed);
        drop(leaking);
        assert!(LOOK_UPS.load(Ordering::Relaxed) >= before + 2, "two leaks were logged");
        sender.send(()).unwrap();
    });
    let ended = receiver.recv_timeout(Duration::from_secs(60));
    assert!(ended.is_ok(), "an operation waits for a look-up of its own thread, or has panicked");
    // The thread also looks up the state when it drops its values.
    thread.join().unwrap();
    let returned = LOOK_UPS.load(Ordering::Relaxed);
    assert!(returned > 10);
    assert_eq!(BEGUN.load(Ordering::Relaxed), returned, "a look-up has panicked");
}
