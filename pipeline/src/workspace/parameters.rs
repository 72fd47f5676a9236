//! Targets with a parameter that makes another model: `decode[layers=4]`, `score:tiny[layers=4].decode`.
//!
//! Such a model is the file's own with one field changed, under the name that the target has for it, and is
//! there only where it is asked for.

use super::{Config, Workspace};
use crate::error::CliError;
use std::collections::BTreeSet;

/// What stands before the number.
const LAYERS: &str = "[layers=";

/// A selector taken apart at its parameter.
struct Parameter<'a> {
    before: &'a str,
    layers: usize,
    after: &'a str,
}

impl<'a> Parameter<'a> {
    fn of(selector: &'a str) -> Option<Parameter<'a>> {
        let (before, rest) = selector.split_once(LAYERS)?;
        let (number, after) = rest.split_once(']')?;
        Some(Parameter { before, layers: number.parse().ok()?, after })
    }
}

impl Workspace {
    /// The workspace with the models and the lists that the selectors' parameters ask for.
    ///
    /// # Errors
    /// A parameter of 0, and one of a list that has targets which are no model's.
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
        let Some(Parameter { before, layers, after }) = Parameter::of(selector) else { return Ok(()) };
        if layers == 0 {
            return Err(CliError::Usage(format!("{selector:?}: at least one layer")));
        }
        if let Some(list) = self.targets.get(before).filter(|_| after.is_empty()) {
            let of_one = |target: &String| {
                with_layers(target, layers).ok_or_else(|| {
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
            if model.contains('.') || (model != "*" && !self.model.contains_key(model)) {
                return Ok(());
            }
        }
        let plain = self.model.iter().filter(|(name, _)| !name.contains(LAYERS));
        let shorter = plain.map(|(name, m)| {
            let mut m = m.clone();
            m.layers = Some(layers);
            m.perplexity = None;
            (format!("{name}{LAYERS}{layers}]"), m)
        });
        let shorter: Vec<_> = shorter.collect();
        self.model.extend(shorter);
        Ok(())
    }
}

/// `score:tiny.decode` with the parameter at its model.
fn with_layers(target: &str, layers: usize) -> Option<String> {
    let (stage, rest) = target.split_once(':')?;
    let (model, what) = rest.split_once('.')?;
    Some(format!("{stage}:{model}{LAYERS}{layers}].{what}"))
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
        for (selector, words) in
            [("decode[layers=0]", "at least one"), ("all[layers=1]", "no target of a model")]
        {
            let e = asked(&[selector]).unwrap_err().to_string();
            assert!(e.contains(words), "{e}");
        }
    }
}
