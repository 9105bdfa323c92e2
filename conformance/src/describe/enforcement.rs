//! The enforcement of permissions in reports. `recorded` is written as `remembered`, its name in all reports so far.

use serde::{Deserialize, Deserializer, Serializer};

const TEXT: &str = "recorded";
const IN_REPORTS: &str = "remembered";

pub(super) fn serialize<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if text == TEXT { IN_REPORTS } else { text })
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok(if text == IN_REPORTS { TEXT.to_owned() } else { text })
}
