//! The writers of the lab, for threads without a runtime.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use walrelay_lab::workload::{self, Settings};

use super::seed::{Witness, from_environment, seed};
use super::sql;
use super::wait;

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) writers: usize,
    pub(crate) aggregates: usize,
    /// The longest pause between two transactions of one writer; zero for no pause.
    pub(crate) pause: Duration,
    /// The average number of filling characters in a payload.
    pub(crate) filling: i32,
}

impl Default for Plan {
    fn default() -> Self {
        let pause = Duration::from_millis(from_environment("WALRELAY_TEST_PAUSE_MS", 16));
        Plan {
            writers: 4,
            aggregates: 40,
            pause,
            filling: 40,
        }
    }
}

pub(crate) struct Workload {
    /// Present until the stop.
    writers: Option<workload::Workload>,
    runtime: Runtime,
    _witness: Witness,
}

impl Workload {
    /// Starts the writers against `url`; events go to the aggregate types `kinds`.
    pub(crate) fn start(url: &str, kinds: &[String], plan: &Plan) -> Workload {
        let settings = Settings {
            writers: plan.writers,
            aggregates: plan.aggregates * kinds.len(),
            types: kinds.to_vec(),
            transactions_per_second: None,
            pause_max: plan.pause,
            hold_max: Duration::from_millis(5),
            filling_chars_max: 2 * plan.filling,
            seed: seed(),
            // Writers survive a server that a test kills.
            reconnect: true,
        };
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let entered = runtime.enter();
        let writers = workload::Workload::start(&sql::config(url).expect("a URL"), &settings);
        drop(entered);
        Workload {
            writers: Some(writers),
            runtime,
            _witness: Witness,
        }
    }

    /// The number of transactions whose commit was answered so far. The table shows whether others
    /// committed.
    pub(crate) fn committed(&self) -> u64 {
        let writers = self.writers.as_ref().expect("writers");
        writers
            .counts()
            .committed_transactions
            .load(Ordering::Relaxed)
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, more: u64) {
        let count = |transactions: u64| i64::try_from(transactions).expect("a count");
        wait::grown("transactions", count(self.committed() + more), || {
            count(self.committed())
        });
    }

    /// Stops the writers and waits until all have ended. Returns the number of committed
    /// transactions.
    pub(crate) fn stop(mut self) -> u64 {
        let writers = self.writers.take().expect("writers");
        let counts = self
            .runtime
            .block_on(writers.stop())
            .expect("the writers end well");
        counts.committed_transactions.load(Ordering::Relaxed)
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        if let Some(writers) = self.writers.take() {
            let stopped = self.runtime.block_on(writers.stop());
            assert!(
                stopped.is_ok() || std::thread::panicking(),
                "a writer failed: {stopped:?}"
            );
        }
    }
}
