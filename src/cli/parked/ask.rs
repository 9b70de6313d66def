//! `walrelay parked retry` and `drop`: looked at first, shown, confirmed, and then written down for the relay.

use super::chosen::Chosen;
use super::list::counts;
use super::plan::{Ask, Plan};
use super::{AskArgs, count, nothing, opened};
use crate::cli::output::{Outcome, print, print_json, print_line};
use crate::cli::prompt::shown_and_confirmed;
use crate::cli::session::{Session, column};
use crate::config::SlotName;
use crate::error::{Error, Kind, Result};
use crate::postgres::fault::{self, While};
use crate::source::holder::holder;
use crate::upkeep::parked::CLASSES;

const PLAN: &str =
    concat!(include_str!("../../../sql/parked/chosen.sql"), include_str!("../../../sql/parked/plan.sql"));
const ASK: &str = include_str!("../../../sql/parked/ask.sql");

/// Shows what would be asked, asks the person, and writes it down.
///
/// A retry is asked of the first event of each aggregate, a drop of exactly the events that are meant. In memory is a number
/// for each, of 100 000 that may wait.
///
/// # Errors
/// [`Kind::NothingMatched`] where there is no such event; [`Kind::Config`] where nothing says which events, and where nobody
/// confirms; what Postgres gives.
pub(super) async fn ask(args: &AskArgs, ask: Ask) -> Outcome {
    is_said_which(args)?;
    args.choice.filters.has_classes(&CLASSES)?;
    let (slot, session) = opened(&args.common).await?;
    let chosen = Chosen::new(&slot, &args.choice)?;
    let mut plan = planned(&session, (&slot, &chosen), ask, args.dry_run).await?;
    if plan.counts.matched == 0 {
        return Err(nothing(&slot, !args.choice.is_empty()).into());
    }
    let relay = holder(session.client(), &slot).await?;
    plan.relay_runs = relay.is_some();
    if args.dry_run {
        return if args.json { printed(&plan) } else { print(&plan.text()) };
    }
    let question = || plan.question();
    shown_and_confirmed(&plan.text(), (args.json, args.yes), question, "nothing was changed").await?;
    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 3] = [&slot.as_str(), &plan.ids, &ask.word()];
    let asked = session.client().execute(ASK, &values).await;
    plan.asked = asked.map_err(|error| fault::sql(While::Querying("asking in table walrelay.parked"), &error))?;
    if args.json { printed(&plan) } else { print_line(plan.said(&slot, relay.as_ref())) }
}

/// Nothing that is given is not everything.
fn is_said_which(args: &AskArgs) -> Result<()> {
    match (args.choice.is_empty(), args.all) {
        (true, false) => Err(Error::new(Kind::Config, "nothing says which events are meant")
            .remedy("name them by --id, --aggregate, --class and so on; --all are all that wait")),
        (false, true) => {
            Err(Error::new(Kind::Config, "--all, and conditions as well").remedy("leave out the one or the other"))
        }
        _ => Ok(()),
    }
}

async fn planned(session: &Session, of: (&SlotName, &Chosen), ask: Ask, dry_run: bool) -> Result<Plan> {
    let (slot, chosen) = of;
    let row = session.row("looking at parked events", PLAN, &chosen.values()).await?;
    let row = row.ok_or_else(|| Error::new(Kind::Bug, "no row about parked events"))?;
    let ids: Vec<i64> = match ask {
        Ask::Retry => column(&row, "heads")?,
        Ask::Drop => column(&row, "events")?,
    };
    let (counts, waiting) = (counts(session, chosen).await?, count(&row, "waiting")?);
    Ok(Plan { slot: slot.to_string(), ask, dry_run, counts, waiting, ids, asked: 0, relay_runs: false })
}

fn printed(plan: &Plan) -> Outcome {
    print_json(plan)
}
