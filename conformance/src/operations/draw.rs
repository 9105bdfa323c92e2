//! The generator: an operation of bytes that come from anywhere.
//!
//! Most of what it makes is right, or wrong in one thing; a byte of 0 is the usual everywhere, so
//! that smaller bytes make simpler operations.

use super::choices::Choices;
use super::{
    Alignment, Amount, Descriptor, Edge, Extent, Hint, Name, Operation, Place, Shift, Span, Spot,
    Who,
};

/// What is drawn, and how often in a hundred times.
const WEIGHTS: [(Kind, u8); 19] = [
    (Kind::Reserve, 7),
    (Kind::Create, 9),
    (Kind::Map, 18),
    (Kind::SetAccess, 16),
    (Kind::Write, 8),
    (Kind::Fill, 4),
    (Kind::Copy, 6),
    (Kind::Unmap, 7),
    (Kind::Release, 5),
    (Kind::Free, 3),
    (Kind::Revoke, 4),
    (Kind::Retain, 2),
    (Kind::Export, 3),
    (Kind::Import, 3),
    (Kind::Close, 1),
    (Kind::GetAccess, 1),
    (Kind::Properties, 1),
    (Kind::Read, 1),
    (Kind::Shutdown, 1),
];

#[derive(Clone, Copy)]
enum Kind {
    Reserve,
    Free,
    Create,
    Release,
    Map,
    Unmap,
    SetAccess,
    GetAccess,
    Revoke,
    Retain,
    Export,
    Import,
    Close,
    Properties,
    Write,
    Read,
    Fill,
    Copy,
    Shutdown,
}

impl Operation {
    /// How many bytes are enough for any operation.
    pub const BYTES: usize = 32;

    /// The operation that these bytes choose; missing ones count as 0.
    #[must_use]
    pub fn drawn_from(bytes: &[u8]) -> Self {
        draw(&mut Choices::new(bytes))
    }
}

fn draw(by: &mut Choices) -> Operation {
    match kind(by) {
        Kind::Reserve => Operation::Reserve {
            size: amount(by, 12),
            alignment: alignment(by),
            hint: hint(by),
            flags: flags(by),
        },
        Kind::Free => Operation::Free { span: reservation(by) },
        Kind::Create => Operation::Create {
            size: amount(by, 4),
            on: if by.percent(5) { agent(by) } else { Who::Gpu(by.byte()) },
            uncached: by.percent(5),
            // File descriptors mostly, nothing sometimes, Windows rarely.
            handle_types: by.one_of([1, 1, 1, 1, 1, 1, 0, 0, 0, 2]),
            flags: flags(by),
        },
        Kind::Release => Operation::Release { handle: name(by) },
        Kind::Map => Operation::Map {
            handle: name(by),
            span: gap(by),
            extent: extent(by),
            offset: if by.percent(3) { amount(by, 2) } else { Amount::Granules(0) },
            flags: flags(by),
        },
        Kind::Unmap => Operation::Unmap { span: run(by) },
        Kind::SetAccess => {
            Operation::SetAccess { span: run(by), grants: list(by, |by| (agent(by), access(by))) }
        }
        Kind::GetAccess => Operation::GetAccess { agent: agent(by), spot: spot(by) },
        Kind::Revoke => Operation::Revoke { span: run(by), agents: list(by, agent) },
        Kind::Retain => Operation::Retain { spot: spot(by) },
        Kind::Export => {
            Operation::Export { handle: name(by), handle_type: handle_type(by), flags: flags(by) }
        }
        Kind::Import => {
            Operation::Import { descriptor: descriptor(by), handle_type: handle_type(by) }
        }
        Kind::Close => Operation::Close { exported: by.byte() },
        Kind::Properties => Operation::Properties { handle: name(by) },
        Kind::Write => Operation::Write { spot: spot(by), size: by.below(64), byte: by.byte() },
        Kind::Read => Operation::Read { spot: spot(by), size: by.below(64) },
        Kind::Fill => Operation::Fill { span: run(by), value: by.number() as u32 },
        Kind::Copy => Operation::Copy { agent: agent(by), to: run(by), from: run(by) },
        Kind::Shutdown => Operation::Shutdown,
    }
}

fn kind(by: &mut Choices) -> Kind {
    let mut left = by.below(100);
    for (kind, weight) in WEIGHTS {
        match left.checked_sub(weight) {
            Some(rest) => left = rest,
            None => return kind,
        }
    }
    Kind::Shutdown
}

fn amount(by: &mut Choices, most: u8) -> Amount {
    let granules = by.below(most) + 1;
    match by.below(50) {
        47 => Amount::Granules(0),
        48 => Amount::Odd(granules),
        49 => Amount::Huge,
        _ => Amount::Granules(granules),
    }
}

fn flags(by: &mut Choices) -> u8 {
    if by.percent(1) { by.byte() } else { 0 }
}

fn alignment(by: &mut Choices) -> Alignment {
    match by.below(10) {
        0..6 => Alignment::None,
        9 if by.percent(50) => Alignment::Wrong,
        _ => Alignment::PowerOfTwo(by.below(31)),
    }
}

fn hint(by: &mut Choices) -> Hint {
    let which = by.byte();
    match by.below(10) {
        0..4 => Hint::None,
        4..7 => Hint::Behind(which),
        7 => Hint::Inside(which),
        8 => Hint::Freed(which),
        _ => Hint::Odd(which),
    }
}

fn name(by: &mut Choices) -> Name {
    match by.below(20) {
        0..17 => Name::Live(by.byte()),
        17..19 => Name::Past(by.byte()),
        _ => Name::Invented(by.number()),
    }
}

fn agent(by: &mut Choices) -> Who {
    match by.below(40) {
        0..38 => Who::Agent(by.byte()),
        38 => Who::Invented(by.byte()),
        _ => Who::Foreign(by.byte()),
    }
}

fn access(by: &mut Choices) -> u8 {
    by.one_of([3, 3, 3, 1, 0])
}

fn extent(by: &mut Choices) -> Extent {
    match by.below(10) {
        0..6 => Extent::Whole,
        9 => Extent::TooMuch,
        _ => Extent::Span,
    }
}

fn handle_type(by: &mut Choices) -> u8 {
    by.one_of([1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8])
}

fn descriptor(by: &mut Choices) -> Descriptor {
    match by.below(20) {
        17 => Descriptor::Null,
        18 => Descriptor::Socket,
        19 => Descriptor::File,
        _ => Descriptor::Exported(by.byte()),
    }
}

/// One to four of something, and seldom none.
fn list<T>(by: &mut Choices, mut one: impl FnMut(&mut Choices) -> T) -> Vec<T> {
    let length = if by.percent(2) { 0 } else { 1 + by.below(4) };
    (0..length).map(|_| one(by)).collect()
}

fn spot(by: &mut Choices) -> Spot {
    let edge = match by.below(8) {
        0..3 => Edge::First,
        3 => Edge::Middle,
        4..7 => Edge::BeforeEnd(by.below(64) + 1),
        _ => Edge::End,
    };
    Spot { edge, span: run(by) }
}

/// Mostly mappings.
fn run(by: &mut Choices) -> Span {
    let place = match by.below(20) {
        0..17 => Place::Mappings(by.byte(), by.one_of([1, 1, 1, 2, 2, 3])),
        _ => elsewhere(by),
    };
    shifted(by, place)
}

/// Mostly room for a mapping.
fn gap(by: &mut Choices) -> Span {
    let place = match by.below(20) {
        0..17 => Place::Gap(by.byte(), 1 + by.below(4)),
        _ => elsewhere(by),
    };
    shifted(by, place)
}

/// Mostly a reservation.
fn reservation(by: &mut Choices) -> Span {
    let place = match by.below(10) {
        0..8 => Place::Reservation(by.byte()),
        _ => elsewhere(by),
    };
    shifted(by, place)
}

/// Any kind of place.
fn elsewhere(by: &mut Choices) -> Place {
    match by.below(6) {
        0 | 1 => Place::Granules(by.byte(), by.below(12), 1 + by.below(6)),
        2 => Place::Gap(by.byte(), 1 + by.below(4)),
        3 => Place::Reservation(by.byte()),
        4 => Place::Freed(by.byte()),
        _ if by.percent(50) => Place::Anything(by.number(), by.number() >> by.below(64)),
        _ => Place::Anything(0, u64::from(by.byte()) << 12),
    }
}

fn shifted(by: &mut Choices, place: Place) -> Span {
    let shifts =
        [Shift::GranuleOn, Shift::GranuleBack, Shift::ByteOn, Shift::ByteBack, Shift::Away];
    let (start, end) = match by.below(20) {
        18 => (by.one_of(shifts), Shift::None),
        19 => (Shift::None, by.one_of(shifts)),
        _ => (Shift::None, Shift::None),
    };
    Span { place, start, end }
}
