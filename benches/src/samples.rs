//! Samples of one measurement, and their statistics.

/// The samples, in nanoseconds per call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub fn add(&mut self, nanoseconds: f64) {
        self.0.push(nanoseconds);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the quantile of a fraction from 0 to 1; `None` without samples.
    pub fn quantile(&mut self, fraction: f64) -> Option<f64> {
        self.0.sort_unstable_by(f64::total_cmp);
        let last = self.0.len().checked_sub(1)?;
        Some(self.0[(last as f64 * fraction).round() as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::Samples;

    #[test]
    fn percentiles_do_not_depend_on_order() {
        let mut samples = Samples::default();
        assert_eq!(samples.quantile(0.5), None);
        (0..=100).rev().for_each(|number| samples.add(f64::from(number)));
        assert_eq!(
            [0.0, 0.5, 0.99].map(|fraction| samples.quantile(fraction)),
            [0.0, 50.0, 99.0].map(Some)
        );
        assert_eq!(samples.len(), 101);
    }
}
