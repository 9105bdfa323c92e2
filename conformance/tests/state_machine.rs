//! Compares the library with the reference model, on the simulation in every ROCm generation.

mod sequences;

use hsa_vmm::Runtime;
use hsa_vmm::simulation::{Config, Generation, PageTableUpdates};
use hsa_vmm::vmm::VmmOptions;
use proptest::prelude::*;
use sequences::Setup;
use serde::{Deserialize, Serialize};

/// A simulated machine of a ROCm generation.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Simulated<const GENERATION: usize> {
    machine: Machine,
    /// The minor version of AMD's extension, on which some behaviour of the simulation depends.
    extension: u32,
    granule: u64,
    dmabuf_cpu_mapping: bool,
    /// What changes page tables, and when the changes take effect.
    #[serde(default)]
    page_tables: PageTables,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
enum PageTables {
    /// The runtime changes page tables, and the changes take effect immediately.
    #[default]
    Runtime,
    /// The runtime changes page tables, and the library waits until the changes take effect.
    Barrier(Updates),
    /// The library changes page tables.
    Library(Updates),
}

/// When changes of page tables take effect.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Updates {
    Immediate,
    NotFlushed,
    Late,
}

/// The extension versions of each generation, from ROCm 6.0 to 10.1, and of `rocddi`.
const EXTENSIONS: [&[u32]; 5] = [&[7, 4, 6, 9, 11], &[15, 12], &[20, 16], &[22, 21], &[33]];

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Machine {
    /// MI300X GPUs.
    Mi300x { gpus: usize, cpus: usize },
    /// A consumer GPU. The CPU can access only a part of the GPU's memory.
    Consumer,
    /// An APU.
    Apu,
}

impl<const GENERATION: usize> Setup for Simulated<GENERATION> {
    fn any() -> BoxedStrategy<Self> {
        let mi300x = |(gpus, cpus)| Machine::Mi300x { gpus, cpus };
        let machine = prop_oneof![
            6 => (1..=3usize, 1..=2usize).prop_map(mi300x),
            1 => Just(Machine::Apu),
            1 => Just(Machine::Consumer),
        ];
        // Large granules are slow.
        let granule = prop_oneof![7 => Just(4 << 10), 1 => Just(2 << 20)];
        let extension = prop::sample::select(EXTENSIONS[GENERATION]);
        let updates =
            || prop::sample::select(&[Updates::Immediate, Updates::NotFlushed, Updates::Late]);
        let page_tables = prop_oneof![
            2 => Just(PageTables::Runtime),
            1 => updates().prop_map(PageTables::Barrier),
            3 => updates().prop_map(PageTables::Library),
        ];
        (machine, extension, granule, any::<bool>(), page_tables)
            .prop_map(|(machine, extension, granule, dmabuf_cpu_mapping, page_tables)| Self {
                machine,
                extension,
                granule,
                dmabuf_cpu_mapping,
                page_tables,
            })
            .boxed()
    }

    fn runtime(&self) -> Runtime {
        let config = match self.machine {
            Machine::Consumer => Config::consumer(),
            Machine::Apu => Config::apu(),
            Machine::Mi300x { gpus, cpus } => {
                let mut config = Config::mi300x(gpus);
                config.cpus = vec![config.cpus[0].clone(); cpus];
                config
            }
        };
        let generation = Generation::ALL[GENERATION];
        let config = config.with_generation(generation).with_extension(self.extension);
        assert_eq!(config.generation, generation, "the generation of version {}", self.extension);
        let mut config = config.with_granule(self.granule);
        config.dmabuf_cpu_mapping = self.dmabuf_cpu_mapping;
        config.page_table_updates = match self.page_tables {
            PageTables::Runtime => PageTableUpdates::Immediate,
            PageTables::Barrier(updates) | PageTables::Library(updates) => match updates {
                Updates::Immediate => PageTableUpdates::Immediate,
                Updates::NotFlushed => PageTableUpdates::NotFlushed,
                Updates::Late => PageTableUpdates::Late,
            },
        };
        Runtime::simulated(config).unwrap()
    }

    fn options(&self) -> VmmOptions {
        let options = VmmOptions::new();
        match self.page_tables {
            PageTables::Runtime => options,
            PageTables::Barrier(_) => options.with_barrier(true),
            PageTables::Library(_) => options.with_page_tables(true),
        }
    }
}

/// The number of sequences for each generation. These sequences take a few seconds without optimisation.
const CASES: u32 = 64;

#[test]
fn library_matches_model_in_generation_a() {
    sequences::run::<Simulated<0>>("generation_a", CASES);
}

#[test]
fn library_matches_model_in_generation_b() {
    sequences::run::<Simulated<1>>("generation_b", CASES);
}

#[test]
fn library_matches_model_in_generation_c() {
    sequences::run::<Simulated<2>>("generation_c", CASES);
}

#[test]
fn library_matches_model_in_generation_d() {
    sequences::run::<Simulated<3>>("generation_d", CASES);
}

#[test]
fn library_matches_model_in_generation_e() {
    sequences::run::<Simulated<4>>("generation_e", CASES);
}
