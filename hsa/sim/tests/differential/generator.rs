//! Generates random sequences. The generator does not know the results of calls. It records its
//! requests, and mostly generates calls on the requested objects.

use crate::calls::*;

/// The number of calls in a sequence.
pub const SEQUENCE_LENGTH: u32 = 40;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

/// The random generator splitmix64: fast and reproducible.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Creates the random generator for the sequence with the number `sequence`.
    pub fn new(seed: u64, sequence: u64) -> Self {
        let mut random = Self(seed);
        random.0 ^= random.next().wrapping_add(sequence.wrapping_mul(0xd1b5_4a32_d192_ed03));
        random
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns `true` with this probability in percent.
    fn percent(&mut self, probability: u64) -> bool {
        self.below(100) < probability
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Returns one of the elements, or `None` if the list is empty.
    fn pick_any<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| self.pick(from))
    }
}

/// Generates the calls of one sequence. Records the requests so far, but does not know whether the
/// calls succeed.
#[derive(Debug)]
struct Generator {
    random: Random,
    /// The name and the size of each requested reservation.
    reservations: Vec<(Name, u64)>,
    /// The ends of requested reservations, as offsets in the area.
    ends: Vec<u64>,
    /// The name and the size of each requested handle.
    handles: Vec<(Name, u64)>,
    /// The reservation, the offset in it and the size of each requested mapping.
    mappings: Vec<(Name, u64, u64)>,
    exports: Vec<Name>,
}

/// Generates the sequence with this number.
pub fn sequence(seed: u64, number: u64) -> Vec<Call> {
    let random = Random::new(seed, number);
    let mut generator = Generator {
        random,
        reservations: vec![],
        ends: vec![],
        handles: vec![],
        mappings: vec![],
        exports: vec![],
    };
    (0..SEQUENCE_LENGTH).map(|id| generator.call(id)).collect()
}

impl Generator {
    fn call(&mut self, id: Name) -> Call {
        // The first three calls reserve, create and map.
        let kind = match id {
            0 => 0,
            1 => 10,
            2 => 20,
            _ => self.random.below(100),
        };
        match kind {
            0..7 => self.reserve(id),
            7..10 => self.free(),
            10..18 => self.create(id),
            18..20 => self.release(),
            20..36 => self.map(),
            36..43 => self.unmap(),
            43..62 => self.set_access(),
            62..65 => Call::GetAccess { at: self.location(), agent: self.agent() },
            65..68 => self.allow_access(),
            68..72 => self.export(id),
            72..77 => self.import(id),
            77..78 => match self.random.pick_any(&self.exports) {
                Some(descriptor) => Call::Close { descriptor },
                None => self.export(id),
            },
            78..81 => Call::Retain { at: self.mapping_start() },
            81..83 => Call::Properties { handle: self.handle().0 },
            83..85 => Call::PointerInfo { at: self.location() },
            85..86 => Call::PoolFree { at: self.location() },
            86..91 => Call::Write { at: self.data_location(), value: self.random.next() },
            91..93 => Call::Poke { at: self.data_location(), value: self.random.next() },
            93..95 => Call::Peek { at: self.data_location() },
            95..99 => self.copy(),
            _ => {
                let words = self.random.pick(&[0, 1, 2, 1024]);
                Call::Fill { at: self.data_location(), value: self.random.next() as u32, words }
            }
        }
    }

    fn reserve(&mut self, id: Name) -> Call {
        let unusual = self.random.percent(12);
        let size = if unusual {
            self.random.pick(&[0, 1, 4095, 4097, 3 * MIB, 64 << 40, 128 << 40, u64::MAX])
        } else {
            PAGE * self.random.pick(&[1, 2, 4, 8, 16, 16, 32, 32, 64, 512, 1024])
        };
        let hint = match self.random.below(100) {
            // A size that exceeds the area gets no hint, except the invalid size `u64::MAX`.
            _ if (1 << 27..u64::MAX).contains(&size) => Hint::Nowhere,
            // A hint directly after another reservation, so that ranges can cross the boundary.
            0..25 if !self.ends.is_empty() => Hint::Area(self.random.pick(&self.ends)),
            0..90 => Hint::Area(self.random.below(16) * 2 * MIB),
            90..94 => Hint::Area(self.random.below(16) * 2 * MIB + PAGE * self.random.below(8)),
            94..97 => Hint::Area(self.random.below(16) * 2 * MIB + 16),
            _ => Hint::Nowhere,
        };
        let alignment = match self.random.below(100) {
            0..75 => 0,
            75..90 => PAGE << self.random.below(12),
            _ => self.random.pick(&[1, 1024, 3000, 12288, 1 << 30]),
        };
        let flags = match self.random.below(100) {
            0..85 => 0,
            // 1 is the flag NO_REGISTER. With an alignment of 1 GiB, such a reservation would exceed
            // the area.
            85..93 if alignment < 1 << 30 => 1,
            93..96 if alignment < 1 << 30 => 0xff,
            _ => self.random.pick(&[2, 0xfe]),
        };
        if let Hint::Area(start) = hint
            && size < MIB * 8
        {
            self.ends.push(start + size);
        }
        self.reservations.push((id, size.min(1024 * PAGE)));
        Call::Reserve { id, size, hint, alignment, flags }
    }

    fn free(&mut self) -> Call {
        let Some((name, size)) = self.random.pick_any(&self.reservations) else {
            return Call::Free { at: Location::Null, size: PAGE };
        };
        match self.random.below(100) {
            0..80 => Call::Free { at: Location::In(name, 0), size },
            80..90 => Call::Free { at: Location::In(name, 0), size: self.unusual_size(size) },
            _ => Call::Free { at: self.location(), size: self.unusual_size(size) },
        }
    }

    fn create(&mut self, id: Name) -> Call {
        let size = match self.random.below(100) {
            0..75 => PAGE * self.random.pick(&[1, 2, 4, 4, 8, 8, 16]),
            75..85 => PAGE * self.random.pick(&[512, 513]),
            85..93 => 384 * MIB,
            _ => self.random.pick(&[0, 1, 4095, 4097, 1 << 41, u64::MAX, u64::MAX - 4095]),
        };
        let pool = match self.random.below(100) {
            0..50 => Pool::Gpu(0),
            50..80 => Pool::Gpu(1),
            80..98 => Pool::Number(self.random.below(12) as usize),
            _ => Pool::Zero,
        };
        // 1 is pinned memory, 0 is memory without a type, and 7 is unknown.
        let memory_type = self.random.pick(&[1, 1, 1, 1, 0, 0, 0, 7]);
        let flags = self.random.pick(&[0, 0, 0, 0xff]);
        self.handles.push((id, size));
        Call::Create { id, pool, size, memory_type, flags }
    }

    fn release(&mut self) -> Call {
        let handle = self.handle().0;
        if let Handle::Of(name) = handle
            && self.random.percent(80)
        {
            self.handles.retain(|(other, _)| *other != name);
        }
        Call::Release { handle }
    }

    fn map(&mut self) -> Call {
        let (handle, handle_size) = self.handle();
        let Some((name, reserved)) = self.random.pick_any(&self.reservations) else {
            return Call::Map { at: Location::Null, size: PAGE, offset: 0, handle, flags: 0 };
        };
        let size = match self.random.below(100) {
            0..70 => handle_size,
            70..85 => (handle_size / 2).next_multiple_of(PAGE).max(PAGE),
            _ => self.unusual_size(handle_size),
        };
        let last = self.mappings.iter().rev().find(|(other, ..)| *other == name).copied();
        let offset = match (self.random.below(100), last) {
            (0..45, Some((_, start, length))) => start.wrapping_add(length),
            (0..65, _) => 0,
            (65..92, _) => PAGE * self.random.below((reserved / PAGE).max(1)),
            (92..96, _) => self.random.pick(&[16, 100, 4095, PAGE + 8]),
            _ => reserved.saturating_sub(size / 2),
        };
        self.mappings.push((name, offset, size));
        let at = Location::In(name, offset as i64);
        let memory_offset = match self.random.below(10) {
            0 => self.random.pick(&[3, PAGE, size / 2, 100 << 30]),
            _ => 0,
        };
        let flags = self.random.pick(&[0, 0, 0, 0xff]);
        Call::Map { at, size, offset: memory_offset, handle, flags }
    }

    fn unmap(&mut self) -> Call {
        let (at, size) = self.range();
        if self.random.percent(70)
            && let Location::In(name, offset) = at
        {
            let is_unmapped =
                |m: &(Name, u64, u64)| m.0 == name && m.1 as i64 == offset && m.2 == size;
            self.mappings.retain(|mapping| !is_unmapped(mapping));
        }
        Call::Unmap { at, size }
    }

    fn set_access(&mut self) -> Call {
        let (at, size) = self.range();
        let count = self.random.pick(&[0, 1, 1, 1, 2, 2, 3, 3, 4]);
        let requests = (0..count).map(|_| (self.agent(), self.permission())).collect();
        Call::SetAccess { at, size, requests }
    }

    fn allow_access(&mut self) -> Call {
        let count = 1 + self.random.below(3);
        let agents = (0..count).map(|_| self.agent()).collect();
        Call::AllowAccess { at: self.location(), agents }
    }

    fn export(&mut self, id: Name) -> Call {
        self.exports.push(id);
        Call::Export { id, handle: self.handle().0, flags: self.random.pick(&[0, 0, 0xff]) }
    }

    fn import(&mut self, id: Name) -> Call {
        let descriptor = match (self.random.below(100), self.random.pick_any(&self.exports)) {
            (0..85, Some(name)) => Descriptor::Of(name),
            _ => self.random.pick(&[
                Descriptor::Negative,
                Descriptor::Closed,
                Descriptor::DevNull,
                Descriptor::MemoryFile,
            ]),
        };
        self.handles.push((id, PAGE * self.random.pick(&[1, 2, 4, 8])));
        Call::Import { id, descriptor }
    }

    fn copy(&mut self) -> Call {
        let (to, from) = (self.data_location(), self.data_location());
        let size = self.random.pick(&[0, 1, 8, 100, PAGE, 2 * PAGE, 4 * PAGE]);
        if self.random.percent(50) {
            return Call::Copy { to, from, size };
        }
        Call::CopyAsync { to, from, size, gpu: self.random.below(2) as usize }
    }

    fn handle(&mut self) -> (Handle, u64) {
        match (self.random.below(100), self.random.pick_any(&self.handles)) {
            (0..95, Some((name, size))) => (Handle::Of(name), size),
            (0..98, _) => (Handle::Zero, PAGE),
            _ => (Handle::Garbage, PAGE),
        }
    }

    fn agent(&mut self) -> Agent {
        match self.random.below(50) {
            0 => Agent::Zero,
            number => Agent::Number((number % 3) as usize),
        }
    }

    fn permission(&mut self) -> u32 {
        // Mostly 3, which is read and write. 9 is unknown.
        self.random.pick(&[3, 3, 3, 3, 3, 1, 2, 0, 0, 9])
    }

    /// Returns an invalid or extreme size, or a size derived from `size`.
    fn unusual_size(&mut self, size: u64) -> u64 {
        let other =
            [0, 1, PAGE, 4095, size.wrapping_add(PAGE), size / 2, size.wrapping_mul(2), u64::MAX];
        self.random.pick(&other)
    }

    /// Returns a range, mostly the range of an earlier mapping.
    fn range(&mut self) -> (Location, u64) {
        let Some((name, offset, size)) = self.random.pick_any(&self.mappings) else {
            return (self.location(), PAGE);
        };
        let at = Location::In(name, offset as i64);
        match self.random.below(100) {
            0..70 => (at, size),
            // The range extends over the next mapping too.
            70..80 => {
                let next =
                    self.mappings.iter().find(|m| m.0 == name && m.1 == offset.wrapping_add(size));
                (at, size.wrapping_add(next.map_or(PAGE, |(_, _, more)| *more)))
            }
            80..88 => (at, self.unusual_size(size)),
            88..94 => (Location::In(name, 0), 1024 * PAGE),
            _ => (self.location(), self.unusual_size(size)),
        }
    }

    /// Returns an address, mostly the start of an earlier mapping.
    fn mapping_start(&mut self) -> Location {
        match (self.random.below(10), self.random.pick_any(&self.mappings)) {
            (0..8, Some((name, offset, _))) => Location::In(name, offset as i64),
            _ => self.location(),
        }
    }

    /// Returns an address that the CPU or a GPU may be able to access.
    fn data_location(&mut self) -> Location {
        let Some((name, offset, size)) = self.random.pick_any(&self.mappings) else {
            return self.location();
        };
        let pages = (size / PAGE).clamp(1, 16);
        let inside = PAGE * self.random.below(pages) + self.random.pick(&[0, 0, PAGE / 2]);
        Location::In(name, offset.wrapping_add(inside) as i64)
    }

    /// Returns a location of any kind.
    fn location(&mut self) -> Location {
        let kind = self.random.below(100);
        match (kind, self.random.pick_any(&self.mappings), self.random.pick_any(&self.reservations))
        {
            (0..60, Some((name, offset, size)), _) => {
                let inside = self.random.pick(&[0, 8, size / 2, size, size.wrapping_add(1)]);
                Location::In(name, (offset.wrapping_add(inside)) as i64)
            }
            (0..90, _, Some((name, size))) => {
                let inside = self.random.pick(&[0, PAGE, size / 2, size, size.wrapping_add(PAGE)]);
                Location::In(name, inside as i64 - self.random.pick(&[0, 0, 0, 1, PAGE as i64]))
            }
            (90..95, ..) => Location::Null,
            _ => Location::Area(PAGE * self.random.below(16 * 512)),
        }
    }
}
