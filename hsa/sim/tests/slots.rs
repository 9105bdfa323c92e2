//! Runs as many simulations as possible at the same time. This is a separate test program, because
//! the test needs every slot.

mod setup;
use hsa_sim::{Config, Error, Simulation};
use setup::*;
use std::sync::Barrier;

#[test]
fn at_most_64_simulations_run() {
    const SIZE: usize = 64 * KIB;
    let barrier = Barrier::new(64);
    std::thread::scope(|scope| {
        for number in 0..64 {
            let barrier = &barrier;
            scope.spawn(move || {
                let setup = start("gpus=1,era=d");
                let (base, handle) =
                    setup.mapped(SIZE, &[(setup.cpus[0], RW), (setup.gpus[0], RW)]);
                write(base, number);
                if barrier.wait().is_leader() {
                    let error =
                        Simulation::start(Config::default()).expect_err("a 65th simulation");
                    assert_eq!(error, Error::TooMany);
                    assert!(error.to_string().contains("64"), "{error}");
                }
                barrier.wait();
                assert_eq!(setup.peek(base), number);
                assert_eq!(setup.simulation.usage().mappings, 1);
                assert_eq!((setup.unmap(base, SIZE), setup.release(handle)), (OK, OK));
                assert_eq!(setup.free(base, SIZE), OK);
            });
        }
    });
    // A slot can be used again any number of times.
    for _ in 0..200 {
        assert_eq!(start("gpus=1").init(), OK);
    }
}
