//! Measures calls at several levels, for different numbers of live mappings.
//!
//! ```sh
//! cargo bench -p hsa-vmm-bench --bench vmm
//! ```
//!
//! `hsa-vmm bench` makes the same measurement with more options: other runtimes, HIP, JSON and a plot.

use hsa_vmm_bench::{Backend, BenchError, BenchRuntime, Options, measure};

fn main() -> Result<(), BenchError> {
    for (name, live) in [("nothing", 1), ("nothing", 100_000), ("gpus=2", 1), ("gpus=2", 10_000)] {
        let target = BenchRuntime::open(Backend::Simulated(name.to_owned()))?;
        println!("\nruntime {name}: {live} live mappings (nanoseconds)");
        println!("{:12} {:6} {:>10} {:>10} {:>10}", "", "", "median", "p99", "over raw");
        for result in measure(&target, &Options { live, ..Options::default() }, &mut |_| ())? {
            let over_raw = result.over_raw_ns.map(|ns| format!("{ns:.1}")).unwrap_or_default();
            let (operation, level) = (result.operation, result.level);
            let (median, p99) = (result.median_ns, result.p99_ns);
            println!("{operation:12} {level:6} {median:>10.1} {p99:>10.1} {over_raw:>10}");
        }
    }
    Ok(())
}
