//! Compares the library with the reference model, on each release of AMD's own runtime over the emulated
//! kernel driver.

mod sequences;

use hsa_rocr::{Emulation, test};
use hsa_vmm::Runtime;
use proptest::prelude::*;
use sequences::Setup;
use serde::{Deserialize, Serialize};
use std::sync::OnceLock;

/// AMD's runtime. A process can load only one.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Amd;

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

impl Setup for Amd {
    fn any() -> BoxedStrategy<Self> {
        Just(Self).boxed()
    }

    fn runtime(&self) -> Runtime {
        RUNTIME.get().expect("the runtime is loaded before the first sequence").clone()
    }
}

/// The number of sequences for each release: a few seconds.
const CASES: u32 = 24;

#[test]
fn library_matches_model() {
    test::on_each_release("library_matches_model", &Emulation::gpus(2), |setup| {
        // SAFETY: AMD's own runtime.
        let runtime = unsafe { Runtime::load_from(setup.runtime()) }.expect("AMD's runtime");
        RUNTIME.get_or_init(|| runtime);
        sequences::run::<Amd>(&format!("amd_{}", setup.release()), CASES);
    });
}
