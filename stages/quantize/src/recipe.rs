//! The recipe: which component of a model is stored in which format.
//!
//! A person writes it in the workspace, a rule a line:
//!
//! ```toml
//! rules = [
//!     { pattern = "mlp.experts.*", format = "i4", group = 32, scale = "f16" },
//!     { pattern = "*_proj.weight", format = "i8", group = "row", scale = "f32" },
//!     { pattern = "*", format = "f16" },
//! ]
//! ```

use crate::glob;
use mica_device::format::Format;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;

/// Consecutive columns that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// That many; a multiple of 16 that divides the columns, or all the columns.
    Of(u32),
    /// A whole row, whatever its length.
    Row,
}

impl Group {
    /// Columns of one group in rows of `cols`.
    pub fn columns(self, cols: u64) -> u64 {
        match self {
            Group::Of(n) => n.into(),
            Group::Row => cols,
        }
    }
}

/// How a scale is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScaleFormat {
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
}

impl From<ScaleFormat> for Format {
    fn from(scale: ScaleFormat) -> Format {
        match scale {
            ScaleFormat::F16 => Format::F16,
            ScaleFormat::F32 => Format::F32,
        }
    }
}

/// The stored format of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub enum ComponentFormat {
    /// 4-bit integers −8..=7 with a scale a group. Matrices and experts.
    I4 {
        /// Columns that share a scale.
        group: Group,
        /// How scales are stored.
        scale: ScaleFormat,
    },
    /// 8-bit integers −127..=127 with a scale a group. Matrices, experts and tables.
    I8 {
        /// Columns that share a scale.
        group: Group,
        /// How scales are stored.
        scale: ScaleFormat,
    },
    /// IEEE binary16. Everything.
    F16,
    /// bfloat16. Tables.
    Bf16,
    /// IEEE binary32. Tables and vectors.
    F32,
}

impl ComponentFormat {
    /// The format's name in a recipe.
    pub const fn name(self) -> &'static str {
        match self {
            ComponentFormat::I4 { .. } => "i4",
            ComponentFormat::I8 { .. } => "i8",
            ComponentFormat::F16 => "f16",
            ComponentFormat::Bf16 => "bf16",
            ComponentFormat::F32 => "f32",
        }
    }
}

/// A format for every role that a pattern matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "WrittenRule", into = "WrittenRule")]
pub struct Rule {
    /// Over roles: `*` is any run of characters (dots too), `?` one character.
    pub pattern: String,
    /// The format.
    pub format: ComponentFormat,
}

/// Rules in order; the first whose pattern matches a role decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// The rules.
    pub rules: Vec<Rule>,
}

impl Recipe {
    /// The rule for a role and its place in the list; `None` where no pattern matches.
    pub fn rule(&self, role: &str) -> Option<(usize, &Rule)> {
        self.rules.iter().enumerate().find(|(_, rule)| glob::matches(&rule.pattern, role))
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Element {
    I4,
    I8,
    F16,
    Bf16,
    F32,
}

/// A format as it is written on its own.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    format: Element,
    #[serde(default)]
    group: Option<Group>,
    #[serde(default)]
    scale: Option<ScaleFormat>,
}

/// A rule as it is written: one flat table.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
    pattern: String,
    format: Element,
    #[serde(default)]
    group: Option<Group>,
    #[serde(default)]
    scale: Option<ScaleFormat>,
}

impl TryFrom<Written> for ComponentFormat {
    type Error = String;

    fn try_from(written: Written) -> Result<ComponentFormat, String> {
        let Written { format, group, scale } = written;
        match (format, group, scale) {
            (Element::I4, Some(group), Some(scale)) => Ok(ComponentFormat::I4 { group, scale }),
            (Element::I8, Some(group), Some(scale)) => Ok(ComponentFormat::I8 { group, scale }),
            (Element::F16, None, None) => Ok(ComponentFormat::F16),
            (Element::Bf16, None, None) => Ok(ComponentFormat::Bf16),
            (Element::F32, None, None) => Ok(ComponentFormat::F32),
            (Element::I4 | Element::I8, ..) => {
                Err("i4 and i8 need group (a number or \"row\") and scale (\"f16\" or \"f32\")".into())
            }
            _ => Err("f16, bf16 and f32 take neither group nor scale".into()),
        }
    }
}

impl From<ComponentFormat> for Written {
    fn from(format: ComponentFormat) -> Written {
        let (format, scaling) = match format {
            ComponentFormat::I4 { group, scale } => (Element::I4, Some((group, scale))),
            ComponentFormat::I8 { group, scale } => (Element::I8, Some((group, scale))),
            ComponentFormat::F16 => (Element::F16, None),
            ComponentFormat::Bf16 => (Element::Bf16, None),
            ComponentFormat::F32 => (Element::F32, None),
        };
        Written { format, group: scaling.map(|s| s.0), scale: scaling.map(|s| s.1) }
    }
}

impl TryFrom<WrittenRule> for Rule {
    type Error = String;

    fn try_from(rule: WrittenRule) -> Result<Rule, String> {
        let WrittenRule { pattern, format, group, scale } = rule;
        match (Written { format, group, scale }).try_into() {
            Ok(format) => Ok(Rule { pattern, format }),
            Err(message) => Err(format!("the rule for {pattern:?}: {message}")),
        }
    }
}

impl From<Rule> for WrittenRule {
    fn from(rule: Rule) -> WrittenRule {
        let Written { format, group, scale } = rule.format.into();
        WrittenRule { pattern: rule.pattern, format, group, scale }
    }
}

/// The form of a [`Group`] where nobody reads the text: records, which cannot tell kinds of values apart.
#[derive(Serialize, Deserialize)]
enum Recorded {
    Of(u32),
    Row,
}

impl Serialize for Group {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self, serializer.is_human_readable()) {
            (Group::Of(n), true) => serializer.serialize_u32(*n),
            (Group::Row, true) => serializer.serialize_str("row"),
            (Group::Of(n), false) => Recorded::Of(*n).serialize(serializer),
            (Group::Row, false) => Recorded::Row.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Group {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Group, D::Error> {
        if deserializer.is_human_readable() {
            return deserializer.deserialize_any(GroupText);
        }
        Ok(match Recorded::deserialize(deserializer)? {
            Recorded::Of(n) => Group::Of(n),
            Recorded::Row => Group::Row,
        })
    }
}

struct GroupText;

impl de::Visitor<'_> for GroupText {
    type Value = Group;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of columns or \"row\"")
    }

    fn visit_u64<E: de::Error>(self, n: u64) -> Result<Group, E> {
        match u32::try_from(n) {
            Ok(n) if n > 0 => Ok(Group::Of(n)),
            _ => Err(E::invalid_value(de::Unexpected::Unsigned(n), &self)),
        }
    }

    fn visit_i64<E: de::Error>(self, n: i64) -> Result<Group, E> {
        match u64::try_from(n) {
            Ok(n) => self.visit_u64(n),
            Err(_) => Err(E::invalid_value(de::Unexpected::Signed(n), &self)),
        }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Group, E> {
        match text {
            "row" => Ok(Group::Row),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(text: &str) -> Result<Recipe, String> {
        toml::from_str(text).map_err(|error| error.message().to_string())
    }

    #[test]
    fn text_and_records_read_back() {
        let text = r#"rules = [
            { pattern = "mlp.experts.*", format = "i4", group = 32, scale = "f16" },
            { pattern = "*_proj.weight", format = "i8", group = "row", scale = "f32" },
            { pattern = "embed_tokens.*", format = "bf16" },
            { pattern = "*", format = "f16" },
        ]"#;
        let read = recipe(text).unwrap();
        let i4 = ComponentFormat::I4 { group: Group::Of(32), scale: ScaleFormat::F16 };
        assert_eq!(read.rules[0].format, i4);
        assert_eq!(read.rule("mlp.experts.down_proj").unwrap().0, 0);
        assert_eq!(read.rule("self_attn.q_proj.weight").unwrap().0, 1);
        assert_eq!(read.rule("norm.weight").unwrap().0, 3);
        assert_eq!(recipe(&toml::to_string(&read).unwrap()).unwrap(), read);

        let config = bincode::config::standard();
        let bytes = bincode::serde::encode_to_vec(&read, config).unwrap();
        assert_eq!(bincode::serde::decode_from_slice(&bytes, config).unwrap(), (read, bytes.len()));
    }

    #[test]
    fn what_is_refused() {
        for (rule, said) in [
            (r#"pattern = "*", format = "i4", group = 32"#, "need group"),
            (r#"pattern = "a*", format = "f16", group = 32"#, r#"the rule for "a*": f16, bf16"#),
            (r#"pattern = "*", format = "i5""#, "unknown variant `i5`"),
            (r#"pattern = "*", format = "i8", group = "col", scale = "f32""#, "\"row\""),
            (r#"pattern = "*", format = "i8", group = 0, scale = "f32""#, "a number of columns"),
            (r#"pattern = "*", format = "i8", group = -2, scale = "f32""#, "a number of columns"),
            (r#"pattern = "*", format = "i8", group = 8, scale = "bf16""#, "unknown variant `bf16`"),
            (r#"pattern = "*", format = "f16", colour = 1"#, "unknown field `colour`"),
        ] {
            let message = recipe(&format!("rules = [{{ {rule} }}]")).unwrap_err();
            assert!(message.contains(said), "{rule}: {message}");
        }
    }
}
