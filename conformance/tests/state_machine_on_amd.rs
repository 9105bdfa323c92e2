//! The library against the reference model, on each release of AMD's own runtime over the emulated
//! kernel driver.

mod sequences;

use hsa_rocr::{Emulation, test};
use hsa_vmm::Runtime;
use proptest::prelude::*;
use sequences::Ground;
use serde::{Deserialize, Serialize};
use std::sync::OnceLock;

/// AMD's runtime, which a process has but one of.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Amd;

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

impl Ground for Amd {
    fn any() -> BoxedStrategy<Self> {
        Just(Self).boxed()
    }

    fn runtime(&self) -> Runtime {
        RUNTIME.get().expect("it was loaded before the first sequence").clone()
    }
}

/// So many sequences take a few seconds a release.
const CASES: u32 = 24;

#[test]
fn each_release() {
    test::on_each_release("each_release", &Emulation::gpus(2), |ground| {
        // SAFETY: AMD's own runtime.
        let runtime = unsafe { Runtime::load_from(ground.runtime()) }.expect("AMD's runtime");
        RUNTIME.get_or_init(|| runtime);
        sequences::run::<Amd>(&format!("amd_{}", ground.release()), CASES);
    });
}
