//! P1, P2: killed at each named point between received and confirmed, it loses and reorders
//! nothing.

use walrelay_core::failpoint::POINTS;

use crate::support::guardian::run_directory;
use crate::support::relay::EXIT;
use crate::support::seed::generator;
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

/// How often a relay may pass the point at most before it is killed there: seconds of the workload,
/// no more.
fn passings_max(point: &str) -> u32 {
    match point {
        // Once per message, event or ack.
        "received" | "assembled" | "enqueued" | "acked" => 400,
        // Once per tenth of a second.
        "storing" | "stored" | "confirming" => 6,
        // Once per session, at its end.
        "confirmed" => 0,
        other => panic!("{other} is a new point: say how often it is passed"),
    }
}

#[test]
fn a_relay_killed_at_each_failpoint_loses_and_reorders_nothing() {
    let world = World::new();
    let mut chance = generator("points");
    let mut copies = 0;
    let reached = run_directory().join("points-reached.txt");
    for point in POINTS {
        let passings = chance.u32(0..=passings_max(point));
        eprintln!("killed at {point} after {passings} passings");
        let writers = world.workload(&Plan {
            writers: 3,
            aggregates: 8,
            ..Plan::default()
        });
        let mut relay = world
            .run()
            .variable("FAILPOINTS_REACHED", &reached.to_string_lossy())
            .killed_at(point, passings)
            .start();
        if point == "confirmed" {
            relay.wait_ready();
            let before = world.delivered();
            eventually(
                "something new arrives",
                ARRIVAL,
                || world.delivered(),
                |records| *records > before,
            );
            relay.process.signal("TERM");
        }
        relay.wait_killed();
        // Commits it knows nothing of, while nobody streams.
        writers.wait_for(5);
        writers.stop();

        let mut relay = world.relay();
        let findings = world.assert_all_delivered();
        let again = findings.duplicates - copies;
        copies = findings.duplicates;
        eprintln!("  {again} copies");
        assert!(
            point != "confirmed" || again == 0,
            "{again} events came again that were confirmed"
        );
        assert_eq!(relay.terminate(EXIT), Some(0), "{point}");
    }
    let told = std::fs::read_to_string(&reached).expect("the points that were reached");
    let count = |point: &str| told.lines().filter(|line| *line == point).count();
    // A process may be killed before the first event, as it confirms a keepalive.
    assert!(count("received") <= POINTS.len(), "once for each process");
    assert!(POINTS.iter().all(|point| count(point) > 0), "{told}");
}
