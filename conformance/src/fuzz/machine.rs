//! Generates simulated machines.

use crate::operations::choices::Choices;

/// The ROCm generations with their extension versions, from ROCm 6.0 to 10.1.
const GENERATIONS: [(char, &[u32]); 4] =
    [('a', &[7, 4, 6, 9, 11]), ('b', &[15, 12]), ('c', &[20, 16]), ('d', &[22, 21])];

/// Generates the configuration of a machine, as in `HSA_SIM`.
pub(super) fn any(by: &mut Choices) -> String {
    let mut words = match by.below(8) {
        6 => vec!["apu".to_owned()],
        7 => vec!["consumer".to_owned()],
        _ => vec![format!("gpus={}", 1 + by.below(3)), format!("cpus={}", 1 + by.below(2))],
    };
    let (generation, extensions) = by.one_of(GENERATIONS);
    words.push(format!("era={generation}"));
    let extension = extensions[usize::from(by.below(extensions.len() as u8))];
    words.push(format!("extension={extension}"));
    // Large granules are slow.
    if by.percent(2) {
        words.push("granule=2m".to_owned());
    }
    if by.percent(50) {
        words.push("dmabuf-cpu-mapping=off".to_owned());
    }
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::any;
    use crate::operations::choices::Choices;
    use fastrand::Rng;
    use hsa_vmm::simulation::Config;
    use std::collections::BTreeSet;

    #[test]
    fn drawn_machines_vary_and_can_be_parsed() {
        let mut random = Rng::with_seed(7);
        let drawn: BTreeSet<_> =
            (0..500).map(|_| any(&mut Choices::new(&random.u64(..).to_le_bytes()))).collect();
        assert!(drawn.len() > 50, "{}", drawn.len());
        for text in drawn {
            text.parse::<Config>().unwrap_or_else(|error| panic!("{text}: {error}"));
        }
    }
}
