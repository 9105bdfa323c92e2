//! A map by address that is quick also when it is large.
//!
//! ```text
//! root ──► node, bits 33 to 38 ──► node, bits 21 to 26 ──► entry
//!                             └──► entry, which is alone there
//! ```
//!
//! A tree of nodes with up to 64 children, one for each value of six bits of the address. A node keeps
//! in 64 bits which of them are there, so that a look-up compares nothing: it counts bits. No node
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
    /// Those, by digit.
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
                Self::Node(node) => child = node.children.last()?,
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
            Self::Node(node) if node.covers(address) => {
                let (digit, rank) = node.place(address);
                match node.child_mut(digit, rank) {
                    Some(child) => return child.insert(address, value),
                    None => node.add(Self::Entry(address, value)),
                }
            }
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
                let (digit, rank) = node.place(address);
                let child = node.child_mut(digit, rank)?;
                let value = child.remove(address)?;
                if matches!(child, Self::Nothing) {
                    node.take(digit, rank);
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

    /// The digit of an address that belongs here, and how many children are below it.
    fn place(&self, address: usize) -> (u32, usize) {
        // The topmost digit has one bit.
        let shift = match self.at.trailing_zeros() {
            highest if highest == usize::BITS - 1 => highest,
            highest => highest.saturating_sub(DIGIT - 1),
        };
        let digit = (address >> shift) as u32 % (1 << DIGIT);
        (digit, (self.digits & ((1 << digit) - 1)).count_ones() as usize)
    }

    fn has(&self, digit: u32) -> bool {
        self.digits >> digit & 1 == 1
    }

    fn child_mut(&mut self, digit: u32, rank: usize) -> Option<&mut Child<V>> {
        if self.has(digit) { self.children.get_mut(rank) } else { None }
    }

    /// Adds a child where none is.
    fn add(&mut self, child: Child<V>) {
        let (digit, rank) = self.place(child.lowest());
        self.digits |= 1 << digit;
        self.children.insert(rank, child);
    }

    /// Takes a child away.
    fn take(&mut self, digit: u32, rank: usize) {
        self.digits &= !(1 << digit);
        self.children.remove(rank);
        if self.children.len() * 4 <= self.children.capacity() {
            self.children.shrink_to(self.children.len() * 2);
        }
    }
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
                    let (digit, rank) = node.place(address);
                    beside =
                        rank.checked_sub(1).and_then(|rank| node.children.get(rank)).or(beside);
                    if !node.has(digit) {
                        break;
                    }
                    child = node.children.get(rank)?;
                }
                Child::Node(node) if node.at < address => return child.last(),
                _ => break,
            }
        }
        beside?.last()
    }

    pub fn get_mut(&mut self, address: usize) -> Option<&mut V> {
        let mut child = &mut self.root;
        loop {
            match child {
                Child::Nothing => return None,
                Child::Entry(here, value) => return (*here == address).then_some(value),
                Child::Node(node) => {
                    let (digit, rank) = node.place(address);
                    child = node.child_mut(digit, rank)?;
                }
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
            let (digit, rank) = node.place(address);
            entries.ways[entries.depth].next();
            entries.down(&node.children[rank..]);
            if !node.has(digit) {
                return entries;
            }
            child = &node.children[rank];
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
    if node.children.len() < 2 || node.children.len() != node.digits.count_ones() as usize {
        return wrong("does not know how many children it has");
    }
    let mut found = 0;
    for (rank, below) in node.children.iter().enumerate() {
        let address = below.lowest();
        let (digit, expected) = node.place(address);
        if !node.covers(address) || !node.has(digit) || rank != expected {
            return wrong("holds what it should not");
        }
        let narrower = |below: &Node<V>| below.at.trailing_zeros() < node.at.trailing_zeros();
        match below {
            Child::Node(below) if narrower(below) => {}
            Child::Entry(..) => {}
            _ => return wrong("holds what is no smaller"),
        }
        found += check(below)?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
