//! Writes a line of JSON.

/// A JSON object on one line. Keys are written in the order of the calls.
#[derive(Debug)]
pub(crate) struct Line {
    bytes: Vec<u8>,
}

impl Line {
    /// Begins an object.
    pub(crate) fn new() -> Self {
        let mut bytes = Vec::with_capacity(512);
        bytes.push(b'{');
        Self { bytes }
    }

    fn key(&mut self, key: &str) {
        if !matches!(self.bytes.last(), Some(b'{')) {
            self.bytes.push(b',');
        }
        self.bytes.push(b'"');
        self.bytes.extend_from_slice(key.as_bytes());
        self.bytes.extend_from_slice(b"\":");
    }

    fn digits(&mut self, mut value: u64, base: u64) {
        let mut digits = [0_u8; 20];
        let mut length = 0;
        for digit in digits.iter_mut().rev() {
            let rest = (value % base) as u8;
            *digit = if rest < 10 { b'0' + rest } else { b'a' + rest - 10 };
            value /= base;
            length += 1;
            if value == 0 {
                break;
            }
        }
        let start = digits.len() - length;
        self.bytes.extend_from_slice(digits.get(start..).unwrap_or_default());
    }

    /// Writes a decimal number.
    pub(crate) fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        self.digits(value, 10);
    }

    /// Writes a signed number.
    pub(crate) fn signed(&mut self, key: &str, value: i64) {
        self.key(key);
        if value < 0 {
            self.bytes.push(b'-');
        }
        self.digits(value.unsigned_abs(), 10);
    }

    /// Writes an address or a handle: a hexadecimal number as text.
    pub(crate) fn hex(&mut self, key: &str, value: u64) {
        self.key(key);
        self.hex_value(value);
    }

    fn hex_value(&mut self, value: u64) {
        self.bytes.extend_from_slice(b"\"0x");
        self.digits(value, 16);
        self.bytes.push(b'"');
    }

    /// Writes a Boolean.
    pub(crate) fn bool(&mut self, key: &str, value: bool) {
        self.key(key);
        self.bytes.extend_from_slice(if value { b"true" } else { b"false" });
    }

    pub(crate) fn text(&mut self, key: &str, value: &[u8]) {
        self.key(key);
        self.text_value(value);
    }

    fn text_value(&mut self, value: &[u8]) {
        self.bytes.push(b'"');
        for character in String::from_utf8_lossy(value).chars() {
            match character {
                '"' | '\\' => self.bytes.extend_from_slice(&[b'\\', character as u8]),
                '\0'..='\x1f' => {
                    self.bytes.extend_from_slice(b"\\u00");
                    self.digits(u64::from(character) >> 4, 16);
                    self.digits(u64::from(character) & 15, 16);
                }
                _ => self.bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        self.bytes.push(b'"');
    }

    /// Writes a list. `write` writes each value with a function whose name ends with `_item`.
    pub(crate) fn list<T>(
        &mut self,
        key: &str,
        values: impl IntoIterator<Item = T>,
        write: impl Fn(&mut Self, T),
    ) {
        self.key(key);
        self.bytes.push(b'[');
        for (index, value) in values.into_iter().enumerate() {
            if index > 0 {
                self.bytes.push(b',');
            }
            write(self, value);
        }
        self.bytes.push(b']');
    }

    /// Writes a hexadecimal number in a list.
    pub(crate) fn hex_item(&mut self, value: u64) {
        self.hex_value(value);
    }

    /// Writes text in a list.
    pub(crate) fn text_item(&mut self, value: &[u8]) {
        self.text_value(value);
    }

    /// Writes an object in a list.
    pub(crate) fn object_item(&mut self, write: impl FnOnce(&mut Self)) {
        self.bytes.push(b'{');
        write(self);
        self.bytes.push(b'}');
    }

    /// Ends the object and the line.
    pub(crate) fn end(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(b"}\n");
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_json() {
        let mut line = Line::new();
        line.text("text", b"a\"\\\n\x1f\xff\xc3\xa9");
        line.number("zero", 0);
        line.number("most", u64::MAX);
        line.signed("negative", -1);
        line.hex("hex", 0x7f00_1234_abcd);
        line.bool("flag", true);
        line.list("list", [1, 2], |line, value| line.hex_item(value));
        line.list("objects", [3], |line, value| line.object_item(|line| line.number("n", value)));
        line.list("none", [0; 0], Line::hex_item);
        assert_eq!(
            String::from_utf8(line.end()).unwrap(),
            "{\"text\":\"a\\\"\\\\\\u000a\\u001f\u{fffd}é\",\"zero\":0,\"most\":18446744073709551615,\
             \"negative\":-1,\"hex\":\"0x7f001234abcd\",\"flag\":true,\"list\":[\"0x1\",\"0x2\"],\
             \"objects\":[{\"n\":3}],\"none\":[]}\n"
        );
    }
}
