//! `mica fetch`: deliveries that lie elsewhere, downloaded ahead, brought up to date, or hashed again.

use super::{FAILED, WELL, out};
use crate::cli::Fetch;
use crate::error::CliError;
use crate::events::{SCHEMA, Sink};
use crate::obtain::{self, Obtain, Reach, Roles, Told};
use crate::progress::say;
use crate::session::cache_dir;
use crate::targets::nearest;
use crate::workspace::Workspace;
use mica_download::{Checked, DownloadError, Outcome, Voucher};
use serde_json::json;
use std::path::Path;

/// Downloads, or checks.
pub fn run(w: &Workspace, cache: Option<&Path>, offline: bool, f: &Fetch) -> Result<u8, CliError> {
    let names = chosen(w, &f.deliveries)?;
    let sink = match &f.events {
        Some(path) => Sink::create(path).map_err(|source| CliError::Write { path: path.clone(), source })?,
        None => Sink::default(),
    };
    let told = Told::new(&sink);
    let reach = if f.check { Reach::LOOK } else { Reach::of(offline) };
    let obtain = Obtain::new(w, &cache_dir(w, cache), &reach, &told).updating(f.update);
    let exit = match f.check {
        true => check(w, &obtain, &told, &names, f.json)?,
        false => fetch(w, &obtain, &told, &names, f)?,
    };
    sink.finish()?;
    Ok(exit)
}

/// The deliveries of these names; without a name, all that have something to fetch.
fn chosen(w: &Workspace, names: &[String]) -> Result<Vec<String>, CliError> {
    let all = &w.config.delivery;
    if let Some(name) = names.iter().find(|n| !all.contains_key(*n)) {
        let near = nearest(name, all.keys().map(String::as_str));
        let hint = near.map(|n| format!("; is it {n:?}?")).unwrap_or_default();
        return Err(CliError::Usage(format!("the workspace has no delivery {name:?}{hint}")));
    }
    if !names.is_empty() {
        return Ok(names.to_vec());
    }
    let remote = all.iter().filter(|(_, d)| {
        [Some(&d.source), d.config.as_ref(), d.tokenizer.as_ref()]
            .into_iter()
            .flatten()
            .any(|p| obtain::is_remote(p))
    });
    Ok(remote.map(|(name, _)| name.clone()).collect())
}

/// Brings them here; a line each with the folder.
fn fetch(
    w: &Workspace,
    obtain: &Obtain<'_>,
    told: &Told<'_>,
    names: &[String],
    f: &Fetch,
) -> Result<u8, CliError> {
    let mut places = Vec::new();
    for name in names {
        let delivery = obtain.delivery(name, Roles::of(&f.only))?;
        places.push((name, w.path(&delivery.source)));
    }
    if names.is_empty() {
        say("every delivery of the workspace is a folder of this disk");
    }
    if f.json {
        let places: Vec<_> =
            places.iter().map(|(n, dir)| json!({ "delivery": n, "folder": dir.to_string_lossy() })).collect();
        let document = json!({ "schema": SCHEMA, "deliveries": places, "downloads": told.files() });
        out(&format!("{document:#}\n"))?;
    } else {
        let line = |(name, dir): &(&String, std::path::PathBuf)| format!("{name}\t{}\n", dir.display());
        out(&places.iter().map(line).collect::<String>())?;
    }
    Ok(WELL)
}

/// Hashes what is here of them and says how each file fared.
fn check(
    w: &Workspace,
    obtain: &Obtain<'_>,
    told: &Told<'_>,
    names: &[String],
    as_json: bool,
) -> Result<u8, CliError> {
    let mut rows = Vec::new();
    let mut well = true;
    for name in names {
        let failed = |e: DownloadError| CliError::Delivery { delivery: name.clone(), message: e.to_string() };
        told.delivery(name);
        let declared = &w.config.delivery[name];
        let copy = obtain::copy_of(name, declared)?;
        if copy.is_some() || !obtain::is_remote(&declared.source) {
            let dir = copy.unwrap_or_else(|| w.path(&declared.source));
            match Checked::folder(&dir, told).map_err(failed)? {
                // a copy may well be of some of the files that its manifest speaks of
                Some(files) => rows.extend(files.into_iter().map(|c| (name, c, true))),
                None => say(&format!("{name}: {} has no manifest to check it by", dir.display())),
            }
        }
        for mut held in obtain.held(name)? {
            rows.extend(held.check(told).map_err(failed)?.into_iter().map(|c| (name, c, false)));
        }
    }
    told.clear();
    let mut text = String::new();
    let mut files = Vec::new();
    for (name, checked, own) in &rows {
        let (word, why) = match &checked.outcome {
            Outcome::Good(Voucher::Length) => {
                ("good", "as it was when it came; no manifest says more".into())
            }
            Outcome::Good(voucher) => ("good", format!("by {}", voucher.said())),
            Outcome::Unvouched => ("unknown", "nobody says what it has to be".into()),
            Outcome::Gone => ("gone", if *own { "not in this folder".into() } else { REPAIR.into() }),
            Outcome::Bad { expected, got } => {
                let repair = if *own { "replace it" } else { REPAIR };
                ("bad", format!("SHA-256 is {got}, has to be {expected}; {repair}"))
            }
        };
        well &= !(word == "bad" || (word == "gone" && !own));
        text += &format!("{word:8}{name}: {}  ({why})\n", checked.name);
        files.push(json!({ "delivery": name, "file": checked.name, "outcome": word, "why": why }));
    }
    out(&if as_json { format!("{:#}\n", json!({ "schema": SCHEMA, "files": files })) } else { text })?;
    Ok(if well { WELL } else { FAILED })
}

/// What mends a file that was dropped.
const REPAIR: &str = "dropped, `mica fetch` fetches it again";
