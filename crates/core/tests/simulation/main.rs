//! The core under seeded schedules: a model of Postgres, of the bus and of the store, and faults at
//! any point between.
//!
//! No clock, no socket, no thread: a schedule is its seed. `WALRELAY_SIMULATION_SEED=n` repeats
//! one, `WALRELAY_SIMULATION_FAULTS` and `WALRELAY_SIMULATION_STEPS` make it smaller, and
//! `WALRELAY_SIMULATION_RUNS=n` sets how many are tried, from that seed on.
//! `docs/reference/proof.md` has figures.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, and its helpers are tests too"
)]

mod broker;
mod health;
mod journal;
mod parked;
mod pgoutput;
mod plan;
mod promises;
mod server;
mod session;
mod start;
mod table;
mod turns;
mod upkeep;
mod world;

use std::cell::{Cell, RefCell};
use std::panic::AssertUnwindSafe;
use std::sync::Once;

use plan::{Bus, Fault, Faults, Mode, Path, Plan, Promise, Reached};
use walrelay_core::config::OnError;
use walrelay_spec::trace;
use world::World;

/// Schedules tried in a plain run.
const RUNS: u64 = 1_000;
/// Steps of one schedule before the faults stop and everything has to settle.
const STEPS: usize = 400;

type Check<'a> = &'a dyn Fn(&World);

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Tries seeds, `runs` of them unless it is told how many, and gives what each reached to `take`.
fn explore(
    name: &str,
    runs: u64,
    plan: impl Fn(u64) -> (Mode, Faults),
    check: Check<'_>,
    mut take: impl FnMut(Mode, &Reached),
) {
    let asked = number("WALRELAY_SIMULATION_RUNS");
    let seeds = match number("WALRELAY_SIMULATION_SEED") {
        Some(seed) => seed..seed + asked.unwrap_or(1),
        None => 0..asked.unwrap_or(runs),
    };
    let faults = std::env::var("WALRELAY_SIMULATION_FAULTS").ok();
    let steps = number("WALRELAY_SIMULATION_STEPS").map(|steps| usize::try_from(steps).unwrap());
    for seed in seeds {
        let (mode, kinds) = plan(seed);
        let plan = Plan {
            seed,
            mode,
            faults: faults.as_deref().map_or(mode.meets(&kinds), Faults::parse),
            steps: steps.unwrap_or(STEPS),
        };
        match run(&plan, check) {
            Ok(reached) => take(mode, &reached),
            Err(_) => fail(name, &plan, check),
        }
    }
}

/// Whether so many seeds are tried that each path must be taken.
fn is_thorough(runs: u64) -> bool {
    number("WALRELAY_SIMULATION_SEED").is_none()
        && number("WALRELAY_SIMULATION_RUNS").is_none_or(|number| number >= runs)
}

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs a schedule. The error is the panic, and the last steps.
fn run(plan: &Plan, check: Check<'_>) -> Result<Reached, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                before(info);
            }
        }));
    });
    let mut world = World::new(plan);
    IS_QUIET.set(true);
    let run = std::panic::catch_unwind(AssertUnwindSafe(|| {
        for _ in 0..plan.steps {
            world.step();
        }
        world.settle();
        world.check_ready();
        world.check_delivery();
        world.check_finished();
        check(&world);
    }));
    IS_QUIET.set(false);
    run.map(|()| world.reached()).map_err(|panic| {
        let what = panic.downcast_ref::<String>().map(String::as_str);
        let what = what.or_else(|| panic.downcast_ref::<&str>().copied());
        format!("{}\n{}", what.unwrap_or("a panic"), world.last_steps())
    })
}

/// Says how to repeat a failure, with as few kinds of faults and steps as it takes.
fn fail(name: &str, plan: &Plan, check: Check<'_>) -> ! {
    let small = plan.shrunk(|plan| run(plan, check).is_err());
    let what = run(&small, check).expect_err("it fails each time");
    let Plan {
        seed,
        mode,
        faults,
        steps,
    } = small;
    panic!(
        "{name} ({mode}): {what}\nrepeat with WALRELAY_SIMULATION_SEED={seed} \
         WALRELAY_SIMULATION_FAULTS={faults} WALRELAY_SIMULATION_STEPS={steps}"
    );
}

/// The same, and each of `paths` is taken.
fn explore_reaching(name: &str, plan: impl Fn(u64) -> (Mode, Faults), paths: &[Path]) {
    let mut sum = Reached::default();
    explore(name, RUNS, plan, &|_| {}, |_, reached| sum.add(reached));
    let lacks = sum.lacks(paths);
    let is_enough = lacks.is_empty() || !is_thorough(RUNS);
    assert!(is_enough, "{name} never reached {lacks:?}: {sum:?}");
}

/// The same, and no event is there twice.
fn explore_without_duplicates(name: &str, plan: impl Fn(u64) -> (Mode, Faults)) {
    explore(name, RUNS, plan, &has_no_duplicates, |_, _| {});
}

fn has_no_duplicates(world: &World) {
    assert_eq!(world.duplicates(), [], "there twice");
}

const GAPLESS: Mode = Mode::new(Bus::Gapless, OnError::Stop);
const TRANSACTIONAL: Mode = Mode::new(Bus::Transactional, OnError::Stop);

#[test]
fn nothing_is_lost_or_reordered_whatever_fails() {
    let paths = [
        Path::ResumedInsideATransaction,
        Path::RestartedInsideATransaction,
        Path::QueueFull,
        Path::BytesFull,
        Path::SlotWentBack,
        Path::SharedId,
        Path::EarlierName,
        Path::Snapshot,
        Path::TopicTried,
        Path::Unroutable,
        Path::StoodBy,
        Path::TriedOften,
        Path::CommitsWait,
        Path::StreamLeft,
        Path::StoppedWell,
        Path::LookFailed,
        Path::IdleAbandoned,
        Path::NotReady("postgres_disconnected"),
        Path::NotReady("bus_disconnected"),
        Path::NotReady("topic_refused"),
        Path::NotReady("synchronous_standby"),
        Path::NotReady("stalled"),
        Path::NotReady("wal_not_sent"),
        Path::NotReady("stopping"),
    ];
    // A slot that may be lost wants a table that has each event.
    let faults = |seed: u64| {
        let faults = Faults::all().without(Fault::Refusal);
        match seed.is_multiple_of(2) {
            true => faults,
            false => faults.of_slot(),
        }
    };
    explore_reaching("every fault", |seed| (GAPLESS, faults(seed)), &paths);
}

fn bus_of(seed: u64) -> Bus {
    match seed % 3 {
        0 => Bus::Gapless,
        1 => Bus::Lanes,
        _ => Bus::Transactional,
    }
}

#[test]
fn what_no_slot_sends_is_read_from_the_table() {
    let paths = [
        Path::TableRead,
        Path::ReadResumed,
        Path::ReadFinished,
        Path::KilledAtTheTable,
        Path::LeftOut,
        Path::StoppedAtTable,
        Path::Polled,
        Path::HandedOver,
        Path::SlotHeld,
        Path::SlotDropped,
    ];
    let plan = |seed: u64| {
        let mode = Mode::new(bus_of(seed), OnError::Stop);
        (mode, Faults::some(seed).with(Fault::SlotLost))
    };
    explore_reaching("lost slots", plan, &paths);
}

/// One or two relays with this fault, for one seed of four with no other.
fn plan_with(fault: Fault, seed: u64) -> (Mode, Faults) {
    let relays = 1 + usize::from(seed.is_multiple_of(2));
    let mode = Mode::new(bus_of(seed), OnError::Stop).with_relays(relays);
    let others = match seed % 4 {
        0 => Faults::of(&[]),
        _ => Faults::some(seed),
    };
    (mode, others.with(fault))
}

#[test]
fn what_a_promoted_standby_has_is_delivered_in_order() {
    let paths = [
        Path::Promoted,
        Path::PromotedBehind,
        Path::PromotedWithoutSlot,
        Path::StoreWentBack,
        Path::TableRead,
        Path::Polled,
    ];
    let plan = |seed| plan_with(Fault::Failover, seed);
    explore_reaching("failovers", plan, &paths);
}

#[test]
fn what_an_altered_publication_left_out_is_read_from_the_table() {
    let paths = [
        Path::ReadAltered,
        Path::SentInPart,
        Path::ReadResumed,
        Path::ReadFinished,
        Path::Polled,
        Path::PromotedBehind,
    ];
    let plan = |seed| plan_with(Fault::Altered, seed);
    explore_reaching("altered publications", plan, &paths);
}

#[test]
fn without_faults_every_event_is_delivered_once() {
    for bus in [Bus::Gapless, Bus::Lanes] {
        let mode = Mode::new(bus, OnError::Stop);
        explore_without_duplicates("no fault", |_| (mode, Faults::of(&[])));
    }
}

#[test]
fn lost_connections_and_crashed_servers_cause_no_duplicates() {
    let faults = [
        Fault::Disconnect,
        Fault::ServerCrash,
        Fault::CatalogUnread,
        Fault::SlotActive,
        Fault::SlotLost,
    ];
    let plan = |seed: u64| {
        let kinds = if seed.is_multiple_of(2) { 3 } else { 5 };
        (GAPLESS, Faults::of(&faults[..kinds]))
    };
    explore_without_duplicates("server faults", plan);
}

#[test]
fn a_relay_that_stops_leaves_nothing_to_the_next_one() {
    for bus in [Bus::Gapless, Bus::Lanes] {
        let mode = Mode::new(bus, OnError::Stop);
        let faults = Faults::of(&[Fault::Stop, Fault::Disconnect, Fault::ServerCrash]);
        explore_without_duplicates("stops", |_| (mode, faults.clone()));
    }
}

#[test]
fn committed_together_every_event_is_seen_once_whatever_fails() {
    let faults = Faults::all().without(Fault::Refusal).of_slot();
    explore_without_duplicates("exactly once", |_| (TRANSACTIONAL, faults.clone()));
}

#[test]
fn an_event_that_is_refused_ends_the_relay_and_none_is_left_out() {
    for bus in [Bus::Gapless, Bus::Lanes] {
        let mode = Mode::new(bus, OnError::Stop);
        let plan = |seed| (mode, Faults::some(seed));
        explore_reaching("stop", plan, &[Path::Stopped]);
    }
}

/// What gives events up, and what that reaches.
const GIVING_UP: [(OnError, Path); 2] = [
    (OnError::Skip, Path::Skipped),
    (OnError::DeadLetter, Path::DeadLetter),
];

#[test]
fn events_that_are_refused_are_given_up_and_no_others() {
    for (on_error, path) in GIVING_UP {
        let mode = Mode::new(Bus::Gapless, on_error);
        let plan = |seed| (mode, Faults::some(seed));
        let paths = [
            path,
            Path::BatchRefused,
            Path::RefusedAlone,
            Path::Unroutable,
        ];
        explore_reaching("given up", plan, &paths);
    }
}

#[test]
fn lanes_keep_the_order_of_each_key_whatever_is_refused() {
    for (on_error, path) in GIVING_UP {
        let mode = Mode::new(Bus::Lanes, on_error);
        let paths = [path, Path::RefusedAlone, Path::QueueFull];
        explore_reaching("lanes", |_| (mode, Faults::all()), &paths);
    }
}

#[test]
fn events_that_topics_have_do_not_come_again_behind_later_ones() {
    for on_error in [OnError::Stop, OnError::Park] {
        let mode = Mode::new(Bus::Gapless, on_error).that_reads_tails();
        let plan = |seed| (mode, Faults::some(seed));
        explore_reaching("tails", plan, &[Path::DeliveredBefore]);
    }
}

#[test]
fn what_topics_have_of_another_timeline_comes_again_in_order() {
    let paths = [
        Path::DeliveredBefore,
        Path::OnTwoTimelines,
        Path::PromotedBehind,
        Path::PromotedWithoutSlot,
        Path::StoreWentBack,
        Path::Polled,
    ];
    let plan = |seed: u64| {
        let relays = 1 + usize::try_from(seed % 3).unwrap();
        let mode = GAPLESS.that_reads_tails().with_relays(relays);
        (mode, Faults::some(seed).with(Fault::Failover))
    };
    explore_reaching("tails, failovers", plan, &paths);
}

#[test]
fn parked_events_keep_the_order_of_each_key_whatever_fails() {
    let paths = [
        Path::Parked,
        Path::Retried,
        Path::RetryFailed,
        Path::Dropped,
        Path::AskedEarly,
        Path::Remembered,
        Path::WritesRefused,
        Path::RowsUnseen,
        Path::CommitsWait,
        Path::StreamLeft,
        Path::Unroutable,
        Path::NotReady("postgres_unwritable"),
    ];
    for bus in [Bus::Gapless, Bus::Lanes] {
        let mode = Mode::new(bus, OnError::Park);
        // Some rows cannot be delivered, and hardly anything else fails.
        let unfit = [Fault::Refusal, Fault::Unroutable];
        let plan = |seed: u64| match seed.is_multiple_of(2) {
            true => (mode, Faults::of(&unfit)),
            false => (mode, Faults::some(seed)),
        };
        explore_reaching("parked events", plan, &paths);
    }
}

fn mode_with_pending(seed: u64) -> Mode {
    let mode = match seed % 4 {
        0 => Mode::new(Bus::Gapless, OnError::Stop),
        1 => Mode::new(Bus::Lanes, OnError::Stop),
        2 => Mode::new(Bus::Gapless, OnError::Park),
        _ => Mode::new(Bus::Lanes, OnError::Park),
    };
    mode.with_pending()
}

#[test]
fn rows_that_are_set_to_pending_come_again_and_no_others() {
    let faults = [
        Fault::Requeued,
        Fault::WriteLost,
        Fault::Disconnect,
        Fault::ServerCrash,
        Fault::SlotActive,
        Fault::SlotLost,
        Fault::NoReplication,
    ];
    let plan = |seed| (mode_with_pending(seed), Faults::of(&faults));
    explore_without_duplicates("requests for rows", plan);
}

#[test]
fn rows_that_are_set_to_pending_come_again_whatever_fails() {
    let plan = |seed: u64| {
        let relays = 1 + usize::from(seed % 8 < 4);
        let mode = mode_with_pending(seed).with_relays(relays);
        (mode, Faults::some(seed).with(Fault::Requeued))
    };
    explore_reaching("requests for rows, faults", plan, &[Path::RequeuedRead]);
}

#[test]
fn parked_events_of_a_promoted_standby_keep_the_order_of_each_key() {
    let paths = [
        Path::Parked,
        Path::Retried,
        Path::Dropped,
        Path::Promoted,
        Path::StoreWentBack,
        Path::MarksWentBack,
    ];
    for bus in [Bus::Gapless, Bus::Lanes] {
        let plan = |seed: u64| {
            let relays = 1 + usize::from(seed.is_multiple_of(2));
            let mode = Mode::new(bus, OnError::Park).with_relays(relays);
            (mode, Faults::some(seed).with(Fault::Failover))
        };
        explore_reaching("parked events, failovers", plan, &paths);
    }
}

/// What two relays meet.
const TWO_RELAYS: [Path; 6] = [
    Path::NotReady("standing_by"),
    Path::NotReady("silent"),
    Path::TookOver,
    Path::CameBack,
    Path::GaveWay,
    Path::StoredLate,
];

#[test]
fn one_of_two_relays_takes_over_and_nothing_is_lost_or_reordered() {
    for (bus, relays) in [(Bus::Gapless, 2), (Bus::Lanes, 2), (Bus::Gapless, 3)] {
        let mode = Mode::new(bus, OnError::Stop).with_relays(relays);
        let paths = TWO_RELAYS.into_iter().chain([Path::CameLate]);
        let plan = |seed| (mode, Faults::some(seed));
        explore_reaching("two relays", plan, &paths.collect::<Vec<_>>());
    }
}

#[test]
fn a_relay_that_takes_over_finds_what_the_other_published() {
    let mode = GAPLESS.that_reads_tails().with_relays(2);
    let faults = [
        Fault::Disconnect,
        Fault::ServerCrash,
        Fault::RelayKill,
        Fault::SlotActive,
        Fault::StoodStill,
    ];
    explore_without_duplicates("two relays, tails", |_| (mode, Faults::of(&faults)));
}

#[test]
fn a_relay_that_takes_over_fences_the_other_and_every_event_is_seen_once() {
    let mode = TRANSACTIONAL.with_relays(2);
    let faults = Faults::all().without(Fault::Refusal).of_slot();
    explore_without_duplicates("two relays, exactly once", |_| (mode, faults.clone()));
    let paths = [Path::TookOver, Path::StoredLate, Path::Fenced];
    let plan = |seed| (mode, Faults::some(seed));
    explore_reaching("two relays, transactions", plan, &paths);
}

/// Schedules that models follow.
const FOLLOWED: u64 = 300;

/// A model follows what is recorded of each schedule, and each of `paths` is in one of them.
fn explore_following(
    name: &str,
    plan: impl Fn(u64) -> (Mode, Faults),
    follow: impl Fn(&[trace::Step]) -> Result<trace::Reached, String>,
    paths: &[&str],
) {
    let sum = RefCell::new(trace::Reached::new());
    let check = |world: &World| match follow(&world.steps()) {
        Ok(reached) => sum.borrow_mut().extend(reached),
        Err(error) => panic!("{error}"),
    };
    explore(name, FOLLOWED, plan, &check, |_, _| {});
    let sum = sum.borrow();
    let lacking: Vec<_> = paths.iter().filter(|path| !sum.contains(*path)).collect();
    let is_enough = lacking.is_empty() || !is_thorough(FOLLOWED);
    assert!(is_enough, "no recorded path has {lacking:?}: {sum:?}");
}

#[test]
fn the_model_of_a_slot_follows_a_relay_that_streams() {
    let faults = Faults::of(&[
        Fault::Disconnect,
        Fault::ServerCrash,
        Fault::DeliveryFailure,
        Fault::RelayKill,
        Fault::SlotActive,
        Fault::Stop,
    ]);
    // Topics that cannot be read are not in the model.
    let plan = |seed: u64| match seed.is_multiple_of(2) {
        true => (GAPLESS, faults.with(Fault::BrokerDown)),
        false => (GAPLESS.that_reads_tails(), faults.clone()),
    };
    let paths = [
        "a redelivery",
        "a position inside a transaction",
        "an event found in its topic",
    ];
    explore_following("slot", plan, trace::follow_slot, &paths);
}

/// What the models of two relays know.
const FOLLOWED_FAULTS: [Fault; 6] = [
    Fault::Disconnect,
    Fault::DeliveryFailure,
    Fault::RelayKill,
    Fault::BrokerDown,
    Fault::SlotActive,
    Fault::StoodStill,
];

#[test]
fn the_model_of_two_relays_follows_them_from_table_to_slot() {
    let faults = Faults::of(&FOLLOWED_FAULTS).with(Fault::SlotLost);
    let plan = |seed: u64| {
        let bus = match seed.is_multiple_of(2) {
            true => Bus::Gapless,
            false => Bus::Lanes,
        };
        let mode = Mode::new(bus, OnError::Stop).with_relays(2);
        (mode, faults.clone())
    };
    let paths = ["a hand-over to the slot", "a stand-by"];
    explore_following("relays", plan, trace::follow_relays, &paths);
}

#[test]
fn the_model_of_exactly_once_follows_two_relays() {
    let faults = Faults::of(&FOLLOWED_FAULTS);
    let mode = TRANSACTIONAL.with_relays(2);
    let paths = [
        "a fence of an open transaction",
        "a redelivery of an aborted record",
    ];
    explore_following(
        "once",
        |_| (mode, faults.clone()),
        trace::follow_once,
        &paths,
    );
}

#[test]
fn a_schedule_is_its_seed() {
    for mode in Mode::ALL {
        for seed in 0..5 {
            let plan = Plan {
                seed,
                mode,
                faults: mode.meets(&Faults::all()),
                steps: STEPS,
            };
            // Each map of the standard library has a hash seed of its own.
            let [first, second] = [(); 2].map(|()| {
                let mut world = World::new(&plan);
                (0..STEPS).for_each(|_| world.step());
                world.trace()
            });
            assert_eq!(first, second, "{mode}, seed {seed}");
        }
    }
}

/// Modes in turn. With `--nocapture`, what was reached.
#[test]
fn each_promise_is_at_stake_under_each_kind_of_fault_in_each_mode() {
    let modes = Mode::ALL.len() as u64;
    let plan = |seed: u64| {
        let mode = Mode::ALL[usize::try_from(seed % modes).unwrap()];
        (mode, Faults::some(seed))
    };
    let check = |world: &World| {
        if world.is_exact() {
            has_no_duplicates(world);
        }
    };
    let mut by_mode = Mode::ALL.map(|mode| (mode, Reached::default()));
    explore("campaign", RUNS * modes, plan, &check, |mode, reached| {
        let mut sums = by_mode.iter_mut();
        let (_, sum) = sums.find(|(other, _)| *other == mode).unwrap();
        sum.add(reached);
    });
    let mut total = Reached::default();
    let mut lacks = Vec::new();
    for (mode, reached) in &by_mode {
        println!("\n{mode}: took effect, {:?}", Promise::ALL);
        for fault in Fault::ALL {
            let took = reached.faults.get(&fault).copied().unwrap_or_default();
            let cell = |promise| reached.at_stake.get(&(promise, fault)).copied();
            let cells = Promise::ALL.map(|promise| cell(promise).unwrap_or_default());
            println!("{fault:?}: {took}, {cells:?}");
            let is_lacking = |it: &Promise| cell(*it).is_none() && is_possible(*it, fault, *mode);
            let lacking = Promise::ALL.into_iter().filter(is_lacking);
            lacks.extend(lacking.map(|promise| format!("{promise:?} {fault:?} {mode}")));
        }
        total.add(reached);
    }
    println!("\n{total:?}");
    let is_enough = lacks.is_empty() || !is_thorough(RUNS * modes);
    assert!(is_enough, "never at stake: {lacks:?}");
}

/// Whether a fault can meet a promise in this mode.
fn is_possible(promise: Promise, fault: Fault, mode: Mode) -> bool {
    let parks = mode.parks();
    let is_made = match fault {
        // Rows are written to where events are parked.
        Fault::WriteLost => parks,
        Fault::TopicRefused => mode.has_topic_refusals(),
        Fault::StoodStill => mode.has_stand_by(),
        Fault::SlotLost
        | Fault::NoReplication
        | Fault::Failover
        | Fault::Altered
        | Fault::OverBudget
        | Fault::Requeued => mode.meets(&Faults::of(&[fault])).has(fault),
        Fault::Disconnect
        | Fault::ServerCrash
        | Fault::DeliveryFailure
        | Fault::RelayKill
        | Fault::BrokerDown
        | Fault::Refusal
        | Fault::SlotActive
        | Fault::Stop
        | Fault::Synchronous
        | Fault::Unroutable
        | Fault::CatalogUnread
        | Fault::HeldBack => true,
    };
    let is_promised = match promise {
        Promise::P13 => parks,
        Promise::P14 => mode.bus == Bus::Transactional,
        // A row is sent where there is room; a commit that waits takes none, and a relay that is
        // told to stop takes nothing in.
        Promise::P4 => !matches!(fault, Fault::Unroutable | Fault::Synchronous | Fault::Stop),
        Promise::P1 | Promise::P2 | Promise::P3 | Promise::P12 => true,
    };
    is_made && is_promised
}
