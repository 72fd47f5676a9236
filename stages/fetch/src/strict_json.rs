//! JSON in which no object says a key twice.
//!
//! serde_json keeps the last of two equal keys in silence, other readers the first: a file that has both
//! means two things. Nesting is limited by serde_json itself (128 levels). Knows nothing of what the JSON
//! says.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::FetchError;

/// Any JSON value without duplicate keys at any depth.
pub(crate) fn value(path: &Path, bytes: &[u8]) -> Result<Value, FetchError> {
    serde_json::from_slice(bytes).map(|Strict(value)| value).map_err(|e| FetchError::json(path, &e))
}

/// An object whose keys are unique, each value a `V`.
pub(crate) struct UniqueMap<V>(pub BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueVisitor(PhantomData))
    }
}

struct UniqueVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueVisitor<V> {
    type Value = UniqueMap<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut out = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            match out.entry(key) {
                Entry::Vacant(slot) => slot.insert(map.next_value()?),
                Entry::Occupied(slot) => return Err(twice(slot.key())),
            };
        }
        Ok(UniqueMap(out))
    }
}

fn twice<E: serde::de::Error>(key: &str) -> E {
    E::custom(format!("the key {key:?} occurs twice"))
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Strict;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Strict, E> {
        Ok(Strict(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Strict, E> {
        Ok(Strict(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Strict, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("a number that is not finite"))?;
        Ok(Strict(Value::Number(number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Strict, E> {
        Ok(Strict(Value::String(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Strict, A::Error> {
        let mut out = Vec::new();
        while let Some(Strict(item)) = seq.next_element()? {
            out.push(item);
        }
        Ok(Strict(Value::Array(out)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strict, A::Error> {
        let mut out = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if out.contains_key(&key) {
                return Err(twice(&key));
            }
            let Strict(item) = map.next_value()?;
            out.insert(key, item);
        }
        Ok(Strict(Value::Object(out)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_serde_json_reads() {
        let text = r#"{"a": [1, -2, 1e-06, "x", null, true, {"b": {}}], "c": 18446744073709551615}"#;
        let expected: Value = serde_json::from_str(text).unwrap();
        assert_eq!(value(Path::new("f"), text.as_bytes()), Ok(expected));
    }

    #[test]
    fn refuses_with_the_place() {
        let deep = "[".repeat(200);
        for (text, line, said) in [
            ("{\"a\": 1,\n \"a\": 2}", 2, "\"a\" occurs twice"),
            ("{\"x\": {\"b\": 1,\n\n \"\\u0062\": 2}}", 3, "\"b\" occurs twice"),
            ("{\n\"a\": 1,\n}", 3, "trailing comma"),
            ("{} {}", 1, "trailing characters"),
            ("{\"a\": NaN}", 1, "expected value"),
            (&deep, 1, "recursion limit"),
        ] {
            match value(Path::new("f.json"), text.as_bytes()) {
                Err(FetchError::Json { line: at, message, .. }) => {
                    assert_eq!(at, line, "{text}");
                    assert!(message.contains(said), "{message}");
                }
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}
