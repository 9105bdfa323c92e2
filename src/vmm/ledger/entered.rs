//! Being inside reservations: whoever is changes what is mapped there, and nobody else does.

use super::{Mappings, Range, Reserved};
use crate::sync::gate;
use crate::vmm::error::{Argument, Problem, Refusal};

/// A reservation that one operation is in.
#[derive(Debug)]
pub(crate) struct Inside<'a> {
    pub reserved: &'a Reserved,
    mappings: gate::Inside<'a, Mappings>,
}

impl<'a> Inside<'a> {
    pub(super) fn new(reserved: &'a Reserved, mappings: gate::Inside<'a, Mappings>) -> Self {
        Self { reserved, mappings }
    }

    /// What is mapped in it.
    pub fn mappings(&self) -> &Mappings {
        &self.mappings
    }
}

/// The reservations that one operation is in.
#[derive(Debug)]
pub(crate) enum Entered<'a> {
    /// As mostly.
    One(Inside<'a>),
    /// By address, each once.
    Several(Vec<Inside<'a>>),
}

impl<'a> Entered<'a> {
    /// Waits until nobody changes anything in these reservations. `None` if one has been freed or
    /// taken out of use meanwhile.
    ///
    /// They are in order of their addresses, whoever asks, so that two operations cannot wait for each
    /// other.
    pub fn all(reservations: impl IntoIterator<Item = &'a Reserved>) -> Option<Self> {
        reservations.into_iter().map(Reserved::enter).collect::<Option<_>>().map(Self::Several)
    }

    /// The one that holds an address.
    pub fn at(&self, address: usize) -> Option<&Inside<'a>> {
        let inside = match self {
            Self::One(inside) => inside,
            Self::Several(all) => {
                let behind = all.partition_point(|inside| inside.reserved.base <= address);
                all.get(behind.checked_sub(1)?)?
            }
        };
        inside.reserved.holds(address).then_some(inside)
    }

    /// The one that holds all of a range.
    pub fn around(&self, range: Range) -> Result<&Inside<'a>, Refusal> {
        match self.at(range.start) {
            Some(inside) if inside.reserved.holds_all(range) => Ok(inside),
            _ => Err(Refusal::new(Argument::Address, Problem::NotReserved)),
        }
    }

    /// Changes what is mapped, all of it at once to who asks.
    pub fn change<R>(&mut self, how: impl FnOnce(&mut Open<'_>) -> R) -> R {
        match self {
            Self::One(Inside { reserved, mappings }) => {
                mappings.change(|mappings| how(&mut Open::One(reserved, mappings)))
            }
            Self::Several(all) => {
                let inside = core::mem::take(all).into_iter();
                let mut open: Vec<_> = inside.map(|it| (it.reserved, it.mappings.open())).collect();
                let done = how(&mut Open::several(&mut open));
                all.extend(open.into_iter().map(|(it, open)| Inside::new(it, open.close())));
                done
            }
        }
    }

    /// The same, and leaves.
    pub fn change_and_leave<R>(self, how: impl FnOnce(&mut Open<'_>) -> R) -> R {
        match self {
            Self::One(Inside { reserved, mappings }) => {
                how(&mut Open::One(reserved, mappings.open().value()))
            }
            Self::Several(all) => {
                let all = all.into_iter();
                let mut open: Vec<_> = all.map(|it| (it.reserved, it.mappings.open())).collect();
                how(&mut Open::several(&mut open))
            }
        }
    }
}

/// Reservations that nobody else can even look into.
#[derive(Debug)]
pub(crate) enum Open<'a> {
    One(&'a Reserved, &'a mut Mappings),
    Several(Vec<(&'a Reserved, &'a mut Mappings)>),
}

impl<'a> Open<'a> {
    fn several<'b: 'a>(all: &'a mut [(&'b Reserved, gate::Open<'b, Mappings>)]) -> Self {
        let each = all.iter_mut().map(|(reserved, mappings)| (*reserved, mappings.value()));
        Self::Several(each.collect())
    }

    /// What is mapped in the one that holds an address.
    pub fn at(&mut self, address: usize) -> Option<&mut Mappings> {
        match self {
            Self::One(reserved, mappings) => reserved.holds(address).then_some(mappings),
            Self::Several(all) => {
                let behind = all.partition_point(|(reserved, _)| reserved.base <= address);
                let (reserved, mappings) = all.get_mut(behind.checked_sub(1)?)?;
                reserved.holds(address).then_some(mappings)
            }
        }
    }
}
