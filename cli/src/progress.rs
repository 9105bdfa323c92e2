//! Progress of long operations: a bar on a terminal, nothing in a pipe.

use crate::screen::{locale_is_utf8, note};
use hsa_vmm_conformance::printable;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// Creates a progress bar of `total` steps (0: unknown) on standard error. It is invisible unless that
/// is a terminal.
pub fn bar(total: u64, what: &'static str) -> ProgressBar {
    let bar = if total > 0 { ProgressBar::new(total) } else { ProgressBar::new_spinner() };
    bar.set_draw_target(ProgressDrawTarget::stderr());
    let template = if total > 0 {
        "{msg:10} {bar:40.cyan/blue} {pos}/{len}"
    } else {
        "{msg:10} {spinner} {pos}"
    };
    // Keep the default style if the template is invalid.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(signs(style));
    }
    bar.set_message(what);
    bar
}

/// Draws bars and spinners in ASCII where the locale has no UTF-8.
pub fn signs(style: ProgressStyle) -> ProgressStyle {
    match locale_is_utf8() {
        true => style,
        false => style.progress_chars("=> ").tick_chars("-\\|/ "),
    }
}

/// Shows the steps of a long operation: the current one on a terminal, a line for each elsewhere.
#[derive(Debug)]
pub struct Steps {
    bar: ProgressBar,
}

impl Steps {
    /// Shows nothing yet.
    pub fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        bar.set_draw_target(ProgressDrawTarget::stderr());
        bar.set_style(signs(ProgressStyle::default_spinner()));
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { bar }
    }

    /// Shows the step that begins now.
    pub fn next(&self, what: &str) {
        if self.bar.is_hidden() {
            note!("{what}");
        } else {
            self.bar.set_message(printable(what).into_owned());
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
