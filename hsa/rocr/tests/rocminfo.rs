//! Debian's `rocminfo`, unmodified, on AMD's runtime and the emulated driver.

use hsa_rocr::{Emulation, test};

/// Checks the output of `rocminfo` on each release with `gpus` GPUs.
fn check_on_each_release(name: &str, gpus: u8, check: impl Fn(&str)) {
    let Some(fetched_releases) = test::fetch_releases(name) else { return };
    for fetched in fetched_releases {
        let mut command = fetched.command("rocminfo");
        Emulation::with_gpus(gpus).apply(&mut command).unwrap();
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let release = fetched.release();
        assert!(output.status.success(), "{release}: {output:?}");
        check(&text);
    }
}

fn count_lines(text: &str, start: &str) -> usize {
    text.lines().filter(|line| line.trim_start().starts_with(start)).count()
}

#[test]
fn rocminfo_lists_two_gpus_with_pools() {
    check_on_each_release("rocminfo_lists_two_gpus_with_pools", 2, |text| {
        assert_eq!(count_lines(text, "Agent "), 3, "{text}");
        assert_eq!(count_lines(text, "Device Type:             CPU"), 1, "{text}");
        assert_eq!(count_lines(text, "Device Type:             GPU"), 2, "{text}");
        // Each GPU has three pools with memory. The recommended granule of the CPU's pools is a page.
        assert_eq!(count_lines(text, "Alloc Recommended Granule:2048KB"), 6, "{text}");
        let cpu_pools = count_lines(text, "Alloc Recommended Granule:4KB");
        assert!(cpu_pools == 3 || cpu_pools == 4, "{text}");
        assert_eq!(count_lines(text, "Alloc Granule:           4KB"), 6 + cpu_pools, "{text}");
        assert_eq!(count_lines(text, "Segment:                 GLOBAL"), 6 + cpu_pools, "{text}");
    });
}

#[test]
fn rocminfo_lists_eight_gpus() {
    check_on_each_release("rocminfo_lists_eight_gpus", 8, |text| {
        assert_eq!(count_lines(text, "Agent "), 9, "{text}");
        assert_eq!(count_lines(text, "Device Type:             GPU"), 8, "{text}");
    });
}
