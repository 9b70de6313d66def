//! `walrelay setup`: look, decide, do.
//!
//! [`catalog`] reads what is there, [`plan`] decides without I/O, [`create`] runs the statements. [`xid_column`] plans for
//! a table that is there, and [`readable`] says whether its rows could be read without the slot.

pub mod catalog;
pub mod create;
pub mod plan;
pub mod readable;
pub mod xid_column;

use crate::cli::flags;
use crate::cli::load::Loaded;
use crate::cli::output::{Outcome, print, print_line, shell_word, warn};
use crate::cli::session::Session;
use crate::cli::{SetupArgs, word};
use crate::config::Mode;
use crate::source::row_key;
use plan::{Object, Plan, Wanted};

/// Creates what is missing, leaves what fits, and refuses what does not fit with the SQL to fix it.
///
/// # Errors
/// [`crate::error::Kind::PostgresUnfit`], [`crate::error::Kind::PostgresRefused`],
/// [`crate::error::Kind::Publication`], [`crate::error::Kind::SlotUnusable`], and what connecting gives.
pub async fn setup(args: &SetupArgs) -> Outcome {
    let loaded = Loaded::new(&flags(args), args.common.config.as_deref())?;
    warn(loaded.settings.warnings());
    let (source, mut outboxes) = (loaded.settings.source()?, loaded.settings.outboxes()?);
    let session = Session::connect(&source.database, "setup").await?;
    row_key::find(session.client(), &source, &loaded.settings.delivery()?, &mut outboxes).await?;
    let found = catalog::look(&session, &source, &outboxes).await?;
    let wanted = Wanted {
        slot: &source.slot,
        publication: &source.publication,
        outboxes: &outboxes,
        create_table: args.create_table,
        polls: source.mode == Mode::Poll,
    };
    let mut plan = plan::plan(&wanted, &found)?;
    if args.add_xid_column {
        xid_column::extend(&mut plan, &session, &outboxes, &found).await?;
        plan.put_tables_first();
    }
    readable::look(&mut plan, &session, &wanted, &found, args.add_xid_column).await?;
    if args.dry_run {
        return print(&script(&plan, args.timeout));
    }
    plan.refusal()?;
    for present in &plan.present {
        print_line(present)?;
    }
    create::limit(&session, args.timeout).await?;
    for step in &plan.steps {
        print_line(&step.sql)?;
        match step.object {
            Object::Table | Object::Publication => session.run(&step.doing, &step.sql).await?,
            Object::Column => create::patiently(&session, step, args.timeout).await?,
            Object::Index => create::unbounded(&session, step, args.timeout).await?,
            Object::Slot => create::slot(&session, &source.database, step, args.timeout).await?,
        }
        print_line(&step.done)?;
    }
    for remark in &plan.remarks {
        print_line(format_args!("note: {remark}"))?;
    }
    for warning in &plan.warnings {
        print_line(format_args!("warning: {warning}"))?;
    }
    let brokers = if loaded.settings.get("kafka.brokers").is_some() { "" } else { " --brokers HOST:PORT" };
    // A table that was made just now is empty.
    let again = if found.tables().next().is_some() && plan.steps.iter().any(|step| step.object == Object::Slot) {
        "\n(add --backlog all, or since=TIME, the first time, if rows that are in the table already are to be published)"
    } else {
        ""
    };
    print_line(format_args!("Ready. Next: walrelay run --slot {}{}{brokers}{again}", source.slot, repeated(args)))
}

/// The flags of this `setup` that its `run` needs, too: what the environment or a file says, it finds by itself.
fn repeated(args: &SetupArgs) -> String {
    let config = args.common.config.as_ref().map(|path| path.display().to_string());
    let mode = args.mode.and_then(word);
    let flags = [
        ("config", config.as_deref()),
        ("table", args.table.as_deref()),
        ("publication", args.publication.as_deref()),
        ("mode", mode.as_deref()),
    ];
    let given = flags.into_iter().filter_map(|(flag, value)| Some(format!(" --{flag} {}", shell_word(value?))));
    given.collect()
}

/// The plan as a script for `psql`: what stands in the way is a comment, because whoever runs it may have other rights.
fn script(plan: &Plan, timeout: std::time::Duration) -> String {
    let mut lines =
        vec!["-- walrelay setup: stops at the first error.".to_owned(), "\\set ON_ERROR_STOP on".to_owned()];
    let comment = |text: &str| text.lines().map(|line| format!("-- {line}")).collect::<Vec<_>>().join("\n");
    for obstacle in &plan.obstacles {
        lines.push(comment(&format!("IN THE WAY: {obstacle}")));
        lines.extend(obstacle.what_to_do().map(|remedy| comment(&format!("    fix: {remedy}"))));
    }
    lines.extend(plan.present.iter().chain(&plan.remarks).map(|text| comment(text)));
    lines.extend(plan.warnings.iter().map(|warning| comment(&format!("warning: {warning}"))));
    if plan.steps.is_empty() {
        lines.push("-- Nothing to do.".to_owned());
    } else {
        lines.push(format!("set lock_timeout = 0;\nset statement_timeout = {};", timeout.as_millis()));
        for step in &plan.steps {
            let unbounded = if step.object == Object::Index { "set statement_timeout = 0;\n" } else { "" };
            lines.push(format!("\n{unbounded}{}", step.sql));
        }
    }
    lines.join("\n") + "\n"
}
