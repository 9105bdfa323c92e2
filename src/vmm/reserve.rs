//! Reserving and freeing addresses.

use super::ledger::Range;
use super::{
    Address, Argument, Operation, Problem, Refusal, Shared, Vmm, VmmError, no_flags, not_open,
    system_failure,
};
use crate::native::{Failure, close};

/// Where the GPUs' addresses begin at the latest (`SVM_USER_BASE` of older kernel drivers; 2 MiB with
/// newer). AMD's user-space driver reserves lower addresses if asked for them, and can never free
/// them: it does not find them again.
const LOWEST: usize = 16 << 20;

/// How a reservation's address is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// Where the runtime likes.
    Anywhere,
    /// There if possible, else anywhere.
    Near(Address),
    /// There or not at all.
    Exactly(Address),
}

impl Vmm {
    /// Reserves a range of addresses; nothing is behind it yet (`hipMemAddressReserve`,
    /// `hsa_amd_vmem_address_reserve_align`).
    ///
    /// `size` is in bytes, a multiple of the granule; `alignment` a power of two, or 0 for the
    /// granule's. `hint` is where the range should begin, if that is free and aligned; else it
    /// begins elsewhere, which is no error. `flags` must be 0.
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] for a size of zero or off the granule, an alignment that is
    /// no power of two, flags; [`VmmError::OutOfMemory`] if there is no such range.
    pub fn address_reserve(
        &self,
        size: usize,
        alignment: usize,
        hint: Option<Address>,
        flags: u64,
    ) -> Result<Address, VmmError> {
        let operation = Operation::AddressReserve;
        self.shared.alive(operation)?;
        no_flags(flags).map_err(|refusal| refusal.during(operation))?;
        let placement =
            hint.filter(|&hint| hint != Address::NULL).map_or(Placement::Anywhere, Placement::Near);
        Ok(self.shared.reserve(operation, size, alignment, placement)?.0)
    }

    /// Reserves `size` bytes of addresses at `address` or not at all. HIP has no such call.
    ///
    /// # Errors
    /// As for [`address_reserve`](Self::address_reserve); [`VmmError::InvalidArgument`] with
    /// [`Problem::AddressTaken`] if the address is not to be had.
    pub fn address_reserve_at(&self, address: Address, size: usize) -> Result<Address, VmmError> {
        let operation = Operation::AddressReserve;
        self.shared.alive(operation)?;
        let placement = Placement::Exactly(address);
        Ok(self.shared.reserve(operation, size, 0, placement)?.0)
    }

    /// Frees a reservation (`hipMemAddressFree`, `hsa_amd_vmem_address_free`).
    ///
    /// `address` and `size` are exactly those of the reservation, and nothing may be mapped in
    /// it any more.
    ///
    /// # Errors
    /// [`VmmError::InvalidArgument`] if the address is not that of a reservation, the size not
    /// its size, or something is still mapped; [`VmmError::Quarantined`] for a range in
    /// quarantine, which is never freed.
    pub fn address_free(&self, address: Address, size: usize) -> Result<(), VmmError> {
        let operation = Operation::AddressFree;
        self.shared.alive(operation)?;
        let range = Range::new(address, size).map_err(|refusal| refusal.during(operation))?;
        self.shared.free(operation, range, None)
    }
}

impl Shared {
    /// Reserves, and returns address and serial.
    pub(super) fn reserve(
        &self,
        operation: Operation,
        size: usize,
        alignment: usize,
        placement: Placement,
    ) -> Result<(Address, u64), VmmError> {
        self.alive(operation)?;
        let refuse = |argument, problem| Err(Refusal::new(argument, problem).during(operation));
        let granule = self.granule;
        if size == 0 {
            return refuse(Argument::Size, Problem::Zero);
        }
        if !size.is_multiple_of(granule) {
            return refuse(Argument::Size, Problem::NotAligned { value: size, granule });
        }
        if alignment != 0 && !alignment.is_power_of_two() {
            return refuse(Argument::Alignment, Problem::NotPowerOfTwo(alignment));
        }
        let alignment = alignment.max(granule);
        let start = match placement {
            Placement::Anywhere => self.reserve_at(0, size, alignment),
            Placement::Near(hint) if hint.get() < LOWEST => self.reserve_at(0, size, alignment),
            Placement::Near(hint) => match self.reserve_at(hint.get(), size, alignment) {
                Ok(address) if address % alignment == 0 => Ok(address),
                // A free hint wins over the alignment in AMD's runtime; here it does not.
                Ok(address) => {
                    self.unreserve(address, size).and_then(|()| self.reserve_at(0, size, alignment))
                }
                Err(failure) => Err(failure),
            },
            Placement::Exactly(wanted) => {
                if wanted == Address::NULL {
                    return refuse(Argument::Address, Problem::Null);
                }
                if wanted.checked_add(size).is_none() {
                    return refuse(Argument::Size, Problem::Overflow);
                }
                if wanted.get() % alignment != 0 || wanted.get() < LOWEST {
                    return refuse(Argument::Address, Problem::AddressTaken);
                }
                match self.reserve_at(wanted.get(), size, alignment) {
                    Ok(address) if address != wanted.get() => {
                        if let Err(failure) = self.unreserve(address, size) {
                            return Err(self.failure(operation, failure, size));
                        }
                        return refuse(Argument::Address, Problem::AddressTaken);
                    }
                    other => other,
                }
            }
        }
        .map_err(|failure| self.failure(operation, failure, size))?;
        self.take(operation, Range { start, size })
    }

    /// Enters what the runtime has reserved.
    fn take(&self, operation: Operation, range: Range) -> Result<(Address, u64), VmmError> {
        // ROCm 6.1 reserves memory that can be written; a reservation is to hold nothing.
        if !self.runtime.native().reserves_aligned()
            && let Err(errno) = close(range.start, range.size)
        {
            // Where that fails too, it is set aside.
            let _ = self.unreserve(range.start, range.size);
            return Err(system_failure(operation, "mmap", errno));
        }
        match self.ledger.reserve(range) {
            Ok(serial) => Ok((Address::new(range.start), serial)),
            Err(known) => {
                // It can only lie in a hole that the runtime left in a reservation of ours.
                let reason = "the runtime reserved addresses that it had reserved already";
                Err(self.quarantine(operation, known, reason.to_owned()))
            }
        }
    }

    /// Reserves aligned addresses, also with a runtime that cannot be asked for alignment.
    fn reserve_at(&self, hint: usize, size: usize, alignment: usize) -> Result<usize, Failure> {
        let nothing_left = Failure {
            call: "hsa_amd_vmem_address_reserve",
            status: crate::native::Status::OUT_OF_RESOURCES,
        };
        // AMD's runtimes 6.4 and 7.2 reserve such sizes, rounded up beyond the end of all numbers.
        if size > isize::MAX as usize {
            return Err(nothing_left);
        }
        let reserve =
            |hint, size| self.call(|native| native.address_reserve(size, hint, alignment));
        let address = reserve(hint, size)?;
        if address % alignment == 0 || hint != 0 || self.runtime.native().reserves_aligned() {
            return Ok(address);
        }
        self.unreserve(address, size)?;
        // A range that is larger by the alignment holds an aligned one. It is given back and
        // the aligned part asked for by address; should somebody be faster, once more.
        let mut last = nothing_left;
        for _ in 0..16 {
            let Some(larger) = size.checked_add(alignment) else { return Err(last) };
            let found = reserve(0, larger)?;
            self.unreserve(found, larger)?;
            match reserve(found.next_multiple_of(alignment), size) {
                Ok(address) if address % alignment == 0 => return Ok(address),
                Ok(address) => self.unreserve(address, size)?,
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    /// Gives back what is of no use; if that fails, it is known to be lost.
    fn unreserve(&self, address: usize, size: usize) -> Result<(), Failure> {
        self.call(|native| native.address_free(address, size)).inspect_err(|failure| {
            let Failure { call, status } = failure;
            let reason = format!("addresses were not given back: {call} answered {status}");
            self.set_aside(Operation::AddressReserve, Address::new(address), size, reason);
        })
    }

    /// Frees a reservation; with a serial only if it is still that one.
    pub(super) fn free(
        &self,
        operation: Operation,
        range: Range,
        serial: Option<u64>,
    ) -> Result<(), VmmError> {
        let refused = |refusal: Refusal| refusal.during(operation);
        loop {
            let found = self.ledger.take(range.start);
            let Some(reserved) = found.filter(|reserved| reserved.base == range.start) else {
                return Err(refused(Refusal::new(Argument::Address, Problem::NotAReservation)));
            };
            // Whatever is still in it: unmapping that would be refused.
            not_open(operation, &reserved)?;
            // All of it may have been freed meanwhile.
            let Some(inside) = reserved.enter() else { continue };
            if serial.is_some_and(|serial| serial != reserved.serial) {
                return Err(refused(Refusal::new(Argument::Address, Problem::NotAReservation)));
            }
            reserved.check_free(range, inside.mappings()).map_err(refused)?;
            // Removed first: once the runtime has freed it, another thread may be given the same
            // addresses and enter them.
            self.ledger.remove(&inside);
            return self.call(|native| native.address_free(range.start, range.size)).map_err(
                |failure| {
                    self.ledger.restore(reserved.clone());
                    self.failure(operation, failure, range.size)
                },
            );
        }
    }
}
