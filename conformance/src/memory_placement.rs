//! Reads from `/proc/self/fdinfo` whether the kernel keeps this process's GPU memory in VRAM or in system memory
//! ([DRM usage statistics](https://docs.kernel.org/gpu/drm-usage-stats.html)).

use std::collections::BTreeMap;
use std::fs;

/// The bytes of a GPU's buffers in each kind of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Placement {
    /// Bytes in the GPU's own memory.
    pub vram: usize,
    /// Bytes in system memory.
    pub system: usize,
}

/// Returns the placement of this process's buffers on a GPU, as the descriptors of the GPU's render node report it.
/// `pci` is the GPU's address, such as `0000:05:00.0`. Returns `None` if the driver does not report the placement.
pub(crate) fn of_gpu(pci: &str) -> Option<Placement> {
    let entries = fs::read_dir("/proc/self/fdinfo").ok()?;
    // Several descriptors can belong to one client of the driver. Count each client once.
    let mut clients = BTreeMap::new();
    for entry in entries.filter_map(Result::ok) {
        // Another thread may have closed the descriptor.
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        clients.extend(parse(&text, pci));
    }
    let add = |sum: Placement, it: Placement| Placement {
        vram: sum.vram + it.vram,
        system: sum.system + it.system,
    };
    clients.into_values().reduce(add)
}

/// Parses the `fdinfo` of a descriptor. Returns the number of the driver's client and the client's placement; `None` if
/// the descriptor does not belong to the GPU, or the driver does not report the placement.
fn parse(text: &str, pci: &str) -> Option<(String, Placement)> {
    let values: BTreeMap<_, _> = text.lines().filter_map(|line| line.split_once(':')).collect();
    let value = |key| values.get(key).map(|value| value.trim());
    if value("drm-pdev")? != pci {
        return None;
    }
    let bytes = |region: &str| {
        // Older kernels write `drm-memory-` instead of `drm-resident-`.
        let keys = ["drm-resident-", "drm-memory-"].map(|start| format!("{start}{region}"));
        let text = keys.iter().find_map(|key| values.get(key.as_str()))?.trim();
        let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
        let factor = match unit {
            "" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            _ => return None,
        };
        number.parse::<usize>().ok()?.checked_mul(factor)
    };
    let system = bytes("gtt")? + bytes("cpu").unwrap_or(0);
    Some((value("drm-client-id")?.to_owned(), Placement { vram: bytes("vram")?, system }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fdinfo_of_the_gpu_is_parsed() {
        let text = "pos:\t0\ndrm-driver:\tamdgpu\ndrm-client-id:\t7\ndrm-pdev:\t0000:05:00.0\n\
                    drm-memory-vram:\t2048 KiB\ndrm-memory-gtt: \t1 MiB\ndrm-memory-cpu: \t4 KiB\n";
        let expected = Placement { vram: 2 << 20, system: (1 << 20) + (4 << 10) };
        assert_eq!(parse(text, "0000:05:00.0"), Some(("7".to_owned(), expected)));
        assert_eq!(parse(text, "0000:06:00.0"), None);
        assert_eq!(parse("pos:\t0\n", "0000:05:00.0"), None);
    }
}
