//! Times as people write them.

use std::time::Duration;

/// `500ms`, `20s`, `5m`, `2h`; a number alone is seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let milliseconds = match unit {
        "ms" => 1,
        "s" | "" => 1000,
        "m" | "min" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        _ => 0,
    };
    let number = number.parse::<u64>().ok();
    match number.and_then(|number| number.checked_mul(milliseconds)) {
        Some(time) if time > 0 => Ok(Duration::from_millis(time)),
        _ => Err("a time such as 500ms, 20s, 5m or 2h is wanted".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::duration;
    use std::time::Duration;

    #[test]
    fn times_are_understood_and_nonsense_is_not() {
        for (text, seconds) in
            [("20s", 20.0), ("500ms", 0.5), ("5m", 300.0), ("2h", 7200.0), ("7", 7.0)]
        {
            assert_eq!(duration(text), Ok(Duration::from_secs_f64(seconds)));
        }
        for text in ["", "s", "0s", "-1s", "1.5s", "5 minutes", "18446744073709551615h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
