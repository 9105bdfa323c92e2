//! Shrunk sequences that have failed once, a line of JSON each.
//!
//! They are not seeds, because a seed gives other sequences when the generator changes.

use super::Setup;
use hsa_vmm_conformance::operations::Operation;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, create_dir_all};
use std::io::{BufRead, BufReader, Result, Write};
use std::path::PathBuf;

/// A failing sequence and its setup.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Regression<G> {
    #[serde(rename = "ground")]
    pub setup: G,
    pub operations: Vec<Operation>,
}

fn file(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/regressions");
    folder.join(format!("{name}.jsonl"))
}

/// Reads the saved sequences.
pub fn known<G: Setup>(name: &str) -> Vec<Regression<G>> {
    let Ok(file) = File::open(file(name)) else { return Vec::new() };
    let lines = BufReader::new(file).lines().map(|line| line.expect("a line of a regression file"));
    lines.map(|line| serde_json::from_str(&line).expect("a regression")).collect()
}

/// Saves a sequence and returns its line.
pub fn keep<G: Setup>(name: &str, regression: &Regression<G>) -> Result<String> {
    let file = file(name);
    if let Some(folder) = file.parent() {
        create_dir_all(folder)?;
    }
    let line = serde_json::to_string(regression)?;
    writeln!(OpenOptions::new().create(true).append(true).open(file)?, "{line}")?;
    Ok(line)
}
