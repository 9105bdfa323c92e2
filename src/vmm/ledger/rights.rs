//! Who may use mappings: what is alike is kept once.
//!
//! There are millions of mappings and few ways to share them out, so that a mapping has the number
//! of a row here, four bytes instead of forty-eight.

use crate::access::{AccessSet, AgentSet};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// What each agent may do with a mapping, and whom the runtime has been told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rights {
    pub access: AccessSet,
    pub granted: AgentSet,
}

/// The number of a row.
pub(super) type Row = u32;

/// The row of mappings that nobody may use. It takes no memory; the others are numbered from 1.
pub(super) const NOBODY: Row = 0;

static NONE: Rights = Rights { access: AccessSet::NONE, granted: AgentSet::NONE };

/// Where a row is; nowhere for that of nobody.
fn at(row: Row) -> usize {
    (row as usize).wrapping_sub(1)
}

/// How many rows are looked through one after the other at most.
const FEW: usize = 8;

/// The number of the row that is there.
fn number(at: usize) -> Row {
    at as Row + 1
}

/// All rights that mappings have, each once.
#[derive(Debug, Default)]
pub(super) struct RightsTable {
    /// With how many mappings have them; a row that none has is used again.
    rows: SmallVec<[(Rights, usize); 1]>,
    /// Of more than a few.
    index: Option<Box<Index>>,
}

/// Which row is whose, and which are free.
#[derive(Debug, Default)]
struct Index {
    numbers: BTreeMap<Rights, Row>,
    free: Vec<Row>,
}

impl RightsTable {
    pub fn get(&self, row: Row) -> &Rights {
        self.rows.get(at(row)).map_or(&NONE, |(rights, _)| rights)
    }

    /// The row of these rights, for one mapping more.
    pub fn take(&mut self, rights: Rights) -> Row {
        if rights == Rights::default() {
            return NOBODY;
        }
        if let Some(row) = self.row_of(&rights) {
            self.rows[at(row)].1 += 1;
            return row;
        }
        let free = match &mut self.index {
            Some(index) => index.free.pop(),
            None => self.rows.iter().position(|(_, mappings)| *mappings == 0).map(number),
        };
        let row = free.unwrap_or_else(|| {
            self.rows.push((rights, 0));
            self.rows.len() as Row
        });
        self.rows[at(row)] = (rights, 1);
        match &mut self.index {
            Some(index) => drop(index.numbers.insert(rights, row)),
            None if self.rows.len() > FEW => {
                let row = |(at, (rights, _)): (usize, &(Rights, usize))| (*rights, number(at));
                let numbers = self.rows.iter().enumerate().map(row).collect();
                self.index = Some(Box::new(Index { numbers, free: Vec::new() }));
            }
            None => {}
        }
        row
    }

    /// One mapping less has the rights of this row.
    pub fn give_back(&mut self, row: Row) {
        if row == NOBODY {
            return;
        }
        let (rights, mappings) = &mut self.rows[at(row)];
        *mappings -= 1;
        if *mappings == 0
            && let Some(index) = &mut self.index
        {
            index.numbers.remove(rights);
            index.free.push(row);
        }
    }

    /// The row of these rights, if some mapping has them.
    fn row_of(&self, rights: &Rights) -> Option<Row> {
        match &self.index {
            Some(index) => index.numbers.get(rights).copied(),
            None => {
                let is_it = |(it, mappings): &(Rights, usize)| *mappings > 0 && it == rights;
                self.rows.iter().position(is_it).map(number)
            }
        }
    }

    /// Checks against how many mappings have each row.
    pub fn check(&self, found: &BTreeMap<Row, usize>) -> Result<(), String> {
        for (&row, &found) in found.iter().filter(|(row, _)| **row != NOBODY) {
            match self.rows.get(at(row)) {
                Some((rights, counted)) if *counted == found => {
                    if self.row_of(rights) != Some(row) {
                        return Err(format!("row {row} of rights is not found by what is in it"));
                    }
                }
                Some((_, counted)) => {
                    return Err(format!(
                        "row {row} of rights counts {counted} and {found} have it"
                    ));
                }
                None => return Err(format!("row {row} of rights is not there")),
            }
        }
        let used = found.keys().filter(|row| **row != NOBODY).count();
        let counted = self.rows.iter().filter(|(_, mappings)| *mappings > 0).count();
        let (named, free) = match &self.index {
            Some(index) => (index.numbers.len(), index.free.len()),
            None => (counted, self.rows.len() - counted),
        };
        if named != used || used + free != self.rows.len() {
            return Err(format!("{used} rows of rights are used, {named} found and {free} free"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vmm::Access;

    fn rights(agent: usize) -> Rights {
        let mut rights = Rights::default();
        rights.access.set(agent, Access::Read);
        rights.granted.insert(agent);
        rights
    }

    #[test]
    fn what_is_alike_is_kept_once_and_goes_with_the_last() {
        let mut table = RightsTable::default();
        let (one, other) = (table.take(rights(1)), table.take(rights(2)));
        assert_eq!(table.take(rights(1)), one);
        assert!(one != other && one != NOBODY && other != NOBODY);
        assert_eq!((*table.get(one), *table.get(other)), (rights(1), rights(2)));
        assert_eq!(table.take(Rights::default()), NOBODY);
        assert_eq!(*table.get(NOBODY), Rights::default());
        let all = |ones, others| BTreeMap::from([(NOBODY, 9), (one, ones), (other, others)]);
        assert_eq!(table.check(&all(2, 1)), Ok(()));
        assert!(table.check(&all(1, 1)).unwrap_err().contains("counts 2 and 1 have it"));
        assert!(table.check(&BTreeMap::from([(one, 2)])).is_err(), "one that nobody has");
        assert!(table.check(&BTreeMap::from([(one, 2), (other, 1), (7, 1)])).is_err());
        table.give_back(one);
        assert_eq!(table.check(&all(1, 1)), Ok(()));
        table.give_back(one);
        assert_eq!(table.check(&BTreeMap::from([(other, 1)])), Ok(()));
        assert_eq!(table.take(rights(3)), one, "the row is used again");
        table.give_back(NOBODY);
        assert_eq!(table.check(&all(1, 1)), Ok(()));
        table.rows.push((rights(4), 1));
        assert!(table.check(&all(1, 1)).unwrap_err().contains("2 rows of rights are used"));
    }

    #[test]
    fn many_are_found_as_few_are() {
        let mut table = RightsTable::default();
        let many = 3 * FEW;
        let mut counts = BTreeMap::new();
        for round in 1..=3 {
            for agent in 0..many {
                let row = table.take(rights(agent));
                assert_eq!((row as usize, *table.get(row)), (agent + 1, rights(agent)));
                assert_eq!(table.index.is_some(), table.rows.len() > FEW, "a few need none");
                *counts.entry(row).or_default() = round;
                assert_eq!(table.check(&counts), Ok(()));
            }
        }
        assert_eq!(table.rows.len(), many, "each once");
        // Those that go leave their rows to those that come.
        let gone: Vec<Row> = (1..=many as Row).step_by(2).collect();
        for &row in &gone {
            (0..3).for_each(|_| table.give_back(row));
            counts.remove(&row);
            assert_eq!(table.check(&counts), Ok(()));
        }
        for (agent, _) in gone.iter().enumerate() {
            let row = table.take(rights(64 + agent));
            assert!(gone.contains(&row) && counts.insert(row, 1).is_none());
            assert_eq!(table.check(&counts), Ok(()));
        }
        assert_eq!(table.take(rights(1)), 2);
        assert!(table.check(&counts).unwrap_err().contains("counts 4 and 3 have it"));
        table.give_back(2);
        let index = table.index.as_mut().unwrap();
        index.free.push(1);
        assert!(table.check(&counts).unwrap_err().contains("and 1 free"));
        table.index.as_mut().unwrap().numbers.clear();
        assert!(table.check(&counts).unwrap_err().contains("not found"));
    }
}
