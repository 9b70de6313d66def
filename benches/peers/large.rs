//! One transaction of millions of rows: none of it may be held in memory.

use crate::Asked;
use crate::contestant::{CONNECT_TUNED, Contestant, RECVLOGICAL, SERVER_TUNED, WALRELAY};
use crate::drain::{Backlog, drained};
use crate::lab::{Lab, announce};
use crate::load::{self, Shape, TEMPLATE};
use crate::results::Run;

const ROWS: u64 = 5_000_000;

pub(crate) fn run(asked: &Asked, found: &mut dyn FnMut(Run)) {
    let lab = Lab::start(false);
    load::schema(&lab.sql, "");
    load::template(&lab.sql);
    let rows = asked.rows(ROWS);
    let end = load::backlog(&lab.sql, 1..=rows, rows, Shape::default());
    let backlog = Backlog { rows, end };
    let load = format!("{} in one transaction", backlog.load());
    let all = [RECVLOGICAL, WALRELAY, CONNECT_TUNED, SERVER_TUNED];
    // It takes minutes each, and what is asked is how much memory.
    for contestant in Contestant::and_guest(asked.among(&all)) {
        announce(contestant, &load, 1);
        let run = Run::new(&load, contestant.name(), 1);
        found(drained(
            &lab,
            contestant,
            &backlog,
            (Some(TEMPLATE), "", &[]),
            run,
        ));
    }
}
