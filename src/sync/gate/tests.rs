//! Who looks, enters and changes, alone and with others.

use super::{Gate, Look, OFTEN};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

/// Has this thread and another look in turn until it is lent.
fn lend(gate: &Gate<[u64; 32]>) {
    let both = Barrier::new(2);
    let look = |mine: u32| {
        for turn in 0..4 * OFTEN {
            both.wait();
            if turn % 2 == mine {
                gate.look();
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| look(1));
        look(0);
    });
    assert!(matches!(gate.look(), Look::Lent(_)));
}

#[test]
fn it_is_lent_to_those_who_look_and_taken_back_by_who_enters() {
    let gate = Gate::new([7; 32]);
    for _ in 0..10 * OFTEN {
        assert!(matches!(gate.look(), Look::Own(_)), "one thread needs none of its own");
    }
    for round in 7..12 {
        lend(&gate);
        assert_eq!(*gate.look(), [round; 32]);
        let mut inside = gate.enter();
        assert_eq!(*inside, [round; 32]);
        inside.change(|value| *value = [round + 1; 32]);
        assert!(matches!(gate.look(), Look::Own(_)));
        assert_eq!(*gate.look(), [round + 1; 32]);
    }
}

#[test]
fn what_somebody_is_inside_of_is_not_lent() {
    let gate = Gate::new(1_u8);
    let inside = gate.enter();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..10 * OFTEN).for_each(|_| drop(gate.look())));
        }
    });
    assert!(matches!(gate.look(), Look::Own(_)));
    drop(inside);
}

#[test]
fn who_looks_may_shut_it() {
    let gate = Gate::new([0; 32]);
    for _ in 0..2 {
        let look = gate.look();
        let shut = gate.shut();
        assert!(shut.is_some() && gate.shut().is_none());
        assert_eq!(*look, [0; 32]);
        drop((look, shut));
        lend(&gate);
    }
    let inside = gate.enter();
    assert!(gate.shut().is_none());
    drop(inside);
}

/// Nobody ever sees what is half changed, or not there, whoever looks and enters meanwhile.
#[test]
fn it_is_one_value_to_all() {
    let rounds = if cfg!(miri) { 10 } else { 20_000 };
    let gate = Gate::new([0_u64; 32]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut before = 0;
                while !done.load(Ordering::Relaxed) {
                    let look = gate.look();
                    assert!(look.iter().all(|it| *it == look[0]) && look[0] >= before);
                    before = look[0];
                }
            });
        }
        for round in 1..=rounds {
            let mut inside = gate.enter();
            assert_eq!(inside[0], round - 1);
            if round % 2 == 0 {
                inside.change(|value| value.fill(round));
            } else {
                let mut open = inside.open();
                open.value().fill(round);
                assert_eq!(open.close()[0], round);
            }
            if round % 64 == 0 {
                std::thread::yield_now();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(*gate.look(), [rounds; 32]);
}
