//! Who may use mappings: what is alike is kept once.
//!
//! There are millions of mappings and few ways to share them out, so that a mapping has the number
//! of a row here, four bytes instead of forty-eight.

use crate::vmm::access::{AccessSet, AgentSet};
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

/// All rights that mappings have, each once.
#[derive(Debug, Default)]
pub(super) struct RightsTable {
    /// With how many mappings have them.
    rows: Vec<(Rights, usize)>,
    /// Those of the rows that mappings have.
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
        if let Some(&row) = self.numbers.get(&rights) {
            self.rows[at(row)].1 += 1;
            return row;
        }
        let row = match self.free.pop() {
            Some(row) => {
                self.rows[at(row)] = (rights, 1);
                row
            }
            None => {
                self.rows.push((rights, 1));
                self.rows.len() as Row
            }
        };
        self.numbers.insert(rights, row);
        row
    }

    /// One mapping less has the rights of this row.
    pub fn give_back(&mut self, row: Row) {
        if row == NOBODY {
            return;
        }
        let (rights, mappings) = &mut self.rows[at(row)];
        *mappings -= 1;
        if *mappings == 0 {
            self.numbers.remove(rights);
            self.free.push(row);
        }
    }

    /// Checks against how many mappings have each row.
    pub fn check(&self, found: &BTreeMap<Row, usize>) -> Result<(), String> {
        for (&row, &found) in found.iter().filter(|(row, _)| **row != NOBODY) {
            match self.rows.get(at(row)) {
                Some((rights, counted)) if *counted == found => {
                    if self.numbers.get(rights) != Some(&row) {
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
        let (named, free) = (self.numbers.len(), self.free.len());
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
        table.rows.push((rights(4), 0));
        assert!(table.check(&all(1, 1)).unwrap_err().contains("2 rows of rights are used"));
        table.rows.pop();
        table.numbers.clear();
        assert!(table.check(&all(1, 1)).unwrap_err().contains("not found"));
    }
}
