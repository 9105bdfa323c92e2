//! Selects cases by name.

use crate::cases;

/// Returns whether a pattern selects the case with this name. The name of a case selects only this case. Other patterns
/// select as in [`matches`].
pub(crate) fn selects(pattern: &str, name: &str) -> bool {
    match cases().iter().any(|case| case.name == pattern) {
        true => name == pattern,
        false => matches(pattern, name),
    }
}

/// Returns whether a pattern selects a name. A pattern without `*` matches any part of the name; a
/// pattern with `*` must match the whole name.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let (Some(first), true) = (parts.next(), pattern.contains('*')) else {
        return name.contains(pattern);
    };
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        match rest.find(part) {
            Some(start) => rest = &rest[start + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::{matches, selects};

    #[test]
    fn name_of_a_case_selects_only_this_case() {
        let (name, longer) = ("pool.memory.filled", "pool.memory.filled_by_the_runtime");
        assert!(selects(name, name) && !selects(name, longer));
        assert!(selects("memory.filled", name) && selects("memory.filled", longer));
    }

    #[test]
    fn patterns_match_names() {
        for (pattern, name, expected) in [
            ("", "map.offset.refused", true),
            ("offset", "map.offset.refused", true),
            ("offset.*", "map.offset.refused", false),
            ("map.*", "map.offset.refused", true),
            ("map.*", "unmap.run.whole", false),
            ("*.refused", "map.offset.refused", true),
            ("m*off*sed", "map.offset.refused", true),
            ("m*sed*off", "map.offset.refused", false),
            ("ab*ba", "aba", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
