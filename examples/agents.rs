//! Lists GPUs, their memory and granules, and peer access between agents.
//!
//! ```sh
//! cargo run --example agents
//! ```

use hsa_vmm::{Runtime, simulation::Config};

pub(crate) fn main() -> anyhow::Result<()> {
    let runtime = match std::env::var_os("HSA_VMM_RUNTIME") {
        Some(_) => Runtime::load()?,
        None => Runtime::simulated(Config::mi300x(4))?,
    };
    for gpu in runtime.gpus() {
        let Some(pool) = gpu.vmem_pool() else {
            println!("{} has no memory that can be mapped", gpu.name());
            continue;
        };
        println!(
            "{} {}: {} GiB in granules of {} KiB, {} KiB recommended",
            gpu.id(),
            gpu.name(),
            pool.size >> 30,
            pool.granule >> 10,
            pool.recommended_granule >> 10,
        );
    }
    println!("\npeer access:");
    for gpu in runtime.gpus() {
        let row: String = runtime
            .gpus()
            .map(|owner| if gpu.can_access(owner.id()) { " x" } else { " ." })
            .collect();
        println!("  {}{row}", gpu.id());
    }
    Ok(())
}
