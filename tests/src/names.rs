//! Sets of target names, written short.

use std::collections::BTreeSet;

/// The names that patterns stand for: `a{0,2}.{x,y}` is `a0.x`, `a0.y`, `a2.x` and `a2.y`.
pub fn names(patterns: &[&str]) -> BTreeSet<String> {
    patterns.iter().flat_map(|pattern| expanded(pattern)).collect()
}

fn expanded(pattern: &str) -> Vec<String> {
    let Some((head, rest)) = pattern.split_once('{') else { return vec![pattern.into()] };
    let (choices, tail) = rest.split_once('}').expect("a brace that closes");
    let tails = expanded(tail);
    let each = |choice| tails.iter().map(move |tail| format!("{head}{choice}{tail}"));
    choices.split(',').flat_map(each).collect()
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn braces_are_choices() {
        let all: Vec<String> = names(&["b", "a{0,2}.{x,y}"]).into_iter().collect();
        assert_eq!(all, ["a0.x", "a0.y", "a2.x", "a2.y", "b"]);
    }
}
