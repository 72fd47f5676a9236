//! What a body in the action log says. Its head is read at once; a record or a recipe inside it stays
//! encoded until somebody asks, for most never are asked for.

use crate::codec::{self, CodecError};
use crate::index::Tick;
use crate::{ActionKey, ActionRecord, Digest, Recipe};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

/// One thing that happened.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// An action ran.
    Record { key: ActionKey, record: Lazy<ActionRecord> },
    /// Its record was used.
    Used { key: ActionKey },
    /// A workspace will not hear of its result any more.
    Forget { workspace: Digest, key: ActionKey },
    /// Its result is gone for everyone: gc took it.
    Drop { key: ActionKey },
    /// A workspace's target was built from this.
    Remember { workspace: Digest, target: String, recipe: Lazy<Recipe> },
}

/// The head of a body. What is lazy follows it.
#[derive(Serialize, Deserialize)]
enum Head {
    Record { key: ActionKey },
    Used { key: ActionKey },
    Forget { workspace: Digest, key: ActionKey },
    Drop { key: ActionKey },
    Remember { workspace: Digest, target: String },
}

impl Event {
    /// The event as a body of the log.
    pub(crate) fn body(&self, tick: Tick) -> Vec<u8> {
        let (head, tail) = match self {
            Self::Record { key, record } => (Head::Record { key: *key }, record.encoded()),
            Self::Used { key } => (Head::Used { key: *key }, &[][..]),
            Self::Forget { workspace, key } => (Head::Forget { workspace: *workspace, key: *key }, &[][..]),
            Self::Drop { key } => (Head::Drop { key: *key }, &[][..]),
            Self::Remember { workspace, target, recipe } => {
                (Head::Remember { workspace: *workspace, target: target.clone() }, recipe.encoded())
            }
        };
        let mut body = codec::to_payload(&(tick, head));
        body.extend_from_slice(tail);
        body
    }

    /// The event whose body is at `place` in `log`.
    pub(crate) fn read(log: &Arc<Vec<u8>>, place: Range<usize>) -> Result<(Tick, Self), CodecError> {
        let ((tick, head), rest) = codec::first_of_payload::<(Tick, Head)>(&log[place.clone()])?;
        let tail = place.end - rest.len()..place.end;
        let event = match head {
            Head::Record { key } => Self::Record { key, record: Lazy::read(log, tail) },
            Head::Used { key } => Self::Used { key },
            Head::Forget { workspace, key } => Self::Forget { workspace, key },
            Head::Drop { key } => Self::Drop { key },
            Head::Remember { workspace, target } => {
                Self::Remember { workspace, target, recipe: Lazy::read(log, tail) }
            }
        };
        Ok((tick, event))
    }
}

/// A value that is still encoded, in a buffer shared with its neighbours.
#[derive(Clone)]
pub(crate) struct Lazy<T> {
    log: Arc<Vec<u8>>,
    place: Range<usize>,
    value: PhantomData<T>,
}

impl<T> Lazy<T> {
    fn read(log: &Arc<Vec<u8>>, place: Range<usize>) -> Self {
        Self { log: Arc::clone(log), place, value: PhantomData }
    }

    /// Its encoding: equal for equal values.
    pub(crate) fn encoded(&self) -> &[u8] {
        &self.log[self.place.clone()]
    }
}

impl<T: Serialize + DeserializeOwned> Lazy<T> {
    pub(crate) fn new(value: &T) -> Self {
        let log = Arc::new(codec::to_payload(value));
        let place = 0..log.len();
        Self { log, place, value: PhantomData }
    }

    /// The value; `None` if a body that checks holds none, which only a program of another mind writes.
    pub(crate) fn value(&self) -> Option<T> {
        codec::from_payload(self.encoded()).ok()
    }
}

impl<T> std::fmt::Debug for Lazy<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lazy({} bytes)", self.place.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_event_round_trips_and_nothing_else_does() {
        let (key, workspace) = (Recipe::new("s", 1).key(), blake3::hash(b"w"));
        let record = ActionRecord { wall_ms: 7, note: vec![1, 2], ..ActionRecord::default() };
        let recipe = Recipe::new("s", 1).param("a", "b");
        let events = [
            Event::Record { key, record: Lazy::new(&record) },
            Event::Used { key },
            Event::Forget { workspace, key },
            Event::Drop { key },
            Event::Remember { workspace, target: "t".into(), recipe: Lazy::new(&recipe) },
        ];
        for event in events {
            let body = event.body(42);
            // Somewhere in a longer log.
            let log = Arc::new([&b"before"[..], &body, b"after"].concat());
            let (tick, back) = Event::read(&log, 6..6 + body.len()).expect("an event");
            assert_eq!((tick, back.body(42)), (42, body.clone()));
            match back {
                Event::Record { record: back, .. } => assert_eq!(back.value().as_ref(), Some(&record)),
                Event::Remember { recipe: back, .. } => assert_eq!(back.value().as_ref(), Some(&recipe)),
                _ => assert!(Event::read(&log, 6..5 + body.len()).is_err(), "cut: {back:?}"),
            }
        }
        assert!(Event::read(&Arc::new(vec![0, 9]), 0..2).is_err());
        let log = Arc::new(b"no record".to_vec());
        assert_eq!(Lazy::<ActionRecord>::read(&log, 0..9).value(), None);
    }
}
