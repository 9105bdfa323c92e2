//! A simulated machine, drawn.

use fastrand::Rng;

/// The eras with the extension's versions of each, from ROCm 6.0 to 10.1.
const ERAS: [(char, &[u32]); 4] =
    [('a', &[7, 4, 6, 9, 11]), ('b', &[15, 12]), ('c', &[20, 16]), ('d', &[22, 21])];

/// Any machine, as `HSA_SIM` describes it.
pub(super) fn any(random: &mut Rng) -> String {
    let mut words = match random.u8(0..8) {
        6 => vec!["apu".to_owned()],
        7 => vec!["consumer".to_owned()],
        _ => vec![format!("gpus={}", random.u8(1..=3)), format!("cpus={}", random.u8(1..=2))],
    };
    let (era, extensions) = ERAS[random.usize(..ERAS.len())];
    words.push(format!("era={era}"));
    words.push(format!("extension={}", extensions[random.usize(..extensions.len())]));
    // Large granules take long.
    if random.u8(0..64) == 0 {
        words.push("granule=2m".to_owned());
    }
    if random.bool() {
        words.push("dmabuf-cpu-mapping=off".to_owned());
    }
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::any;
    use fastrand::Rng;
    use hsa_vmm::simulation::Config;
    use std::collections::BTreeSet;

    #[test]
    fn there_are_many_and_each_is_understood() {
        let mut random = Rng::with_seed(7);
        let drawn: BTreeSet<_> = (0..500).map(|_| any(&mut random)).collect();
        assert!(drawn.len() > 50, "{}", drawn.len());
        for text in drawn {
            text.parse::<Config>().unwrap_or_else(|error| panic!("{text}: {error}"));
        }
    }
}
