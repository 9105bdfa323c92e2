//! Failure is atomic: every sequence of operations, every call of the runtime in the last of
//! them failing with every status, alone and with a later one; afterwards nothing has changed, or
//! what is lost is in quarantine.
//!
//! `HSA_VMM_FAULT_DEPTH` says how long the sequences are: 4 unless told, 6 for all of it.

#[path = "../machine/mod.rs"]
mod machine;
mod model;
#[path = "../process/mod.rs"]
mod process;
mod statuses;
mod walk;
mod witness;
mod world;

use hsa_vmm::simulation::{Config, Era, GpuPermissions};
use machine::without_cpu_mapping;
use std::time::Instant;
use walk::Walk;

/// How long sequences are, and how many runs there must be at least on each machine.
fn depth() -> (usize, u64) {
    let depth = std::env::var("HSA_VMM_FAULT_DEPTH").ok().and_then(|text| text.parse().ok());
    let depth = depth.unwrap_or(4);
    let floor = match depth {
        ..4 => 300,
        4 => 2_300,
        5 => 20_000,
        _ => 150_000,
    };
    (depth, floor)
}

fn walk(name: &str, config: Config) {
    let _alone = process::alone();
    let begun = Instant::now();
    let (depth, floor) = depth();
    let config = config.with_gpu_permissions(GpuPermissions::Enforced);
    let walk = Walk::new(name, config, depth);
    println!("{walk}; {:.1?}", begun.elapsed());
    assert!(walk.violations.is_empty(), "{}", walk.violations.join("\n\n"));
    assert!(walk.runs() >= floor, "only {} runs", walk.runs());
}

fn era(era: Era) -> Config {
    Config::mi300x(2).with_era(era)
}

#[test]
fn before_aligned_reservations() {
    walk("6.1", era(Era::A).with_extension(4));
}

#[test]
fn in_era_a() {
    walk("era A", era(Era::A));
}

#[test]
fn in_era_b() {
    walk("era B", era(Era::B));
}

#[test]
fn in_era_c() {
    walk("era C", era(Era::C));
}

#[test]
fn in_era_d() {
    walk("era D", era(Era::D));
}

#[test]
fn in_era_a_where_the_runtime_gives_the_cpu_its_access() {
    walk("era A, by the runtime", without_cpu_mapping(era(Era::A)));
}

#[test]
fn in_era_b_where_the_runtime_gives_the_cpu_its_access() {
    walk("era B, by the runtime", without_cpu_mapping(era(Era::B)));
}

#[test]
fn in_era_c_where_the_runtime_gives_the_cpu_its_access() {
    walk("era C, by the runtime", without_cpu_mapping(era(Era::C)));
}

#[test]
fn in_era_d_where_the_runtime_gives_the_cpu_its_access() {
    walk("era D, by the runtime", without_cpu_mapping(era(Era::D)));
}
