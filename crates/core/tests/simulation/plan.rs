//! What a schedule is: its seed, its mode, its kinds of faults, its length; and what it reached.

use std::collections::BTreeMap;
use std::fmt;

use walrelay_core::config::OnError;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// The connection to Postgres is lost.
    Disconnect,
    /// Postgres is killed, and its slot goes back.
    ServerCrash,
    /// A delivery fails, or nobody knows about it.
    DeliveryFailure,
    /// The relay is killed with -9.
    RelayKill,
    /// The bus takes nothing for a while.
    BrokerDown,
    /// The bus refuses some events until somebody mends the cause.
    Refusal,
    /// A write to the database fails, or nobody knows about it.
    WriteLost,
    /// Another session has the slot for a while.
    SlotActive,
    /// The slot is dropped, and perhaps made again by somebody.
    SlotLost,
    /// The topic refuses whatever is sent to it, for a while.
    TopicRefused,
    /// Rows have no topic until somebody mends that.
    Unroutable,
    /// A relay stands still, perhaps for so long that the other one takes over.
    StoodStill,
    /// The relay may not replicate for a while.
    NoReplication,
    /// A standby is promoted, which may lack what was written last, and the slot.
    Failover,
    /// The publication is altered and altered back, and leaves out rows of that time.
    Altered,
    /// The slot retains more than its limit, and the relay drops it.
    OverBudget,
    /// Commits wait for the relay for a while, as for a synchronous standby.
    Synchronous,
    /// The relay is told to stop, and another one starts.
    Stop,
    /// Somebody sets a row to pending again.
    Requeued,
    /// The catalogs cannot be read for a while: looks at them fail.
    CatalogUnread,
    /// The server sends nothing for a while, as where it waits for a standby.
    HeldBack,
}

impl Fault {
    pub(super) const ALL: [Fault; 21] = [
        Fault::Disconnect,
        Fault::ServerCrash,
        Fault::DeliveryFailure,
        Fault::RelayKill,
        Fault::BrokerDown,
        Fault::Refusal,
        Fault::WriteLost,
        Fault::SlotActive,
        Fault::SlotLost,
        Fault::TopicRefused,
        Fault::Unroutable,
        Fault::StoodStill,
        Fault::NoReplication,
        Fault::Failover,
        Fault::Altered,
        Fault::OverBudget,
        Fault::Synchronous,
        Fault::Stop,
        Fault::Requeued,
        Fault::CatalogUnread,
        Fault::HeldBack,
    ];

    /// Those after which the table is read.
    pub(super) const OF_TABLE: [Fault; 6] = [
        Fault::SlotLost,
        Fault::NoReplication,
        Fault::Failover,
        Fault::Altered,
        Fault::OverBudget,
        Fault::Requeued,
    ];
}

/// Which kinds the dice may choose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn of(kinds: &[Fault]) -> Faults {
        Faults(kinds.to_vec())
    }

    pub(super) fn all() -> Faults {
        Faults::of(&Fault::ALL)
    }

    /// Some kinds, others for each seed: a frequent fault can hide what a rare one does.
    pub(super) fn some(seed: u64) -> Faults {
        let mut random = fastrand::Rng::with_seed(seed);
        let all = Fault::ALL.into_iter();
        Faults(all.filter(|_| random.bool()).collect())
    }

    pub(super) fn has(&self, fault: Fault) -> bool {
        self.0.contains(&fault)
    }

    /// Whether it is the only one.
    pub(super) fn is_only(&self, fault: Fault) -> bool {
        self.0 == [fault]
    }

    pub(super) fn with(&self, fault: Fault) -> Faults {
        let mut faults = self.without(fault);
        faults.0.push(fault);
        faults
    }

    /// Those that want no table.
    pub(super) fn of_slot(&self) -> Faults {
        let of_table = Fault::OF_TABLE.into_iter();
        of_table.fold(self.clone(), |faults, fault| faults.without(fault))
    }

    pub(super) fn without(&self, fault: Fault) -> Faults {
        let others = self.0.iter().copied().filter(|other| *other != fault);
        Faults(others.collect())
    }

    /// As `WALRELAY_SIMULATION_FAULTS` has it.
    pub(super) fn parse(text: &str) -> Faults {
        let is_named = |fault: &Fault| text.split(',').any(|name| name == format!("{fault:?}"));
        Faults(Fault::ALL.into_iter().filter(is_named).collect())
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().map(|fault| format!("{fault:?}"));
        f.write_str(&names.collect::<Vec<_>>().join(","))
    }
}

/// What the producer is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bus {
    /// One failure finishes it.
    Gapless,
    /// The same, and events and position are committed together.
    Transactional,
    /// The bus refuses each record for itself.
    Lanes,
}

/// What a relay is configured to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mode {
    pub(super) bus: Bus,
    /// Where events are parked, rows are marked, too.
    pub(super) on_error: OnError,
    /// Whether rows say that they are pending, and are marked.
    pub(super) has_pending: bool,
    /// Whether a process that begins looks for what topics have.
    pub(super) reads_tails: bool,
    /// The number of relays of the slot.
    pub(super) relays: usize,
}

impl Mode {
    pub(super) const fn new(bus: Bus, on_error: OnError) -> Mode {
        Mode {
            bus,
            on_error,
            has_pending: false,
            reads_tails: false,
            relays: 1,
        }
    }

    pub(super) const fn with_pending(self) -> Mode {
        Mode {
            has_pending: true,
            ..self
        }
    }

    pub(super) const fn that_reads_tails(self) -> Mode {
        Mode {
            reads_tails: true,
            ..self
        }
    }

    pub(super) const fn with_relays(self, relays: usize) -> Mode {
        Mode { relays, ..self }
    }

    pub(super) fn has_stand_by(&self) -> bool {
        self.relays > 1
    }

    pub(super) fn parks(&self) -> bool {
        self.on_error == OnError::Park
    }

    pub(super) fn marks(&self) -> bool {
        self.parks() || self.has_pending
    }

    /// Those of `faults` that it has to stand. Not mended: where a relay was killed or another one
    /// took over, or a standby was promoted, and no slot serves next, the table gives delivered
    /// events again behind later ones of their aggregate that are parked. So it does where the
    /// publication was altered. And while commits wait for the relay, events are parked without a
    /// wait for standbys, which may be promoted.
    pub(super) fn meets(&self, faults: &Faults) -> Faults {
        let faults = &match self.has_pending {
            true => faults.clone(),
            false => faults.without(Fault::Requeued),
        };
        let faults = &match self.parks() {
            true if faults.has(Fault::Failover) => {
                faults.without(Fault::Altered).without(Fault::Synchronous)
            }
            true => faults.without(Fault::Altered),
            false => faults.clone(),
        };
        let takes_over =
            self.has_stand_by() || faults.has(Fault::RelayKill) || faults.has(Fault::Failover);
        let may_lose = self.has_pending && !faults.has(Fault::Failover);
        if self.parks() && takes_over && !may_lose {
            faults
                .without(Fault::SlotLost)
                .without(Fault::NoReplication)
                .without(Fault::OverBudget)
        } else {
            faults.clone()
        }
    }

    /// Whether a relay may end while it reads the table, and what it knew is forgotten: see
    /// [`Mode::meets`].
    pub(super) fn may_end_at_table(&self) -> bool {
        !self.parks() || self.has_pending
    }

    /// Whether a topic may refuse all. Nothing tells which events were skipped for that.
    pub(super) fn has_topic_refusals(&self) -> bool {
        self.bus != Bus::Lanes && matches!(self.on_error, OnError::Stop | OnError::DeadLetter)
    }

    /// All that the core has.
    pub(super) const ALL: [Mode; 24] = [
        Mode::new(Bus::Gapless, OnError::Stop),
        Mode::new(Bus::Gapless, OnError::Skip),
        Mode::new(Bus::Gapless, OnError::DeadLetter),
        Mode::new(Bus::Gapless, OnError::Park),
        Mode::new(Bus::Gapless, OnError::Stop).that_reads_tails(),
        Mode::new(Bus::Gapless, OnError::Park).that_reads_tails(),
        Mode::new(Bus::Transactional, OnError::Stop),
        Mode::new(Bus::Lanes, OnError::Stop),
        Mode::new(Bus::Lanes, OnError::Skip),
        Mode::new(Bus::Lanes, OnError::DeadLetter),
        Mode::new(Bus::Lanes, OnError::Park),
        Mode::new(Bus::Gapless, OnError::Stop).with_relays(2),
        Mode::new(Bus::Gapless, OnError::Stop)
            .that_reads_tails()
            .with_relays(2),
        Mode::new(Bus::Transactional, OnError::Stop).with_relays(2),
        Mode::new(Bus::Lanes, OnError::Stop).with_relays(2),
        Mode::new(Bus::Gapless, OnError::Park).with_relays(2),
        Mode::new(Bus::Lanes, OnError::Park).with_relays(2),
        Mode::new(Bus::Gapless, OnError::Stop).with_relays(3),
        Mode::new(Bus::Transactional, OnError::Stop).with_relays(3),
        Mode::new(Bus::Lanes, OnError::Stop).with_relays(3),
        Mode::new(Bus::Gapless, OnError::Stop).with_pending(),
        Mode::new(Bus::Lanes, OnError::Stop)
            .with_pending()
            .with_relays(2),
        Mode::new(Bus::Gapless, OnError::Park).with_pending(),
        Mode::new(Bus::Lanes, OnError::Park)
            .with_pending()
            .with_relays(2),
    ];
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mode { bus, on_error, .. } = self;
        let pending = if self.has_pending { ", pending" } else { "" };
        let tails = if self.reads_tails { ", tails" } else { "" };
        let relays = ["", "", ", two relays", ", three relays"][self.relays];
        write!(f, "{bus:?}, {on_error:?}{pending}{tails}{relays}")
    }
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) mode: Mode,
    pub(super) faults: Faults,
    /// Steps before the faults stop and everything has to settle.
    pub(super) steps: usize,
}

impl Plan {
    /// The smallest plan like it that still `fails`: with fewer kinds of faults, then with fewer
    /// steps.
    pub(super) fn shrunk(&self, fails: impl Fn(&Plan) -> bool) -> Plan {
        let mut plan = self.clone();
        for fault in Fault::ALL {
            let less = Plan {
                faults: plan.faults.without(fault),
                ..plan.clone()
            };
            if less.faults != plan.faults && fails(&less) {
                plan = less;
            }
        }
        let mut cut = plan.steps / 2;
        while cut > 0 {
            let less = Plan {
                steps: plan.steps - cut.min(plan.steps),
                ..plan.clone()
            };
            if less.steps < plan.steps && fails(&less) {
                plan = less;
            } else {
                cut /= 2;
            }
        }
        plan
    }
}

/// A path that few schedules take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Path {
    ResumedInsideATransaction,
    RestartedInsideATransaction,
    QueueFull,
    BytesFull,
    SlotWentBack,
    SharedId,
    EarlierName,
    /// A snapshot says which rows are published.
    Snapshot,
    /// Events that the topic had, and were not published again.
    DeliveredBefore,
    /// The relay ended at an event, and was started again.
    Stopped,
    Skipped,
    DeadLetter,
    /// A batch was refused for one of its records.
    BatchRefused,
    /// A record was refused, and the producer went on.
    RefusedAlone,
    Parked,
    Retried,
    RetryFailed,
    /// Events before it in its batch were delivered.
    RetryFailedInside,
    /// The bus was gone.
    RetryAway,
    Dropped,
    /// Requests that waited until the position was stored.
    AskedEarly,
    /// The bus had it, and the table did not.
    Remembered,
    Unroutable,
    /// The relay waited while another session had the slot.
    StoodBy,
    /// A session opened after more than three attempts.
    TriedOften,
    /// Writes were refused more than twice in a row.
    WritesRefused,
    /// No other session saw rows that were to be marked.
    RowsUnseen,
    /// A topic was tried again, or given up.
    TopicTried,
    TopicGivenUp,
    /// Rows were read that no slot sent.
    TableRead,
    /// The same, from a row on.
    ReadResumed,
    /// A read ended whose slot was lost.
    ReadFinished,
    KilledAtTheTable,
    /// A table was polled, and a slot took over.
    Polled,
    HandedOver,
    /// A slot was given up, because its creation waited.
    SlotHeld,
    /// Rows of an open transaction were delivered, and were not read again.
    LeftOut,
    /// A relay had its turn after the other one.
    TookOver,
    /// What a relay knew of its own stream was of the past.
    CameBack,
    /// A stand-by dropped what it had in flight.
    GaveWay,
    /// A copy landed after another relay had the turn.
    CameLate,
    /// A store of the other relay was under way when this one took over.
    StoredLate,
    /// The other relay's transaction was fenced.
    Fenced,
    /// A promoted standby lacked transactions; those that were stored as delivered; the slot; what
    /// was stored last.
    Promoted,
    PromotedBehind,
    PromotedWithoutSlot,
    StoreWentBack,
    /// The topic has an event as one of two timelines.
    OnTwoTimelines,
    /// A promoted standby lacked marks of rows.
    MarksWentBack,
    /// The table was read because the publication was altered; transactions of which the slot sent
    /// a part.
    ReadAltered,
    SentInPart,
    /// The relay dropped its slot.
    SlotDropped,
    /// The relay noticed that commits wait for it; it left the stream for that.
    CommitsWait,
    StreamLeft,
    /// A relay that was told to stop left nothing over; at the table, stored how far it was.
    StoppedWell,
    StoppedAtTable,
    /// Rows that were set to pending again were published again.
    RequeuedRead,
    /// The catalogs could not be read; an idle position was not stored for that.
    LookFailed,
    IdleAbandoned,
    /// A relay began to say that it is not ready, for this reason.
    NotReady(&'static str),
}

/// A promise of the core: see `src/lib.rs` of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Promise {
    P1,
    P2,
    P3,
    P4,
    P12,
    P13,
    P14,
}

impl Promise {
    pub(super) const ALL: [Promise; 7] = [
        Promise::P1,
        Promise::P2,
        Promise::P3,
        Promise::P4,
        Promise::P12,
        Promise::P13,
        Promise::P14,
    ];
}

/// What schedules reached.
#[derive(Debug, Default, Clone)]
pub(super) struct Reached {
    pub(super) steps: u64,
    pub(super) paths: BTreeMap<Path, u64>,
    /// Faults that took effect.
    pub(super) faults: BTreeMap<Fault, u64>,
    /// Those of them that could have broken the promise.
    pub(super) at_stake: BTreeMap<(Promise, Fault), u64>,
}

impl Reached {
    pub(super) fn count(&mut self, path: Path, times: u64) {
        *self.paths.entry(path).or_default() += times;
    }

    pub(super) fn add(&mut self, other: &Reached) {
        self.steps += other.steps;
        for (path, times) in &other.paths {
            self.count(*path, *times);
        }
        for (fault, times) in &other.faults {
            *self.faults.entry(*fault).or_default() += times;
        }
        for (cell, times) in &other.at_stake {
            *self.at_stake.entry(*cell).or_default() += times;
        }
    }

    /// Those of `paths` that were not taken.
    pub(super) fn lacks(&self, paths: &[Path]) -> Vec<Path> {
        let is_lacking = |path: &Path| self.paths.get(path).is_none_or(|times| *times == 0);
        paths.iter().copied().filter(is_lacking).collect()
    }
}
