//! Random choices, determined by bytes.

/// Makes choices from bytes. Without bytes left, it chooses the first of everything.
#[derive(Clone, Debug)]
pub(crate) struct Choices<'a> {
    bytes: std::slice::Iter<'a, u8>,
}

impl<'a> Choices<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes: bytes.iter() }
    }

    /// Returns any byte.
    pub fn byte(&mut self) -> u8 {
        self.bytes.next().copied().unwrap_or(0)
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u8) -> u8 {
        ((u16::from(self.byte()) * u16::from(limit)) >> 8) as u8
    }

    /// Returns `true` with this probability in percent.
    pub fn percent(&mut self, often: u8) -> bool {
        // Large bytes mean `true`, so that a byte of 0 is the common case.
        self.below(100) >= 100 - often
    }

    /// Returns one of these values.
    pub fn one_of<T: Copy, const N: usize>(&mut self, these: [T; N]) -> T {
        these[usize::from(self.below(N as u8))]
    }

    /// Returns any number.
    pub fn number(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }
}
