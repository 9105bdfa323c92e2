//! What is held is a ladder: nothing, addresses, memory, and a mapping of it. To pause is to climb
//! down, to resume is to climb up, and who cannot go on climbs back.

use super::{BufferError, PausableBuffer};
use crate::Kept;
use crate::vmm::{Allocation, Mapping, Reservation};

/// What a paused buffer has: its addresses, unless something went wrong.
#[derive(Debug)]
pub(super) enum Held {
    Nothing,
    Addresses(Reservation),
    /// The runtime did not take the memory back.
    Memory(Reservation, Allocation),
    /// Nor let it be unmapped.
    Mapping(Mapping),
}

impl PausableBuffer {
    /// Gives back what is held but for the addresses, as far as that goes.
    pub(super) fn let_go(&self, held: Held) -> (Held, Result<(), BufferError>) {
        let (reservation, memory) = match held {
            Held::Nothing | Held::Addresses(_) => return (held, Ok(())),
            Held::Memory(reservation, memory) => (reservation, memory),
            Held::Mapping(mapping) => {
                let both = (mapping.reservation().clone(), mapping.allocation().clone());
                match mapping.unmap() {
                    Ok(()) => both,
                    Err(Kept { value, error }) => return (Held::Mapping(value), Err(error.into())),
                }
            }
        };
        let (addresses, answer) = if self.vmm.quirks().memory_returns_with_addresses {
            let name = reservation.name().unwrap_or_default();
            match reservation.free() {
                Err(Kept { value: reservation, error }) => {
                    return (Held::Memory(reservation, memory), Err(error.into()));
                }
                Ok(()) => match self.reserve() {
                    Ok(reservation) => (Some(reservation.named(&name)), Ok(())),
                    Err(lost) => (None, Err(lost)),
                },
            }
        } else {
            (Some(reservation), Ok(()))
        };
        match (memory.release(), addresses) {
            (Ok(()), Some(reservation)) => (Held::Addresses(reservation), answer),
            (Ok(()), None) => (Held::Nothing, answer),
            (Err(Kept { value: memory, error }), Some(reservation)) => {
                (Held::Memory(reservation, memory), Err(error.into()))
            }
            // Nobody can name the memory any more: it is given back when the `Vmm` goes.
            (Err(_), None) => (Held::Nothing, answer),
        }
    }

    /// Makes a mapping of what is held, with the access that agents have, and with these bytes in it
    /// if the memory is new; or says how far it came.
    pub(super) fn take_up(
        &self,
        held: Held,
        bytes: Option<&[u8]>,
    ) -> Result<Mapping, (Held, BufferError)> {
        let (reservation, memory) = match held {
            Held::Mapping(mapping) => return self.open(mapping),
            Held::Memory(reservation, memory) => (reservation, memory),
            held => {
                let reservation = match held {
                    Held::Addresses(reservation) => reservation,
                    held => self.reserve().map_err(|lost| (held, lost))?,
                };
                let memory = Allocation::create(&self.vmm, self.extent, &self.properties);
                let restored = memory.and_then(|memory| {
                    bytes.map_or(Ok(()), |bytes| self.restore(&memory, bytes)).map(|()| memory)
                });
                match restored {
                    Ok(memory) => (reservation, memory),
                    Err(error) => return Err((Held::Addresses(reservation), error.into())),
                }
            }
        };
        match reservation.map(0, &memory) {
            Ok(mapping) => self.open(mapping),
            Err(error) => Err((Held::Memory(reservation, memory), error.into())),
        }
    }

    /// Lets agents in.
    fn open(&self, mapping: Mapping) -> Result<Mapping, (Held, BufferError)> {
        let opened = match self.grants.list() {
            [] => Ok(()),
            grants => mapping.set_access(grants),
        };
        match opened {
            Ok(()) => Ok(mapping),
            Err(error) => Err((Held::Mapping(mapping), error.into())),
        }
    }

    /// The addresses once more, after they were freed.
    fn reserve(&self) -> Result<Reservation, BufferError> {
        let Self { address, extent, .. } = *self;
        let reserved = Reservation::of(extent).exactly_at(address).reserve(&self.vmm);
        reserved.map_err(|cause| BufferError::AddressLost { address, size: extent, cause })
    }
}
