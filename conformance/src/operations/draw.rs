//! The generator of operations from bytes.
//!
//! Most operations are valid, or invalid in one argument. A byte of 0 always means the common case, so that
//! smaller bytes give simpler operations.

use super::choices::Choices;
use super::{
    AgentName, Alignment, Amount, Descriptor, Edge, Extent, HandleName, Hint, Operation, Region,
    Shift, Span, Spot,
};

/// The kinds of operations with their frequencies out of 256.
const WEIGHTS: [(Kind, u8); 19] = [
    (Kind::Reserve, 16),
    (Kind::Create, 24),
    (Kind::Map, 50),
    (Kind::SetAccess, 48),
    (Kind::Write, 24),
    (Kind::Fill, 12),
    (Kind::Copy, 22),
    (Kind::Unmap, 10),
    (Kind::Release, 8),
    (Kind::Free, 4),
    (Kind::Revoke, 8),
    (Kind::Retain, 4),
    (Kind::Export, 7),
    (Kind::Import, 8),
    (Kind::Close, 2),
    (Kind::GetAccess, 3),
    (Kind::Properties, 2),
    (Kind::Read, 3),
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
    /// The number of bytes that is enough for any operation.
    pub const BYTES: usize = 32;

    /// Generates an operation from bytes for this number of objects. Missing bytes count as 0.
    #[must_use]
    pub fn drawn_from(bytes: &[u8], object_counts: ObjectCounts) -> Self {
        let by = &mut Choices::new(bytes);
        let kind = kind(by);
        let unlikely = by.percent(10);
        draw(if unlikely { kind } else { possible(kind, object_counts) }, by)
    }
}

/// The (approximate) number of objects that operations can name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Reservations.
    pub reservations: usize,
    /// Handles.
    pub handles: usize,
    /// Mappings.
    pub mappings: usize,
    /// Exported descriptors.
    pub exported: usize,
}

impl ObjectCounts {
    /// Returns the approximate numbers after a successful operation.
    #[must_use]
    pub fn after(self, operation: &Operation) -> Self {
        let Self { reservations, handles, mappings, exported } = self;
        match operation {
            Operation::Reserve { .. } => Self { reservations: reservations + 1, ..self },
            Operation::Free { .. } => Self { reservations: reservations.saturating_sub(1), ..self },
            Operation::Create { .. } | Operation::Import { .. } => {
                Self { handles: handles + 1, ..self }
            }
            Operation::Release { .. } => Self { handles: handles.saturating_sub(1), ..self },
            Operation::Map { .. } => Self { mappings: mappings + 1, ..self },
            Operation::Unmap { .. } => Self { mappings: mappings.saturating_sub(1), ..self },
            Operation::Export { .. } => Self { exported: exported + 1, ..self },
            Operation::Close { .. } => Self { exported: exported.saturating_sub(1), ..self },
            Operation::Shutdown => Self { exported, ..Self::default() },
            _ => self,
        }
    }
}

/// Replaces an operation without objects by the operation that creates them.
fn possible(kind: Kind, object_counts: ObjectCounts) -> Kind {
    match kind {
        Kind::Reserve | Kind::Create | Kind::Shutdown => kind,
        Kind::Import | Kind::Close if object_counts.exported > 0 => kind,
        _ if object_counts.reservations == 0 => Kind::Reserve,
        Kind::Free => kind,
        _ if object_counts.handles == 0 => Kind::Create,
        Kind::Import | Kind::Close => Kind::Export,
        Kind::Map | Kind::Release | Kind::Export | Kind::Properties => kind,
        _ if object_counts.mappings == 0 => Kind::Map,
        _ => kind,
    }
}

fn draw(kind: Kind, by: &mut Choices) -> Operation {
    match kind {
        Kind::Reserve => Operation::Reserve {
            size: amount(by, 20),
            alignment: alignment(by),
            hint: hint(by),
            flags: flags(by),
        },
        Kind::Free => Operation::Free { span: reservation(by) },
        Kind::Create => Operation::Create {
            size: amount(by, 4),
            on: if by.percent(5) { agent(by) } else { AgentName::Gpu(by.byte()) },
            uncached: by.percent(5),
            // File descriptors mostly, none sometimes, Windows handles rarely.
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
        Kind::SetAccess => Operation::SetAccess { span: run(by), grants: grants(by) },
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
        Kind::Write => Operation::Write { spot: spot(by), size: by.below(40), byte: by.byte() },
        Kind::Read => Operation::Read { spot: spot(by), size: by.below(40) },
        Kind::Fill => Operation::Fill { span: writable(by), value: by.number() as u32 },
        Kind::Copy => Operation::Copy { agent: agent(by), to: writable(by), from: writable(by) },
        Kind::Shutdown => Operation::Shutdown,
    }
}

fn kind(by: &mut Choices) -> Kind {
    let mut left = by.byte();
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

fn name(by: &mut Choices) -> HandleName {
    match by.below(20) {
        0..17 => HandleName::Live(by.byte()),
        17..19 => HandleName::Past(by.byte()),
        _ => HandleName::Invented(by.number()),
    }
}

fn agent(by: &mut Choices) -> AgentName {
    match by.below(100) {
        0..98 => AgentName::Agent(by.byte()),
        98 => AgentName::Invented(by.byte()),
        _ => AgentName::Foreign(by.byte()),
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

/// The same access for all agents, or different access for some.
fn grants(by: &mut Choices) -> Vec<(AgentName, u8)> {
    if by.percent(35) {
        return list(by, |by| (agent(by), access(by)));
    }
    let access = by.one_of([3, 3, 3, 3, 3, 1, 0]);
    (0..4).map(|agent| (AgentName::Agent(agent), access)).collect()
}

/// One to four values, rarely none.
fn list<T>(by: &mut Choices, mut one: impl FnMut(&mut Choices) -> T) -> Vec<T> {
    let length = if by.percent(2) { 0 } else { 1 + by.below(4) };
    (0..length).map(|_| one(by)).collect()
}

fn spot(by: &mut Choices) -> Spot {
    let edge = match by.below(20) {
        0..11 => Edge::First,
        11..14 => Edge::Middle,
        14..19 => Edge::BeforeEnd(by.below(64) + 1),
        _ => Edge::End,
    };
    Spot { edge, span: writable(by) }
}

/// Mostly mappings that an agent can write.
fn writable(by: &mut Choices) -> Span {
    if by.percent(30) {
        return run(by);
    }
    let region = Region::Writable(by.byte(), by.one_of([1, 1, 1, 2, 3, 8]));
    shifted(by, region)
}

/// Mostly mappings.
fn run(by: &mut Choices) -> Span {
    let region = match by.below(20) {
        0..17 => Region::Run(by.byte(), by.one_of([1, 1, 1, 2, 3, 8])),
        17 => Region::Mappings(by.byte(), by.one_of([1, 2, 2, 3])),
        _ => any_region(by),
    };
    shifted(by, region)
}

/// Mostly unmapped addresses for a mapping.
fn gap(by: &mut Choices) -> Span {
    let region = match by.below(20) {
        0..14 => Region::Gap(by.byte(), 1 + by.below(4)),
        // Possibly mapped already.
        14..18 => Region::Granules(by.byte(), by.below(12), 1 + by.below(4)),
        _ => any_region(by),
    };
    shifted(by, region)
}

/// Mostly a reservation.
fn reservation(by: &mut Choices) -> Span {
    let region = match by.below(10) {
        0..8 => Region::Reservation(by.byte()),
        _ => any_region(by),
    };
    shifted(by, region)
}

/// Any kind of region.
fn any_region(by: &mut Choices) -> Region {
    match by.below(6) {
        0 | 1 => Region::Granules(by.byte(), by.below(12), 1 + by.below(6)),
        2 => Region::Gap(by.byte(), 1 + by.below(4)),
        3 => Region::Reservation(by.byte()),
        4 => Region::Freed(by.byte()),
        _ if by.percent(50) => Region::Anything(by.number(), by.number() >> by.below(64)),
        _ => Region::Anything(0, u64::from(by.byte()) << 12),
    }
}

fn shifted(by: &mut Choices, region: Region) -> Span {
    let shifts =
        [Shift::GranuleOn, Shift::GranuleBack, Shift::ByteOn, Shift::ByteBack, Shift::Away];
    let (start, end) = match by.below(25) {
        23 => (by.one_of(shifts), Shift::None),
        24 => (Shift::None, by.one_of(shifts)),
        _ => (Shift::None, Shift::None),
    };
    Span { region, start, end }
}
