//! Debian's `rocminfo`, unmodified, on AMD's runtime and the emulated driver.

use hsa_rocr::{Emulation, test};

/// Checks the output of `rocminfo` on each release with `gpus` GPUs.
fn on_each(name: &str, gpus: u8, check: impl Fn(&str)) {
    let Some(installations) = test::installations(name) else { return };
    for installation in installations {
        let mut command = installation.command("rocminfo");
        Emulation::gpus(gpus).apply(&mut command).unwrap();
        let output = command.output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout);
        let release = installation.release();
        assert!(output.status.success(), "{release}: {output:?}");
        check(&shown);
    }
}

fn lines(shown: &str, start: &str) -> usize {
    shown.lines().filter(|line| line.trim_start().starts_with(start)).count()
}

#[test]
fn rocminfo_lists_two_gpus_with_pools() {
    on_each("rocminfo_lists_two_gpus_with_pools", 2, |shown| {
        assert_eq!(lines(shown, "Agent "), 3, "{shown}");
        assert_eq!(lines(shown, "Device Type:             CPU"), 1, "{shown}");
        assert_eq!(lines(shown, "Device Type:             GPU"), 2, "{shown}");
        // Three pools of a GPU have memory; the CPU's pools have no recommended granule.
        assert_eq!(lines(shown, "Alloc Recommended Granule:2048KB"), 6, "{shown}");
        let of_cpu = lines(shown, "Alloc Recommended Granule:4KB");
        assert!(of_cpu == 3 || of_cpu == 4, "{shown}");
        assert_eq!(lines(shown, "Alloc Granule:           4KB"), 6 + of_cpu, "{shown}");
        assert_eq!(lines(shown, "Segment:                 GLOBAL"), 6 + of_cpu, "{shown}");
    });
}

#[test]
fn rocminfo_lists_eight_gpus() {
    on_each("rocminfo_lists_eight_gpus", 8, |shown| {
        assert_eq!(lines(shown, "Agent "), 9, "{shown}");
        assert_eq!(lines(shown, "Device Type:             GPU"), 8, "{shown}");
    });
}
