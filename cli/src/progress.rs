//! Progress of long work: a bar on a terminal, nothing in a pipe.

use crate::screen::note;
use hsa_vmm_conformance::printable;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// A bar over `total` steps (unknown if zero) on standard error; invisible unless that is a
/// terminal.
pub fn bar(total: u64, what: &'static str) -> ProgressBar {
    let bar = if total > 0 { ProgressBar::new(total) } else { ProgressBar::new_spinner() };
    bar.set_draw_target(ProgressDrawTarget::stderr());
    let template = if total > 0 {
        "{msg:10} {bar:40.cyan/blue} {pos}/{len}"
    } else {
        "{msg:10} {spinner} {pos}"
    };
    // A template that is wrong costs its looks, not the run.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

/// A word about each step of long work: the current one on a terminal, all of them in a pipe.
#[derive(Debug)]
pub struct Steps {
    bar: ProgressBar,
}

impl Steps {
    /// Nothing is shown yet.
    pub fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        bar.set_draw_target(ProgressDrawTarget::stderr());
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { bar }
    }

    /// What begins now.
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
