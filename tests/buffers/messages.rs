//! Error messages name the pages, the address or the handle type, and say what to do instead.

use crate::fault_injection::OUT_OF_RESOURCES;
use crate::machine::{KIB, Machine};
use hsa_vmm::buffer::{PagedBuffer, PausableBuffer, PauseMode, RingBuffer};
use hsa_vmm::error::{Argument, Operation};
use hsa_vmm::simulation::{Config, FaultPlan};
use hsa_vmm::vmm::RetireQueue;
use hsa_vmm::{Access, Allocation, AllocationProperties, Ipc, Reservation, Vmm};

const PAGE: usize = 64 * KIB;

#[test]
fn runtime_errors_name_pages() {
    let machine = Machine::new(Config::mi300x(1));
    let buffer = PagedBuffer::builder(8 * PAGE).with_page_size(PAGE);
    let buffer = buffer.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
    buffer.grant(&[machine.gpu(0)], Access::ReadWrite).unwrap();
    let plan = FaultPlan::none().always("hsa_amd_vmem_set_access", OUT_OF_RESOURCES);
    machine.simulation.set_faults(plan);
    let error = buffer.map(2..5).unwrap_err();
    machine.simulation.set_faults(FaultPlan::none());
    let address = buffer.address_of(2).unwrap();
    let text = format!(
        "cannot map (pages 2..5 at {address}): out of memory: hsa_amd_vmem_set_access returned \
         HSA_STATUS_ERROR_OUT_OF_RESOURCES (0x1008)"
    );
    assert!(error.to_string().starts_with(&text), "{error}");
    assert_eq!(error.pages(), Some(2..5));
    // The error of an invalid argument contains no range of pages.
    assert_eq!(buffer.unmap(0..1).unwrap_err().pages(), None);
}

/// Unmapping pages maps the zero page.
#[test]
fn failed_unmap_names_the_call_of_the_program() {
    for (has_zero_page, function) in [(false, "hsa_amd_vmem_unmap"), (true, "hsa_amd_vmem_map")] {
        let machine = Machine::new(Config::mi300x(1));
        let buffer = PagedBuffer::builder(8 * PAGE).with_page_size(PAGE);
        let buffer = if has_zero_page { buffer.with_zero_page() } else { buffer };
        let buffer = buffer.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
        buffer.map(0..4).unwrap();
        let plan = FaultPlan::none().fail(function, 1, OUT_OF_RESOURCES);
        machine.simulation.set_faults(plan);
        let error = buffer.unmap(1..3).unwrap_err();
        machine.simulation.set_faults(FaultPlan::none());
        assert_eq!(error.operation(), Operation::UnmapPages, "{error}");
        assert!(error.to_string().starts_with("cannot unmap pages (pages 1..3 at "), "{error}");
    }
}

/// Reserving a buffer with a zero page maps this page at all pages.
#[test]
fn failed_reserve_does_not_name_an_unmap() {
    let machine = Machine::new(Config::mi300x(1));
    // The first call maps the zero page to fill it.
    let plan = FaultPlan::none().fail("hsa_amd_vmem_map", 2, OUT_OF_RESOURCES);
    machine.simulation.set_faults(plan);
    let buffer = PagedBuffer::builder(8 * PAGE).with_page_size(PAGE).with_zero_page();
    let error = buffer.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap_err();
    machine.simulation.set_faults(FaultPlan::none());
    assert_eq!(error.operation(), Operation::Map, "{error}");
    assert!(error.to_string().starts_with("cannot map (pages 0..8 at "), "{error}");
    machine.assert_empty();
}

#[test]
fn out_of_memory_error_names_pages_and_advice() {
    let machine = Machine::new(Config::mi300x(1));
    let buffer = PagedBuffer::builder(8 * PAGE).with_page_size(PAGE);
    let buffer = buffer.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
    let plan = FaultPlan::none().always("hsa_amd_vmem_handle_create", OUT_OF_RESOURCES);
    machine.simulation.set_faults(plan);
    let error = buffer.map(1..7).unwrap_err();
    machine.simulation.set_faults(FaultPlan::none());
    assert_eq!(error.pages(), Some(1..7));
    let address = buffer.address_of(1).unwrap();
    let text = format!(
        "cannot create physical memory on GPU 0 (pages 1..7 at {address}): out of memory: \
         hsa_amd_vmem_handle_create returned HSA_STATUS_ERROR_OUT_OF_RESOURCES (0x1008) for 0x10000 bytes; \
         release memory, or use another agent's (Runtime::available_memory)"
    );
    assert_eq!(error.to_string(), text);
}

#[test]
fn transfer_errors_name_both_ranges() {
    let machine = Machine::new(Config::mi300x(1));
    let [source, target] = [(); 2].map(|()| {
        let buffer = PagedBuffer::builder(16 * PAGE).with_page_size(PAGE);
        buffer.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap()
    });
    source.map(0..1).unwrap();
    source.map(14..15).unwrap();
    let fail_map = || {
        let plan = FaultPlan::none().fail("hsa_amd_vmem_map", 1, OUT_OF_RESOURCES);
        machine.simulation.set_faults(plan);
    };
    fail_map();
    let moved_within = source.move_pages(14..15, &source, 2).unwrap_err();
    fail_map();
    let exchanged = source.exchange_pages(0..1, &source, 14).unwrap_err();
    fail_map();
    let moved = source.move_pages(0..1, &target, 9).unwrap_err();
    fail_map();
    let shared = source.share_pages(0..1, &target, 9).unwrap_err();
    for (operation, error, own, (other, other_page)) in [
        ("move pages", moved_within, 14, (&source, 2)),
        ("exchange memory", exchanged, 0, (&source, 14)),
        ("move pages", moved, 0, (&target, 9)),
        ("share pages", shared, 0, (&target, 9)),
    ] {
        assert_eq!(error.pages(), Some(own..own + 1), "{error}");
        let range = |buffer: &PagedBuffer, page| {
            format!("{page}..{} at {}", page + 1, buffer.address_of(page).unwrap())
        };
        let (own, other) = (range(&source, own), range(other, other_page));
        let text = format!("cannot {operation} (pages {own} and {other}): ");
        assert!(error.to_string().starts_with(&text), "{error}");
    }
}

#[test]
fn error_of_unmapped_page_says_what_to_do() {
    let machine = Machine::new(Config::mi300x(1));
    let queue = RetireQueue::builder(2).without_thread().open(&machine.vmm).unwrap();
    let buffer = PagedBuffer::builder(8 * PAGE).with_page_size(PAGE);
    let buffer = buffer.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
    buffer.map(0..2).unwrap();
    machine.vmm.unmap(buffer.address_of(1).unwrap(), PAGE).unwrap();
    let text = "has memory already; unmap it first. If a call by address has unmapped it, retire it \
                (PagedBuffer::retire), which makes it empty and reports a failure in the queue; drop a buffer with a \
                zero page instead";
    let error = buffer.map(1..2).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot map pages: page 1 {text}"));
    let error = buffer.share_pages(0..1, &buffer, 1).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot share pages: destination page 1 {text}"));
    // SAFETY: no agent uses the page, and there are no signals that could be destroyed too early.
    unsafe { buffer.retire(1..2, &queue, &[]) }.unwrap();
    assert_eq!(queue.poll().unwrap().failures.len(), 1);
    buffer.map(1..2).unwrap();
}

#[test]
fn buffers_of_two_vmms_need_one_vmm() {
    let machine = Machine::new(Config::mi300x(1));
    let second_vmm = Vmm::open(&machine.runtime).unwrap();
    let [first, second] = [&machine.vmm, &second_vmm].map(|vmm| {
        let buffer = PagedBuffer::builder(8 * PAGE).with_page_size(PAGE);
        buffer.reserve(vmm, &machine.shareable_on(0)).unwrap()
    });
    first.map(0..1).unwrap();
    for (error, start) in [
        (first.share_pages(0..1, &second, 0), "cannot share pages: destination"),
        (first.exchange_pages(0..1, &second, 0), "cannot exchange memory: other buffer"),
    ] {
        let text = format!("{start} belongs to another Vmm; reserve both buffers on one Vmm");
        assert_eq!(error.unwrap_err().to_string(), text);
    }
}

#[test]
fn pause_and_resume_errors_name_the_method() {
    let machine = Machine::new(Config::mi300x(1));
    let mut buffer = PausableBuffer::create(&machine.vmm, PAGE, &machine.shareable_on(0)).unwrap();
    for function in ["hsa_amd_vmem_map", "hsa_amd_vmem_unmap", "hsa_amd_vmem_set_access"] {
        let fail = || {
            machine.simulation.set_faults(FaultPlan::none().always(function, OUT_OF_RESOURCES));
        };
        fail();
        let paused = buffer.pause(PauseMode::Save).unwrap_err();
        machine.simulation.set_faults(FaultPlan::none());
        buffer.pause(PauseMode::Save).unwrap();
        fail();
        let resumed = buffer.resume().unwrap_err();
        machine.simulation.set_faults(FaultPlan::none());
        buffer.resume().unwrap();
        let text = format!("a buffer: out of memory: {function} returned ");
        for (operation, error) in [("pause", paused), ("resume", resumed)] {
            assert!(
                error.to_string().starts_with(&format!("cannot {operation} {text}")),
                "{error}"
            );
        }
    }
}

#[test]
fn too_large_size_error_names_no_runtime_call() {
    let machine = Machine::new(Config::mi300x(1));
    let error = Reservation::builder(1 << 63).reserve(&machine.vmm).unwrap_err();
    let text = "cannot reserve addresses: out of memory: 0x8000000000000000 bytes of addresses exceed the \
                address space;";
    assert!(error.to_string().starts_with(text), "{error}");
    let properties = machine.shareable_on(0);
    let error = RingBuffer::create(&machine.vmm, PAGE, usize::MAX, &properties).unwrap_err();
    assert_eq!(error.argument(), Some(Argument::Times), "{error}");
}

#[test]
fn messages_say_what_to_do() {
    let machine = Machine::new(Config::mi300x(2));
    let vmm = &machine.vmm;
    let base = vmm.address_reserve(PAGE, 0, None).unwrap();
    let handle = machine.create(0, PAGE);
    let unmapped = vmm.unmap(base, PAGE).unwrap_err();
    vmm.map(base, PAGE, 0, handle).unwrap();
    let empty = vmm.set_access(base, PAGE, &[]).unwrap_err();
    let not_granted = vmm.read(base, &mut [0]).unwrap_err();
    let misaligned = Reservation::builder(1000).reserve(vmm).unwrap_err();
    let too_many = vmm.address_reserve(1 << 60, 0, None).unwrap_err();
    let paged = PagedBuffer::builder(PAGE).with_page_size(PAGE).with_zero_page();
    let paged = paged.reserve(vmm, &machine.shareable_on(0)).unwrap();
    paged.grant(&[machine.cpu(0), machine.gpu(0)], Access::ReadWrite).unwrap();
    let zero_page = vmm.write(paged.address(), &[1]).unwrap_err();
    let filled = vmm.fill(paged.address(), 1, 4).unwrap_err();
    // An agent without access to a page without memory can be granted access to read it.
    let zero_page_read = vmm.copy_to_host(machine.gpu(1), &mut [0], paged.address()).unwrap_err();
    let shared = PagedBuffer::builder(PAGE).with_page_size(PAGE);
    let shared = shared.reserve(vmm, &machine.shareable_on(0)).unwrap();
    shared.map(0..1).unwrap();
    shared.grant(&[machine.cpu(0), machine.gpu(0)], Access::Read).unwrap();
    let read_only = vmm.write(shared.address(), &[1]).unwrap_err();
    let call = "hsa_amd_memory_async_copy";
    machine.simulation.set_faults(FaultPlan::none().always(call, OUT_OF_RESOURCES));
    let copied = vmm.copy_to_host(machine.gpu(0), &mut [0], paged.address()).unwrap_err();
    machine.simulation.set_faults(FaultPlan::none());
    let grant = "; grant it first (Vmm::set_access, or `grant` of the mapping or buffer)";
    let map_page = ": a page of a buffer has no memory there, and maps the zero page; map the page first \
                    (PagedBuffer::map)";
    for (error, advice) in [
        (unmapped, ", other memory may be mapped there now (Vmm::mapped_range_at)"),
        (empty, "is empty; name at least one agent"),
        (not_granted, grant),
        (read_only, grant),
        (zero_page_read, grant),
        (zero_page, map_page),
        (filled, map_page),
        (
            copied,
            "; release memory of the GPU that copies (Runtime::available_memory) or of the host, or raise the limit \
             of descriptors (`ulimit -n`) or of mappings (`sysctl vm.max_map_count`), then try again",
        ),
        (misaligned, "(Vmm::allocation_granularity; for reservations, Vmm::reservation_granule)"),
        (
            too_many,
            "; free addresses, reserve fewer, choose a smaller alignment, or raise a limit: of addresses \
             (`ulimit -v`), of mappings (`sysctl vm.max_map_count`), after mlockall of locked memory (`ulimit -l`), \
             or, with ROCm 6.1, of memory and swap together (`sysctl vm.overcommit_memory=1`)",
        ),
    ] {
        assert!(error.to_string().ends_with(advice), "{error}");
    }
}

#[test]
fn open_errors_name_what_is_opened() {
    let machine = Machine::new(Config::mi300x(1));
    let error = Ipc::on(&machine.runtime, machine.cpu(0)).unwrap_err();
    assert!(error.to_string().starts_with("cannot open IPC: agent "), "{error}");
    let error = RetireQueue::builder(0).open(&machine.vmm).unwrap_err();
    assert!(error.to_string().starts_with("cannot open a retire queue: capacity "), "{error}");
}

#[test]
fn unmapped_address_is_named_once() {
    let machine = Machine::new(Config::mi300x(1));
    let mut buffer = PausableBuffer::create(&machine.vmm, PAGE, &machine.shareable_on(0)).unwrap();
    buffer.pause(PauseMode::Discard).unwrap();
    let error = Allocation::at(&machine.vmm, buffer.address()).unwrap_err();
    let address = buffer.address();
    let text = format!("cannot retain a handle: address {address} is not mapped; map it first");
    assert!(error.to_string().starts_with(&text), "{error}");
}

#[test]
fn export_error_shows_no_size() {
    let machine = Machine::new(Config::mi300x(1));
    let memory = Allocation::create(&machine.vmm, PAGE, &machine.shareable_on(0)).unwrap();
    let call = "hsa_amd_vmem_export_shareable_handle";
    machine.simulation.set_faults(FaultPlan::none().always(call, OUT_OF_RESOURCES));
    let text = format!(
        "cannot export a shareable handle: out of memory: {call} returned \
         HSA_STATUS_ERROR_OUT_OF_RESOURCES (0x1008); release memory, or raise the kernel's limit of mappings \
         (`sysctl vm.max_map_count`), then try again"
    );
    assert_eq!(memory.export().unwrap_err().to_string(), text);
}

#[test]
fn missing_handle_type_is_named() {
    let machine = Machine::new(Config::mi300x(1));
    let properties = AllocationProperties::on(machine.gpu(0));
    let memory = Allocation::create(&machine.vmm, PAGE, &properties).unwrap();
    assert_eq!(
        memory.export().unwrap_err().to_string(),
        "cannot export a shareable handle: handle type POSIX_FILE_DESCRIPTOR was not requested when the \
         memory was created (AllocationProperties::shareable_as)"
    );
}

#[test]
fn retire_error_with_zero_page_says_what_to_do() {
    let machine = Machine::new(Config::mi300x(1));
    let queue = RetireQueue::builder(2).without_thread().open(&machine.vmm).unwrap();
    let buffer = PagedBuffer::builder(4 * PAGE).with_page_size(PAGE).with_zero_page();
    let buffer = buffer.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
    buffer.map(0..1).unwrap();
    // SAFETY: no agent uses the page, and there are no signals that could be destroyed too early.
    let error = unsafe { buffer.retire(0..1, &queue, &[]) }.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot retire memory: retiring pages of a buffer that has a zero page is not supported; unmap the \
         pages when no kernel uses them any more, or build the buffer without a zero page"
    );
}
