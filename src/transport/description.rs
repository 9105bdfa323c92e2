//! The message that describes the memory whose descriptor it is sent with.
//!
//! ```text
//!  0  "hsavmm" 0, version          16  size, 8 bytes            32  PCI domain, bus, device,
//!  8  length of all, 4 bytes       24  granule, 8 bytes             function, and whether known
//! 12  type of handle, 4 bytes      40  zeros, 24 bytes          64  name, as UTF-8
//! ```
//!
//! Numbers have the machine's byte order: both ends are on it.

use crate::agent::PciAddress;
use crate::error::{Argument, Error, ErrorKind, Malformed, Operation, Problem};
use crate::vmm::{Allocation, Granularity, HandleType, Location, Vmm};

/// The bytes of a message before the name.
pub(super) const HEADER: usize = 64;
const MAGIC: &[u8; 7] = b"hsavmm\0";
const VERSION: u8 = 1;
const LONGEST_NAME: usize = 255;
const FILE_DESCRIPTOR: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

/// Describes shared memory. Of received memory, it is what the sender says.
///
/// ```
/// use hsa_vmm::transport::Description;
///
/// let description = Description { name: "weights".into(), size: 2 << 20, ..Default::default() };
/// let message = description.encode()?;
/// assert_eq!(Description::decode(&message), Ok(description));
/// # Ok::<(), hsa_vmm::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// The name that the sender gave it: up to 255 bytes, may be empty.
    pub name: String,
    /// The size in bytes. [`Channel::receive`](super::Channel::receive) compares it with the memory's.
    pub size: u64,
    /// The granule of the sender's sizes and addresses in bytes.
    pub granule: u64,
    /// The PCI address of the GPU that owns the memory, if the sender knows it. The receiver cannot check
    /// it.
    pub owner: Option<PciAddress>,
}

impl Description {
    /// Describes memory, for a caller that sends the descriptor itself.
    ///
    /// # Errors
    /// Those of [`Vmm::allocation_granularity`].
    pub fn of(vmm: &Vmm, allocation: &Allocation, name: &str) -> Result<Self, Error> {
        let properties = allocation.properties();
        let (mut granule, mut owner) = (0, None);
        if let Location::Agent(id) = properties.location
            && let Some(agent) = vmm.runtime().agent(id)
        {
            granule = vmm.allocation_granularity(&properties, Granularity::Minimum)? as u64;
            owner = agent.pci;
        }
        Ok(Self { name: name.to_owned(), size: allocation.size() as u64, granule, owner })
    }

    /// Encodes the description as a message.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a name of more than 255 bytes, or a size of zero.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        let invalid = |argument, problem| {
            Error::new(Operation::Send, ErrorKind::invalid_list(argument, problem))
        };
        if self.name.len() > LONGEST_NAME {
            return Err(invalid(Argument::Name, Problem::TooLong(LONGEST_NAME)));
        }
        if self.size == 0 {
            return Err(invalid(Argument::Size, Problem::Zero));
        }
        let mut bytes = vec![0; HEADER + self.name.len()];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, MAGIC);
        put(7, &[VERSION]);
        put(8, &((HEADER + self.name.len()) as u32).to_ne_bytes());
        put(12, &FILE_DESCRIPTOR.bits().to_ne_bytes());
        put(16, &self.size.to_ne_bytes());
        put(24, &self.granule.to_ne_bytes());
        if let Some(PciAddress { domain, bus, device, function }) = self.owner {
            put(32, &domain.to_ne_bytes());
            put(36, &[bus, device, function, 1]);
        }
        put(HEADER, self.name.as_bytes());
        Ok(bytes)
    }

    /// Decodes a whole message.
    ///
    /// # Errors
    /// [`Malformed`] for every other sequence of bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let found = bytes.len();
        if found < HEADER {
            return Err(Malformed::Truncated { length: HEADER, found });
        }
        let length = message_length(bytes)?;
        if length != found {
            return Err(Malformed::Truncated { length, found });
        }
        let handle_type = u32::from_ne_bytes(part(bytes, 12));
        if handle_type != FILE_DESCRIPTOR.bits() {
            return Err(Malformed::HandleType(handle_type));
        }
        let size = u64::from_ne_bytes(part(bytes, 16));
        if size == 0 {
            return Err(Malformed::ZeroSize);
        }
        let domain = u32::from_ne_bytes(part(bytes, 32));
        let [bus, device, function, known] = part(bytes, 36);
        let owner = match known {
            0 if (domain, bus, device, function) == (0, 0, 0, 0) => None,
            1 => Some(PciAddress { domain, bus, device, function }),
            _ => return Err(Malformed::Reserved),
        };
        if part::<24>(bytes, 40) != [0; 24] {
            return Err(Malformed::Reserved);
        }
        let name = core::str::from_utf8(&bytes[HEADER..]).map_err(|_| Malformed::NotUtf8)?;
        let granule = u64::from_ne_bytes(part(bytes, 24));
        Ok(Self { name: name.to_owned(), size, granule, owner })
    }
}

/// Returns the length in a header.
pub(super) fn message_length(header: &[u8]) -> Result<usize, Malformed> {
    if part(header, 0) != *MAGIC {
        return Err(Malformed::WrongMagic);
    }
    let [version] = part(header, 7);
    if version != VERSION {
        return Err(Malformed::Version(version));
    }
    let length = u32::from_ne_bytes(part(header, 8));
    let valid = (HEADER..=HEADER + LONGEST_NAME).contains(&(length as usize));
    if valid { Ok(length as usize) } else { Err(Malformed::Length(length)) }
}

/// Returns `N` bytes of a header, with zeros past its end.
fn part<const N: usize>(header: &[u8], at: usize) -> [u8; N] {
    core::array::from_fn(|index| header.get(at + index).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::{Description, HEADER, Malformed, Problem};
    use crate::agent::PciAddress;

    fn example() -> Description {
        Description {
            name: "weights, layer 7 ✓".to_owned(),
            size: 3 << 30,
            granule: 4096,
            owner: Some(PciAddress { domain: 1, bus: 0xc1, device: 2, function: 3 }),
        }
    }

    #[test]
    fn decode_inverts_encode() {
        let unknown = Description { owner: None, name: String::new(), ..example() };
        let longest = Description { name: "n".repeat(255), ..example() };
        for description in [example(), unknown, longest] {
            let bytes = description.encode().unwrap();
            assert_eq!(Description::decode(&bytes), Ok(description));
        }
    }

    #[test]
    fn encode_rejects_long_names_and_no_size() {
        let long = Description { name: "n".repeat(256), ..example() };
        let problem = |description: Description| description.encode().unwrap_err().problem();
        assert_eq!(problem(long), Some(Problem::TooLong(255)));
        assert_eq!(problem(Description { size: 0, ..example() }), Some(Problem::Zero));
    }

    #[test]
    fn decode_rejects_other_lengths() {
        let mut bytes = example().encode().unwrap();
        for end in 0..bytes.len() {
            assert!(matches!(
                Description::decode(&bytes[..end]),
                Err(Malformed::Truncated { found, .. }) if found == end
            ));
        }
        bytes.push(b'!');
        assert!(matches!(Description::decode(&bytes), Err(Malformed::Truncated { .. })));
    }

    #[test]
    fn decode_is_injective() {
        let bytes = example().encode().unwrap();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                if let Ok(read) = Description::decode(&changed) {
                    assert_ne!(read, example(), "bit {bit} of byte {at}");
                    assert_eq!(read.encode().unwrap(), changed);
                }
            }
        }
        let mut header = [0; HEADER];
        assert_eq!(Description::decode(&header), Err(Malformed::WrongMagic));
        header[..7].copy_from_slice(b"hsavmm\0");
        header[7] = 2;
        assert_eq!(Description::decode(&header), Err(Malformed::Version(2)));
    }
}
