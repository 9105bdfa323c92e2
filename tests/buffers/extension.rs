//! Growable buffers grow past the end of their reservation, into a new reservation.

use crate::fault_injection::OUT_OF_RESOURCES;
use crate::machine::{KIB, Machine, generations};
use hsa_vmm::Access;
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::simulation::{Config, FaultPlan};

const STEP: usize = 16 * KIB;

#[test]
fn extended_buffer_is_contiguous() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let mut buffer = machine.extended_buffer(STEP, &[1, 3]);
        assert_eq!(buffer.maximum(), 8 * STEP, "{generation}");
        buffer.grant(&[machine.cpu(0), machine.gpu(0)], Access::ReadWrite).unwrap();
        buffer.grow(3 * STEP).unwrap();
        buffer.grow(5 * STEP).unwrap();
        assert_eq!(machine.vmm.reservations().len(), 3, "{generation}");
        // Writes across the ends of two reservations.
        let written: Vec<u8> = (0..3 * STEP).map(|index| (index % 251) as u8).collect();
        buffer.write(3 * STEP - 5, &written).unwrap();
        let mut found = vec![0; written.len()];
        buffer.read(3 * STEP - 5, &mut found).unwrap();
        assert!(found == written, "{generation}");
        buffer.fill(4 * STEP - 4, 0x0909_0909, STEP + 8).unwrap();
        buffer.read(4 * STEP - 5, &mut found).unwrap();
        assert_eq!(found[..2], [written[STEP], 9], "{generation}");
        assert!(found[1..STEP + 9].iter().all(|&byte| byte == 9), "{generation}");
        assert_eq!(found[STEP + 9], written[2 * STEP + 9], "{generation}");
        buffer.grant(&[machine.gpu(1)], Access::Read).unwrap();
        for mapping in machine.vmm.mappings() {
            assert_eq!(machine.vmm.get_access(machine.gpu(1), mapping.address), Ok(Access::Read));
        }
        buffer.revoke(&[machine.gpu(1)]).unwrap();
        assert_eq!(
            machine.simulation.page(1, buffer.address().get() + 6 * STEP),
            None,
            "{generation}"
        );
        buffer.shrink(6 * STEP).unwrap();
        assert_eq!((buffer.size(), machine.vmm.usage().mappings), (2 * STEP, 2), "{generation}");
        drop(buffer);
        machine.assert_empty();
    }
}

#[test]
fn extend_into_taken_addresses_changes_nothing() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let (mut buffer, neighbour) = machine.extended_buffer_and_neighbour(STEP);
        buffer.grant(&[machine.cpu(0)], Access::ReadWrite).unwrap();
        buffer.grow(6 * STEP).unwrap();
        buffer.write(5 * STEP, b"kept").unwrap();
        let before = (machine.vmm.reservations(), machine.vmm.mappings());
        for _ in 0..2 {
            let error = buffer.extend(1).expect_err("the addresses are taken");
            assert_eq!(error.problem(), Some(Problem::AddressTaken), "{generation}");
        }
        assert_eq!((machine.vmm.reservations(), machine.vmm.mappings()), before, "{generation}");
        assert_eq!(buffer.maximum(), 6 * STEP, "{generation}");
        let mut found = [0; 4];
        buffer.read(5 * STEP, &mut found).unwrap();
        assert_eq!(&found, b"kept", "{generation}");
        drop((buffer, neighbour));
        machine.assert_empty();
    }
}

#[test]
fn failed_reservation_extends_nothing() {
    let machine = Machine::new(Config::mi300x(1));
    let mut buffer = machine.extended_buffer(STEP, &[1]);
    let plan = FaultPlan::none().always("hsa_amd_vmem_address_reserve_align", OUT_OF_RESOURCES);
    machine.simulation.set_faults(plan);
    buffer.extend(STEP).expect_err("no addresses");
    machine.simulation.set_faults(FaultPlan::none());
    assert_eq!(buffer.maximum(), 5 * STEP);
    for bytes in [0, usize::MAX] {
        buffer.extend(bytes).expect_err("an invalid size");
    }
    buffer.resize(5 * STEP).unwrap();
}

#[test]
fn rejected_writes_change_no_bytes() {
    let machine = Machine::new(Config::mi300x(2));
    let mut buffer = machine.extended_buffer(STEP, &[1]);
    buffer.grant(&[machine.cpu(0), machine.gpu(0)], Access::ReadWrite).unwrap();
    buffer.grow(5 * STEP).unwrap();
    let first_size = 4 * STEP;
    let assert_unchanged = || {
        let mut bytes = [1; 8];
        buffer.read(first_size - 8, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 8]);
    };
    let error = buffer.fill(first_size - 8, 7, 8 + 6).expect_err("not a multiple of four");
    assert_eq!(error.problem(), Some(Problem::NotMultipleOfFour));
    assert_eq!(error.argument(), Some(Argument::Size));
    assert!(error.to_string().contains("size 0xe"), "{error}");
    assert_unchanged();
    let second = buffer.address().checked_add(first_size).unwrap();
    machine.vmm.unmap(second, STEP).unwrap();
    let error = buffer.write(first_size - 4, &[7; 8]).expect_err("a call by address unmapped it");
    assert_eq!(error.problem(), Some(Problem::NotMapped(second)));
    assert_unchanged();
    let error = buffer.fill(first_size - 4, 7, 8).expect_err("a call by address unmapped it");
    assert_eq!(error.problem(), Some(Problem::NotMapped(second)));
    assert_unchanged();
}
