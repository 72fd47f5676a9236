//! `mica spec`: the normative pages, by topic, outline and section.
//!
//! The pages are compiled in, so that the command says what this very binary does. It knows Markdown
//! headings; what a rule means, it does not.

use super::{LISTING, WELL, out};
use crate::error::CliError;
use crate::targets::nearest;
use serde_json::{Value, json};

/// A page: its topic, where it lies in a checkout, and its text.
pub struct Page {
    /// What it is asked for by.
    pub topic: &'static str,
    /// Path from the root of a checkout.
    pub path: &'static str,
    /// Markdown.
    pub text: &'static str,
}

macro_rules! page {
    ($topic:literal, $path:literal) => {
        Page { topic: $topic, path: $path, text: include_str!(concat!("../../../", $path)) }
    };
}

/// The pages.
pub static PAGES: &[Page] = &[
    page!("device", "docs/spec/device.md"),
    page!("hir", "docs/spec/hir.md"),
    page!("runtime", "docs/spec/runtime.md"),
];

/// What is asked for.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which page [default: list them].
    pub topic: Option<String>,
    /// A section by number (`1.1`) or title (`matv`) [default: the page's outline].
    pub section: Vec<String>,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// A heading and all below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section<'a> {
    /// 1 for the page's own title.
    pub level: usize,
    /// The heading's text, its number included.
    pub title: &'a str,
    /// From the heading to the next one of its level or above.
    pub text: &'a str,
}

impl Section<'_> {
    /// The number that the heading begins with; empty where it has none.
    pub fn number(&self) -> &str {
        let word = self.title.split(' ').next().unwrap_or_default();
        if word.split('.').all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())) {
            word
        } else {
            ""
        }
    }

    fn name(&self) -> String {
        plain(self.title.strip_prefix(self.number()).unwrap_or(self.title))
    }
}

/// A title as it is compared: lower case, without code marks.
fn plain(title: &str) -> String {
    title.trim().replace('`', "").to_lowercase()
}

/// The sections of a page in order. A `#` within a code block begins none.
pub fn sections(text: &str) -> Vec<Section<'_>> {
    let mut heads: Vec<(usize, usize, &str)> = Vec::new();
    let (mut at, mut code) = (0, false);
    for line in text.split_inclusive('\n') {
        code ^= line.starts_with("```");
        let level = line.bytes().take_while(|&b| b == b'#').count();
        if !code && level > 0 && line[level..].starts_with(' ') {
            heads.push((at, level, line[level..].trim()));
        }
        at += line.len();
    }
    let end = |i: usize| heads[i + 1..].iter().find(|h| h.1 <= heads[i].1).map_or(text.len(), |h| h.0);
    (0..heads.len())
        .map(|i| Section { level: heads[i].1, title: heads[i].2, text: &text[heads[i].0..end(i)] })
        .collect()
}

/// A page by topic.
pub fn page(topic: &str) -> Result<&'static Page, CliError> {
    PAGES.iter().find(|p| p.topic == topic).ok_or_else(|| {
        let known: Vec<&str> = PAGES.iter().map(|p| p.topic).collect();
        CliError::Usage(format!("there is no page {topic:?}, expected one of: {}", known.join(", ")))
    })
}

/// A section by its number or its title.
pub fn find<'a>(page: &'a Page, wanted: &str) -> Result<Section<'a>, CliError> {
    let all = sections(page.text);
    let name = plain(wanted);
    let one = |s: &&Section<'a>| {
        s.number() == wanted || s.name() == name || s.name().split(", ").any(|n| n == name)
    };
    all.iter().find(one).copied().ok_or_else(|| {
        let names: Vec<String> = all.iter().flat_map(|s| [s.number().to_string(), s.name()]).collect();
        let hint = nearest(&name, names.iter().map(String::as_str).filter(|n| !n.is_empty()));
        let hint = hint.map(|n| format!("; the nearest is {n:?}")).unwrap_or_default();
        CliError::Usage(format!(
            "the page {} has no section {wanted:?}{hint}; `mica spec {}` prints its outline",
            page.topic, page.topic
        ))
    })
}

/// Runs the command.
pub fn run(args: &Args) -> Result<u8, CliError> {
    let Some(topic) = &args.topic else {
        out(&topics(args.json))?;
        return Ok(WELL);
    };
    let page = page(topic)?;
    let wanted = args.section.join(" ");
    out(&match (wanted.as_str(), args.json) {
        ("", false) => outline(page),
        ("", true) => {
            let all: Vec<Value> = sections(page.text).iter().map(heading).collect();
            let document =
                json!({ "schema": LISTING, "topic": page.topic, "path": page.path, "sections": all });
            format!("{document:#}\n")
        }
        (wanted, as_json) => {
            let section = find(page, wanted)?;
            let text = format!("{}\n", section.text.trim_end());
            match as_json {
                false => text,
                true => {
                    let section = heading(&section);
                    let document =
                        json!({ "schema": LISTING, "topic": page.topic, "section": section, "text": text });
                    format!("{document:#}\n")
                }
            }
        }
    })?;
    Ok(WELL)
}

fn topics(as_json: bool) -> String {
    let title = |p: &Page| sections(p.text).first().map_or(String::new(), |s| s.title.replace('`', ""));
    if as_json {
        let list = PAGES
            .iter()
            .map(|p| json!({ "schema": LISTING, "topic": p.topic, "title": title(p), "path": p.path }));
        return format!("{:#}\n", Value::from(list.collect::<Vec<_>>()));
    }
    let lines = PAGES.iter().map(|p| format!("{:<8}  {}\n", p.topic, title(p)));
    lines.collect::<String>()
        + "\n`mica spec TOPIC` prints a page's outline, `mica spec TOPIC SECTION` a section.\n"
}

fn outline(page: &Page) -> String {
    let line = |s: &Section<'_>| format!("{}{}\n", "  ".repeat(s.level - 1), s.title.replace('`', ""));
    sections(page.text).iter().map(line).collect()
}

fn heading(s: &Section<'_>) -> Value {
    json!({ "number": s.number(), "title": s.title, "level": s.level })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "# Page\nintro\n## 1 One\na\n### 1.1 Inner `x`\nb\n```\n# no heading\n```\n## 2 Two, Three\nc\n";

    #[test]
    fn a_section_ends_at_the_next_of_its_level() {
        let all = sections(TEXT);
        let found: Vec<_> = all.iter().map(|s| (s.level, s.number(), s.text.lines().count())).collect();
        assert_eq!(found, [(1, "", 11), (2, "1", 7), (3, "1.1", 5), (2, "2", 2)]);
    }

    #[test]
    fn sections_go_by_number_and_title() {
        let page = Page { topic: "t", path: "p", text: TEXT };
        for (wanted, title) in [
            ("1", "1 One"),
            ("one", "1 One"),
            ("1.1", "1.1 Inner `x`"),
            ("inner x", "1.1 Inner `x`"),
            ("three", "2 Two, Three"),
        ] {
            assert_eq!(find(&page, wanted).unwrap().title, title);
        }
        for (wanted, words) in [("1.2", "no section \"1.2\""), ("innr x", "the nearest is \"inner x\"")] {
            let e = find(&page, wanted).unwrap_err().to_string();
            assert!(e.contains(words) && e.contains("`mica spec t`"), "{e}");
        }
    }
}
