//! What the action log says, in memory: the sum of its events, whatever the order they are read in.
//!
//! Every event carries a tick: the time it happened in microseconds, but never below or at one that its
//! writer had seen. So of two events on one key the later wins, also across processes and a clock that
//! was set back. Knows neither files nor blobs.

use crate::event::{Event, Lazy};
use crate::{ActionKey, ActionRecord, Digest, Recipe};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment: microseconds since 1970, monotone along what each process sees.
pub(crate) type Tick = u64;

/// The tick of a time.
pub(crate) fn tick_of(time: SystemTime) -> Tick {
    time.duration_since(UNIX_EPOCH).map_or(0, ticks)
}

/// A span of time in ticks.
pub(crate) fn ticks(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// A record and when it was made.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) tick: Tick,
    pub(crate) record: Lazy<ActionRecord>,
}

/// A remembered recipe and when it was.
#[derive(Clone, Debug)]
pub(crate) struct Remembered {
    pub(crate) tick: Tick,
    pub(crate) recipe: Lazy<Recipe>,
}

/// The sum of all events.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    records: HashMap<ActionKey, Held>,
    used: HashMap<ActionKey, Tick>,
    forgotten: HashMap<(Digest, ActionKey), Tick>,
    dropped: HashMap<ActionKey, Tick>,
    last: HashMap<Digest, HashMap<String, Remembered>>,
    newest: Tick,
    events: usize,
}

fn raise<K: Eq + std::hash::Hash>(map: &mut HashMap<K, Tick>, key: K, tick: Tick) {
    let held = map.entry(key).or_insert(tick);
    *held = tick.max(*held);
}

impl Index {
    /// The tick of something that happens at `now`.
    pub(crate) fn next_tick(&mut self, now: SystemTime) -> Tick {
        self.newest = tick_of(now).max(self.newest.saturating_add(1));
        self.newest
    }

    /// Adds one event. The order of calls does not matter.
    pub(crate) fn apply(&mut self, tick: Tick, event: Event) {
        self.newest = self.newest.max(tick);
        self.events += 1;
        match event {
            Event::Record { key, record } => match self.records.entry(key) {
                Entry::Vacant(place) => {
                    place.insert(Held { tick, record });
                }
                Entry::Occupied(mut place) if place.get().tick < tick => {
                    place.insert(Held { tick, record });
                }
                Entry::Occupied(_) => {}
            },
            Event::Used { key } => raise(&mut self.used, key, tick),
            Event::Forget { workspace, key } => raise(&mut self.forgotten, (workspace, key), tick),
            Event::Drop { key } => raise(&mut self.dropped, key, tick),
            Event::Remember { workspace, target, recipe } => {
                let targets = self.last.entry(workspace).or_default();
                if targets.get(&target).is_none_or(|held| held.tick < tick) {
                    targets.insert(target, Remembered { tick, recipe });
                }
            }
        }
    }

    fn holds(&self, key: &ActionKey, held: &Held) -> bool {
        self.dropped.get(key).is_none_or(|dropped| *dropped < held.tick)
    }

    /// The record of `key` as `workspace` sees it.
    pub(crate) fn record(&self, workspace: Digest, key: &ActionKey) -> Option<ActionRecord> {
        let held = self.records.get(key).filter(|held| self.holds(key, held))?;
        let forgotten = self.forgotten.get(&(workspace, *key)).is_some_and(|tick| *tick >= held.tick);
        if forgotten { None } else { held.record.value() }
    }

    /// All records that hold for at least some workspace.
    pub(crate) fn records(&self) -> impl Iterator<Item = (ActionKey, ActionRecord)> {
        let holding = self.records.iter().filter(|(key, held)| self.holds(key, held));
        holding.filter_map(|(key, held)| Some((*key, held.record.value()?)))
    }

    /// When the record of `key` was last made or used.
    pub(crate) fn last_use(&self, key: &ActionKey) -> Tick {
        let made = self.records.get(key).map_or(0, |held| held.tick);
        made.max(self.used.get(key).copied().unwrap_or(0))
    }

    /// What a workspace's target was last built from.
    pub(crate) fn last(&self, workspace: Digest, target: &str) -> Option<&Remembered> {
        self.last.get(&workspace)?.get(target)
    }

    /// What every workspace's targets were last built from.
    pub(crate) fn all_last(&self) -> impl Iterator<Item = &Remembered> {
        self.last.values().flat_map(HashMap::values)
    }

    /// How many records hold, and of how many targets, in all workspaces, the recipe is known.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let holding = self.records.iter().filter(|(key, held)| self.holds(key, held)).count();
        (holding as u64, self.all_last().count() as u64)
    }

    /// Whether rewriting would shrink the log to less than half.
    pub(crate) fn is_wasteful(&self) -> bool {
        self.events > 2 * (self.records.len() + self.all_last().count()) + 4096
    }

    /// The events that make this index, the fewest that do, in the order they happened.
    ///
    /// `partial` says that there are events elsewhere that this index has not seen; then no word against
    /// a record may be lost, even if the record is not here.
    pub(crate) fn into_events(self, partial: bool) -> Vec<(Tick, Event)> {
        let Self { records, used, forgotten, dropped, last, .. } = self;
        let mut events = Vec::new();
        let gone = |key: &ActionKey, tick: Tick| dropped.get(key).is_some_and(|d| *d >= tick);
        for ((workspace, key), tick) in forgotten {
            let applies = records.get(&key).is_some_and(|held| held.tick <= tick && !gone(&key, held.tick));
            if partial || applies {
                events.push((tick, Event::Forget { workspace, key }));
            }
        }
        for (key, held) in records {
            if gone(&key, held.tick) {
                continue;
            }
            if let Some(tick) = used.get(&key).filter(|tick| **tick > held.tick) {
                events.push((*tick, Event::Used { key }));
            }
            events.push((held.tick, Event::Record { key, record: held.record }));
        }
        if partial {
            events.extend(dropped.into_iter().map(|(key, tick)| (tick, Event::Drop { key })));
        }
        for (workspace, targets) in last {
            for (target, Remembered { tick, recipe }) in targets {
                events.push((tick, Event::Remember { workspace, target, recipe }));
            }
        }
        events.sort_by_key(|(tick, _)| *tick);
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ws(n: u8) -> Digest {
        blake3::hash(&[n])
    }

    fn key(n: u8) -> ActionKey {
        ActionKey(blake3::hash(&[100, n]))
    }

    fn record(n: u64) -> ActionRecord {
        ActionRecord { wall_ms: n, ..ActionRecord::default() }
    }

    /// What can be asked of an index, for two keys, two workspaces and a target each.
    fn answers(index: &Index) -> Vec<String> {
        let mut out = Vec::new();
        for w in 0..2 {
            for k in 0..2 {
                out.push(format!("{:?}", index.record(ws(w), &key(k))));
            }
            out.push(format!("{:?}", index.last(ws(w), "t").map(|r| r.recipe.value())));
        }
        out
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = (0u8..5, 0u8..2, 0u8..2, any::<u8>()).prop_map(|(kind, w, k, n)| match kind {
            0 => Event::Record { key: key(k), record: Lazy::new(&record(u64::from(n))) },
            1 => Event::Used { key: key(k) },
            2 => Event::Forget { workspace: ws(w), key: key(k) },
            3 => Event::Drop { key: key(k) },
            _ => Event::Remember {
                workspace: ws(w),
                target: "t".into(),
                recipe: Lazy::new(&Recipe::new("s", u32::from(n))),
            },
        });
        proptest::collection::vec(event, 0..12)
    }

    fn build<'a>(events: impl IntoIterator<Item = &'a (Tick, Event)>) -> Index {
        let mut index = Index::default();
        for (tick, event) in events {
            index.apply(*tick, event.clone());
        }
        index
    }

    proptest! {
        #[test]
        fn neither_order_nor_rewriting_changes_an_answer(events in events(), split in 0usize..12) {
            let all: Vec<_> = events.into_iter().enumerate().map(|(i, e)| (i as Tick + 1, e)).collect();
            let expected = answers(&build(&all));
            prop_assert_eq!(answers(&build(all.iter().rev())), expected.clone());
            prop_assert_eq!(answers(&build(&build(&all).into_events(false))), expected.clone());
            // One half rewritten without a look at the other, as when the other's writer still lives.
            let (some, rest) = all.split_at(split.min(all.len()));
            let mixed = |mut half: Vec<(Tick, Event)>, other: &[(Tick, Event)]| {
                half.extend_from_slice(other);
                answers(&build(&half))
            };
            prop_assert_eq!(mixed(build(some).into_events(true), rest), expected.clone());
            prop_assert_eq!(mixed(build(rest).into_events(true), some), expected);
        }
    }

    #[test]
    fn ticks_go_up_though_the_clock_goes_back() {
        let mut index = Index::default();
        let now = UNIX_EPOCH + Duration::from_secs(1000);
        let first = index.next_tick(now);
        assert!(index.next_tick(now) > first);
        assert!(index.next_tick(UNIX_EPOCH) > first);
        index.apply(Tick::MAX, Event::Used { key: key(0) });
        assert_eq!(index.next_tick(now), Tick::MAX);
    }
}
