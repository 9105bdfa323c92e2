//! The text form of configurations, for the variable `HSA_SIM` and the command `hsa-vmm`.

use crate::config::{GIB, KIB, MAX_AGENTS, MIB, PageTableUpdates};
use crate::faults::FaultPlanError;
use crate::{Config, Generation, GpuPermissions};
use core::str::FromStr;

/// An invalid configuration text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A word that is neither a preset nor a setting.
    #[error("`{word}` is neither a preset ({presets}) nor a setting ({settings})")]
    Word {
        /// The unknown word.
        word: String,
        /// The valid presets.
        presets: &'static str,
        /// The valid settings.
        settings: &'static str,
    },
    /// An invalid value of a setting.
    #[error("invalid value `{value}` of `{setting}`: expected {valid}")]
    Value {
        /// The setting.
        setting: String,
        /// The invalid value.
        value: String,
        /// The valid values.
        valid: &'static str,
    },
    /// An extension version that no release of the requested generation has.
    #[error(
        "`extension={value}` is a version of generation {matching}, not of generation {generation}: use `era={matching}`, or \
         omit `era`"
    )]
    Extension {
        /// The requested version.
        value: String,
        /// The generation that has this version.
        matching: Generation,
        /// The requested generation.
        generation: Generation,
    },
    /// An invalid fault plan.
    #[error("in `faults`: {0}")]
    Faults(#[from] FaultPlanError),
}

const PRESETS: &str = "mi300x, consumer, apu, nothing";
const SETTINGS: &str = "gpus, cpus, era, extension, granule, recommended-granule, vram, \
    permissions, page-tables, large-bar, dmabuf-cpu-mapping, host-buffers, vmem, peer-access, early-waits, xnack, \
    ipc-lengths, faults";

/// Parses a configuration: comma-separated words, each a preset or `setting=value`.
///
/// | word | meaning |
/// |---|---|
/// | `mi300x`, `consumer`, `apu` | the presets |
/// | `nothing` | a preset for measurements: `mi300x` in generation A without large BAR, whose virtual memory does nothing |
/// | `gpus=N`, `cpus=N` | the number of agents, each like the first of the preset (0 to 64 GPUs, 1 to 64 CPUs) |
/// | `era=a` … `era=e` | the ROCm generation (also `generation=`), with its usual extension version |
/// | `extension=N` | the extension's minor version, with its generation; `none`: not reported, as in ROCm 6.0 |
/// | `granule=2m`, `recommended-granule=2m` | the granules |
/// | `vram=16g` | video memory of every GPU |
/// | `permissions=recorded`, `enforced` | whether GPUs enforce permissions |
/// | `page-tables=immediate`, `not-flushed`, `late` | when changes of page tables take effect ([`PageTableUpdates`](crate::PageTableUpdates)) |
/// | `large-bar`, `dmabuf-cpu-mapping`, `host-buffers`, `vmem`, `peer-access` | `=on` or `=off` |
/// | `early-waits` | `=on`: the first wait for each signal returns too early |
/// | `xnack` | `=on`: GPUs can access host memory that is not locked |
/// | `ipc-lengths=checked`, `believed` | whether attaching by IPC rejects a length other than that of the exported memory, or accepts it as AMD's releases do |
/// | `faults=function#N=effect;…` | calls that fail or misbehave ([`hsa_faults`]) |
///
/// The order of the words does not matter. The empty text is the default configuration.
impl FromStr for Config {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let words: Vec<&str> = text.split(',').map(str::trim).filter(|w| !w.is_empty()).collect();
        let mut config = Config::default();
        // `nothing` sets generation A (see `Config::no_op_vmem`).
        let mut generation_is_set = words.contains(&"nothing");
        let mut settings = Vec::new();
        for word in words {
            match (word, word.split_once('=')) {
                ("mi300x", _) => config = Config::mi300x(2),
                ("consumer", _) => config = Config::consumer(),
                ("apu", _) => config = Config::apu(),
                ("nothing", _) => config = Config::no_op_vmem(2),
                (_, Some((setting, value))) => settings.push((setting.trim(), value.trim())),
                (word, None) => return Err(unknown(word)),
            }
        }
        // The settings on which others depend are applied first.
        settings.sort_by_key(|(setting, _)| match *setting {
            "gpus" | "cpus" => 0,
            "era" | "generation" => 1,
            "granule" => 2,
            _ => 3,
        });
        for (setting, value) in settings {
            let generation = config.generation;
            config.set(setting, value)?;
            generation_is_set |= matches!(setting, "era" | "generation");
            if setting == "extension" && generation_is_set && config.generation != generation {
                return Err(ConfigError::Extension {
                    value: value.into(),
                    matching: config.generation,
                    generation,
                });
            }
        }
        Ok(config)
    }
}

impl Config {
    fn set(&mut self, setting: &str, value: &str) -> Result<(), ConfigError> {
        let invalid =
            |valid| ConfigError::Value { setting: setting.into(), value: value.into(), valid };
        let switch = || match value {
            "on" | "yes" | "true" | "1" => Ok(true),
            "off" | "no" | "false" | "0" => Ok(false),
            _ => Err(invalid("on or off")),
        };
        let count = |low: usize, valid| match value.parse() {
            Ok(count) if (low..=MAX_AGENTS).contains(&count) => Ok(count),
            _ => Err(invalid(valid)),
        };
        let granule = |valid| match bytes(value) {
            Some(bytes) if bytes >= 4 * KIB && bytes.is_power_of_two() => Ok(bytes),
            _ => Err(invalid(valid)),
        };
        match setting {
            "gpus" => self.set_gpus(count(0, "a number from 0 to 64")?),
            "cpus" => {
                let cpu = self.cpus.first().cloned();
                let count = count(1, "a number from 1 to 64")?;
                self.cpus = cpu.map_or_else(Vec::new, |cpu| vec![cpu; count]);
            }
            "era" | "generation" => {
                let generation = match value.to_ascii_lowercase().as_str() {
                    "a" => Generation::A,
                    "b" => Generation::B,
                    "c" => Generation::C,
                    "d" => Generation::D,
                    "e" => Generation::E,
                    _ => return Err(invalid("a, b, c, d or e")),
                };
                *self = self.clone().with_generation(generation);
            }
            "extension" => {
                let valid = "the extension's minor version as a number, or none";
                self.extension_reported = value != "none";
                // ROCm 6.0 has extension 1.4, and does not report it.
                let minor = if value == "none" { "4" } else { value };
                let minor = minor.parse().map_err(|_| invalid(valid))?;
                *self = self.clone().with_extension(minor);
            }
            "granule" => {
                *self = self.clone().with_granule(granule("a power of two from 4k to 1g")?);
            }
            "recommended-granule" => {
                self.recommended_granule = granule("a power of two from 4k to 1g")?;
            }
            "vram" => {
                let valid = "a size in whole pages such as 16g, 512m or 65536";
                let vram = bytes(value).filter(|bytes| bytes % (4 * KIB) == 0 && *bytes > 0);
                *self = self.clone().with_vram(vram.ok_or_else(|| invalid(valid))?);
            }
            "permissions" => {
                self.gpu_permissions = match value {
                    "recorded" => GpuPermissions::Recorded,
                    "enforced" => GpuPermissions::Enforced,
                    _ => return Err(invalid("recorded or enforced")),
                };
            }
            "page-tables" => {
                self.page_table_updates = match value {
                    "immediate" => PageTableUpdates::Immediate,
                    "not-flushed" => PageTableUpdates::NotFlushed,
                    "late" => PageTableUpdates::Late,
                    _ => return Err(invalid("immediate, not-flushed or late")),
                };
            }
            "large-bar" => {
                let large = switch()?;
                for gpu in &mut self.gpus {
                    gpu.large_bar = large;
                }
            }
            "dmabuf-cpu-mapping" => self.dmabuf_cpu_mapping = switch()?,
            "host-buffers" => self.host_buffers = switch()?,
            "vmem" => self.vmem = switch()?,
            "peer-access" => self.peer_access = switch()?,
            "early-waits" => self.early_waits = switch()?,
            "xnack" => *self = self.clone().with_xnack(switch()?),
            "ipc-lengths" => {
                self.accepts_any_ipc_length = match value {
                    "checked" => false,
                    "believed" => true,
                    _ => return Err(invalid("checked or believed")),
                };
            }
            "faults" => self.faults = value.parse()?,
            _ => return Err(unknown(setting)),
        }
        Ok(())
    }
}

fn unknown(word: &str) -> ConfigError {
    ConfigError::Word { word: word.into(), presets: PRESETS, settings: SETTINGS }
}

/// Parses a size: a number, optionally followed by `k`, `m`, `g` or `t`, and then by `b` or `ib`.
fn bytes(text: &str) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let text = text.strip_suffix("ib").or(text.strip_suffix('b')).unwrap_or(&text);
    let (number, unit) = match text.chars().last()? {
        'k' => (&text[..text.len() - 1], KIB),
        'm' => (&text[..text.len() - 1], MIB),
        'g' => (&text[..text.len() - 1], GIB),
        't' => (&text[..text.len() - 1], 1024 * GIB),
        _ => (text, 1),
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}
