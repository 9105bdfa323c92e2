//! Random choices, determined by bytes.

/// Makes choices from bytes. When no bytes are left, each choice is the first value.
#[derive(Clone, Debug)]
pub(crate) struct Choices<'a> {
    bytes: std::slice::Iter<'a, u8>,
}

impl<'a> Choices<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes: bytes.iter() }
    }

    /// Returns the next byte, or 0.
    pub fn byte(&mut self) -> u8 {
        self.bytes.next().copied().unwrap_or(0)
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u8) -> u8 {
        ((u16::from(self.byte()) * u16::from(limit)) >> 8) as u8
    }

    /// Returns `true` with a probability in percent.
    pub fn percent(&mut self, probability: u8) -> bool {
        // Large bytes mean `true`. Therefore 0, which is also the value after the last byte, means `false`.
        self.below(100) >= 100 - probability
    }

    pub fn one_of<T: Copy, const N: usize>(&mut self, values: [T; N]) -> T {
        values[usize::from(self.below(N as u8))]
    }

    /// Returns a number from the next eight bytes.
    pub fn number(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }
}
