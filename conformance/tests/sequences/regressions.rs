//! Files with shrunk sequences that once failed, one line of JSON each.
//!
//! The files contain operations instead of seeds, because a seed generates other sequences after the generator has
//! changed.

use super::Setup;
use hsa_vmm_conformance::operations::Operation;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, create_dir_all};
use std::io::{BufRead, BufReader, Result, Write};
use std::path::PathBuf;

/// A failing sequence and its setup.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Regression<S> {
    #[serde(rename = "ground")]
    pub setup: S,
    pub operations: Vec<Operation>,
}

fn file(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/regressions");
    folder.join(format!("{name}.jsonl"))
}

/// Reads the saved sequences.
pub fn load<S: Setup>(name: &str) -> Vec<Regression<S>> {
    let Ok(file) = File::open(file(name)) else { return Vec::new() };
    let lines = BufReader::new(file).lines().map(|line| line.expect("a line of a regression file"));
    lines.map(|line| serde_json::from_str(&line).expect("a regression")).collect()
}

/// Saves a sequence and returns its line.
pub fn save<S: Setup>(name: &str, regression: &Regression<S>) -> Result<String> {
    let file = file(name);
    if let Some(folder) = file.parent() {
        create_dir_all(folder)?;
    }
    let line = serde_json::to_string(regression)?;
    writeln!(OpenOptions::new().create(true).append(true).open(file)?, "{line}")?;
    Ok(line)
}
