//! Visits all states of a model, breadth first, and keeps each state whole: counterexamples are
//! shortest, and no two states are taken for one.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::hash::Hash;

/// What a model may have: a test of it ends within seconds.
const STATES_MAX: usize = 600_000;

/// States, and what can happen in each.
pub(crate) trait Model {
    type State: Clone + Debug + Eq + Hash;
    type Action: Copy + Debug;

    fn begins(&self) -> Vec<Self::State>;

    /// What can happen next, faults included.
    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>);

    /// The state after an action; none where it does nothing.
    fn next(&self, state: &Self::State, action: Self::Action) -> Option<Self::State>;

    /// Whether a relay that works can leave the action out.
    fn is_fault(&self, action: Self::Action) -> bool;

    fn properties(&self) -> Vec<Property<Self::State>>;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    /// In every state.
    Always,
    /// In every state where nothing but faults can happen.
    InTheEnd,
    /// In some state.
    Sometimes,
}

pub(crate) struct Property<S> {
    when: When,
    pub(crate) name: &'static str,
    holds: fn(&S) -> bool,
}

impl<S> Property<S> {
    pub(crate) fn is_broken_by(&self, state: &S) -> bool {
        self.when == When::Always && !(self.holds)(state)
    }

    /// As in a state after which nothing but faults happens.
    pub(crate) fn is_broken_at_end(&self, state: &S) -> bool {
        self.when == When::InTheEnd && !(self.holds)(state)
    }

    pub(crate) fn is_reached_by(&self, state: &S) -> bool {
        self.when == When::Sometimes && (self.holds)(state)
    }
}

pub(crate) fn always<S>(name: &'static str, holds: fn(&S) -> bool) -> Property<S> {
    let when = When::Always;
    Property { when, name, holds }
}

pub(crate) fn in_the_end<S>(name: &'static str, holds: fn(&S) -> bool) -> Property<S> {
    let when = When::InTheEnd;
    Property { when, name, holds }
}

pub(crate) fn sometimes<S>(name: &'static str, holds: fn(&S) -> bool) -> Property<S> {
    let when = When::Sometimes;
    Property { when, name, holds }
}

/// A model has all its properties, and no path returns to a state: so every path ends, and what
/// holds in the end comes about. The page of the docs has the number of states by this name.
pub(crate) fn holds<M: Model>(name: &str, model: &M) {
    let Visited {
        found,
        states,
        depth,
    } = visit(model, None);
    for property in model.properties() {
        let path = found.get(property.name);
        match (property.when, path) {
            (When::Sometimes, None) => panic!("{name}: no explored path has {}", property.name),
            (When::Sometimes, Some(path)) => {
                println!("{name}: {} after {} steps", property.name, path.steps);
            }
            (_, Some(path)) => panic!("{name}: {} does not hold after\n{path:?}", property.name),
            (_, None) => {}
        }
    }
    println!("{name}: {states} states, at most {depth} steps away");
    assert!(!has_cycle(model), "{name}: a path returns to a state");
    let page = include_str!("../../docs/reference/proof.md");
    let row = page
        .lines()
        .find(|line| line.starts_with(&format!("| `{name}` |")));
    let cell = row.and_then(|row| row.split('|').rev().nth(1));
    let told = cell.map(|cell| cell.trim().replace(',', ""));
    assert_eq!(
        told,
        Some(states.to_string()),
        "the states of {name} in docs/reference/proof.md"
    );
}

/// A wrong rule makes the model break this property.
pub(crate) fn breaks<M: Model>(rule: impl Debug, model: &M, property: &'static str) {
    let Visited { found, states, .. } = visit(model, Some(property));
    let Some(path) = found.get(property) else {
        panic!("{rule:?} does not break {property:?} in {states} states");
    };
    println!(
        "{rule:?} breaks {property:?} in {} steps\n{path:?}",
        path.steps
    );
}

struct Visited {
    /// By property: the shortest path that breaks it, or has it.
    found: HashMap<&'static str, Found>,
    states: usize,
    depth: usize,
}

struct Found {
    steps: usize,
    text: String,
}

impl Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// One state, how it was reached first, and how far from the beginning that is.
struct Reached<M: Model> {
    state: M::State,
    from: Option<(usize, M::Action)>,
    steps: usize,
}

/// Visits all states, or those up to the first one that breaks the property `until`.
fn visit<M: Model>(model: &M, until: Option<&str>) -> Visited {
    let reach = |state| Reached::<M> {
        state,
        from: None,
        steps: 0,
    };
    let mut reached: Vec<_> = model.begins().into_iter().map(reach).collect();
    let mut known: HashSet<M::State> = reached.iter().map(|first| first.state.clone()).collect();
    let mut found = HashMap::new();
    let mut at = 0;
    let mut actions = Vec::new();
    while at < reached.len() && until.is_none_or(|until| !found.contains_key(until)) {
        let state = reached[at].state.clone();
        actions.clear();
        model.actions(&state, &mut actions);
        let ends = actions.iter().all(|action| model.is_fault(*action));
        for property in model.properties() {
            let is_due = property.when != When::InTheEnd || ends;
            let tells = is_due && (property.holds)(&state) == (property.when == When::Sometimes);
            if tells && !found.contains_key(property.name) {
                found.insert(property.name, path(&reached, at));
            }
        }
        assert!(
            at < STATES_MAX,
            "more states than {STATES_MAX}: {:?}",
            path(&reached, at)
        );
        let steps = reached[at].steps + 1;
        for action in actions.drain(..) {
            let Some(state) = model.next(&state, action) else {
                continue;
            };
            if known.insert(state.clone()) {
                reached.push(Reached {
                    state,
                    from: Some((at, action)),
                    steps,
                });
            }
        }
        at += 1;
    }
    let depth = reached.last().map_or(0, |last| last.steps);
    Visited {
        found,
        states: reached.len(),
        depth,
    }
}

/// The actions from the beginning to a state, and that state.
fn path<M: Model>(reached: &[Reached<M>], end: usize) -> Found {
    let mut lines = vec![format!("      {:?}", reached[end].state)];
    let mut at = end;
    while let Some((from, action)) = reached[at].from {
        lines.push(format!("{:>4}  {action:?}", reached[at].steps));
        at = from;
    }
    lines.push(format!("      {:?}", reached[at].state));
    lines.reverse();
    Found {
        steps: reached[end].steps,
        text: lines.join("\n"),
    }
}

/// Whether some path returns to a state.
fn has_cycle<M: Model>(model: &M) -> bool {
    // Of each state, whether all that follows it was visited.
    let mut is_done: HashMap<M::State, bool> = HashMap::new();
    let mut actions = Vec::new();
    let mut stack = model.begins();
    while let Some(state) = stack.last().cloned() {
        if let Some(done) = is_done.get_mut(&state) {
            *done = true;
            stack.pop();
            continue;
        }
        is_done.insert(state.clone(), false);
        model.actions(&state, &mut actions);
        for action in actions.drain(..) {
            let Some(next) = model.next(&state, action) else {
                continue;
            };
            match is_done.get(&next) {
                Some(false) => return true,
                Some(true) => {}
                None => stack.push(next),
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts up to 4; then, maybe, from 0 again.
    struct Steps {
        is_ring: bool,
    }

    impl Model for Steps {
        type State = u8;
        type Action = u8;

        fn begins(&self) -> Vec<u8> {
            vec![0]
        }

        fn actions(&self, _: &u8, actions: &mut Vec<u8>) {
            actions.extend([1, 2]);
        }

        fn next(&self, state: &u8, step: u8) -> Option<u8> {
            let next = state + step;
            if self.is_ring {
                Some(next % 5)
            } else {
                Some(next).filter(|next| *next < 5)
            }
        }

        fn is_fault(&self, step: u8) -> bool {
            step > 2
        }

        fn properties(&self) -> Vec<Property<u8>> {
            vec![always("below 4", |state| *state < 4)]
        }
    }

    #[test]
    fn a_path_is_the_shortest_and_a_return_to_a_state_is_found() {
        let line = Steps { is_ring: false };
        let visited = visit(&line, None);
        assert_eq!((visited.states, visited.found["below 4"].steps), (5, 2));
        assert!(!has_cycle(&line) && has_cycle(&Steps { is_ring: true }));
    }
}
