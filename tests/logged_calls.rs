//! The library logs each call of the runtime with its arguments and its result. Failed calls are logged as warnings.

mod log;

use hsa_vmm::hsa_sys::HSA_STATUS_ERROR_OUT_OF_RESOURCES;
use hsa_vmm::simulation::{Config, FaultPlan, Generation};
use hsa_vmm::{Access, Allocation, AllocationProperties, Reservation, Runtime, Vmm};
use std::sync::Mutex;

static EVENTS: Mutex<Vec<log::Fields>> = Mutex::new(Vec::new());

/// Returns the events since the last call of this function.
fn take_events() -> Vec<log::Fields> {
    std::mem::take(&mut *EVENTS.lock().unwrap())
}

fn field<'a>(event: &'a log::Fields, name: &str) -> Option<&'a str> {
    event.iter().find(|(field, _)| *field == name).map(|(_, value)| value.as_str())
}

/// Returns the only event whose field `field_name` is `function`.
fn only_event<'a>(events: &'a [log::Fields], field_name: &str, function: &str) -> &'a log::Fields {
    let mut found = events.iter().filter(|event| field(event, field_name) == Some(function));
    match (found.next(), found.next()) {
        (Some(event), None) => event,
        (event, more) => panic!("{function}: {event:?}, {more:?}"),
    }
}

fn warnings(events: &[log::Fields]) -> Vec<&log::Fields> {
    events.iter().filter(|event| field(event, "level") == Some("WARN")).collect()
}

#[test]
fn calls_are_logged_with_arguments_and_results() {
    log::subscribe(
        |metadata| metadata.target().starts_with("hsa_vmm::native"),
        |fields| EVENTS.lock().unwrap().push(fields),
    );
    // Opening a runtime queries attributes. Some releases reject some of these queries. The library does not log such
    // rejections as warnings.
    for generation in Generation::ALL {
        let runtime = Runtime::simulated(Config::mi300x(2).with_generation(generation)).unwrap();
        Vmm::open(&runtime).unwrap();
        let events = take_events();
        assert!(events.len() > 50, "{generation:?}");
        assert_eq!(warnings(&events), [] as [&log::Fields; 0], "{generation:?}");
    }

    let runtime = Runtime::simulated(Config::mi300x(2)).unwrap();
    let vmm = Vmm::open(&runtime).unwrap();
    let gpus: Vec<_> = runtime.gpus().map(|gpu| gpu.id()).collect();
    take_events();
    let size = 2 << 20;
    let reservation = Reservation::builder(size).reserve(&vmm).unwrap();
    let memory = Allocation::create(&vmm, size, &AllocationProperties::on(gpus[0])).unwrap();
    let address = reservation.address().to_string();
    let mapping = reservation.map(0, &memory).unwrap();
    mapping.grant(&[gpus[1]], Access::ReadWrite).unwrap();
    let events = take_events();
    assert_eq!(warnings(&events), [] as [&log::Fields; 0]);
    let size = size.to_string();
    let reserved = only_event(&events, "call", "hsa_amd_vmem_address_reserve_align");
    assert_eq!(field(reserved, "address"), Some(&*address), "{reserved:?}");
    assert_eq!(field(reserved, "status"), Some("HSA_STATUS_SUCCESS (0x0)"));
    let created = only_event(&events, "call", "hsa_amd_vmem_handle_create");
    let handle = field(created, "handle").unwrap();
    assert!(handle.starts_with("0x") && handle != "0x0", "{created:?}");
    let mapped = only_event(&events, "calling", "hsa_amd_vmem_map");
    let expected = [("address", &*address), ("size", &size), ("offset", "0"), ("handle", handle)];
    for (name, value) in expected {
        assert_eq!(field(mapped, name), Some(value), "{name}: {mapped:?}");
    }
    let access = only_event(&events, "calling", "hsa_amd_vmem_set_access");
    assert_eq!(field(access, "address"), Some(&*address));
    assert_eq!(field(access, "size"), Some(&*size));
    assert_eq!(field(access, "access"), Some("[GPU 1: 3]"), "{access:?}");
    drop((mapping, memory, reservation));

    let faults =
        FaultPlan::none().always("hsa_amd_vmem_handle_create", HSA_STATUS_ERROR_OUT_OF_RESOURCES);
    let runtime = Runtime::simulated(Config::mi300x(1).with_faults(faults)).unwrap();
    let vmm = Vmm::open(&runtime).unwrap();
    take_events();
    let gpu = runtime.gpus().next().unwrap().id();
    let error = Allocation::create(&vmm, 2 << 20, &AllocationProperties::on(gpu)).unwrap_err();
    assert!(error.to_string().contains("0x1008"), "{error}");
    let events = take_events();
    let [warning] = warnings(&events)[..] else { panic!("{events:?}") };
    assert_eq!(field(warning, "call"), Some("hsa_amd_vmem_handle_create"));
    assert_eq!(field(warning, "size"), Some(&*size));
    assert!(field(warning, "status").unwrap().contains("0x1008"), "{warning:?}");
}
