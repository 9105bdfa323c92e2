//! A map by address that is quick also when it is large.
//!
//! ```text
//! chunks   0 ──► [ keys ≤ 32 | values ]        every key is in the last chunk
//!          b ──► [ keys ≤ 32 | values ]        that begins at or below it
//! ```
//!
//! With a million entries, what a look-up costs is how often it waits for memory. One key of each
//! cache line of a chunk is compared first, without branches, so that the processor fetches all
//! lines at once; and what leads to the chunks is small enough for its caches. Entries that are added
//! in order fill their chunks.

use std::collections::BTreeMap;

/// How many entries a chunk holds.
const MOST: usize = 32;
/// How many keys fit in a cache line.
const LINE: usize = 8;

/// Entries whose keys are near each other, by key.
#[derive(Clone, Debug)]
struct Chunk<V> {
    len: usize,
    /// Those from `len` on are [`usize::MAX`].
    keys: [usize; MOST],
    values: [V; MOST],
}

impl<V: Copy + Default> Chunk<V> {
    fn new() -> Self {
        Self { len: 0, keys: [usize::MAX; MOST], values: [V::default(); MOST] }
    }

    /// How many keys are at or below this one: all of the lines before the last that begins so, and
    /// some of that one.
    fn count(&self, key: usize) -> usize {
        let is_below = |&other: &usize| usize::from(other <= key);
        let lines: usize = self.keys.iter().step_by(LINE).skip(1).map(is_below).sum();
        let last = lines * LINE;
        last + self.keys[last..last + LINE].iter().map(is_below).sum::<usize>()
    }

    /// Where this key is, if it is.
    fn find(&self, key: usize) -> Option<usize> {
        let at = self.count(key).checked_sub(1)?;
        (self.keys[at] == key).then_some(at)
    }

    /// The entry at or below this key.
    fn below(&self, key: usize) -> Option<(usize, &V)> {
        let at = self.count(key).checked_sub(1)?;
        Some((self.keys[at], &self.values[at]))
    }

    fn insert(&mut self, at: usize, key: usize, value: V) {
        self.keys.copy_within(at..self.len, at + 1);
        self.values.copy_within(at..self.len, at + 1);
        (self.keys[at], self.values[at]) = (key, value);
        self.len += 1;
    }

    fn remove(&mut self, at: usize) -> V {
        let value = self.values[at];
        self.keys.copy_within(at + 1..self.len, at);
        self.values.copy_within(at + 1..self.len, at);
        self.len -= 1;
        self.keys[self.len] = usize::MAX;
        value
    }

    /// Takes the entries from a place on into a chunk of their own.
    fn split_off(&mut self, at: usize) -> Box<Self> {
        let mut rest = Box::new(Self::new());
        let len = self.len - at;
        rest.keys[..len].copy_from_slice(&self.keys[at..self.len]);
        rest.values[..len].copy_from_slice(&self.values[at..self.len]);
        self.keys[at..].fill(usize::MAX);
        (self.len, rest.len) = (at, len);
        rest
    }

    /// Puts the entries of the chunk after this one behind its own.
    fn append(&mut self, next: &Self) {
        let (len, all) = (self.len, self.len + next.len);
        self.keys[len..all].copy_from_slice(&next.keys[..next.len]);
        self.values[len..all].copy_from_slice(&next.values[..next.len]);
        self.len = all;
    }

    /// The entries from a key on.
    fn since(&self, key: usize) -> impl Iterator<Item = (usize, &V)> {
        let first = key.checked_sub(1).map_or(0, |below| self.count(below));
        self.keys[first..self.len].iter().copied().zip(&self.values[first..])
    }
}

/// Values by address. No address is [`usize::MAX`].
#[derive(Clone, Debug)]
pub(super) struct AddressMap<V> {
    /// By the lowest key that may be in it; one begins at 0, and no other is empty.
    chunks: BTreeMap<usize, Box<Chunk<V>>>,
    len: usize,
}

impl<V: Copy + Default> AddressMap<V> {
    pub fn new() -> Self {
        Self { chunks: BTreeMap::from([(0, Box::new(Chunk::new()))]), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The entry at or below an address.
    pub fn below(&self, address: usize) -> Option<(usize, &V)> {
        let mut chunks = self.chunks.range(..=address);
        let (_, chunk) = chunks.next_back()?;
        chunk.below(address).or_else(|| chunks.next_back()?.1.below(address))
    }

    pub fn get_mut(&mut self, address: usize) -> Option<&mut V> {
        let (_, chunk) = self.chunks.range_mut(..=address).next_back()?;
        let at = chunk.find(address)?;
        Some(&mut chunk.values[at])
    }

    /// Enters a value, in the place of the one that is there.
    pub fn insert(&mut self, address: usize, value: V) {
        let Some((_, chunk)) = self.chunks.range_mut(..=address).next_back() else { return };
        let at = chunk.count(address);
        if at > 0 && chunk.keys[at - 1] == address {
            chunk.values[at - 1] = value;
            return;
        }
        self.len += 1;
        if chunk.len < MOST {
            chunk.insert(at, address, value);
            return;
        }
        // What comes behind all others begins a chunk, which those that follow will fill.
        let half = if at == MOST { MOST } else { MOST / 2 };
        let mut rest = chunk.split_off(half);
        if at >= half {
            rest.insert(at - half, address, value);
        } else {
            chunk.insert(at, address, value);
        }
        self.chunks.insert(rest.keys[0], rest);
    }

    pub fn remove(&mut self, address: usize) -> Option<V> {
        let (&start, chunk) = self.chunks.range_mut(..=address).next_back()?;
        let at = chunk.find(address)?;
        let value = chunk.remove(at);
        self.len -= 1;
        if chunk.len < MOST / 4 {
            self.shrink(start);
        }
        Some(value)
    }

    /// Unites a chunk in which little is left with the one before or behind it, if both fit and
    /// leave some room.
    fn shrink(&mut self, start: usize) {
        let len = |chunk: Option<(&usize, &Box<Chunk<V>>)>| chunk.map(|(&at, it)| (at, it.len));
        let own = self.chunks.get(&start).map_or(0, |chunk| chunk.len);
        let before = len(self.chunks.range(..start).next_back());
        let behind = len(self.chunks.range(start + 1..).next());
        let fits = |&(_, other): &(usize, usize)| own + other <= MOST / 2 || own == 0;
        let (first, second) = match (before.filter(fits), behind.filter(fits)) {
            (Some((before, _)), _) => (before, start),
            (None, Some((behind, _))) => (start, behind),
            (None, None) => return,
        };
        if let Some(second) = self.chunks.remove(&second)
            && let Some(first) = self.chunks.get_mut(&first)
        {
            first.append(&second);
        }
    }

    /// The entries of a range, by address.
    pub fn range(&self, range: core::ops::Range<usize>) -> impl Iterator<Item = (usize, &V)> {
        let first = self.chunks.range(..=range.start).next_back().map_or(0, |(&start, _)| start);
        self.chunks
            .range(first..range.end)
            .flat_map(move |(_, chunk)| chunk.since(range.start))
            .take_while(move |&(key, _)| key < range.end)
    }

    /// All entries, by address.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &V)> {
        self.chunks.values().flat_map(|chunk| chunk.since(0))
    }

    /// Checks that every key is where it is looked for.
    pub fn check(&self) -> Result<(), String> {
        let mut ends = self.chunks.keys().copied().skip(1).chain([usize::MAX]);
        for (&start, chunk) in &self.chunks {
            let end = ends.next().unwrap_or(usize::MAX);
            let keys = &chunk.keys[..chunk.len];
            let sorted = keys.windows(2).all(|two| two[0] < two[1]);
            if !sorted || keys.iter().any(|key| !(start..end).contains(key)) {
                return Err(format!("the chunk at {start:#x} holds what it should not"));
            }
            if keys.is_empty() && start != 0
                || chunk.keys[chunk.len..].iter().any(|&it| it != usize::MAX)
            {
                return Err(format!("the chunk at {start:#x} is empty, or not where it should be"));
            }
        }
        let found: usize = self.chunks.values().map(|chunk| chunk.len).sum();
        if !self.chunks.contains_key(&0) || found != self.len {
            return Err(format!("{} entries are counted and {found} there", self.len));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{AddressMap, MOST};
    use std::collections::BTreeMap;

    /// Does the same to a map of the standard library's, and compares.
    fn compare(steps: impl IntoIterator<Item = (u8, usize)>) {
        let (mut map, mut model) = (AddressMap::new(), BTreeMap::new());
        for (number, (step, key)) in steps.into_iter().enumerate() {
            match step {
                0..5 => {
                    map.insert(key, number);
                    model.insert(key, number);
                }
                5..8 => assert_eq!(map.remove(key), model.remove(&key)),
                _ => assert_eq!(map.get_mut(key), model.get_mut(&key)),
            }
            assert_eq!(map.check(), Ok(()));
            assert_eq!(map.len(), model.len());
            for near in [key.saturating_sub(1), key, key + 1, 0, 5000] {
                let expected = model.range(..=near).next_back().map(|(&key, value)| (key, value));
                assert_eq!(map.below(near), expected, "at or below {near}");
            }
            let range = key / 2..key + 3;
            let expected = model.range(range.clone()).map(|(&key, value)| (key, value));
            assert!(map.range(range).eq(expected));
        }
        assert!(map.iter().eq(model.iter().map(|(&key, value)| (key, value))));
    }

    #[test]
    fn it_does_what_the_standard_map_does() {
        // Drawn, and the same every time.
        let mut seed = 7u32;
        let mut draw = |end: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) % end
        };
        let rounds = if cfg!(miri) { 1 } else { 64 };
        for _ in 0..rounds {
            let (steps, keys) = (draw(600), 1 + draw(400));
            compare((0..steps).map(|_| (draw(9) as u8, draw(keys) as usize)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn it_fills_and_empties_in_any_direction() {
        let most = if cfg!(miri) { 100 } else { 400 };
        let up = 0..most;
        for (fill, empty) in [(false, false), (false, true), (true, false), (true, true)] {
            let order =
                |backwards| up.clone().map(move |key| if backwards { most - 1 - key } else { key });
            let filled = order(fill).map(|key| (0, key));
            compare(filled.chain(order(empty).map(|key| (5, key))));
        }
    }

    #[test]
    fn what_is_added_in_order_fills_its_chunks() {
        let mut map = AddressMap::new();
        (0..10 * MOST).for_each(|key| map.insert(key, ()));
        assert_eq!(map.chunks.len(), 10);
        // And what is taken away leaves no empty ones.
        (0..10 * MOST)
            .filter(|key| key % 16 != 0)
            .for_each(|key| assert!(map.remove(key).is_some()));
        assert!(map.chunks.len() <= 4, "{}", map.chunks.len());
    }

    #[test]
    fn chunks_that_are_nearly_empty_are_united() {
        let mut map = AddressMap::new();
        (0..2 * MOST).for_each(|key| map.insert(key, ()));
        let few = MOST / 4;
        for key in (few..MOST).chain(MOST + few..2 * MOST) {
            map.remove(key);
        }
        assert_eq!(map.chunks.len(), 2, "a quarter of each is enough");
        map.remove(MOST);
        assert_eq!(map.chunks.len(), 1);
        assert_eq!((map.len(), map.check()), (2 * few - 1, Ok(())));
    }

    #[test]
    fn what_is_not_as_it_should_be_is_told() {
        let mut map = AddressMap::new();
        (0..2 * MOST).for_each(|key| map.insert(key * 2, ()));
        assert_eq!(map.check(), Ok(()));
        let second = 2 * MOST;
        let broken = |breaks: &dyn Fn(&mut AddressMap<()>)| {
            let mut map = map.clone();
            breaks(&mut map);
            map.check().unwrap_err()
        };
        let chunk = |map: &mut AddressMap<()>, at, key| {
            map.chunks.get_mut(&at).unwrap().keys[key] = if key == 0 { 2 } else { at + 1 };
        };
        assert!(broken(&|map| chunk(map, 0, MOST - 1)).contains("should not"), "not in order");
        assert!(broken(&|map| chunk(map, second, 0)).contains("should not"), "of another chunk");
        let twice = |map: &mut AddressMap<()>| map.chunks.get_mut(&0).unwrap().keys[1] = 0;
        assert!(broken(&twice).contains("should not"), "twice");
        let behind = |map: &mut AddressMap<()>| {
            map.remove(second - 2);
            map.chunks.get_mut(&0).unwrap().keys[MOST - 1] = 1;
        };
        assert!(broken(&behind).contains("not where it should be"));
        let empty = |map: &mut AddressMap<()>| {
            map.chunks.insert(1000, Box::new(super::Chunk::new()));
        };
        assert!(broken(&empty).contains("is empty"));
        assert!(broken(&|map| map.len += 1).contains("65 entries are counted and 64 there"));
        let no_first = |map: &mut AddressMap<()>| {
            map.chunks.remove(&0);
            map.len -= MOST;
        };
        assert!(broken(&no_first).contains("entries are counted"));
    }
}
