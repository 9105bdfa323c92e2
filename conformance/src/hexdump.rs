//! Differences between expected and found bytes, as hexdump lines.

use std::fmt::Write;

/// The number of bytes in a word. Descriptions count differing words instead of bytes: tests fill memory with 32-bit
/// numbers, and two different numbers often have some equal bytes.
const WORD_BYTES: usize = 4;
const LINE_BYTES: usize = 16;
/// The maximum number of differing lines in a description.
const MAX_LINES: usize = 3;

/// Describes how the found bytes differ from the expected bytes: the number of differing words and the first differing
/// byte (less than a word is counted in bytes), then lines of the expected bytes, the found bytes and their XOR.
/// Returns `None` if there is no difference.
pub(crate) fn difference(expected: &[u8], found: &[u8]) -> Option<String> {
    if expected.len() != found.len() {
        return Some(format!("{} bytes instead of {}", found.len(), expected.len()));
    }
    let first = expected.iter().zip(found).position(|(expected, found)| expected != found)?;
    let last = expected.iter().zip(found).rposition(|(expected, found)| expected != found)?;
    let (unit, unit_bytes) =
        if expected.len() < WORD_BYTES { ("bytes", 1) } else { ("32-bit words", WORD_BYTES) };
    let words = expected.chunks(unit_bytes).zip(found.chunks(unit_bytes));
    let count = words.filter(|(expected, found)| expected != found).count();
    let differ = if count == 1 { "differs" } else { "differ" };
    let mut text = format!(
        "{count} of {} {unit} {differ}, the first byte at offset {first:#x}, the last at {last:#x}: {:#04x} \
         instead of {:#04x} (XOR {:#04x})",
        expected.len().div_ceil(unit_bytes),
        found[first],
        expected[first],
        expected[first] ^ found[first],
    );
    let lines = expected.chunks(LINE_BYTES).zip(found.chunks(LINE_BYTES)).enumerate();
    let different = lines.filter(|(_, (expected, found))| expected != found);
    let mut omitted = 0;
    for (index, (number, (expected, found))) in different.enumerate() {
        if index >= MAX_LINES {
            omitted += 1;
            continue;
        }
        let xor: Vec<u8> = expected.iter().zip(found).map(|(left, right)| left ^ right).collect();
        for (name, bytes) in [("expected", expected), ("found", found), ("XOR", &xor)] {
            // Writing to a string cannot fail.
            let _ = write!(text, "\n    {:#06x} {name:8}{}", number * LINE_BYTES, hex(bytes));
        }
    }
    if omitted > 0 {
        let plural = if omitted == 1 { "" } else { "s" };
        let _ = write!(text, "\n    and {omitted} more line{plural} of {LINE_BYTES} bytes");
    }
    Some(text)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!(" {byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn difference_shows_the_first_byte_and_xor() {
        let expected = [0x5a; 40];
        assert_eq!(difference(&expected, &expected), None);
        let mut found = expected;
        found[18] = 0x58;
        found[39] = 0;
        let text = difference(&expected, &found).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let first = "2 of 10 32-bit words differ, the first byte at offset 0x12, the last at 0x27: 0x58 instead of \
                     0x5a (XOR 0x02)";
        assert_eq!((lines.len(), lines[0]), (7, first), "{text}");
        assert_eq!(lines[3], format!("    0x0010 XOR      00 00 02{}", " 00".repeat(13)), "{text}");
        assert_eq!(lines[5], "    0x0020 found    5a 5a 5a 5a 5a 5a 5a 00");
    }

    #[test]
    fn many_different_lines_are_counted() {
        let text = difference(&[0; 160], &[1; 160]).unwrap();
        assert!(text.ends_with("and 7 more lines of 16 bytes"), "{text}");
        assert_eq!(difference(&[0; 3], &[0; 2]).unwrap(), "2 bytes instead of 3");
    }

    #[test]
    fn half_filled_memory_differs_in_half_of_words() {
        // Three of four bytes of the number are zero, as in memory that was not written.
        let expected = 0xc100_u32.to_le_bytes().repeat(32);
        let mut found = expected.clone();
        found[64..].fill(0);
        let text = difference(&expected, &found).unwrap();
        assert!(
            text.starts_with("16 of 32 32-bit words differ, the first byte at offset 0x41, "),
            "{text}"
        );
        let text = difference(&expected[..6], &[1; 6]).unwrap();
        assert!(text.starts_with("2 of 2 32-bit words differ"), "{text}");
        let text = difference(&[1], &[0]).unwrap();
        assert!(text.starts_with("1 of 1 bytes differs, the first byte at"), "{text}");
    }
}
