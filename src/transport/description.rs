//! What a message says of the memory whose descriptor it brings.
//!
//! ```text
//!  0  "hsavmm" 0, version          16  size, 8 bytes            32  PCI domain, bus, device,
//!  8  length of all, 4 bytes       24  granule, 8 bytes             function, and whether known
//! 12  type of handle, 4 bytes      40  zeros, 24 bytes          64  name, as UTF-8
//! ```
//!
//! Numbers are of the machine's byte order: both ends are on it.

use crate::agent::{AgentKind, PciAddress};
use crate::vmm::{Allocation, Location};
use crate::{Granularity, HandleType, Vmm, VmmError};

/// The bytes of a message before the name.
pub(super) const HEADER: usize = 64;
const MAGIC: &[u8; 7] = b"hsavmm\0";
const VERSION: u8 = 1;
const NAME: usize = 255;
const LONGEST: usize = HEADER + NAME;

/// What is known of shared memory; of what was received, what its sender says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// What the sender calls it: up to 255 bytes, may be empty.
    pub name: String,
    /// Its size in bytes. On receipt, that of the descriptor was found to be the same.
    pub size: u64,
    /// What its sender's sizes and addresses are multiples of.
    pub granule: u64,
    /// The GPU whose memory it is, if the sender knows. The receiver may find it at the same
    /// place, but what the sender says is not proven.
    pub owner: Option<PciAddress>,
}

/// Why bytes are no description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// They do not begin as ours do.
    #[error("does not begin as a message of hsa-vmm")]
    NotOurs,
    /// They are of another version.
    #[error("is of version {0}, this end speaks {VERSION}")]
    Version(u8),
    /// They cannot be that many.
    #[error("says that it has {0} bytes; messages have {HEADER} to {LONGEST}")]
    Length(u32),
    /// They are not as many as they say.
    #[error("has {found} bytes and says {said}")]
    CutOff {
        /// How many they say they are.
        said: usize,
        /// How many they are.
        found: usize,
    },
    /// The type of the handle is none that goes over a socket.
    #[error("brings a handle of type {0}; only file descriptors (1) can be sent")]
    HandleType(u32),
    /// The memory has no size.
    #[error("describes memory of no size")]
    NoSize,
    /// What must be zero is not.
    #[error("has something where nothing is defined")]
    Reserved,
    /// The name is no text.
    #[error("has a name that is no UTF-8")]
    NotText,
    /// The name is too long to be sent.
    #[error("has a name of {0} bytes; {NAME} are allowed")]
    NameTooLong(usize),
}

impl Description {
    /// Describes memory, for those who send the descriptor themselves.
    ///
    /// # Errors
    /// As for [`Vmm::allocation_granularity`].
    pub fn of(vmm: &Vmm, allocation: &Allocation, name: &str) -> Result<Self, VmmError> {
        let properties = allocation.properties();
        let agent = match properties.location {
            Location::Agent(id) => vmm.runtime().agent(id),
            _ => None,
        };
        let granule = match agent {
            Some(_) => vmm.allocation_granularity(&properties, Granularity::Minimum)?,
            None => 0,
        };
        let gpu = agent.filter(|agent| agent.kind() == AgentKind::Gpu);
        Ok(Self {
            name: name.to_owned(),
            size: allocation.size() as u64,
            granule: granule as u64,
            owner: gpu.and_then(|gpu| gpu.pci()),
        })
    }

    /// The bytes that say it.
    ///
    /// # Errors
    /// [`Malformed::NameTooLong`], [`Malformed::NoSize`].
    pub fn encode(&self) -> Result<Vec<u8>, Malformed> {
        if self.name.len() > NAME {
            return Err(Malformed::NameTooLong(self.name.len()));
        }
        if self.size == 0 {
            return Err(Malformed::NoSize);
        }
        let mut bytes = vec![0; HEADER + self.name.len()];
        let mut put = |at: usize, what: &[u8]| bytes[at..at + what.len()].copy_from_slice(what);
        put(0, MAGIC);
        put(7, &[VERSION]);
        put(8, &((HEADER + self.name.len()) as u32).to_ne_bytes());
        put(12, &HandleType::PosixFileDescriptor.bit().bits().to_ne_bytes());
        put(16, &self.size.to_ne_bytes());
        put(24, &self.granule.to_ne_bytes());
        if let Some(PciAddress { domain, bus, device, function }) = self.owner {
            put(32, &domain.to_ne_bytes());
            put(36, &[bus, device, function, 1]);
        }
        put(HEADER, self.name.as_bytes());
        Ok(bytes)
    }

    /// Reads bytes that are all of a message.
    ///
    /// # Errors
    /// [`Malformed`], whatever the bytes are.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let found = bytes.len();
        let Some((header, name)) = bytes.split_first_chunk::<HEADER>() else {
            return Err(Malformed::CutOff { said: HEADER, found });
        };
        let said = length(header)?;
        if said != found {
            return Err(Malformed::CutOff { said, found });
        }
        let handle_type = u32::from_ne_bytes(part(header, 12));
        if handle_type != HandleType::PosixFileDescriptor.bit().bits() {
            return Err(Malformed::HandleType(handle_type));
        }
        let size = u64::from_ne_bytes(part(header, 16));
        if size == 0 {
            return Err(Malformed::NoSize);
        }
        let domain = u32::from_ne_bytes(part(header, 32));
        let [bus, device, function, known] = part(header, 36);
        let owner = match known {
            0 if (domain, bus, device, function) == (0, 0, 0, 0) => None,
            1 => Some(PciAddress { domain, bus, device, function }),
            _ => return Err(Malformed::Reserved),
        };
        if part::<24>(header, 40) != [0; 24] {
            return Err(Malformed::Reserved);
        }
        let name = core::str::from_utf8(name).map_err(|_| Malformed::NotText)?.to_owned();
        Ok(Self { name, size, granule: u64::from_ne_bytes(part(header, 24)), owner })
    }
}

/// How many bytes the message has that begins with these.
pub(super) fn length(header: &[u8; HEADER]) -> Result<usize, Malformed> {
    if part::<7>(header, 0) != *MAGIC {
        return Err(Malformed::NotOurs);
    }
    if header[7] != VERSION {
        return Err(Malformed::Version(header[7]));
    }
    let length = u32::from_ne_bytes(part(header, 8));
    let possible = HEADER as u32..=LONGEST as u32;
    if possible.contains(&length) { Ok(length as usize) } else { Err(Malformed::Length(length)) }
}

/// Some of the header's bytes; those beyond its end would be zeros.
fn part<const N: usize>(header: &[u8; HEADER], at: usize) -> [u8; N] {
    core::array::from_fn(|index| header.get(at + index).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::{Description, HEADER, Malformed};
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
    fn what_was_said_is_understood() {
        let unknown = Description { owner: None, name: String::new(), ..example() };
        let longest = Description { name: "n".repeat(255), ..example() };
        for description in [example(), unknown, longest] {
            let bytes = description.encode().unwrap();
            assert_eq!(Description::decode(&bytes), Ok(description));
        }
    }

    #[test]
    fn what_cannot_be_said_is_refused() {
        let long = Description { name: "n".repeat(256), ..example() };
        assert_eq!(long.encode(), Err(Malformed::NameTooLong(256)));
        assert_eq!(Description { size: 0, ..example() }.encode(), Err(Malformed::NoSize));
    }

    #[test]
    fn every_prefix_and_every_longer_message_is_refused() {
        let mut bytes = example().encode().unwrap();
        for end in 0..bytes.len() {
            assert!(matches!(
                Description::decode(&bytes[..end]),
                Err(Malformed::CutOff { found, .. }) if found == end
            ));
        }
        bytes.push(b'!');
        assert!(matches!(Description::decode(&bytes), Err(Malformed::CutOff { .. })));
    }

    /// Every byte matters: no other message means the same.
    #[test]
    fn every_change_is_refused_or_understood_as_something_else() {
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
        assert_eq!(Description::decode(&header), Err(Malformed::NotOurs));
        header[..7].copy_from_slice(b"hsavmm\0");
        header[7] = 2;
        assert_eq!(Description::decode(&header), Err(Malformed::Version(2)));
    }
}
