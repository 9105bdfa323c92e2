//! Eight threads retire mappings: ten thousand each with `HSA_VMM_LONG=1`, otherwise a thousand.

mod machine;
mod retire_load;
mod signals;

use hsa_rocr::test;
use hsa_vmm::Address;
use hsa_vmm::simulation::Config;
use machine::Machine;
use retire_load::Load;
use std::time::{Duration, Instant};

#[test]
fn nothing_is_unmapped_before_its_signals_fire() {
    let machine = Machine::new(Config::mi300x(1));
    let read = |address: Address, tag: u8| {
        assert!(
            machine.simulation.page(0, address.get()).is_some(),
            "the GPU cannot read {address}"
        );
        // SAFETY: a load has no effect; if the memory is not mapped, SIGSEGV fails the test.
        let byte = unsafe { (address.get() as *const u8).read_volatile() };
        assert_eq!(byte, tag, "{address}");
    };
    let load = Load {
        library: &machine.library,
        threads: 8,
        retirements_per_thread: test::count_to_run(10_000),
        capacity: 512,
        time_limit: Duration::from_secs(if test::is_long() { 20 } else { 10 }),
        read: &read,
    };
    let begun = Instant::now();
    let outcome = load.run();
    let usage = machine.simulation.usage();
    assert_eq!(usage.mappings, outcome.quarantined, "{usage:?}");
    test::report(&format!("{outcome:?} in {:?}", begun.elapsed()));
}
