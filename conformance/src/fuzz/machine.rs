//! Generates simulated machines.

use crate::operations::choices::Choices;

/// The ROCm generations from ROCm 6.0 to 10.1, each with the minor versions (`1.N`) of AMD's extension in its releases.
const GENERATIONS: [(char, &[u32]); 4] =
    [('a', &[7, 4, 6, 9, 11]), ('b', &[15, 12]), ('c', &[20, 16]), ('d', &[22, 21])];

/// Generates the configuration of a machine, as in `HSA_SIM`.
pub(super) fn generate(choices: &mut Choices) -> String {
    let mut settings = match choices.below(8) {
        6 => vec!["apu".to_owned()],
        7 => vec!["consumer".to_owned()],
        _ => {
            vec![format!("gpus={}", 1 + choices.below(3)), format!("cpus={}", 1 + choices.below(2))]
        }
    };
    let (generation, extensions) = choices.one_of(GENERATIONS);
    settings.push(format!("era={generation}"));
    let extension = extensions[usize::from(choices.below(extensions.len() as u8))];
    settings.push(format!("extension={extension}"));
    // Large granules are slow.
    if choices.percent(2) {
        settings.push("granule=2m".to_owned());
    }
    if choices.percent(50) {
        settings.push("dmabuf-cpu-mapping=off".to_owned());
    }
    if choices.percent(20) {
        settings.push("peer-access=off".to_owned());
    }
    settings.join(",")
}

#[cfg(test)]
mod tests {
    use super::generate;
    use crate::operations::choices::Choices;
    use fastrand::Rng;
    use hsa_vmm::simulation::Config;
    use std::collections::BTreeSet;

    #[test]
    fn generated_machines_vary_and_can_be_parsed() {
        let mut random = Rng::with_seed(7);
        let machines: BTreeSet<_> =
            (0..500).map(|_| generate(&mut Choices::new(&random.u64(..).to_le_bytes()))).collect();
        assert!(machines.len() > 50, "{}", machines.len());
        for text in machines {
            text.parse::<Config>().unwrap_or_else(|error| panic!("{text}: {error}"));
        }
    }
}
