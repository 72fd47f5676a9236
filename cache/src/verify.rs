//! Reading everything again, to find what a disk has done to it.

use crate::cache::Cache;
use crate::error::CacheError;
use crate::{ActionKey, Digest};
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// What [`Cache::verify`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Blobs whose bytes are right.
    pub good: u64,
    /// Their bytes.
    pub good_bytes: u64,
    /// Corrupt blobs, and empty folders in a blob's place, now removed.
    pub corrupt: Vec<Digest>,
    /// Files that could not be read, and are left.
    pub unreadable: Vec<PathBuf>,
    /// Folders in a blob's place that are not empty, and are left.
    pub in_the_way: Vec<PathBuf>,
    /// Records that named a missing blob, now dropped. A lost state-class blob costs no record.
    pub dropped: Vec<ActionKey>,
}

pub(crate) fn verify(cache: &Cache, progress: &mut dyn FnMut(u64, u64)) -> Result<VerifyReport, CacheError> {
    let (blobs, taken) = cache.blobs.survey()?;
    let total = blobs.iter().map(|b| b.size).sum();
    let mut report = VerifyReport::default();
    let mut done = 0;
    progress(0, total);
    for blob in &blobs {
        let path = cache.blobs.path(blob.digest);
        match hash(&path, |bytes| progress((done + bytes).min(total), total)) {
            Ok((digest, size)) if digest == blob.digest => {
                report.good += 1;
                report.good_bytes += size;
            }
            Ok(_) => {
                cache.blobs.remove(blob.digest)?;
                report.corrupt.push(blob.digest);
            }
            // Taken by a gc elsewhere.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(_) => report.unreadable.push(path),
        }
        done += blob.size;
    }
    for taken in taken {
        match cache.blobs.clear(&taken) {
            true => report.corrupt.push(taken.digest),
            false => report.in_the_way.push(taken.path),
        }
    }
    report.corrupt.sort_by_key(|digest| *digest.as_bytes());
    progress(total, total);
    // Only now: whoever recorded an action meanwhile had stored its blobs before.
    cache.log.reload()?;
    report.dropped = broken_records(cache);
    cache.log.drop_records(&report.dropped)?;
    cache.log.flush()?;
    Ok(report)
}

/// Reads by `read`, not through a mapping: a bad sector is then an error rather than the end of us.
fn hash(path: &Path, mut progress: impl FnMut(u64)) -> io::Result<(Digest, u64)> {
    let mut file = File::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    let mut size = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((hasher.finalize(), size)),
            Ok(n) => {
                hasher.update(&buffer[..n]);
                size += n as u64;
                progress(size);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

fn broken_records(cache: &Cache) -> Vec<ActionKey> {
    let index = cache.log.index();
    // Many records share a blob; one stat is enough.
    let mut present = HashSet::new();
    let mut broken: Vec<_> = index
        .records()
        .filter(|(_, record)| {
            record.outputs.iter().any(|output| {
                let known = output.is_state() || present.contains(&(output.digest, output.size));
                let there = known || cache.blobs.contains(output.digest, output.size);
                if there && !known {
                    present.insert((output.digest, output.size));
                }
                !there
            })
        })
        .map(|(key, _)| key)
        .collect();
    broken.sort_by_key(|key| *key.0.as_bytes());
    broken
}
