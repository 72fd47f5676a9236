//! `mica cache`: sizes, checking, and what may go.

use super::{FAILED, WELL, out};
use crate::cli::CacheCommand;
use crate::error::CliError;
use crate::progress::Progress;
use crate::session::environment;
use crate::workspace::Workspace;
use mica_cache::GcOptions;
use std::path::Path;
use std::time::Duration;

/// Runs one of the cache's commands.
pub fn run(w: &Workspace, cache: Option<&Path>, command: &CacheCommand) -> Result<u8, CliError> {
    let env = environment(w, cache)?;
    match command {
        CacheCommand::Stats => {
            let s = env.cache.stats()?;
            let rows = [
                ("blobs", s.blobs),
                ("blob bytes", s.blob_bytes),
                ("records", s.records),
                ("targets", s.targets),
                ("log segments", s.segments),
                ("log bytes", s.log_bytes),
            ];
            out(&rows.map(|(what, n)| format!("{n:>14}  {what}\n")).concat())?;
            Ok(WELL)
        }
        CacheCommand::Verify => {
            let progress = Progress::hidden();
            let mut begun = false;
            let report = env.cache.verify(&mut |done, total| {
                if !std::mem::replace(&mut begun, true) {
                    progress.start(total);
                }
                progress.reach(done);
            })?;
            progress.clear();
            let mut text = format!("{} blobs, {} bytes are good\n", report.good, report.good_bytes);
            for d in &report.corrupt {
                text += &format!("corrupt, dropped: {d}\n");
            }
            for p in &report.unreadable {
                text += &format!("unreadable: {}\n", p.display());
            }
            for p in &report.in_the_way {
                text += &format!("a folder in a blob's place, not empty: {}; move it away\n", p.display());
            }
            for k in &report.dropped {
                text += &format!("record dropped, its blobs are gone: {k}\n");
            }
            out(&text)?;
            let well =
                report.corrupt.is_empty() && report.unreadable.is_empty() && report.in_the_way.is_empty();
            Ok(if well { WELL } else { FAILED })
        }
        CacheCommand::Gc { days, dry_run } => {
            let keep = Duration::from_secs(u64::from(*days) * 24 * 3600);
            let options = GcOptions { keep, dry_run: *dry_run, ..GcOptions::default() };
            let r = env.cache.gc(&options)?;
            let verb = if r.dry_run { "would remove" } else { "removed" };
            out(&format!(
                "{verb} {} blobs ({} bytes, {} of them states) and {} records; kept {} blobs ({} bytes)\n",
                r.removed.len(),
                r.removed_bytes,
                r.removed_state,
                r.dropped.len(),
                r.kept,
                r.kept_bytes
            ))?;
            Ok(WELL)
        }
    }
}
