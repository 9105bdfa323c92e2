//! The progress of fuzzing.

use crate::screen::note;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt;
use std::time::{Duration, Instant};

/// The interval of progress lines where no bar can be shown.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Shows the progress: a bar on a terminal, a line every few seconds elsewhere.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    begun: Instant,
    /// The duration of the run, once it has ended.
    duration: Option<Duration>,
    /// The time when the last line was printed.
    last_line: Instant,
    /// How long to run.
    pub time_limit: Duration,
    pub sequences: u64,
    pub operations: u64,
    /// The number of operations that the library rejected.
    pub rejected: u64,
}

impl Progress {
    pub fn new(time_limit: Duration, sequences: Option<u64>) -> Self {
        let bar = ProgressBar::new(sequences.unwrap_or(time_limit.as_millis() as u64));
        bar.set_draw_target(ProgressDrawTarget::stderr());
        // Keep the default style if the template is invalid.
        if let Ok(style) = ProgressStyle::with_template("{bar:24.cyan/blue} {elapsed} {msg}") {
            bar.set_style(crate::progress::for_locale(style));
        }
        let now = Instant::now();
        Self {
            bar,
            begun: now,
            duration: None,
            last_line: now,
            time_limit,
            sequences: 0,
            operations: 0,
            rejected: 0,
        }
    }

    pub fn is_time_up(&self) -> bool {
        self.begun.elapsed() >= self.time_limit
    }

    /// Updates the bar. The bar counts sequences if `counts_sequences` is set, and milliseconds otherwise. Without a
    /// terminal, prints a line if the last line is older than [`LINE_INTERVAL`].
    pub fn show(&mut self, counts_sequences: bool) {
        if self.bar.is_hidden() {
            if self.last_line.elapsed() >= LINE_INTERVAL {
                self.last_line = Instant::now();
                note!("{self}");
            }
            return;
        }
        let position =
            if counts_sequences { self.sequences } else { self.begun.elapsed().as_millis() as u64 };
        self.bar.set_position(position);
        self.bar.set_message(self.to_string());
    }

    pub fn finish(&mut self) {
        self.duration = Some(self.begun.elapsed());
        self.bar.finish_and_clear();
    }

    pub fn seconds(&self) -> f64 {
        self.duration.unwrap_or_else(|| self.begun.elapsed()).as_secs_f64()
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.seconds().max(0.001);
        let rate = |count: u64| (count as f64 / seconds) as u64;
        let rejected = (100 * self.rejected).checked_div(self.operations).unwrap_or_default();
        write!(
            f,
            "{} sequences ({}/s), {} operations ({}/s), {rejected} % rejected, {seconds:.1} s",
            self.sequences,
            rate(self.sequences),
            self.operations,
            rate(self.operations),
        )
    }
}
