//! Sizes as people read them.

use core::fmt;

/// A size in the largest unit in which it is a whole number of at most four digits, else with one
/// decimal in the largest unit: `2 MiB`, `2052 KiB`, `62.3 GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub usize);

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut whole, mut unit) = (self.0, 0);
        while whole != 0 && whole.is_multiple_of(1024) {
            (whole, unit) = (whole / 1024, unit + 1);
        }
        if whole < 10_000 {
            return f.pad(&format!("{whole} {}", UNITS[unit]));
        }
        let (mut value, mut unit) = (self.0 as f64, 0);
        // What would be rounded up to 1024.0 is one of the next.
        while value >= 1023.95 {
            (value, unit) = (value / 1024.0, unit + 1);
        }
        f.pad(&format!("{value:.1} {}", UNITS[unit]))
    }
}

#[cfg(test)]
mod tests {
    use super::Size;

    #[test]
    fn sizes_are_short_and_exact_where_they_can_be() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (9999, "9999 B"),
            (10_000, "9.8 KiB"),
            (2 << 20, "2 MiB"),
            ((2 << 20) + 4096, "2052 KiB"),
            ((62 << 30) + 4096, "62.0 GiB"),
            ((1 << 40) - 4096, "1.0 TiB"),
            (usize::MAX, "16.0 EiB"),
            (1 << 63, "8 EiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>8}", Size(4096)), "   4 KiB");
    }
}
