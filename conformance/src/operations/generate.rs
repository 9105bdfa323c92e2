//! Generates operations from bytes.
//!
//! Most operations are valid, or invalid in one argument. A byte of 0 always selects the simplest value, so that
//! smaller bytes generate simpler operations.

use super::choices::Choices;
use super::{
    AgentSelector, Alignment, Amount, Descriptor, Edge, Extent, HandleSelector, Hint, Operation,
    Region, Shift, Span, Spot,
};

/// The kinds of operations and their frequencies, which add up to 256.
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
    /// The number of bytes from which an operation is generated. Few operations would use more bytes.
    pub const BYTES: usize = 32;

    /// Generates an operation from bytes, for a state with these objects. Missing bytes count as 0.
    #[must_use]
    pub fn from_bytes(bytes: &[u8], object_counts: ObjectCounts) -> Self {
        let choices = &mut Choices::new(bytes);
        let kind = generate_kind(choices);
        // Sometimes generate an operation on an object that does not exist.
        let keeps_kind = choices.percent(10);
        generate(if keeps_kind { kind } else { possible_kind(kind, object_counts) }, choices)
    }
}

/// The approximate numbers of objects that operations can select.
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

/// Returns `kind`. If the operation needs an object that does not exist, returns the kind that creates the object.
fn possible_kind(kind: Kind, object_counts: ObjectCounts) -> Kind {
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

fn generate(kind: Kind, choices: &mut Choices) -> Operation {
    match kind {
        Kind::Reserve => Operation::Reserve {
            size: amount(choices, 20),
            alignment: alignment(choices),
            hint: hint(choices),
            flags: flags(choices),
        },
        Kind::Free => Operation::Free { span: reservation_span(choices) },
        Kind::Create => Operation::Create {
            size: amount(choices, 4),
            on: if choices.percent(5) {
                agent(choices)
            } else {
                AgentSelector::Gpu(choices.byte())
            },
            uncached: choices.percent(5),
            // Mostly file descriptors, sometimes no type, rarely Windows handles.
            handle_types: choices.one_of([1, 1, 1, 1, 1, 1, 0, 0, 0, 2]),
            flags: flags(choices),
        },
        Kind::Release => Operation::Release { handle: handle(choices) },
        Kind::Map => Operation::Map {
            handle: handle(choices),
            span: gap_span(choices),
            extent: extent(choices),
            offset: if choices.percent(12) { amount(choices, 2) } else { Amount::Granules(0) },
            flags: flags(choices),
        },
        Kind::Unmap => Operation::Unmap { span: mapped_span(choices) },
        Kind::SetAccess => {
            Operation::SetAccess { span: mapped_span(choices), grants: grants(choices) }
        }
        Kind::GetAccess => Operation::GetAccess { agent: agent(choices), spot: spot(choices) },
        Kind::Revoke => {
            Operation::Revoke { span: mapped_span(choices), agents: list(choices, agent) }
        }
        Kind::Retain => Operation::Retain { spot: spot(choices) },
        Kind::Export => Operation::Export {
            handle: handle(choices),
            handle_type: handle_type(choices),
            flags: flags(choices),
        },
        Kind::Import => {
            Operation::Import { descriptor: descriptor(choices), handle_type: handle_type(choices) }
        }
        Kind::Close => Operation::Close { exported: choices.byte() },
        Kind::Properties => Operation::Properties { handle: handle(choices) },
        Kind::Write => {
            Operation::Write { spot: spot(choices), size: choices.below(40), byte: choices.byte() }
        }
        Kind::Read => Operation::Read { spot: spot(choices), size: choices.below(40) },
        Kind::Fill => {
            Operation::Fill { span: writable_span(choices), value: choices.number() as u32 }
        }
        Kind::Copy => Operation::Copy {
            agent: agent(choices),
            to: writable_span(choices),
            from: writable_span(choices),
        },
        Kind::Shutdown => Operation::Shutdown,
    }
}

fn generate_kind(choices: &mut Choices) -> Kind {
    let mut remaining = choices.byte();
    for (kind, weight) in WEIGHTS {
        match remaining.checked_sub(weight) {
            Some(rest) => remaining = rest,
            None => return kind,
        }
    }
    Kind::Shutdown
}

fn amount(choices: &mut Choices, max_granules: u8) -> Amount {
    let granules = choices.below(max_granules) + 1;
    match choices.below(50) {
        47 => Amount::Granules(0),
        48 => Amount::Unaligned(granules),
        49 => Amount::Huge,
        _ => Amount::Granules(granules),
    }
}

fn flags(choices: &mut Choices) -> u8 {
    if choices.percent(1) { choices.byte() } else { 0 }
}

fn alignment(choices: &mut Choices) -> Alignment {
    match choices.below(10) {
        0..6 => Alignment::None,
        9 if choices.percent(50) => Alignment::Wrong,
        _ => Alignment::PowerOfTwo(choices.below(31)),
    }
}

fn hint(choices: &mut Choices) -> Hint {
    let index = choices.byte();
    match choices.below(10) {
        0..4 => Hint::None,
        4..7 => Hint::Behind(index),
        7 => Hint::Inside(index),
        8 => Hint::Freed(index),
        _ => Hint::Unaligned(index),
    }
}

fn handle(choices: &mut Choices) -> HandleSelector {
    match choices.below(20) {
        0..17 => HandleSelector::Live(choices.byte()),
        17..19 => HandleSelector::Past(choices.byte()),
        _ => HandleSelector::Invented(choices.number()),
    }
}

fn agent(choices: &mut Choices) -> AgentSelector {
    match choices.below(100) {
        0..98 => AgentSelector::Agent(choices.byte()),
        98 => AgentSelector::Invented(choices.byte()),
        _ => AgentSelector::Foreign(choices.byte()),
    }
}

fn access(choices: &mut Choices) -> u8 {
    choices.one_of([3, 3, 3, 1, 0])
}

fn extent(choices: &mut Choices) -> Extent {
    match choices.below(10) {
        0..6 => Extent::Whole,
        9 => Extent::TooMuch,
        _ => Extent::Span,
    }
}

fn handle_type(choices: &mut Choices) -> u8 {
    choices.one_of([1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8])
}

fn descriptor(choices: &mut Choices) -> Descriptor {
    match choices.below(20) {
        17 => Descriptor::Null,
        18 => Descriptor::Socket,
        19 => Descriptor::File,
        _ => Descriptor::Exported(choices.byte()),
    }
}

/// Generates the same access for the first four agents, or different access for a few random agents.
fn grants(choices: &mut Choices) -> Vec<(AgentSelector, u8)> {
    if choices.percent(35) {
        return list(choices, |choices| (agent(choices), access(choices)));
    }
    let access = choices.one_of([3, 3, 3, 3, 3, 1, 0]);
    (0..4).map(|agent| (AgentSelector::Agent(agent), access)).collect()
}

/// Generates one to four values, rarely none.
fn list<T>(choices: &mut Choices, mut item: impl FnMut(&mut Choices) -> T) -> Vec<T> {
    let length = if choices.percent(2) { 0 } else { 1 + choices.below(4) };
    (0..length).map(|_| item(choices)).collect()
}

fn spot(choices: &mut Choices) -> Spot {
    let edge = match choices.below(20) {
        0..11 => Edge::First,
        11..14 => Edge::Middle,
        14..19 => Edge::BeforeEnd(choices.below(64) + 1),
        _ => Edge::End,
    };
    Spot { edge, span: writable_span(choices) }
}

/// Generates a span: mostly mappings that an agent can write.
fn writable_span(choices: &mut Choices) -> Span {
    if choices.percent(30) {
        return mapped_span(choices);
    }
    let region = Region::Writable(choices.byte(), choices.one_of([1, 1, 1, 2, 3, 8]));
    shifted(choices, region)
}

/// Generates a span: mostly mappings.
fn mapped_span(choices: &mut Choices) -> Span {
    let region = match choices.below(20) {
        0..17 => Region::Adjacent(choices.byte(), choices.one_of([1, 1, 1, 2, 3, 8])),
        17 => Region::Mappings(choices.byte(), choices.one_of([1, 2, 2, 3])),
        _ => any_region(choices),
    };
    shifted(choices, region)
}

/// Generates a span: mostly unmapped addresses of a reservation.
fn gap_span(choices: &mut Choices) -> Span {
    let region = match choices.below(20) {
        0..14 => Region::Gap(choices.byte(), 1 + choices.below(4)),
        // These granules may be mapped already.
        14..18 => Region::Granules(choices.byte(), choices.below(12), 1 + choices.below(4)),
        _ => any_region(choices),
    };
    shifted(choices, region)
}

/// Generates a span: mostly a reservation.
fn reservation_span(choices: &mut Choices) -> Span {
    let region = match choices.below(10) {
        0..8 => Region::Reservation(choices.byte()),
        _ => any_region(choices),
    };
    shifted(choices, region)
}

/// Generates a region of any kind.
fn any_region(choices: &mut Choices) -> Region {
    match choices.below(6) {
        0 | 1 => Region::Granules(choices.byte(), choices.below(12), 1 + choices.below(6)),
        2 => Region::Gap(choices.byte(), 1 + choices.below(4)),
        3 => Region::Reservation(choices.byte()),
        4 => Region::Freed(choices.byte()),
        _ if choices.percent(50) => {
            Region::Anything(choices.number(), choices.number() >> choices.below(64))
        }
        _ => Region::Anything(0, u64::from(choices.byte()) << 12),
    }
}

/// Returns a region as a span. Rarely moves one end of the span.
fn shifted(choices: &mut Choices, region: Region) -> Span {
    let shifts =
        [Shift::GranuleOn, Shift::GranuleBack, Shift::ByteOn, Shift::ByteBack, Shift::Away];
    let (start, end) = match choices.below(25) {
        23 => (choices.one_of(shifts), Shift::None),
        24 => (Shift::None, choices.one_of(shifts)),
        _ => (Shift::None, Shift::None),
    };
    Span { region, start, end }
}
