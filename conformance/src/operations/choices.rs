//! Choices, made by bytes that come from anywhere.

/// Bytes that decide; when there are none left, the first of everything is chosen.
#[derive(Clone, Debug)]
pub(crate) struct Choices<'a> {
    bytes: std::slice::Iter<'a, u8>,
}

impl<'a> Choices<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes: bytes.iter() }
    }

    /// Any byte.
    pub fn byte(&mut self) -> u8 {
        self.bytes.next().copied().unwrap_or(0)
    }

    /// A number below this one.
    pub fn below(&mut self, limit: u8) -> u8 {
        ((u16::from(self.byte()) * u16::from(limit)) >> 8) as u8
    }

    /// Whether something comes to pass that does so this often in a hundred times.
    pub fn percent(&mut self, often: u8) -> bool {
        // The other way round, so that a byte of 0 is the usual.
        self.below(100) >= 100 - often
    }

    /// One of these.
    pub fn one_of<T: Copy, const N: usize>(&mut self, these: [T; N]) -> T {
        these[usize::from(self.below(N as u8))]
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }
}
