//! What names an action, and why that name changed, both from one value so that they can't disagree.
//!
//! A recipe holds no path, time, host, thread count or log text: equal recipes must give equal outputs
//! on every machine.

use crate::Digest;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::LazyLock;

/// The domain of action keys. A change of the key layout needs another one.
const KEY_DOMAIN: &str = "mica-cache 2026 action key v1";

/// Everything an action's result depends on. The order of parameters and inputs is part of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Recipe {
    /// The stage: a pure function with a name.
    pub stage: String,
    /// The version of the stage's meaning; raised when equal inputs give other outputs than before.
    pub version: u32,
    /// The version of the shared arithmetic, for stages whose outputs depend on it.
    pub numerics: Option<u32>,
    /// Plain values, by name.
    pub params: Vec<(String, String)>,
    /// Contents, by role.
    pub inputs: Vec<(String, Digest)>,
}

impl Recipe {
    /// A recipe without parameters or inputs yet.
    #[must_use]
    pub fn new(stage: &str, version: u32) -> Self {
        Self { stage: stage.to_owned(), version, numerics: None, params: Vec::new(), inputs: Vec::new() }
    }

    /// States that the outputs depend on the shared arithmetic, version `n`.
    #[must_use]
    pub fn numerics(mut self, n: u32) -> Self {
        self.numerics = Some(n);
        self
    }

    /// Adds a plain value. Its text is what counts.
    #[must_use]
    pub fn param(mut self, name: &str, value: impl ToString) -> Self {
        self.params.push((name.to_owned(), value.to_string()));
        self
    }

    /// Adds a content.
    #[must_use]
    pub fn input(mut self, name: &str, d: Digest) -> Self {
        self.inputs.push((name.to_owned(), d));
        self
    }

    /// The name of the action. Two recipes have one key only if they are equal.
    #[must_use]
    pub fn key(&self) -> ActionKey {
        let mut text = KeyText(Vec::with_capacity(1024));
        text.bytes(self.stage.as_bytes());
        text.number(u64::from(self.version));
        text.number(u64::from(self.numerics.is_some()));
        text.number(u64::from(self.numerics.unwrap_or(0)));
        text.number(self.params.len() as u64);
        for (name, value) in &self.params {
            text.bytes(name.as_bytes());
            text.bytes(value.as_bytes());
        }
        text.number(self.inputs.len() as u64);
        for (name, digest) in &self.inputs {
            text.bytes(name.as_bytes());
            text.bytes(digest.as_bytes());
        }
        ActionKey(DOMAIN.clone().update(&text.0).finalize())
    }

    /// The first field in which this recipe differs from an `old` one; `None` exactly if they are equal,
    /// that is, if their keys are.
    #[must_use]
    pub fn first_difference(&self, old: &Recipe) -> Option<Difference> {
        let numerics = |r: &Recipe| r.numerics.map(|n| n.to_string());
        let hex = |list: &[(String, Digest)]| -> Vec<(String, String)> {
            list.iter().map(|(name, d)| (name.clone(), d.to_string())).collect()
        };
        Difference::between("stage", Some(&old.stage), Some(&self.stage))
            .or_else(|| {
                let (old, new) = (old.version.to_string(), self.version.to_string());
                Difference::between("stage version", Some(&old), Some(&new))
            })
            .or_else(|| Difference::between("numerics", numerics(old).as_deref(), numerics(self).as_deref()))
            .or_else(|| in_list("param", &old.params, &self.params))
            .or_else(|| in_list("input", &hex(&old.inputs), &hex(&self.inputs)))
    }
}

/// A hasher that has the domain in it: a build makes thousands of keys.
static DOMAIN: LazyLock<blake3::Hasher> = LazyLock::new(|| blake3::Hasher::new_derive_key(KEY_DOMAIN));

/// Feeds fields so that no two sequences of them give the same bytes.
struct KeyText(Vec<u8>);

impl KeyText {
    fn number(&mut self, n: u64) {
        self.0.extend_from_slice(&n.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
}

/// The first changed, added or removed entry; failing that, a change of order.
///
/// A name may occur more than once; its n-th occurrences are compared.
fn in_list(kind: &str, old: &[(String, String)], new: &[(String, String)]) -> Option<Difference> {
    let nth = |list: &[(String, String)], at: usize| -> usize {
        list[..at].iter().filter(|(name, _)| *name == list[at].0).count()
    };
    let find = |list: &'_ [(String, String)], name: &str, n: usize| -> Option<String> {
        list.iter().filter(|(other, _)| other == name).nth(n).map(|(_, value)| value.clone())
    };
    let changed = (0..new.len()).find_map(|at| {
        let (name, value) = &new[at];
        let before = find(old, name, nth(new, at));
        Difference::between(&format!("{kind} {name}"), before.as_deref(), Some(value))
    });
    let removed = || {
        (0..old.len()).find_map(|at| {
            let (name, value) = &old[at];
            let after = find(new, name, nth(old, at));
            Difference::between(&format!("{kind} {name}"), Some(value), after.as_deref())
        })
    };
    let names =
        |list: &[(String, String)]| list.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let order = || Difference::between(&format!("{kind} order"), Some(&names(old)), Some(&names(new)));
    changed.or_else(removed).or_else(order)
}

/// One field in which two recipes differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Which field: `stage`, `stage version`, `numerics`, `param NAME`, `input NAME`, `param order` or
    /// `input order`.
    pub field: String,
    /// Its value before, or `(none)`. Digests in full.
    pub old: String,
    /// Its value now, or `(none)`.
    pub new: String,
}

impl Difference {
    fn between(field: &str, old: Option<&str>, new: Option<&str>) -> Option<Self> {
        let text = |value: Option<&str>| value.unwrap_or("(none)").to_owned();
        (old != new).then(|| Self { field: field.to_owned(), old: text(old), new: text(new) })
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Twelve digits tell two digests apart for a reader; the fields hold all of them.
        let short = |text: &str| match text.get(..12) {
            Some(head) if self.field.starts_with("input ") && Digest::from_hex(text).is_ok() => {
                format!("{head}…")
            }
            _ => text.to_owned(),
        };
        write!(f, "{}: {} → {}", self.field, short(&self.old), short(&self.new))
    }
}

/// The name of an action: one stage on given inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ActionKey(pub Digest);

impl fmt::Display for ActionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_hex())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn d(text: &str) -> Digest {
        blake3::hash(text.as_bytes())
    }

    fn base() -> Recipe {
        Recipe::new("pack", 3)
            .param("steps", 4)
            .param("layout", "rows")
            .input("weight", d("w"))
            .input("bias", d("b"))
    }

    #[test]
    fn first_difference_names_the_field_and_both_values() {
        let full = |text: &str| d(text).to_string();
        let cases: Vec<(Recipe, &str, String, String)> = vec![
            (Recipe { stage: "link".into(), ..base() }, "stage", "pack".into(), "link".into()),
            (Recipe { version: 4, ..base() }, "stage version", "3".into(), "4".into()),
            (base().numerics(2), "numerics", "(none)".into(), "2".into()),
            (base().param("extra", "x"), "param extra", "(none)".into(), "x".into()),
            (base().input("scale", d("s")), "input scale", "(none)".into(), full("s")),
            (
                Recipe::new("pack", 3).param("steps", 4).input("weight", d("w")).input("bias", d("b")),
                "param layout",
                "rows".into(),
                "(none)".into(),
            ),
            (
                Recipe::new("pack", 3).param("steps", 5).param("layout", "rows").input("weight", d("w")),
                "param steps",
                "4".into(),
                "5".into(),
            ),
            (
                Recipe::new("pack", 3)
                    .param("steps", 4)
                    .param("layout", "rows")
                    .input("weight", d("w2"))
                    .input("bias", d("b")),
                "input weight",
                full("w"),
                full("w2"),
            ),
            (
                Recipe::new("pack", 3)
                    .param("steps", 4)
                    .param("layout", "rows")
                    .input("bias", d("b"))
                    .input("weight", d("w")),
                "input order",
                "weight, bias".into(),
                "bias, weight".into(),
            ),
            (base().param("steps", 9), "param steps", "(none)".into(), "9".into()),
        ];
        for (new, field, old_value, new_value) in cases {
            let found = new.first_difference(&base()).expect(field);
            assert_eq!((found.field.as_str(), found.old, found.new), (field, old_value, new_value));
            assert_ne!(new.key(), base().key(), "{field}");
        }
        assert_eq!(base().first_difference(&base()), None);
    }

    #[test]
    fn a_difference_reads_well() {
        let changed = Recipe { version: 4, ..base() };
        assert_eq!(changed.first_difference(&base()).expect("differs").to_string(), "stage version: 3 → 4");
        let mut other = base();
        other.inputs[1].1 = d("b2");
        let text = other.first_difference(&base()).expect("differs").to_string();
        assert_eq!(
            text,
            format!("input bias: {}… → {}…", &d("b").to_string()[..12], &d("b2").to_string()[..12])
        );
    }

    #[test]
    fn the_key_of_a_known_recipe_stays() {
        // A change here makes every cache in the world cold: raise the domain and mean it.
        assert_eq!(
            base().key().to_string(),
            "be47b2afd7d36ff43a76857f33a8df67b097821ba2328ae636306da1edafc0ca"
        );
        assert_eq!(
            base().numerics(0).key().to_string(),
            "5c1a2ed026bf0e7a76550cbab09be46bdfda686868b9d47e9ec4ae31356d1db3"
        );
    }

    #[test]
    fn text_never_moves_from_one_field_to_the_next() {
        let one = Recipe::new("s", 1).param("ab", "c");
        let two = Recipe::new("s", 1).param("a", "bc");
        let three = Recipe::new("sa", 1).param("b", "c");
        assert_ne!(one.key(), two.key());
        assert_ne!(one.key(), three.key());
        assert_ne!(base().numerics(0).key(), base().key());
    }

    fn recipes() -> impl Strategy<Value = Recipe> {
        let pairs = || proptest::collection::vec(("[ab]{0,2}", "[ab]{0,2}"), 0..4);
        ("[ab]{0,2}", 0u32..3, proptest::option::of(0u32..2), pairs(), pairs()).prop_map(
            |(stage, version, numerics, params, inputs)| Recipe {
                stage,
                version,
                numerics,
                params,
                inputs: inputs.into_iter().map(|(name, text)| (name, d(&text))).collect(),
            },
        )
    }

    proptest! {
        #[test]
        fn key_equality_and_explanation_agree(a in recipes(), b in recipes()) {
            prop_assert_eq!(a.key() == b.key(), a == b);
            prop_assert_eq!(a.first_difference(&b).is_none(), a == b);
        }
    }
}
