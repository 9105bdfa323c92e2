//! Simplifies operations.

use crate::operations::Operation;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Returns all forms of an operation with one simpler argument. For each argument, larger simplifications come first.
///
/// Works on the operation's JSON, which names every argument. Drops forms that are not valid operations.
pub(super) fn simpler_forms(operation: &Operation) -> Vec<Operation> {
    let Ok(value) = serde_json::to_value(operation) else { return Vec::new() };
    let forms = simpler_values("", &value).into_iter();
    forms.filter_map(|form| serde_json::from_value(form).ok()).collect()
}

/// Returns the simplest value of an argument; `None` for arguments without a simplest value.
fn simplest_value(name: &str) -> Option<Value> {
    Some(match name {
        "alignment" | "hint" | "start" | "end" => json!("none"),
        "edge" => json!("first"),
        "extent" => json!("whole"),
        "size" => json!({"granules": 1}),
        "handle" => json!({"live": 0}),
        "descriptor" => json!({"exported": 0}),
        "place" => json!({"run": [0, 1]}),
        "on" => json!({"gpu": 0}),
        "agent" => json!({"agent": 0}),
        "uncached" => json!(false),
        _ => return None,
    })
}

/// Returns simpler forms of a value: smaller numbers, shorter lists, the simplest variant. Each form is
/// strictly simpler, so that simplification terminates.
fn simpler_values(name: &str, value: &Value) -> Vec<Value> {
    let mut forms: Vec<_> = simplest_value(name)
        .filter(|simplest| !is_same_variant(simplest, value))
        .into_iter()
        .collect();
    match value {
        Value::Number(number) => {
            let number = number.as_u64().unwrap_or_default();
            let smaller = [0, 1, number / 16, number / 2, number.saturating_sub(1)];
            let smaller: BTreeSet<_> = smaller.into_iter().filter(|&it| it < number).collect();
            forms.extend(smaller.into_iter().map(Value::from));
        }
        Value::Array(items) => {
            // Shorter tuples are not valid operations and are dropped later.
            for at in 0..items.len() {
                let mut shorter = items.clone();
                shorter.remove(at);
                forms.push(Value::Array(shorter));
            }
            for (at, item) in items.iter().enumerate() {
                for simpler in simpler_values("", item) {
                    let mut items = items.clone();
                    items[at] = simpler;
                    forms.push(Value::Array(items));
                }
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                for simpler in simpler_values(name, field) {
                    let mut fields = fields.clone();
                    fields.insert(name.clone(), simpler);
                    forms.push(Value::Object(fields));
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
    forms
}

fn is_same_variant(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => left.keys().eq(right.keys()),
        // A number has no variants: `simpler_values` makes it smaller.
        (_, Value::Number(_)) => true,
        _ => left == right,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{Generator, SequenceRuntime};

    #[test]
    fn simplification_terminates() {
        let generator = Generator {
            seed: 3,
            max_operations: 400,
            runtime: SequenceRuntime::Any,
            faults: false,
            every: None,
        };
        for operation in generator.sequence(0).operations {
            let mut operation = operation;
            let mut steps = 0;
            loop {
                let forms = simpler_forms(&operation);
                // Take large and small simplifications in turn.
                let Some(next) = forms.get(steps % forms.len().max(1)) else { break };
                assert_ne!(*next, operation);
                operation = next.clone();
                steps += 1;
                assert!(steps < 5_000, "{operation:?}");
            }
        }
    }

    #[test]
    fn each_argument_is_simplified_separately() {
        let map = json!({
            "operation": "map", "handle": {"past": 7}, "extent": "too_much",
            "span": {"place": {"gap": [3, 2]}, "start": "none", "end": "byte_on"},
            "offset": {"granules": 0}, "flags": 0,
        });
        let operation = serde_json::from_value(map).unwrap();
        let forms: Vec<_> =
            simpler_forms(&operation).iter().map(|it| serde_json::to_string(it).unwrap()).collect();
        for part in [
            r#""handle":{"live":0}"#,
            r#""handle":{"past":3}"#,
            r#""extent":"whole""#,
            r#""place":{"run":[0,1]}"#,
            r#""place":{"gap":[0,2]}"#,
            r#""end":"none""#,
        ] {
            assert_eq!(forms.iter().filter(|form| form.contains(part)).count(), 1, "{part}");
        }
    }
}
