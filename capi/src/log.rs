//! The library's log on standard error, if HSA_VMM_LOG asks for it: a program in C has no other way to it.

use crate::answer::Refusal;
use crate::errors;
use std::env::{self, VarError};
use tracing_subscriber::filter::LevelFilter;

/// Begins it, once; a program in Rust that has a log of its own keeps that.
pub fn begin() -> Result<(), Refusal> {
    let level: LevelFilter = match env::var("HSA_VMM_LOG") {
        Err(VarError::NotPresent) => return Ok(()),
        Ok(level) => level.parse().map_err(|_| refused(&level))?,
        Err(VarError::NotUnicode(level)) => return Err(refused(&level.to_string_lossy())),
    };
    // It fails where there is one already.
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .try_init();
    Ok(())
}

fn refused(level: &str) -> Refusal {
    let words =
        format!("HSA_VMM_LOG: {level:?} is no level; error, warn, info, debug and trace are");
    Refusal::new(errors::NOT_INITIALIZED, words)
}
