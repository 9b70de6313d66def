//! What is under the type of a column.

use std::collections::HashMap;

use crate::position::Lsn;

/// OIDs below are Postgres' own, `FirstNormalObjectId`:
/// <https://github.com/postgres/postgres/blob/master/src/include/access/transam.h>
const FIRST_NORMAL_OID: u32 = 16_384;

/// Types that columns may be of, as of a place in the log, with the type under each: a relation message names a domain
/// and does not say what it is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseTypes {
    bases: HashMap<u32, u32>,
    as_of: Lsn,
}

impl Default for BaseTypes {
    /// There are no domains, and never will be.
    fn default() -> Self {
        BaseTypes { bases: HashMap::new(), as_of: Lsn::new(u64::MAX) }
    }
}

impl BaseTypes {
    /// `bases` gives for the OID of a type that of the type under it: of a domain one that is none. What committed up to
    /// `as_of` is in it.
    pub fn new(bases: HashMap<u32, u32>, as_of: Lsn) -> Self {
        BaseTypes { bases, as_of }
    }

    /// The type under a column's type in a transaction that commits at `commit_lsn`: that type itself where it is no
    /// domain, or was dropped since. None where it may be a domain that is too young to be known.
    pub(super) fn base(&self, type_oid: u32, commit_lsn: Lsn) -> Option<u32> {
        match self.bases.get(&type_oid) {
            Some(base) => Some(*base),
            None if type_oid >= FIRST_NORMAL_OID && commit_lsn > self.as_of => None,
            None => Some(type_oid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_the_type_under_it_and_what_may_be_one_is_not_guessed() {
        let types = BaseTypes::new(HashMap::from([(13_000, 23), (20_000, 17), (20_002, 20_002)]), Lsn::new(100));
        let base = |oid, lsn| types.base(oid, Lsn::new(lsn));
        assert_eq!((base(20_000, 50), base(20_000, 150), base(13_000, 150)), (Some(17), Some(17), Some(23)));
        assert_eq!(base(20_002, 150), Some(20_002));
        // An enum, or a domain that was dropped since: text either way.
        assert_eq!(base(20_001, 100), Some(20_001));
        assert_eq!(base(20_001, 101), None);
        assert_eq!(base(17, 101), Some(17));
    }
}
