//! Serializes the field `enforcement` of a report, which says whether an agent's permissions are enforced. Files
//! contain `remembered` for the value `recorded`, so that earlier and later versions can read each other's reports.

use serde::{Deserialize, Deserializer, Serializer};

const RECORDED: &str = "recorded";
const IN_FILES: &str = "remembered";

pub(super) fn serialize<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if text == RECORDED { IN_FILES } else { text })
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok(if text == IN_FILES { RECORDED.to_owned() } else { text })
}
