//! `table.fields.additional.placement`: columns that go into headers, the envelope or the partition.

/// Where a column goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Header,
    Envelope,
    Partition,
}

/// A column, where it goes, and what it is called there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) column: String,
    pub(super) place: Place,
    pub(super) alias: String,
}

/// `column:place` or `column:place:alias`, with commas between. `Err` is the one that is neither.
pub(super) fn placements(text: &str) -> Vec<Result<Placed, String>> {
    let one = |text: &str| {
        let wrong = || text.to_owned();
        let mut parts = text.split(':').map(str::trim);
        let (column, place, alias) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
        let place = match place.map(str::to_lowercase).as_deref() {
            Some("header") => Place::Header,
            Some("envelope") => Place::Envelope,
            Some("partition") => Place::Partition,
            _ => return Err(wrong()),
        };
        if column.is_empty() || parts.next().is_some() {
            return Err(wrong());
        }
        Ok(Placed { column: column.to_owned(), place, alias: alias.unwrap_or(column).to_owned() })
    };
    text.split(',').map(str::trim).filter(|text| !text.is_empty()).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_and_triples_are_read_in_order() {
        let placed =
            |column: &str, place, alias: &str| Ok(Placed { column: column.to_owned(), place, alias: alias.to_owned() });
        assert_eq!(
            placements("type:header:eventType, tenant:HEADER,v:envelope:version,part:partition"),
            [
                placed("type", Place::Header, "eventType"),
                placed("tenant", Place::Header, "tenant"),
                placed("v", Place::Envelope, "version"),
                placed("part", Place::Partition, "part"),
            ]
        );
        for wrong in ["type", "type:nowhere", ":header", "a:header:b:c"] {
            assert_eq!(placements(wrong), [Err(wrong.to_owned())]);
        }
    }
}
