//! Which files the asked targets need, by their names alone: the graph that would know can be drawn only once
//! the files are here. Where a name leaves it open, the answer is yes.

use crate::targets::expand_ranges;
use crate::validations::{OF_MODELS, OF_VECTORS};
use crate::workspace::Config;
use std::collections::BTreeMap;

/// What a file of a delivery is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// The weights.
    Weights,
    /// The captured activations.
    Captures,
    /// The model's configuration.
    Config,
    /// The tokenizer.
    Tokenizer,
}

/// What is needed of a delivery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// The weights, and what says how they are stored.
    pub weights: bool,
    /// The captured activations.
    pub captures: bool,
    /// The model's configuration.
    pub config: bool,
    /// The tokenizer.
    pub tokenizer: bool,
}

impl Roles {
    /// Everything.
    pub const ALL: Roles = Roles { weights: true, captures: true, config: true, tokenizer: true };
    /// Nothing yet.
    pub const NONE: Roles = Roles { weights: false, captures: false, config: false, tokenizer: false };

    /// Those of a list; everything for an empty one.
    pub fn of(roles: &[Role]) -> Roles {
        let has = |role| roles.is_empty() || roles.contains(&role);
        Roles {
            weights: has(Role::Weights),
            captures: has(Role::Captures),
            config: has(Role::Config),
            tokenizer: has(Role::Tokenizer),
        }
    }

    fn or(self, other: Roles) -> Roles {
        Roles {
            weights: self.weights || other.weights,
            captures: self.captures || other.captures,
            config: self.config || other.config,
            tokenizer: self.tokenizer || other.tokenizer,
        }
    }
}

/// Stages that make constants and code: no captured activation enters them.
const WITHOUT_CAPTURES: [&str; 6] = ["fetch", "pack", "quantize", "compile", "link", "timing"];

/// What the selectors need, by delivery. A delivery that is not in it is not needed.
pub fn needed(config: &Config, selectors: &[String]) -> BTreeMap<String, Roles> {
    let mut plain = Vec::new();
    for selector in selectors {
        written_out(config, selector, 0, &mut plain);
    }
    let mut needed: BTreeMap<String, Roles> = BTreeMap::new();
    for (name, model) in &config.model {
        for selector in &plain {
            if let Some(roles) = of_model(selector, name) {
                let entry = needed.entry(model.delivery.clone()).or_default();
                *entry = entry.or(roles);
            }
        }
    }
    needed
}

/// A selector with the workspace's own names resolved. What is wrong with one is told when targets are
/// selected.
fn written_out(config: &Config, selector: &str, depth: usize, out: &mut Vec<String>) {
    match config.targets.get(selector) {
        Some(list) if depth <= config.targets.len() => {
            list.iter().for_each(|s| written_out(config, s, depth + 1, out));
        }
        Some(_) => {}
        None => out.extend(expand_ranges(selector).unwrap_or_default()),
    }
}

/// What a selector needs of a model's delivery; `None` if it can't name a node of that model.
fn of_model(selector: &str, model: &str) -> Option<Roles> {
    let Some((stage, rest)) = selector.split_once(':') else { return Some(Roles::ALL) };
    let dotted = format!("{model}.");
    let could = match rest.split_once('*') {
        // `*` stands for any run, dots too: what is before it decides
        Some((literal, _)) => dotted.starts_with(literal) || literal.starts_with(&dotted),
        None if rest.contains('.') => rest.starts_with(&dotted),
        // a model, or a part of any model; some validations are of op vectors alone
        None => rest == model || !of_vectors_alone(rest),
    };
    could.then(|| Roles { captures: !WITHOUT_CAPTURES.contains(&stage), ..Roles::ALL })
}

fn of_vectors_alone(part: &str) -> bool {
    let named = |case: &crate::validations::Case| case.name == part;
    OF_VECTORS.iter().any(named) && !OF_MODELS.iter().any(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn config() -> Config {
        let text = "\
            default = \"decode\"\n\
            [targets]\n\
            decode = [\"score:*.decode\", \"timing:*.kernel\"]\n\
            both = [\"code\", \"reference\"]\n\
            code = [\"compile:a.*\"]\n\
            reference = [\"score:reference\"]\n\
            round = [\"round\"]\n\
            [delivery.da]\nsource = \"x\"\n[delivery.db]\nsource = \"y\"\n[recipe.r]\nrules = []\n\
            [device.d]\nproduct = \"qb16\"\n\
            [model.a]\ndescription = \"m\"\ndelivery = \"da\"\nrecipe = \"r\"\ndevice = \"d\"\n\
            [model.a-b]\ndescription = \"m\"\ndelivery = \"db\"\nrecipe = \"r\"\ndevice = \"d\"\n";
        crate::workspace::parse(Path::new("workspace.toml"), text).unwrap()
    }

    #[test]
    fn a_selector_needs_what_it_can_name() {
        let (all, code) = (Roles::ALL, Roles { captures: false, ..Roles::ALL });
        let table: &[(&[&str], Option<Roles>, Option<Roles>)] = &[
            (&["decode"], Some(all), Some(all)),
            (&["score:a.decode"], Some(all), None),
            (&["score:a-b.decode"], None, Some(all)),
            (&["pack:a.layer[0..3]"], Some(code), None),
            (&["pack:a"], Some(code), Some(code)),
            (&["pack:a", "simulate:a-b.layer0"], Some(code), Some(all)),
            (&["quantize:a*"], Some(code), Some(code)),
            (&["quantize:a.*"], Some(code), None),
            (&["quantize:*.embed"], Some(code), Some(code)),
            (&["p*:a.layer0"], Some(all), None),
            (&["both"], Some(code), None),
            (&["reference"], None, None),
            (&["score:reference"], None, None),
            (&["score:router"], Some(all), Some(all)),
            (&["score:deltanet"], Some(all), Some(all)),
            (&["score:ops.deltanet"], None, None),
            (&["round"], None, None),
            (&["*"], Some(all), Some(all)),
        ];
        for (selectors, a, b) in table {
            let selectors: Vec<String> = selectors.iter().map(ToString::to_string).collect();
            let needed = needed(&config(), &selectors);
            assert_eq!((needed.get("da").copied(), needed.get("db").copied()), (*a, *b), "{selectors:?}");
        }
    }
}
