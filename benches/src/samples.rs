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

    /// Returns the quantile of a fraction from 0 to 1, or `None` if there are no samples.
    pub fn quantile(&mut self, fraction: f64) -> Option<f64> {
        self.0.sort_unstable_by(f64::total_cmp);
        let last = self.0.len().checked_sub(1)?;
        Some(self.0[(last as f64 * fraction).round() as usize])
    }
}

/// The z-value of a 95 % interval.
const Z: f64 = 1.96;

/// A median and its 95 % confidence interval, in nanoseconds per call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Median {
    pub low: f64,
    pub value: f64,
    pub high: f64,
}

impl Samples {
    /// Returns the median with its 95 % confidence interval, or `None` if there are no samples. Computes the
    /// interval from the order of the samples, without an assumption about their distribution.
    pub fn median(&mut self) -> Option<Median> {
        let value = self.quantile(0.5)?;
        let count = self.0.len() as f64;
        let half_width = Z * count.sqrt() / 2.0;
        let low = (count / 2.0 - half_width).floor().max(0.0) as usize;
        let high = (count / 2.0 + half_width).ceil().min(count - 1.0) as usize;
        Some(Median { low: self.0[low], value, high: self.0[high] })
    }
}

#[cfg(test)]
mod tests {
    use super::{Median, Samples};

    #[test]
    fn interval_contains_the_middle_samples() {
        let mut samples = Samples::default();
        assert_eq!(samples.median(), None);
        samples.add(7.0);
        assert_eq!(samples.median(), Some(Median { low: 7.0, value: 7.0, high: 7.0 }));
        let mut samples = Samples::default();
        (0..100).for_each(|number| samples.add(f64::from(number)));
        // The 41st and the 61st of 100 samples. By the binomial distribution, the median is between them with a
        // probability of 95 %.
        assert_eq!(samples.median(), Some(Median { low: 40.0, value: 50.0, high: 60.0 }));
    }

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
