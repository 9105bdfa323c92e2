//! What the environment asks for.

use crate::faults::Faults;
use crate::profile::{self, PROFILES, Profile};
use std::env;

/// The machine to emulate.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) gpus: usize,
    pub(crate) profile: &'static Profile,
    /// Bytes of memory of each GPU.
    pub(crate) memory: u64,
    pub(crate) faults: Faults,
}

/// As many as one machine holds.
const MOST_GPUS: usize = 8;

impl Config {
    /// Reads `HSA_KFD` and `HSA_KFD_FAULTS`. What cannot be read is said on standard error and
    /// left at its default: the program under test must not be the one to crash.
    pub(crate) fn from_environment() -> Self {
        let mut config = Self::default();
        if let Ok(text) = env::var("HSA_KFD") {
            for field in text.split(',').filter(|field| !field.trim().is_empty()) {
                if config.set(field.trim()).is_none() {
                    eprintln!("hsa-kfd: HSA_KFD: {field:?} is not understood");
                }
            }
        }
        if let Ok(text) = env::var("HSA_KFD_FAULTS") {
            let (faults, wrong) = Faults::parse(&text);
            config.faults = faults;
            for field in wrong {
                eprintln!("hsa-kfd: HSA_KFD_FAULTS: {field:?} is not understood");
            }
        }
        config
    }

    fn set(&mut self, field: &str) -> Option<()> {
        let (key, value) = field.split_once('=')?;
        match key {
            "gpus" => {
                self.gpus = value.parse().ok().filter(|gpus| (1..=MOST_GPUS).contains(gpus))?;
            }
            "profile" => {
                self.profile = profile::named(value)?;
                self.memory = self.profile.memory;
            }
            "vram" => self.memory = size(value)?,
            _ => return None,
        }
        Some(())
    }
}

impl Default for Config {
    fn default() -> Self {
        let profile = &PROFILES[0];
        Self { gpus: 1, profile, memory: profile.memory, faults: Faults::default() }
    }
}

fn size(text: &str) -> Option<u64> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|size| *size > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_read() {
        let mut config = Config::default();
        for field in ["gpus=2", "profile=rdna3", "vram=512MiB"] {
            assert_eq!(config.set(field), Some(()), "{field}");
        }
        assert_eq!((config.gpus, config.memory), (2, 512 << 20));
        assert_eq!(config.profile.name, "rdna3");
        for field in ["gpus=0", "gpus=9", "profile=none", "vram=3XB", "vram=0", "x=1", "gpus"] {
            assert_eq!(config.set(field), None, "{field}");
        }
    }
}
