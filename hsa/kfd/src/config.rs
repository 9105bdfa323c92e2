//! The configuration from the environment.

use crate::faults::Faults;
use crate::hardware::Updates;
use crate::log::print_error;
use crate::profile::{self, PROFILES, Profile};
use crate::{environment, own_descriptors};
use std::fs::File;
use std::path::PathBuf;

/// The machine to emulate.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) gpus: usize,
    /// The model of all GPUs.
    pub(crate) profile: &'static Profile,
    /// Bytes of memory of each GPU.
    pub(crate) memory: u64,
    /// Processes that name the same machine share the memory of its GPUs.
    pub(crate) machine: Option<String>,
    /// How changes of page tables reach the GPUs.
    pub(crate) updates: Updates,
    pub(crate) faults: Faults,
    /// The file to which page tables are appended at exit.
    pub(crate) page_tables: Option<PathBuf>,
}

pub(crate) const MAX_GPUS: usize = 8;

impl Config {
    /// Reads `HSA_KFD`, `HSA_KFD_FAULTS`, `HSA_FAULTS_RECORD` and `HSA_KFD_PAGE_TABLES`. An error
    /// names the variable and the invalid part.
    pub(crate) fn from_environment() -> Result<Self, String> {
        let read = |name| {
            let value = environment::variable(name).unwrap_or_default().into_string();
            value.map_err(|value| format!("{name}: {value:?} is not UTF-8"))
        };
        let mut config =
            Self::parse(&read("HSA_KFD")?).map_err(|error| format!("HSA_KFD: {error}"))?;
        config.faults = Faults::parse(&read("HSA_KFD_FAULTS")?)
            .map_err(|error| format!("HSA_KFD_FAULTS: {error}"))?;
        let record = environment::variable(hsa_faults::RECORD);
        if let Some(path) = record.filter(|_| !config.faults.is_empty()) {
            match File::options()
                .append(true)
                .open(&path)
                .map(own_descriptors::move_file_above_floor)
            {
                Ok(file) => config.faults = config.faults.recording_to(file),
                // Not fatal: the process that created the file may have ended and removed it.
                Err(error) => print_error(format_args!("{}: {error}", hsa_faults::RECORD)),
            }
        }
        config.page_tables = environment::page_tables_file()?;
        Ok(config)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut config = Self::default();
        let mut memory = None;
        for field in text.split(',').map(str::trim).filter(|field| !field.is_empty()) {
            let invalid = |expected: &str| format!("{field:?}: expected {expected}");
            let (key, value) = field.split_once('=').ok_or_else(|| invalid("NAME=VALUE"))?;
            match key {
                "gpus" => {
                    let gpus = value.parse().ok().filter(|gpus| (1..=MAX_GPUS).contains(gpus));
                    config.gpus = gpus.ok_or_else(|| invalid("1 to 8 GPUs"))?;
                }
                "profile" => {
                    config.profile = profile::find(value).ok_or_else(|| {
                        invalid(&format!(
                            "one of {}",
                            PROFILES.each_ref().map(|profile| profile.name).join(", ")
                        ))
                    })?;
                }
                "vram" => {
                    memory =
                        Some(parse_size(value).ok_or_else(|| invalid("a size such as 64GiB"))?);
                }
                "machine" => {
                    let allowed =
                        |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
                    let valid = (1..=64).contains(&value.len()) && value.chars().all(allowed);
                    config.machine = Some(value.to_owned()).filter(|_| valid);
                    if !valid {
                        return Err(invalid("1 to 64 letters, digits, '-', '_' and '.'"));
                    }
                }
                "pte_delay" => {
                    let delay = hsa_faults::parse_time(value);
                    config.updates.delay =
                        Some(delay.ok_or_else(|| invalid("a time such as 5ms"))?);
                }
                "tlb" => {
                    config.updates.tlb = parse_switch(value).ok_or_else(|| invalid("on or off"))?
                }
                "split_bug" => {
                    config.updates.split_bug =
                        parse_switch(value).ok_or_else(|| invalid("on or off"))?;
                }
                _ => {
                    return Err(invalid(
                        "one of gpus, profile, vram, machine, pte_delay, tlb, split_bug",
                    ));
                }
            }
        }
        config.memory = memory.unwrap_or(config.profile.memory);
        Ok(config)
    }
}

impl Default for Config {
    fn default() -> Self {
        let profile = &PROFILES[0];
        let (faults, updates) = (Faults::default(), Updates::default());
        let (gpus, memory) = (1, profile.memory);
        Self { gpus, profile, memory, machine: None, updates, faults, page_tables: None }
    }
}

fn parse_switch(text: &str) -> Option<bool> {
    match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|size| *size > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn config_parses_every_field() {
        assert_eq!(Config::parse("vram=1G").unwrap().memory, 1 << 30);
        assert_eq!(Config::parse("vram=1g").unwrap().memory, 1 << 30);
        let config = Config::parse("vram=512MiB, gpus=2,profile=rdna3,machine=a-1").unwrap();
        assert_eq!((config.gpus, config.memory), (2, 512 << 20), "fields in any order");
        assert_eq!((config.profile.name, config.machine.as_deref()), ("rdna3", Some("a-1")));
        assert_eq!(Config::parse("").unwrap().gpus, 1);
        assert_eq!(Config::parse("profile=rdna3").unwrap().memory, 24 << 30);
        assert!(config.updates.are_immediate());
        let updates = Config::parse("pte_delay=5ms,tlb=on,split_bug=on").unwrap().updates;
        let delay = Some(Duration::from_millis(5));
        assert_eq!(updates, Updates { delay, tlb: true, split_bug: true });
    }

    #[test]
    fn config_rejects_invalid_fields() {
        for field in [
            "gpus=0",
            "gpus=9",
            "gpus=two",
            "profile=none",
            "vram=3XB",
            "vram=0",
            "vram=99999999999GiB",
            "x=1",
            "gpus",
            "machine=",
            "machine=a/b",
            "pte_delay=5",
            "tlb=1",
            "split_bug=yes",
        ] {
            let error = Config::parse(&format!("gpus=2,{field}")).unwrap_err();
            assert!(error.contains(&format!("{field:?}")), "{error}");
        }
    }
}
