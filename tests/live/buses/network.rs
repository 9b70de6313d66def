//! P1, P2, P9: a network that breaks, or that swallows bytes and says nothing, loses no event and
//! keeps the order of each key.

use super::{Fate, Lab, TestLanes, ready};
use crate::support::proxy::{Proxy, Way};
use crate::support::relay::{EXIT, Relay};
use crate::support::seed::generator;
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::ARRIVAL;

/// What the network does.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// Connections are reset, three times in a row.
    Cuts,
    /// New connections are reset, too.
    Refusal,
    /// Bytes of one way stay in the network. They are lost with their connections.
    Lost(Way),
    /// The same; they arrive once the relay has given up waiting for an answer.
    Late(Way),
}

const FAULTS: [Fault; 4] = [
    Fault::Cuts,
    Fault::Refusal,
    // Acks, and then records.
    Fault::Lost(Way::Down),
    Fault::Late(Way::Up),
];

/// How often a connection to the bus was given up.
fn given_up(relay: &Relay) -> usize {
    relay
        .log()
        .matches("\"event\":\"bus_disconnected\"")
        .count()
}

pub(super) fn a_network_that_breaks_or_is_silent_loses_and_reorders_nothing<B: TestLanes>() {
    let Some(mut lab) = Lab::<B>::new(Fate::Shared) else {
        return;
    };
    let mut chance = generator(&format!("faults of the network to {}", B::NAME));
    let proxy = Proxy::before(lab.bus.address());
    let lines = lab.bus.lines_to(&proxy.address());
    let mut relay = ready(&lab.run_with(&lines, "").option("--on-error", "park"));
    let writers = lab.world.workload(&Plan::default());
    let connected = || relay.metric("walrelay_connection_state{side=\"bus\"}");
    for fault in FAULTS {
        lab.wait_more(chance.i64(1..200));
        // Records may arrive after a cut and before the next connection.
        eventually("it is connected", ARRIVAL, connected, |state| {
            *state == Some(1.0)
        });
        let before = given_up(&relay);
        match fault {
            Fault::Cuts => {
                for _ in 0..3 {
                    proxy.cut();
                    writers.wait_for(chance.u64(1..20));
                }
            }
            Fault::Refusal => proxy.refuse(),
            Fault::Lost(way) | Fault::Late(way) => proxy.blackhole(way),
        }
        let more = || given_up(&relay);
        eventually("it is noticed", ARRIVAL, more, |count| *count > before);
        if matches!(fault, Fault::Lost(_)) {
            proxy.cut();
        }
        proxy.resume();
    }
    lab.wait_more(1);
    writers.stop();
    let found = lab.all_delivered();
    eprintln!(
        "{}: {} events, {} faults of the network, {} connections, {} duplicates",
        B::NAME,
        lab.world.committed(),
        FAULTS.len(),
        proxy.accepted(),
        found.duplicates
    );
    lab.world.wait_confirmed();
    assert_eq!(lab.world.number_parked(), 0, "{}", relay.log());
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
