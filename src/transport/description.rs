//! The message that describes memory. It is sent together with the memory's descriptor.
//!
//! The message consists of a [`Header`] and the name as UTF-8.

use crate::agent::PciAddress;
use crate::error::{Argument, Error, ErrorKind, MalformedMessage, Operation, Problem};
use crate::vmm::{Allocation, Granularity, HandleType, Location};
use bytemuck::{Pod, Zeroable};

/// The part of a message before the name. Numbers have native byte order, because both processes are on one
/// machine.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Header {
    magic: [u8; 7],
    version: u8,
    /// The length of the whole message in bytes.
    pub length: u32,
    handle_type: u32,
    size: u64,
    granule: u64,
    domain: u32,
    /// Bus, device, function and the number 1; zeros if the owner is unknown.
    pci_numbers: [u8; 4],
    zeros: [u8; 24],
}

pub(super) const HEADER_SIZE: usize = size_of::<Header>();
const MAGIC: [u8; 7] = *b"hsavmm\0";
const VERSION: u8 = 1;
const MAX_NAME: usize = 255;
const FILE_DESCRIPTOR: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

/// A description of shared memory. The sender writes the description.
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
    /// The name that the sender gave the memory: up to 255 bytes, may be empty.
    pub name: String,
    /// The size in bytes. [`Channel::receive`](super::Channel::receive) compares it with the size of the memory.
    pub size: u64,
    /// The granule of the sender's sizes and addresses in bytes; 0 for memory of the host or of an unknown location.
    pub granule: u64,
    /// The PCI address of the GPU that owns the memory, if the sender knows it. The receiver cannot check
    /// it.
    pub owner: Option<PciAddress>,
}

impl Description {
    /// Describes memory. For callers that send the descriptor with
    /// [`Channel::send_descriptor`](super::Channel::send_descriptor) or by other means.
    ///
    /// # Errors
    /// Those of [`Vmm::allocation_granularity`](crate::Vmm::allocation_granularity).
    pub fn of(allocation: &Allocation, name: &str) -> Result<Self, Error> {
        let (vmm, properties) = (allocation.vmm(), allocation.properties());
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
            Error::new(Operation::Send, ErrorKind::without_value(argument, problem))
        };
        if self.name.len() > MAX_NAME {
            return Err(invalid(Argument::Name, Problem::TooLong(MAX_NAME)));
        }
        if self.size == 0 {
            return Err(invalid(Argument::Size, Problem::Zero));
        }
        let owner = self.owner.map(|it| (it.domain, [it.bus, it.device, it.function, 1]));
        let (domain, pci_numbers) = owner.unwrap_or_default();
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            length: (HEADER_SIZE + self.name.len()) as u32,
            handle_type: FILE_DESCRIPTOR.bits(),
            size: self.size,
            granule: self.granule,
            domain,
            pci_numbers,
            zeros: [0; 24],
        };
        Ok([bytemuck::bytes_of(&header), self.name.as_bytes()].concat())
    }

    /// Decodes a whole message.
    ///
    /// # Errors
    /// [`MalformedMessage`] if the bytes are not a valid message.
    pub fn decode(bytes: &[u8]) -> Result<Self, MalformedMessage> {
        let header = Header::decode(bytes)?;
        let Header { handle_type, size, granule, domain, pci_numbers, .. } = header;
        let (length, found) = (header.length as usize, bytes.len());
        if length != found {
            return Err(MalformedMessage::Truncated { length, found });
        }
        if handle_type != FILE_DESCRIPTOR.bits() {
            return Err(MalformedMessage::HandleType(handle_type));
        }
        if size == 0 {
            return Err(MalformedMessage::ZeroSize);
        }
        let owner = match pci_numbers {
            [0, 0, 0, 0] if domain == 0 => None,
            [bus, device, function, 1] => Some(PciAddress { domain, bus, device, function }),
            _ => return Err(MalformedMessage::Reserved),
        };
        if header.zeros != [0; 24] {
            return Err(MalformedMessage::Reserved);
        }
        let name =
            core::str::from_utf8(&bytes[HEADER_SIZE..]).map_err(|_| MalformedMessage::NotUtf8)?;
        Ok(Self { name: name.to_owned(), size, granule, owner })
    }
}

impl Header {
    /// Decodes the header of a message. Checks the magic bytes, the version and the length.
    pub fn decode(message: &[u8]) -> Result<Self, MalformedMessage> {
        let truncated = MalformedMessage::Truncated { length: HEADER_SIZE, found: message.len() };
        let header: Self =
            bytemuck::pod_read_unaligned(message.get(..HEADER_SIZE).ok_or(truncated)?);
        if header.magic != MAGIC {
            return Err(MalformedMessage::WrongMagic);
        }
        if header.version != VERSION {
            return Err(MalformedMessage::Version(header.version));
        }
        let valid_lengths = HEADER_SIZE..=HEADER_SIZE + MAX_NAME;
        if !valid_lengths.contains(&(header.length as usize)) {
            return Err(MalformedMessage::Length(header.length));
        }
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::{Description, HEADER_SIZE, MalformedMessage, Problem};
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
    fn encode_rejects_long_names_and_zero_size() {
        let long = Description { name: "n".repeat(256), ..example() };
        let problem = |description: Description| description.encode().unwrap_err().problem();
        assert_eq!(problem(long), Some(Problem::TooLong(255)));
        assert_eq!(problem(Description { size: 0, ..example() }), Some(Problem::Zero));
    }

    #[test]
    fn decode_rejects_wrong_lengths() {
        let mut bytes = example().encode().unwrap();
        for end in 0..bytes.len() {
            assert!(matches!(
                Description::decode(&bytes[..end]),
                Err(MalformedMessage::Truncated { found, .. }) if found == end
            ));
        }
        bytes.push(b'!');
        assert!(matches!(Description::decode(&bytes), Err(MalformedMessage::Truncated { .. })));
    }

    #[test]
    fn decode_detects_every_changed_bit() {
        let bytes = example().encode().unwrap();
        for index in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[index] ^= 1 << bit;
                if let Ok(decoded) = Description::decode(&changed) {
                    assert_ne!(decoded, example(), "bit {bit} of byte {index} is ignored");
                    assert_eq!(decoded.encode().unwrap(), changed);
                }
            }
        }
        let mut header = [0; HEADER_SIZE];
        assert_eq!(Description::decode(&header), Err(MalformedMessage::WrongMagic));
        header[..7].copy_from_slice(b"hsavmm\0");
        header[7] = 2;
        assert_eq!(Description::decode(&header), Err(MalformedMessage::Version(2)));
    }
}
