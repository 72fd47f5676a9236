//! What a person asks for by name: `stage:model.part`, patterns, ranges, and the workspace's own
//! lists. It knows names only, not what stands behind them.

use crate::error::CliError;
use std::collections::{BTreeMap, BTreeSet};

/// The nearest of `known` to `name`, if any is near enough to be a slip.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    known
        .into_iter()
        .map(|k| (strsim::damerau_levenshtein(name, k), k))
        .min()
        .filter(|(distance, k)| *distance <= 2 + k.len() / 4)
        .map(|(_, k)| k.to_string())
}

/// One selector with its ranges written out: `layer[0..3]` is layers 0, 1 and 2, `layer[0..=3]` also 3.
/// Parameters (`deltanet[steps=4]`: a word stands before the `=`) are a part of the name.
pub fn expand_ranges(selector: &str) -> Result<Vec<String>, CliError> {
    let is_range = |open: &usize| {
        let word = selector[open + 1..].split_once('=').map_or("", |(word, _)| word);
        word.is_empty() || !word.bytes().all(|b| b.is_ascii_lowercase())
    };
    let mut opens = selector.match_indices('[').map(|(i, _)| i);
    let Some(open) = opens.find(is_range) else { return Ok(vec![selector.into()]) };
    let bad =
        || CliError::Usage(format!("{selector:?}: a range is written [0..3] (0, 1, 2), [0..=3] or [2]"));
    let close = selector[open..].find(']').map(|i| open + i).ok_or_else(bad)?;
    let (head, inner, tail) = (&selector[..open], &selector[open + 1..close], &selector[close + 1..]);
    let number = |s: &str| s.trim().parse::<u32>().map_err(|_| bad());
    let range = match inner.split_once("..") {
        Some((a, b)) => match b.strip_prefix('=') {
            Some(b) => number(a)?..number(b)?.saturating_add(1),
            None => number(a)?..number(b)?,
        },
        None => number(inner)?..number(inner)?.saturating_add(1),
    };
    if range.is_empty() || range.len() > 100_000 {
        return Err(bad());
    }
    let mut out = Vec::new();
    for i in range {
        out.extend(expand_ranges(&format!("{head}{i}{tail}"))?);
    }
    Ok(out)
}

/// Whether a pattern with `*` (any run of characters) covers a whole name.
pub fn glob(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for p in parts {
        match rest.find(p) {
            Some(i) => rest = &rest[i + p.len()..],
            None => return false,
        }
    }
    rest.len() >= last.len() && rest.ends_with(last)
}

/// The patterns that a selector stands for: itself, and with the model left out (`score:decode`) that of any.
fn patterns(selector: &str) -> Vec<String> {
    let any_model = match selector.split_once(':') {
        Some((stage, part)) if !part.contains('.') => Some(format!("{stage}:*.{part}")),
        _ => None,
    };
    std::iter::once(selector.to_string()).chain(any_model).collect()
}

/// Whether a pattern names a node: the whole name, or all of it up to a `.` (so `simulate:tiny.layer5`
/// takes its blocks).
fn covers(pattern: &str, name: &str) -> bool {
    // most names differ from most patterns at once
    let start = pattern.split('*').next().unwrap_or_default();
    name.starts_with(start)
        && (glob(pattern, name) || name.match_indices('.').any(|(i, _)| glob(pattern, &name[..i])))
}

/// Indices of the nodes that the selectors name, ascending. `lists` are the workspace's own names.
pub fn select(
    selectors: &[String],
    lists: &BTreeMap<String, Vec<String>>,
    nodes: &[String],
) -> Result<Vec<usize>, CliError> {
    let mut chosen = BTreeSet::new();
    for s in selectors {
        select_one(s, lists, nodes, &mut Vec::new(), &mut chosen)?;
    }
    Ok(chosen.into_iter().collect())
}

fn select_one(
    selector: &str,
    lists: &BTreeMap<String, Vec<String>>,
    nodes: &[String],
    open: &mut Vec<String>,
    chosen: &mut BTreeSet<usize>,
) -> Result<(), CliError> {
    if let Some(list) = lists.get(selector) {
        if open.iter().any(|o| o == selector) {
            return Err(CliError::Usage(format!(
                "the target {selector:?} of workspace.toml contains itself: {}",
                open.join(" → ")
            )));
        }
        if list.is_empty() {
            return Err(CliError::Usage(format!(
                "the target {selector:?} of workspace.toml is an empty list: nothing matches it"
            )));
        }
        open.push(selector.into());
        for s in list {
            select_one(s, lists, nodes, open, chosen)?;
        }
        open.pop();
        return Ok(());
    }
    for one in expand_ranges(selector)? {
        let before = chosen.len();
        let mut found = false;
        let patterns = patterns(&one);
        for (i, n) in nodes.iter().enumerate() {
            if patterns.iter().any(|p| covers(p, n)) {
                found = true;
                chosen.insert(i);
            }
        }
        if !found && chosen.len() == before {
            let known = nodes.iter().map(String::as_str).chain(lists.keys().map(String::as_str));
            return Err(CliError::Target { name: selector.into(), nearest: nearest(&one, known) });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes() -> Vec<String> {
        let mut n = Vec::new();
        for m in ["tiny", "tiny-w4a16"] {
            for i in 0..3 {
                n.push(format!("pack:{m}.layer{i}"));
                n.push(format!("simulate:{m}.layer{i}.free.block0"));
            }
            n.push(format!("score:{m}.decode"));
        }
        n.extend(["score:ops.deltanet", "pack:ops.deltanet[steps=4].layer0"].map(String::from));
        n.push("score:ops.deltanet[steps=4]".into());
        n
    }

    #[test]
    fn selectors_name_what_they_say() {
        let lists = BTreeMap::from([
            ("decode".to_string(), vec!["score:decode".to_string()]),
            ("both".to_string(), vec!["decode".to_string(), "pack:tiny.layer0".to_string()]),
            ("four".to_string(), vec!["score:deltanet[steps=4]".to_string()]),
        ]);
        let names = nodes();
        let table: &[(&str, &[&str])] = &[
            ("pack:tiny.layer1", &["pack:tiny.layer1"]),
            ("pack:tiny.*", &["pack:tiny.layer0", "pack:tiny.layer1", "pack:tiny.layer2"]),
            ("pack:tiny.layer[0..2]", &["pack:tiny.layer0", "pack:tiny.layer1"]),
            ("pack:tiny.layer[1..=1]", &["pack:tiny.layer1"]),
            ("simulate:tiny.layer2", &["simulate:tiny.layer2.free.block0"]),
            ("score:decode", &["score:tiny.decode", "score:tiny-w4a16.decode"]),
            ("decode", &["score:tiny.decode", "score:tiny-w4a16.decode"]),
            ("both", &["pack:tiny.layer0", "score:tiny.decode", "score:tiny-w4a16.decode"]),
            ("score:deltanet", &["score:ops.deltanet"]),
            ("score:deltanet[steps=4]", &["score:ops.deltanet[steps=4]"]),
            ("pack:ops.deltanet[steps=4].layer[0..=0]", &["pack:ops.deltanet[steps=4].layer0"]),
            ("four", &["score:ops.deltanet[steps=4]"]),
            ("score:ops.*", &["score:ops.deltanet", "score:ops.deltanet[steps=4]"]),
        ];
        for (selector, want) in table {
            let got = select(&[selector.to_string()], &lists, &names).unwrap();
            let got: Vec<&str> = got.iter().map(|&i| names[i].as_str()).collect();
            assert_eq!(&got, want, "{selector}");
        }
    }

    #[test]
    fn what_does_not_exist_is_refused_with_the_nearest() {
        let lists = BTreeMap::from([
            ("loop".to_string(), vec!["loop".to_string()]),
            ("none".to_string(), vec![]),
            ("nested".to_string(), vec!["score:decode".to_string(), "none".to_string()]),
        ]);
        for (selector, words) in [
            ("pack:tiny.layr1", "the nearest is \"pack:tiny.layer1\""),
            ("score:tiny.decod", "the nearest is \"score:tiny.decode\""),
            ("pack:tiny.layer[0..9]", "no target"),
            ("pack:tiny.layer[3..1]", "a range is written"),
            ("pack:tiny.layer[x]", "a range is written"),
            ("loop", "contains itself"),
            ("none", "the target \"none\" of workspace.toml is an empty list"),
            ("nested", "the target \"none\" of workspace.toml is an empty list"),
            ("", "no target is called \"\""),
        ] {
            let e = select(&[selector.to_string()], &lists, &nodes()).unwrap_err().to_string();
            assert!(e.contains(words), "{selector}: {e}");
        }
    }

    #[test]
    fn globs() {
        for (p, n, want) in [
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*bc", "abcbc", true),
            ("*", "", true),
            ("a", "ab", false),
            ("*b", "ab", true),
            ("*b*", "ab", true),
            ("ab*b", "ab", false),
        ] {
            assert_eq!(glob(p, n), want, "{p} {n}");
        }
    }
}
