//! Targets with parameters that make another model: `decode[layers=4]`, `score:tiny[layers=4,call=2].decode`.
//!
//! Such a model is the file's own with a field or two changed, under the name that the target has for it, and is
//! there only where it is asked for. Op vectors take `call` alone: `score:ops[call=4].deltanet[steps=4]`.

use super::checks::per_call;
use super::{Config, Workspace};
use crate::error::CliError;
use std::collections::BTreeSet;

/// What a bracket says of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Changed {
    /// Only the first layers.
    layers: Option<usize>,
    /// Tokens a call.
    call: Option<u64>,
}

impl Changed {
    /// What the words in a bracket say; `None` where one is no parameter of a model.
    fn of(words: &str) -> Option<Changed> {
        let mut changed = Changed::default();
        for word in words.split(',') {
            match word.split_once('=')? {
                ("layers", n) if changed.layers.is_none() => changed.layers = Some(n.parse().ok()?),
                ("call", n) if changed.call.is_none() => changed.call = Some(n.parse().ok()?),
                _ => return None,
            }
        }
        Some(changed)
    }
}

/// A selector taken apart at its parameters.
struct Parameters<'a> {
    before: &'a str,
    /// As written, brackets included: a part of the model's name.
    words: &'a str,
    changed: Changed,
    after: &'a str,
}

impl<'a> Parameters<'a> {
    fn of(selector: &'a str) -> Option<Parameters<'a>> {
        let open = selector.find('[')?;
        let close = open + selector[open..].find(']')?;
        let (words, after) = (&selector[open..=close], &selector[close + 1..]);
        let changed = Changed::of(&words[1..words.len() - 1])?;
        Some(Parameters { before: &selector[..open], words, changed, after })
    }
}

impl Workspace {
    /// The workspace with the models and the lists that the selectors' parameters ask for.
    ///
    /// # Errors
    /// A parameter that is 0 or too large, and one of a list that has targets which are no model's.
    pub fn with_parameters<S: AsRef<str>>(mut self, asked: &[S]) -> Result<Workspace, CliError> {
        let mut seen = BTreeSet::new();
        for selector in asked {
            self.config.ask(selector.as_ref(), &mut seen)?;
        }
        Ok(self)
    }
}

impl Config {
    /// `seen` are the lists looked into: one that contains itself is refused where targets are chosen.
    fn ask(&mut self, selector: &str, seen: &mut BTreeSet<String>) -> Result<(), CliError> {
        // a list of the file has whatever name it has, brackets included
        if let Some(list) = self.targets.get(selector) {
            let list = if seen.insert(selector.into()) { list.clone() } else { Vec::new() };
            return list.iter().try_for_each(|s| self.ask(s, seen));
        }
        let Some(Parameters { before, words, changed, after }) = Parameters::of(selector) else {
            return Ok(());
        };
        if changed.layers == Some(0) {
            return Err(CliError::Usage(format!("{selector:?}: at least one layer")));
        }
        if let Some(call) = changed.call {
            per_call(call, &format!("{selector:?}:"))?;
        }
        if let Some(list) = self.targets.get(before).filter(|_| after.is_empty()) {
            let of_one = |target: &String| {
                with_words(target, words).ok_or_else(|| {
                    CliError::Usage(format!(
                        "{selector:?}: the list {before:?} has {target:?}, which is no target of a model"
                    ))
                })
            };
            let list: Vec<String> = list.iter().map(of_one).collect::<Result<_, _>>()?;
            self.targets.insert(selector.into(), list);
        } else {
            // a model stands after the stage, and the validations' parameters after a dot
            let Some((_, model)) = before.split_once(':') else { return Ok(()) };
            let is_known = self.model.contains_key(model)
                || (self.vectors.contains_key(model) && changed.layers.is_none());
            if model.contains('.') || (model != "*" && !is_known) {
                return Ok(());
            }
        }
        self.change(words, changed);
        Ok(())
    }

    /// Adds the models and op vectors with what has changed.
    fn change(&mut self, words: &str, changed: Changed) {
        let is_own = |name: &&String| !name.contains('[');
        let others: Vec<_> = self
            .model
            .iter()
            .filter(|(name, _)| is_own(name))
            .map(|(name, m)| {
                let mut m = m.clone();
                if changed.layers.is_some() {
                    m.layers = changed.layers;
                    m.perplexity = None;
                }
                m.tokens_per_call = changed.call.unwrap_or(m.tokens_per_call);
                (format!("{name}{words}"), m)
            })
            .collect();
        self.model.extend(others);
        let Some(call) = changed.call.filter(|_| changed.layers.is_none()) else { return };
        let others: Vec<_> = self
            .vectors
            .iter()
            .filter(|(name, _)| is_own(name))
            .map(|(name, v)| {
                let mut v = v.clone();
                v.tokens_per_call = call;
                (format!("{name}{words}"), v)
            })
            .collect();
        self.vectors.extend(others);
    }
}

/// `score:tiny.decode` with the parameters at its model.
fn with_words(target: &str, words: &str) -> Option<String> {
    let (stage, rest) = target.split_once(':')?;
    let (model, what) = rest.split_once('.')?;
    Some(format!("{stage}:{model}{words}.{what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const FILE: &str = r#"
default = "decode"
[delivery.d]
source = "d"
[model.m]
description = "x"
delivery = "d"
recipe = "r"
device = "sim"
[recipe.r]
rules = []
[device.sim]
product = "qb16"
[vectors.ops]
source = "ops"
description = "x"
recipe = "r"
device = "sim"
[targets]
decode = ["score:*.decode", "timing:*.kernel"]
"linear-layer[layers=2]" = ["score:linear-layer[layers=2]"]
all = ["decode", "linear-layer[layers=2]"]
"#;

    fn asked(selectors: &[&str]) -> Result<Workspace, CliError> {
        let config = crate::workspace::parse(Path::new("w"), FILE).unwrap();
        Workspace { root: ".".into(), file: "w".into(), config }.with_parameters(selectors)
    }

    fn models(w: &Workspace) -> Vec<(&str, Option<usize>)> {
        w.config.model.iter().map(|(n, m)| (n.as_str(), m.layers)).collect()
    }

    #[test]
    fn a_parameter_makes_models_and_lists() {
        let w = asked(&["decode[layers=4]"]).unwrap();
        assert_eq!(models(&w), [("m", None), ("m[layers=4]", Some(4))]);
        let list = &w.config.targets["decode[layers=4]"];
        assert_eq!(list, &["score:*[layers=4].decode", "timing:*[layers=4].kernel"]);
        let w = asked(&["score:m[layers=2].decode", "link:*[layers=1].kernel"]).unwrap();
        assert_eq!(models(&w), [("m", None), ("m[layers=1]", Some(1)), ("m[layers=2]", Some(2))]);
    }

    #[test]
    fn a_call_of_several_tokens_makes_models_and_vectors() {
        let w = asked(&["decode[layers=4,call=2]", "timing:m[call=8].kernel"]).unwrap();
        let calls: Vec<_> =
            w.config.model.iter().map(|(n, m)| (n.as_str(), m.layers, m.tokens_per_call)).collect();
        assert_eq!(calls, [("m", None, 1), ("m[call=8]", None, 8), ("m[layers=4,call=2]", Some(4), 2)]);
        let list = &w.config.targets["decode[layers=4,call=2]"];
        assert_eq!(list[0], "score:*[layers=4,call=2].decode");
        let vectors = |w: &Workspace| {
            let all = w.config.vectors.iter().map(|(n, v)| (n.clone(), v.tokens_per_call));
            all.collect::<Vec<_>>()
        };
        assert_eq!(vectors(&w), [("ops".to_string(), 1), ("ops[call=8]".into(), 8)]);
        let w = asked(&["score:ops[call=4].deltanet[steps=4]"]).unwrap();
        assert_eq!(vectors(&w), [("ops".to_string(), 1), ("ops[call=4]".into(), 4)]);
    }

    #[test]
    fn the_files_own_names_and_other_parameters_are_left_alone() {
        let w = asked(&[
            "all",
            "linear-layer[layers=2]",
            "score:ops.linear-layer[layers=2]",
            "pack:m.layer[0..2]",
        ]);
        assert_eq!(models(&w.unwrap()), [("m", None)]);
    }

    #[test]
    fn a_list_that_contains_itself_ends() {
        let text = FILE.replace("all = [\"decode\"", "all = [\"all\", \"decode\"");
        let config = crate::workspace::parse(Path::new("w"), &text).unwrap();
        let w = Workspace { root: ".".into(), file: "w".into(), config }.with_parameters(&["all"]).unwrap();
        assert_eq!(models(&w), [("m", None)]);
    }

    #[test]
    fn refusals() {
        for (selector, words) in [
            ("decode[layers=0]", "at least one"),
            ("all[layers=1]", "no target of a model"),
            ("decode[call=0]", "takes 1 to 128 tokens"),
            ("score:m[call=129].decode", "takes 1 to 128 tokens"),
        ] {
            let e = asked(&[selector]).unwrap_err().to_string();
            assert!(e.contains(words), "{e}");
        }
    }
}
