//! Patterns over role names: `*` stands for any run of characters, dots too, `?` for one character,
//! everything else for itself; the whole name has to match.

/// Whether `pattern` matches all of `name`.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // Where to go on if the last star has to take one byte more.
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p + 1, n + 1));
                p += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => {
                let Some((after_star, next)) = retry else { return false };
                retry = Some((after_star, next + 1));
                (p, n) = (after_star, next);
            }
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn table() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*", "a.b", true),
            ("a.b", "a.b", true),
            ("a.b", "a.bc", false),
            ("mlp.experts.*", "mlp.experts.down_proj", true),
            ("mlp.experts.*", "mlp.shared_expert.down_proj", false),
            ("*.weight", "a.weight.weight", true),
            ("*_proj*", "self_attn.q_proj.weight", true),
            ("*a*b*c", "xxaxxbxxbxc", true),
            ("*a*b*c", "xxaxxbxxbx", false),
            ("?.b", "a.b", true),
            ("?.b", ".b", false),
            ("", "a", false),
            ("a**", "a", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
