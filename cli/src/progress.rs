//! Shows the progress of long operations on standard error.

use crate::screen::{locale_is_utf8, note};
use hsa_vmm_conformance::printable;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// Creates a progress bar of `total` steps (0: unknown) on standard error. The bar is invisible unless
/// standard error is a terminal.
pub fn bar(total: u64, label: &'static str) -> ProgressBar {
    let bar = if total > 0 { ProgressBar::new(total) } else { ProgressBar::new_spinner() };
    bar.set_draw_target(ProgressDrawTarget::stderr());
    let template = if total > 0 {
        "{msg:10} {bar:40.cyan/blue} {pos}/{len}"
    } else {
        "{msg:10} {spinner} {pos}"
    };
    // Keep the default style if the template is invalid.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(for_locale(style));
    }
    bar.set_message(label);
    bar
}

/// Changes a style to ASCII characters if the locale's encoding is not UTF-8.
pub fn for_locale(style: ProgressStyle) -> ProgressStyle {
    match locale_is_utf8() {
        true => style,
        false => style.progress_chars("=> ").tick_chars("-\\|/ "),
    }
}

/// Shows the steps of a long operation: only the current step on a terminal, a line for each step elsewhere.
#[derive(Debug)]
pub struct Steps {
    bar: ProgressBar,
}

impl Steps {
    /// Creates a spinner without text.
    pub fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        bar.set_draw_target(ProgressDrawTarget::stderr());
        bar.set_style(for_locale(ProgressStyle::default_spinner()));
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { bar }
    }

    /// Shows the step that begins now.
    pub fn begin(&self, step: &str) {
        if self.bar.is_hidden() {
            note!("{step}");
        } else {
            self.bar.set_message(printable(step).into_owned());
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
