//! Whether rows of the tables can be read: in place of a slot, or should the slot be lost.

use crate::cli::session::Session;
use crate::cli::setup::catalog::Found;
use crate::cli::setup::plan::{Plan, Wanted};
use crate::config::OutboxConfig;
use crate::error::{Error, Kind, Result};
use crate::poll::{NEEDS_ORDER, TableFacts, table_facts};
use crate::source::preflight::MAJOR_MIN;

/// Adds to `plan` what stands in the way of reading the tables that are there: an obstacle where the relay polls, else a
/// warning. With `adds_column`, the column for the transaction is as good as there. Changes nothing, and reads no row.
///
/// # Errors
/// Those of the connection.
pub async fn look(
    plan: &mut Plan,
    session: &Session,
    wanted: &Wanted<'_>,
    found: &Found,
    adds_column: bool,
) -> Result<()> {
    if found.server.major() < MAJOR_MIN {
        return Ok(());
    }
    for ((outbox, _), _) in wanted.tables().zip(&found.outboxes).filter(|(_, place)| place.table.is_some()) {
        match table_facts(session.client(), outbox).await {
            Ok(facts) => judge(plan, wanted, outbox, &facts, adds_column),
            Err(error) if !matches!(error.kind(), Kind::Config | Kind::Publication) => return Err(error),
            Err(error) if wanted.polls => plan.obstacles.push(error),
            Err(error) => plan.warnings.push(told(&error)),
        }
    }
    Ok(())
}

fn told(error: &Error) -> String {
    match error.what_to_do() {
        Some(remedy) => format!("{error}: {remedy}"),
        None => error.to_string(),
    }
}

fn judge(plan: &mut Plan, wanted: &Wanted<'_>, outbox: &OutboxConfig, facts: &TableFacts, adds_column: bool) {
    let table = &facts.name;
    let unfit = |cause: String, remedy: &str| Error::new(Kind::Publication, cause).remedy(remedy);
    if facts.order.is_none() {
        let what = format!("table {table} has no identity or serial column, and outbox.order_by is not set");
        if wanted.polls {
            plan.obstacles
                .push(unfit(format!("{what}: nothing tells the order in which rows are to be read"), NEEDS_ORDER));
        } else {
            plan.warnings.push(format!(
                "{what}: should the slot be lost, nothing tells in which order to read from the table what was not \
                 published, and the relay stops. To be safe from that, {NEEDS_ORDER}"
            ));
        }
    }
    if facts.xid_column.is_none() && !adds_column && !outbox.upkeep.says_for_itself() {
        let column = "--add-xid-column adds a column with the transaction's id";
        if wanted.polls {
            plan.obstacles.push(unfit(
                format!("table {table} cannot be polled: no column tells which rows were not published"),
                &format!("{column}; or set outbox.pending and outbox.mark, or outbox.delete"),
            ));
        } else {
            plan.warnings.push(format!(
                "no column of table {table} tells which transaction inserted a row: should the slot be lost, some events come \
                 again. walrelay setup --slot {} with {column}",
                wanted.slot
            ));
        }
    }
    if wanted.polls && !facts.may_select {
        plan.remarks
            .push(format!("this role may not read table {table}; that of the relay has to: grant select on {table}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SlotName;
    use crate::poll::{KeyColumn, Order};

    fn facts(order: bool, xid: bool) -> TableFacts {
        let order = order.then(|| Order {
            sql: "\"seq\"".to_owned(),
            type_name: "bigint".to_owned(),
            not_null: true,
            is_found: true,
        });
        TableFacts {
            oid: 1,
            name: "sales.outbox".parse().unwrap(),
            columns: Vec::new(),
            key: vec![KeyColumn {
                name: "id".to_owned(),
                type_name: "uuid".to_owned(),
                as_text: false,
                not_null: true,
            }],
            xid_column: xid.then(|| "xid".to_owned()),
            xid_not_null: false,
            order,
            time: None,
            may_select: true,
            may_lock: true,
            is_partitioned: false,
        }
    }

    fn judged(polls: bool, facts: &TableFacts, outbox: &OutboxConfig, adds_column: bool) -> Plan {
        let slot: SlotName = "orders".parse().unwrap();
        let outboxes = [outbox.clone()];
        let wanted = Wanted { slot: &slot, publication: "p", outboxes: &outboxes, create_table: false, polls };
        let mut plan = Plan::default();
        judge(&mut plan, &wanted, outbox, facts, adds_column);
        plan
    }

    #[test]
    fn what_a_lost_slot_would_need_is_a_warning_and_what_polling_needs_an_obstacle() {
        let mut outbox = OutboxConfig::default();
        let counts = |plan: &Plan| (plan.warnings.len(), plan.obstacles.len());
        for (order, xid, adds_column, missing) in
            [(true, true, false, 0), (true, false, true, 0), (true, false, false, 1), (false, true, false, 1)]
        {
            let facts = facts(order, xid);
            assert_eq!(counts(&judged(false, &facts, &outbox, adds_column)), (missing, 0), "{order} {xid}");
            assert_eq!(counts(&judged(true, &facts, &outbox, adds_column)), (0, missing), "{order} {xid}");
        }
        let plan = judged(false, &facts(false, false), &outbox, false);
        assert!(plan.warnings[0].contains("outbox.order_by") && plan.warnings[1].contains("--add-xid-column"));
        let error = judged(true, &facts(true, false), &outbox, false).refusal().unwrap_err();
        assert_eq!(error.kind(), Kind::Publication);
        assert!(error.what_to_do().unwrap().starts_with("--add-xid-column"), "{error}");
        outbox.upkeep.pending = Some("not sent".to_owned());
        assert_eq!(counts(&judged(true, &facts(true, false), &outbox, false)), (0, 0));
        let closed = TableFacts { may_select: false, ..facts(true, true) };
        assert_eq!(judged(true, &closed, &outbox, false).remarks.len(), 1);
    }
}
