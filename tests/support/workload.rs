//! Writers as applications are: business rows under locks, events beside them, and everything that makes the order of
//! ids differ from the order of commits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::seed::{Witness, from_environment, generator};
use super::sql::Sql;
use super::wait;

/// Who writes what.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) writers: usize,
    /// Aggregates per type.
    pub(crate) aggregates: u32,
    /// Longest pause between two transactions of one writer; zero for none.
    pub(crate) pause: Duration,
    /// Bytes of filling in each payload.
    pub(crate) filling: usize,
}

impl Default for Plan {
    fn default() -> Self {
        let pause = Duration::from_millis(from_environment("WALRELAY_TEST_PAUSE_MS", 16));
        Plan { writers: 4, aggregates: 40, pause, filling: 40 }
    }
}

/// Writers at work, until they are stopped.
pub(crate) struct Workload {
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
    _witness: Witness,
}

/// What a business table needs, beside the outbox.
pub(crate) const SCHEMA: &str = "
    create table counter (aggregate text primary key, version bigint not null default 0);
    create table noise (n bigint, filling text);
    create function emit(kind text, aggregate_ text, filling int) returns bigint language plpgsql as $$
    declare v bigint;
    begin
        insert into counter values (aggregate_) on conflict do nothing;
        update counter set version = version + 1 where aggregate = aggregate_ returning version into v;
        insert into outbox (id, aggregatetype, aggregateid, type, payload) values (gen_random_uuid(), kind, aggregate_,
            'Changed', jsonb_build_object('v', v, 'of', aggregate_, 'filling', repeat('x', filling)));
        return v;
    end $$;
";

impl Workload {
    /// Starts the writers against `url`; events go to the aggregate types `kinds`.
    pub(crate) fn start(url: &str, kinds: &[String], plan: &Plan) -> Workload {
        let stop = Arc::new(AtomicBool::new(false));
        let committed = Arc::new(AtomicU64::new(0));
        let threads = (0..plan.writers)
            .map(|number| {
                let writer = Writer {
                    url: url.to_owned(),
                    kinds: kinds.to_vec(),
                    plan: plan.clone(),
                    chance: generator(&format!("writer {number}")),
                };
                let (stop, committed) = (Arc::clone(&stop), Arc::clone(&committed));
                std::thread::spawn(move || writer.run(&stop, &committed))
            })
            .collect();
        Workload { stop, committed, threads, _witness: Witness }
    }

    /// Transactions whose commit was answered so far.
    pub(crate) fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// Waits until `more` further transactions have committed.
    #[track_caller]
    pub(crate) fn wait_for(&self, more: u64) {
        let goal = self.committed() + more;
        wait::eventually("writers go on", Duration::from_secs(60), || self.committed(), |now| *now >= goal);
    }

    /// Stops the writers and waits until the last of them has ended.
    pub(crate) fn stop(mut self) -> u64 {
        self.halt();
        self.committed()
    }

    fn halt(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            assert!(thread.join().is_ok() || std::thread::panicking(), "a writer panicked");
        }
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.halt();
    }
}

struct Writer {
    url: String,
    kinds: Vec<String>,
    plan: Plan,
    chance: fastrand::Rng,
}

impl Writer {
    fn run(mut self, stop: &AtomicBool, committed: &AtomicU64) {
        while !stop.load(Ordering::Relaxed) {
            // A server that is killed on purpose comes back.
            let Ok(sql) = Sql::try_connect(&self.url) else {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            };
            while !stop.load(Ordering::Relaxed) {
                match self.transaction(&sql) {
                    Ok(true) => committed.fetch_add(1, Ordering::Relaxed),
                    Ok(false) => 0,
                    // A commit that was not answered may have happened: the table knows, and the checker asks it.
                    Err(_) => break,
                };
                self.sleep_up_to(self.plan.pause);
            }
        }
    }

    /// One transaction; whether it committed.
    fn transaction(&mut self, sql: &Sql) -> Result<bool, tokio_postgres::Error> {
        sql.try_run("begin")?;
        if self.chance.u8(..100) < 30 {
            // An id of its own long before the lock: this transaction's xid is older than those that overtake it.
            sql.try_run("insert into noise values (1, 'early'); select pg_current_xact_id()")?;
            self.sleep_up_to(Duration::from_millis(8));
        }
        // Sorted, so that two writers do not wait for each other.
        let mut aggregates: Vec<(usize, u32)> = (0..self.chance.usize(1..=3)).map(|_| self.aggregate()).collect();
        aggregates.sort_unstable();
        for (kind, number) in aggregates {
            self.emit(sql, kind, number)?;
        }
        if self.chance.u8(..100) < 10 {
            sql.try_run("insert into noise select n, repeat('y', 200) from generate_series(1, 30) n")?;
        }
        self.sleep_up_to(Duration::from_millis(5));
        let keep = self.chance.u8(..100) >= 10;
        sql.try_run(if keep { "commit" } else { "rollback" })?;
        Ok(keep)
    }

    fn emit(&mut self, sql: &Sql, kind: usize, number: u32) -> Result<(), tokio_postgres::Error> {
        let Some(kind) = self.kinds.get(kind) else { return Ok(()) };
        let call = format!("select emit('{kind}', '{kind}-{number}', {})", self.plan.filling);
        match self.chance.u8(..100) {
            // Taken back alone, counter and all.
            0..=9 => sql.try_run(&format!("savepoint s; {call}; rollback to s; {call}")),
            10..=24 => sql.try_run(&format!("savepoint s; {call}; release s")),
            25..=29 => {
                let rows = self.chance.u8(2..25);
                sql.try_run(&format!("{call} from generate_series(1, {rows})"))
            }
            _ => sql.try_run(&call),
        }
    }

    fn aggregate(&mut self) -> (usize, u32) {
        (self.chance.usize(..self.kinds.len()), self.chance.u32(..self.plan.aggregates))
    }

    fn sleep_up_to(&mut self, longest: Duration) {
        let longest = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX);
        std::thread::sleep(Duration::from_micros(self.chance.u64(..=longest)));
    }
}
