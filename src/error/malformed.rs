//! Why a received message is invalid.

/// Why the bytes of a message are not a valid [`Description`](crate::transport::Description).
///
/// ```
/// use hsa_vmm::error::Malformed;
/// use hsa_vmm::transport::Description;
///
/// assert_eq!(Description::decode(b"hello"), Err(Malformed::Truncated { length: 64, found: 5 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The first bytes are not those of a message of this library.
    #[error("is not a message of hsa-vmm")]
    WrongMagic,
    /// The message has another version.
    #[error("has the unsupported version {0}")]
    Version(u8),
    /// No message has this length.
    #[error("has the invalid length {0}")]
    Length(u32),
    /// There are more or fewer bytes than the header says.
    #[error("has {found} bytes instead of {length}")]
    Truncated {
        /// The length in the header.
        length: usize,
        /// The number of bytes.
        found: usize,
    },
    /// The handle has a type that cannot be sent over a socket.
    #[error("has a handle of type {0}; only file descriptors (1) can be sent")]
    HandleType(u32),
    /// The size of the memory is zero.
    #[error("describes memory of size zero")]
    ZeroSize,
    /// A reserved byte is not zero.
    #[error("has reserved bytes that are not zero")]
    Reserved,
    /// The name is not UTF-8.
    #[error("has a name that is not UTF-8")]
    NotUtf8,
}
