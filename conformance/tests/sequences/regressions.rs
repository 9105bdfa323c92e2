//! Sequences that failed once, as they were drawn and made small: a line of JSON each.
//!
//! Not seeds, which mean something else as soon as the generator changes.

use super::Ground;
use hsa_vmm_conformance::operations::Operation;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, create_dir_all};
use std::io::{BufRead, BufReader, Result, Write};
use std::path::PathBuf;

/// What failed, and where.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Regression<G> {
    pub ground: G,
    pub operations: Vec<Operation>,
}

fn file(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/regressions");
    folder.join(format!("{name}.jsonl"))
}

/// Those that are known.
pub fn known<G: Ground>(name: &str) -> Vec<Regression<G>> {
    let Ok(file) = File::open(file(name)) else { return Vec::new() };
    let lines = BufReader::new(file).lines().map(|line| line.expect("a line of a regression file"));
    lines.map(|line| serde_json::from_str(&line).expect("a regression")).collect()
}

/// Adds one, and returns it as a line.
pub fn keep<G: Ground>(name: &str, regression: &Regression<G>) -> Result<String> {
    let file = file(name);
    if let Some(folder) = file.parent() {
        create_dir_all(folder)?;
    }
    let line = serde_json::to_string(regression)?;
    writeln!(OpenOptions::new().create(true).append(true).open(file)?, "{line}")?;
    Ok(line)
}
