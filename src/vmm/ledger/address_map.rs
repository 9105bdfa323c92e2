//! A map by address that is quick also when it is large.
//!
//! ```text
//! root ──► node, bits 33 to 38 ──► node, bits 21 to 26 ──► entry
//!                             └──► entry, which is alone there
//! ```
//!
//! A tree of nodes with up to 64 children, one for each value of six bits of the address. A node keeps
//! in 64 bits which of them are there, so that a look-up compares nothing: it looks at bits. No node
//! asks for bits in which all addresses below it are alike. With a million mappings of 2 MiB all steps
//! but the last are in the processor's caches, and what a look-up costs is waiting for the entry. To
//! enter one allocates at most once.

use std::mem::replace;
use std::slice::Iter;

/// How many bits of an address a node tells apart.
const DIGIT: u32 = 6;
/// Where digits are counted from, upwards and downwards: 64 mappings of 2 MiB, the usual granule, are
/// side by side.
const USUAL: u32 = 21;
/// How many nodes there are at most from the root to an entry.
const DEEPEST: usize = 12;
/// How many children a node may have.
const ALL: usize = 1 << DIGIT;
/// How many are kept one after the other at most.
const FEW: usize = 24;
/// With how many each keeps its place at least. A mapping takes no more than 128 bytes so.
const MANY: usize = 22;

/// What is at a digit.
#[derive(Clone, Debug)]
enum Child<V> {
    Nothing,
    Entry(usize, V),
    Node(Node<V>),
}

/// Two to 64 children, told apart by some bits of the address.
#[derive(Clone, Debug)]
struct Node<V> {
    /// The bits above those, in which all addresses below are alike; then a one, then zeros.
    at: usize,
    /// Which children are there.
    digits: u64,
    /// Few of them one after the other; of many, a place for each there could be, so that nothing is
    /// moved when one comes or goes.
    children: Vec<Child<V>>,
}

impl<V> Child<V> {
    /// An address that belongs here, at or below all that are here.
    fn lowest(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Entry(address, _) => *address,
            Self::Node(node) => node.at & (node.at - 1),
        }
    }

    /// The entry with the highest address.
    fn last(&self) -> Option<(usize, &V)> {
        let mut child = self;
        loop {
            match child {
                Self::Nothing => return None,
                Self::Entry(address, value) => return Some((*address, value)),
                Self::Node(node) => child = node.nearest(node.digits)?,
            }
        }
    }

    /// Enters a value; says whether there was none.
    fn insert(&mut self, address: usize, value: V) -> bool {
        match self {
            Self::Entry(here, old) if *here == address => {
                *old = value;
                return false;
            }
            Self::Node(node) if node.covers(address) => match node.child_mut(address) {
                Some(child) => return child.insert(address, value),
                None => node.add(Self::Entry(address, value)),
            },
            Self::Nothing => *self = Self::Entry(address, value),
            _ => {
                let old = replace(self, Self::Nothing);
                *self = Self::Node(Node::of_two(old, Self::Entry(address, value)));
            }
        }
        true
    }

    fn remove(&mut self, address: usize) -> Option<V> {
        match self {
            Self::Entry(here, _) if *here == address => match replace(self, Self::Nothing) {
                Self::Entry(_, value) => Some(value),
                _ => None,
            },
            Self::Node(node) => {
                let (digit, place) = node.find(address)?;
                let child = node.children.get_mut(place)?;
                let value = child.remove(address)?;
                if matches!(child, Self::Nothing) {
                    node.take(digit, place);
                    // What is alone needs no node.
                    if let [_] = *node.children
                        && let Some(alone) = node.children.pop()
                    {
                        *self = alone;
                    }
                }
                Some(value)
            }
            _ => None,
        }
    }
}

impl<V> Node<V> {
    /// Of two children that differ in some bit.
    fn of_two(one: Child<V>, other: Child<V>) -> Self {
        let low = one.lowest();
        let bit = (low ^ other.lowest()).checked_ilog2().unwrap_or_default();
        let first = USUAL % DIGIT;
        let highest = match bit.checked_sub(first) {
            None => first - 1,
            Some(bit) => bit / DIGIT * DIGIT + first + DIGIT - 1,
        };
        let highest = highest.min(usize::BITS - 1);
        let alike = low >> highest >> 1 << 1 << highest;
        let mut node =
            Self { at: alike | 1 << highest, digits: 0, children: Vec::with_capacity(2) };
        node.add(one);
        node.add(other);
        node
    }

    /// Whether an address belongs here.
    fn covers(&self, address: usize) -> bool {
        (address ^ self.at) >> self.at.trailing_zeros() >> 1 == 0
    }

    /// The digit of an address that belongs here.
    fn digit(&self, address: usize) -> u32 {
        // The topmost digit has one bit.
        let shift = match self.at.trailing_zeros() {
            highest if highest == usize::BITS - 1 => highest,
            highest => highest.saturating_sub(DIGIT - 1),
        };
        (address >> shift) as u32 % ALL as u32
    }

    fn has(&self, digit: u32) -> bool {
        self.digits >> digit & 1 == 1
    }

    /// Where the child of a digit is, or would be.
    fn place(&self, digit: u32) -> usize {
        if self.children.len() == ALL {
            digit as usize
        } else {
            (self.digits & below(digit)).count_ones() as usize
        }
    }

    /// The child with the highest of some digits.
    fn nearest(&self, digits: u64) -> Option<&Child<V>> {
        let digit = (self.digits & digits).checked_ilog2()?;
        self.children.get(self.place(digit))
    }

    /// The digit of an address, and the place of the child that is there, if one is.
    fn find(&self, address: usize) -> Option<(u32, usize)> {
        let digit = self.digit(address);
        if self.has(digit) { Some((digit, self.place(digit))) } else { None }
    }

    fn child_mut(&mut self, address: usize) -> Option<&mut Child<V>> {
        let (_, place) = self.find(address)?;
        self.children.get_mut(place)
    }

    /// Adds a child where none is.
    fn add(&mut self, child: Child<V>) {
        let digit = self.digit(child.lowest());
        if self.children.len() == FEW {
            self.spread();
        }
        let place = self.place(digit);
        self.digits |= 1 << digit;
        match self.children.get_mut(place) {
            Some(empty @ Child::Nothing) => *empty = child,
            _ => {
                if self.children.len() == self.children.capacity() {
                    let more = self.children.len().min(FEW - self.children.len());
                    self.children.reserve_exact(more);
                }
                self.children.insert(place, child);
            }
        }
    }

    /// Gives each child that there could be a place of its own.
    fn spread(&mut self) {
        let mut close = replace(&mut self.children, Vec::with_capacity(ALL)).into_iter();
        for digit in 0..ALL as u32 {
            let child = if self.has(digit) { close.next() } else { None };
            self.children.push(child.unwrap_or(Child::Nothing));
        }
    }

    /// Takes a child away that is nothing any more.
    fn take(&mut self, digit: u32, place: usize) {
        self.digits &= !(1 << digit);
        let left = self.digits.count_ones() as usize;
        if self.children.len() < ALL {
            self.children.remove(place);
            if left * 3 <= self.children.capacity() {
                self.children.shrink_to(left + left / 2);
            }
        } else if left < MANY {
            let spread = replace(&mut self.children, Vec::with_capacity(FEW));
            let is_there = |child: &Child<V>| !matches!(child, Child::Nothing);
            self.children.extend(spread.into_iter().filter(is_there));
        }
    }
}

/// All digits below one.
fn below(digit: u32) -> u64 {
    (1 << digit) - 1
}

/// Values by address.
#[derive(Clone, Debug)]
pub(super) struct AddressMap<V> {
    root: Child<V>,
    len: usize,
}

impl<V> AddressMap<V> {
    pub fn new() -> Self {
        Self { root: Child::Nothing, len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The entry at or below an address.
    pub fn below(&self, address: usize) -> Option<(usize, &V)> {
        // Of what is beside the way down, the nearest that is below the address.
        let mut beside = None;
        let mut child = &self.root;
        loop {
            match child {
                Child::Entry(here, value) if *here <= address => return Some((*here, value)),
                Child::Node(node) if node.covers(address) => {
                    let digit = node.digit(address);
                    beside = node.nearest(below(digit)).or(beside);
                    if !node.has(digit) {
                        break;
                    }
                    child = node.children.get(node.place(digit))?;
                }
                Child::Node(node) if node.at < address => return child.last(),
                _ => break,
            }
        }
        beside?.last()
    }

    /// The entry at just this address.
    pub fn get(&self, address: usize) -> Option<&V> {
        let mut child = &self.root;
        loop {
            match child {
                Child::Nothing => return None,
                Child::Entry(here, value) => return (*here == address).then_some(value),
                Child::Node(node) => child = node.children.get(node.find(address)?.1)?,
            }
        }
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, address: usize) -> Option<&mut V> {
        let mut child = &mut self.root;
        loop {
            match child {
                Child::Nothing => return None,
                Child::Entry(here, value) => return (*here == address).then_some(value),
                Child::Node(node) => child = node.child_mut(address)?,
            }
        }
    }

    /// Enters a value, in the place of the one that is there.
    pub fn insert(&mut self, address: usize, value: V) {
        self.len += usize::from(self.root.insert(address, value));
    }

    pub fn remove(&mut self, address: usize) -> Option<V> {
        let value = self.root.remove(address)?;
        self.len -= 1;
        Some(value)
    }

    /// The entries of a range, by address.
    pub fn range(&self, range: core::ops::Range<usize>) -> impl Iterator<Item = (usize, &V)> {
        let end = range.end;
        Entries::since(&self.root, range.start).take_while(move |&(address, _)| address < end)
    }

    /// All entries, by address.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &V)> {
        Entries::since(&self.root, 0)
    }

    /// Checks that every address is where it is looked for.
    pub fn check(&self) -> Result<(), String> {
        let found = check(&self.root)?;
        if found != self.len {
            return Err(format!("{} entries are counted and {found} there", self.len));
        }
        Ok(())
    }
}

/// Walks through entries by address.
struct Entries<'a, V> {
    /// What is still to come of each node on the way down to where it is.
    ways: [Iter<'a, Child<V>>; DEEPEST + 1],
    depth: usize,
}

impl<'a, V> Entries<'a, V> {
    /// Those at or above an address.
    fn since(root: &'a Child<V>, address: usize) -> Self {
        let mut entries = Self { ways: std::array::from_fn(|_| [].iter()), depth: 0 };
        entries.ways[0] = std::slice::from_ref(root).iter();
        let mut child = root;
        while let Child::Node(node) = child
            && node.covers(address)
        {
            let digit = node.digit(address);
            let from_there = &node.children[node.place(digit)..];
            entries.ways[entries.depth].next();
            entries.down(from_there);
            if !node.has(digit) {
                return entries;
            }
            child = &from_there[0];
        }
        // It is all before the address or all behind it.
        if child.lowest() < address {
            entries.ways[entries.depth].next();
        }
        entries
    }

    fn down(&mut self, children: &'a [Child<V>]) {
        self.depth += 1;
        self.ways[self.depth] = children.iter();
    }
}

impl<'a, V> Iterator for Entries<'a, V> {
    type Item = (usize, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.ways[self.depth].next() {
                Some(Child::Entry(address, value)) => return Some((*address, value)),
                Some(Child::Node(node)) => self.down(&node.children),
                Some(Child::Nothing) => {}
                None => self.depth = self.depth.checked_sub(1)?,
            }
        }
    }
}

/// Counts the entries below a child, each of which must be found by the bits of its address.
fn check<V>(child: &Child<V>) -> Result<usize, String> {
    let Child::Node(node) = child else { return Ok(matches!(child, Child::Entry(..)).into()) };
    let wrong = |what: &str| Err(format!("the node at {:#x} {what}", child.lowest()));
    let count = node.digits.count_ones() as usize;
    let is_close = node.children.len() == count && (2..=FEW).contains(&count);
    let is_spread = node.children.len() == ALL && count >= MANY;
    if !is_close && !is_spread {
        return wrong("does not know how many children it has");
    }
    let mut digits = (0..ALL as u32).filter(|&digit| is_spread || node.has(digit));
    let mut found = 0;
    for below in &node.children {
        let digit = digits.next().unwrap_or_default();
        let address = below.lowest();
        let is_in_place = match below {
            Child::Nothing => !node.has(digit),
            _ => node.has(digit) && node.covers(address) && node.digit(address) == digit,
        };
        if !is_in_place {
            return wrong("holds what it should not");
        }
        let width = |node: &Node<V>| node.at.trailing_zeros();
        if matches!(below, Child::Node(below) if width(below) >= width(node)) {
            return wrong("holds what is no smaller");
        }
        found += check(below)?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
