//! `mica tutorial`: two steps, from the published model to a fast one that is checked.
//!
//! A page's code blocks are quotations of the shipped source by declaration, resolved when the page is
//! printed, so they can't go stale; a test resolves every one and runs every command on the pages.

use super::{LISTING, WELL, out};
use crate::error::CliError;
use mica_models::described;
use serde_json::json;

/// A step of the tutorial.
pub struct Step {
    /// What it is asked for by.
    pub name: &'static str,
    /// What it is about.
    pub title: &'static str,
    /// Markdown with quotation marks of the form `{{quote: FILE::DECLARATION}}`, each on a line of its own.
    pub text: &'static str,
}

/// The steps in order.
pub static STEPS: &[Step] = &[
    Step {
        name: "describe",
        title: "describe the published model",
        text: include_str!("../../../docs/tutorial/describe.md"),
    },
    Step {
        name: "make-it-fast",
        title: "make it fast, and check it",
        text: include_str!("../../../docs/tutorial/make-it-fast.md"),
    },
];

/// Quoted sources that are no model's own.
static QUOTED: &[(&str, &str)] = &[
    ("models/src/eval/loaded.rs", include_str!("../../../models/src/eval/loaded.rs")),
    ("models/src/hir/module.rs", include_str!("../../../models/src/hir/module.rs")),
    ("models/src/twin.rs", include_str!("../../../models/src/twin.rs")),
];

/// What is asked for.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which step [default: list them].
    pub step: Option<String>,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<u8, CliError> {
    let Some(name) = &args.step else {
        out(&match args.json {
            true => {
                let list: Vec<_> = STEPS
                    .iter()
                    .map(|s| json!({ "schema": LISTING, "step": s.name, "title": s.title }))
                    .collect();
                format!("{:#}\n", json!(list))
            }
            false => STEPS.iter().map(|s| format!("{:<13} {}\n", s.name, s.title)).collect(),
        })?;
        return Ok(WELL);
    };
    let step = STEPS.iter().find(|s| s.name == name).ok_or_else(|| {
        let known: Vec<&str> = STEPS.iter().map(|s| s.name).collect();
        CliError::Usage(format!("the tutorial has no step {name:?}, expected one of: {}", known.join(", ")))
    })?;
    let text = render(step.text)?;
    out(&match args.json {
        true => {
            let document = json!({ "schema": LISTING, "step": step.name, "title": step.title, "text": text });
            format!("{document:#}\n")
        }
        false => text,
    })?;
    Ok(WELL)
}

/// The page with its quotations in place.
pub fn render(text: &str) -> Result<String, CliError> {
    text.split_inclusive('\n')
        .map(|line| match line.trim().strip_prefix("{{quote: ").and_then(|l| l.strip_suffix("}}")) {
            Some(marker) => quoted(marker).map(|code| format!("```rust\n// {marker}\n{code}```\n")),
            None => Ok(line.to_string()),
        })
        .collect()
}

/// The declaration that a marker `FILE::NAME` or `FILE::TYPE::NAME` stands for.
fn quoted(marker: &str) -> Result<String, CliError> {
    let lacking =
        |what: String| CliError::Usage(format!("the quotation {marker:?} does not resolve: {what}"));
    let (file, path) = marker.split_once("::").ok_or_else(|| lacking("it names no declaration".into()))?;
    let text = source(file).ok_or_else(|| lacking(format!("{file} is not among the shipped sources")))?;
    declaration(text, &path.split("::").collect::<Vec<_>>())
        .ok_or_else(|| lacking(format!("{file} declares no such name")))
}

/// A shipped source by its path from the root of a checkout.
fn source(path: &str) -> Option<&'static str> {
    let of_models = described().iter().flat_map(|m| {
        let below = path.strip_prefix(m.directory).and_then(|p| p.strip_prefix('/'));
        m.files.iter().filter(move |f| Some(f.path) == below).map(|f| f.text)
    });
    of_models.chain(QUOTED.iter().filter(|q| q.0 == path).map(|q| q.1)).next()
}

/// The lines of a declaration with its comment and attributes; of a formatted file, in which an item ends at
/// the first line of its own indentation that closes it.
fn declaration(text: &str, path: &[&str]) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let (name, outer) = path.split_last()?;
    let range = outer.iter().try_fold(0..lines.len(), |range, ty| {
        let start = range.clone().find(|&i| declares(lines[i], ty, &["impl"]))?;
        Some(start..end(&lines, start)?)
    })?;
    let kinds = ["fn", "struct", "enum", "trait", "const", "static", "type"];
    let at = range.clone().find(|&i| declares(lines[i], name, &kinds))?;
    let attached =
        |i: &usize| lines[*i].trim_start().starts_with("///") || lines[*i].trim_start().starts_with("#[");
    let first = (range.start..at).rev().take_while(attached).last().unwrap_or(at);
    let indent = indentation(lines[at]);
    let quoted = lines[first..=end(&lines, at)?].iter();
    Some(quoted.map(|l| format!("{}\n", l.get(indent..).unwrap_or_default())).collect())
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Whether a line begins the declaration of `name` by one of the keywords.
fn declares(line: &str, name: &str, keywords: &[&str]) -> bool {
    let words: Vec<&str> = line
        .split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '/'))
        .filter(|w| !matches!(*w, "" | "pub" | "crate" | "super" | "in" | "a" | "async"))
        .collect();
    words.first().is_some_and(|k| keywords.contains(k)) && words.get(1) == Some(&name)
}

/// The last line of the item that begins at `start`.
fn end(lines: &[&str], start: usize) -> Option<usize> {
    let indent = indentation(lines[start]);
    (start..lines.len()).find(|&i| {
        let line = lines[i];
        indentation(line) == indent
            && (line.ends_with(';') || line.trim() == "}" || (i == start && line.ends_with('}')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "//! File.\n\n/// One.\n#[inline]\npub(super) fn one(\n    a: u8,\n) -> u8 {\n    if a > 1 {\n        return 2;\n    }\n    a\n}\n\n/// T.\nstruct T;\n\nimpl<'a> T {\n    /// Two.\n    fn two(&self) -> u8 {\n        2\n    }\n}\nconst N: u8 = 3;\n";

    #[test]
    fn a_declaration_is_quoted_with_its_comment() {
        let of = |path: &[&str]| declaration(SOURCE, path);
        assert!(of(&["one"]).unwrap().starts_with("/// One.\n#[inline]\npub(super) fn one(\n"));
        assert!(of(&["one"]).unwrap().ends_with("    a\n}\n"));
        assert_eq!(of(&["T", "two"]).unwrap(), "/// Two.\nfn two(&self) -> u8 {\n    2\n}\n");
        assert_eq!(of(&["T"]).unwrap(), "/// T.\nstruct T;\n");
        assert_eq!(of(&["N"]).unwrap(), "const N: u8 = 3;\n");
        assert_eq!(of(&["three"]), None);
        assert_eq!(of(&["T", "one"]), None);
    }
}
