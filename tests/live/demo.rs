//! P2, P3: the demo on brokers of the user. `crates/lab/tests` runs its program.

use std::time::Duration;

use rdkafka::consumer::Consumer as _;
use serde_json::Value;
use tokio::runtime::Runtime;
use walrelay_lab::demo::{DemoRun, run};

use crate::support::servers::Kafka;
use crate::support::topic;
use crate::support::wait::eventually;
use crate::support::world::ARRIVAL;

#[test]
fn the_demo_verifies_a_run_on_named_brokers_and_deletes_its_topics() {
    let brokers = Kafka::shared().brokers();
    let seed = fastrand::u32(..);
    let options = DemoRun {
        seconds: 5,
        writers: 3,
        aggregates: 100,
        rate: 200,
        brokers: Some(brokers.to_owned()),
        postgres_bin: None,
        seed: Some(seed.into()),
    };
    let report = Runtime::new()
        .unwrap()
        .block_on(run(&options, std::future::pending()))
        .unwrap();
    let report: Value = serde_json::to_value(report).unwrap();
    assert_eq!(
        (&report["verified"], &report["broker"]),
        (&true.into(), &"named".into()),
        "{report}"
    );
    assert!(report["committed"].as_u64() > Some(0), "{report}");
    let consumer = topic::consumer(brokers);
    let left = || {
        let metadata = consumer
            .fetch_metadata(None, Duration::from_secs(10))
            .ok()?;
        let of_the_run = metadata
            .topics()
            .iter()
            .filter(|topic| topic.name().contains(&format!("-demo-{seed}-")));
        Some(of_the_run.count())
    };
    eventually("no topic of the run is left", ARRIVAL, left, |left| {
        *left == Some(0)
    });
    topic::close(consumer);
}
