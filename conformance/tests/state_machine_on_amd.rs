//! Compares the library with the reference model, on each release of AMD's own runtime over the emulated
//! kernel driver.

mod sequences;

use hsa_rocr::{Emulation, test};
use hsa_vmm::Runtime;
use hsa_vmm::vmm::VmmOptions;
use proptest::prelude::*;
use sequences::Setup;
use serde::{Deserialize, Serialize};
use std::sync::OnceLock;

/// The setup of a sequence on AMD's runtime. A process can load only one runtime, which all its sequences use.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Amd {
    /// Whether the library changes GPUs' page tables.
    #[serde(default)]
    page_tables: bool,
}

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

/// Whether changes of page tables in the emulated driver take effect only after the library waits.
static NEEDS_BARRIER: OnceLock<bool> = OnceLock::new();

impl Setup for Amd {
    fn any() -> BoxedStrategy<Self> {
        let needs_barrier = NEEDS_BARRIER.get() == Some(&true);
        let page_tables = if needs_barrier { Just(true).boxed() } else { any::<bool>().boxed() };
        page_tables.prop_map(|page_tables| Self { page_tables }).boxed()
    }

    fn runtime(&self) -> Runtime {
        RUNTIME.get().expect("the runtime is loaded before the first sequence").clone()
    }

    fn options(&self) -> VmmOptions {
        VmmOptions::new().with_page_tables(self.page_tables)
    }
}

/// The number of sequences for each release. These sequences take a few seconds.
const CASES: u32 = 24;

/// Compares library and model, with settings of the emulated driver. The name of the file of saved sequences ends with
/// `suffix`.
fn compare_on_each_release(test: &str, suffix: &str, settings: Option<&str>) {
    let emulation = Emulation::with_gpus(2);
    let needs_barrier = settings.is_some();
    let emulation = match settings {
        Some(settings) => emulation.with_setting(settings),
        None => emulation,
    };
    test::run_on_releases(test, &emulation, |setup| {
        // SAFETY: the library is AMD's own runtime.
        let runtime = unsafe { Runtime::load_from(setup.runtime()) }.expect("AMD's runtime");
        RUNTIME.get_or_init(|| runtime);
        NEEDS_BARRIER.get_or_init(|| needs_barrier);
        sequences::run::<Amd>(&format!("amd_{}{suffix}", setup.release()), CASES);
    });
}

#[test]
fn library_matches_model() {
    compare_on_each_release("library_matches_model", "", None);
}

/// The CPU writes the entries. The TLB is flushed only when the library waits.
#[test]
fn library_matches_model_with_page_tables_in_cpu_mode() {
    let name = "library_matches_model_with_page_tables_in_cpu_mode";
    compare_on_each_release(name, "_cpu_mode", Some("tlb=on,split_bug=on"));
}

/// SDMA jobs write the entries with a delay of ten minutes. Only the library's wait makes the entries take effect
/// earlier.
#[test]
fn library_matches_model_with_page_tables_in_sdma_mode() {
    let name = "library_matches_model_with_page_tables_in_sdma_mode";
    compare_on_each_release(name, "_sdma_mode", Some("pte_delay=600s,tlb=on,split_bug=on"));
}
