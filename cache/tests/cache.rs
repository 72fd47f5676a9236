//! The cache as its users see it: through its public door, over a real folder.

use mica_cache::{ActionKey, ActionRecord, Cache, Digest, GcOptions, Output, Recipe};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn root() -> tempfile::TempDir {
    tempfile::tempdir().expect("tempdir")
}

fn open(root: &tempfile::TempDir) -> Cache {
    Cache::open(root.path()).expect("open")
}

fn key(n: u32) -> ActionKey {
    Recipe::new("stage", n).key()
}

/// Runs an "action": stores one blob for each (name, content) and records them.
fn run(cache: &Cache, key: &ActionKey, outputs: &[(&str, &[u8])]) -> ActionRecord {
    let outputs = outputs
        .iter()
        .map(|(name, bytes)| Output {
            name: (*name).to_owned(),
            digest: cache.put(bytes).expect("put"),
            size: bytes.len() as u64,
        })
        .collect();
    let record = ActionRecord { outputs, wall_ms: 3, note: b"note".to_vec() };
    cache.record(key, &record).expect("record");
    record
}

/// All files under `dir`, in order.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("list") {
        let path = entry.expect("entry").path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

fn blob_path(root: &tempfile::TempDir, d: Digest) -> PathBuf {
    let hex = d.to_string();
    root.path().join("blobs-1").join(&hex[..2]).join(&hex[2..])
}

#[test]
fn a_second_run_finds_everything() {
    let root = root();
    let recipe = Recipe::new("stage", 1).param("steps", 4);
    let first = open(&root);
    assert_eq!(first.lookup(&recipe.key()), None);
    let record = run(&first, &recipe.key(), &[("out", b"bytes")]);
    first.remember("target", &recipe).expect("remember");
    first.flush().expect("flush");
    drop(first);
    let second = open(&root);
    assert_eq!(second.lookup(&recipe.key()).as_ref(), Some(&record));
    let output = &record.outputs[0];
    assert!(second.contains(output.digest, output.size));
    assert_eq!(&second.get(output.digest).expect("get").expect("there")[..], b"bytes");
    assert_eq!(second.last("target"), Some(recipe));
    assert_eq!((second.session().lookups, second.session().hits), (1, 1));
}

#[test]
fn a_second_run_that_only_reads_changes_no_file() {
    let root = root();
    let record = run(&open(&root), &key(1), &[("out", b"bytes")]);
    let state = || {
        let stat = |path: PathBuf| {
            let metadata = fs::metadata(&path).expect("stat");
            (path, metadata.len(), metadata.modified().expect("time"))
        };
        files(root.path()).into_iter().map(stat).collect::<Vec<_>>()
    };
    let before = state();
    let cache = open(&root);
    assert!(cache.lookup(&key(1)).is_some());
    assert!(cache.get(record.outputs[0].digest).expect("get").is_some());
    cache.flush().expect("flush");
    drop(cache);
    assert_eq!(state(), before);
}

#[test]
fn killed_between_blob_and_record() {
    let root = root();
    let cache = open(&root);
    let d = cache.put(b"result").expect("put");
    // As a kill would: no flush, no destructor.
    std::mem::forget(cache);
    let cache = open(&root);
    assert_eq!(cache.lookup(&key(1)), None);
    let record = run(&cache, &key(1), &[("out", b"result")]);
    assert_eq!((record.outputs[0].digest, cache.session().reused), (d, 1));
    std::mem::forget(cache);
    assert_eq!(open(&root).lookup(&key(1)), Some(record));
}

#[test]
fn a_lost_or_corrupt_blob_is_a_miss_and_is_made_again() {
    let root = root();
    let cache = open(&root);
    let record = run(&cache, &key(1), &[("out", b"result")]);
    let d = record.outputs[0].digest;
    for damage in [&b"resulT"[..], b"", b"result and more"] {
        fs::write(blob_path(&root, d), damage).expect("damage");
        assert!(cache.get(d).expect("get").is_none());
        assert!(!cache.contains(d, 6), "out of the way");
        run(&cache, &key(1), &[("out", b"result")]);
        assert_eq!(&cache.get(d).expect("get").expect("there")[..], b"result");
    }
    assert_eq!(cache.session().corrupt, 3);
}

#[test]
fn a_blob_whose_place_is_taken_is_a_miss_and_is_made_again() {
    let root = root();
    let cache = open(&root);
    let d = run(&cache, &key(1), &[("out", b"result")]).outputs[0].digest;
    let path = blob_path(&root, d);
    for read_first in [true, false] {
        fs::remove_file(&path).expect("lose");
        fs::create_dir(&path).expect("a folder in its place");
        assert!(!cache.contains(d, 6));
        assert!(!read_first || cache.get(d).expect("get").is_none());
        run(&cache, &key(1), &[("out", b"result")]);
        assert_eq!(&cache.get(d).expect("get").expect("there")[..], b"result");
    }
}

#[test]
fn folders_in_the_place_of_blobs_are_no_concern_of_stats_and_gc_and_are_found_by_verify() {
    let root = root();
    let cache = open(&root);
    run(&cache, &key(1), &[("out", b"good")]);
    let lost = run(&cache, &key(2), &[("out", b"lost")]).outputs[0].digest;
    let [empty, full] = [blob_path(&root, lost), blob_path(&root, blake3::hash(b"kept"))];
    fs::remove_file(&empty).expect("lose");
    for dir in [&empty, &full] {
        fs::create_dir_all(dir).expect("a folder in a blob's place");
    }
    fs::write(full.join("note"), "not ours").expect("write");
    let stats = cache.stats().expect("stats");
    assert_eq!((stats.blobs, stats.blob_bytes), (1, 4));
    let all = GcOptions { now: SystemTime::now() + 100 * DAY, ..GcOptions::default() };
    assert_eq!(cache.gc(&GcOptions { dry_run: true, ..all.clone() }).expect("gc").removed_bytes, 4);
    let report = cache.verify(&mut |_, _| ()).expect("verify");
    assert_eq!((report.good, report.corrupt, report.in_the_way), (1, vec![lost], vec![full.clone()]));
    assert_eq!(report.dropped, [key(2)]);
    assert!(!empty.exists() && full.join("note").exists());
    assert_eq!(cache.gc(&all).expect("gc").removed_bytes, 4);
}

#[test]
fn temporaries_of_the_dead_are_swept_and_of_the_living_not() {
    let root = root();
    let cache = open(&root);
    fs::write(root.path().join("tmp/left-behind.tmp"), "half").expect("write");
    let d = cache
        .put_pieces(11, |blob| {
            blob.write(5, b"writer")?;
            drop(open(&root));
            assert_eq!(files(&root.path().join("tmp")).len(), 1, "only ours");
            blob.write(0, b"slow ")
        })
        .expect("put_pieces");
    assert!(cache.contains(d, 11));
    assert!(files(&root.path().join("tmp")).is_empty());
}

#[test]
fn many_threads_and_handles_agree() {
    let root = root();
    let handles = [open(&root), open(&root)];
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let cache = &handles[thread % 2];
            scope.spawn(move || {
                for n in 0..50u32 {
                    // The same blobs from all sides.
                    let bytes = n.to_le_bytes().repeat(10_000);
                    let record = run(cache, &key(n), &[("out", &bytes)]);
                    let blob = cache.get(record.outputs[0].digest).expect("get").expect("there");
                    assert_eq!(&blob[..], bytes);
                }
            });
        }
    });
    let cache = open(&root);
    let stats = cache.stats().expect("stats");
    assert_eq!((stats.blobs, stats.blob_bytes, stats.records), (50, 2_000_000, 50));
    assert_eq!(stats.session.corrupt, 0);
    let report = cache.verify(&mut |_, _| ()).expect("verify");
    assert_eq!((report.good, report.corrupt.len(), report.dropped.len()), (50, 0, 0));
}

#[test]
fn verify_finds_damage_and_drops_what_rests_on_it() {
    let root = root();
    let cache = open(&root);
    run(&cache, &key(1), &[("out", b"good"), ("state", b"cheap")]);
    let damaged = run(&cache, &key(2), &[("out", b"good"), ("more", b"damaged")]).outputs[1].digest;
    let lost = run(&cache, &key(3), &[("out", b"lost")]).outputs[0].digest;
    fs::write(blob_path(&root, damaged), "DAMAGED").expect("damage");
    fs::remove_file(blob_path(&root, lost)).expect("lose");
    fs::remove_file(blob_path(&root, blake3::hash(b"cheap"))).expect("lose");
    let mut seen = Vec::new();
    let report = cache.verify(&mut |done, total| seen.push((done, total))).expect("verify");
    assert_eq!((report.good, report.good_bytes), (1, 4));
    assert_eq!(report.corrupt, [damaged]);
    let mut dropped = vec![key(2), key(3)];
    dropped.sort_by_key(|key| *key.0.as_bytes());
    assert_eq!(report.dropped, dropped);
    assert_eq!(seen.last(), Some(&(11, 11)));
    assert!(seen.is_sorted());
    for cache in [&cache, &open(&root)] {
        assert_eq!([1, 2, 3].map(|n| cache.lookup(&key(n)).is_some()), [true, false, false]);
    }
    // A new result counts again.
    run(&cache, &key(2), &[("out", b"good"), ("more", b"damaged")]);
    assert!(open(&root).lookup(&key(2)).is_some());
    assert_eq!(cache.verify(&mut |_, _| ()).expect("verify").corrupt, Vec::<Digest>::new());
}

#[test]
fn gc_says_first_and_then_does_the_same() {
    let root = root();
    let cache = open(&root);
    run(&cache, &key(1), &[("out", b"old"), ("shared", b"shared")]);
    let recipe = Recipe::new("stage", 2);
    run(&cache, &recipe.key(), &[("out", b"target"), ("state", b"cheap"), ("shared", b"shared")]);
    cache.remember("target", &recipe).expect("remember");
    cache.put(b"orphan").expect("put");
    let options = |dry_run| GcOptions { now: SystemTime::now() + 30 * DAY, dry_run, ..GcOptions::default() };
    let before = files(root.path());
    let planned = cache.gc(&options(true)).expect("dry run");
    assert_eq!(files(root.path()), before);
    assert_eq!((planned.removed.len(), planned.removed_bytes, planned.removed_state), (3, 14, 1));
    assert_eq!((planned.dropped.clone(), planned.kept, planned.kept_bytes), (vec![key(1)], 2, 12));
    let done = cache.gc(&options(false)).expect("gc");
    assert_eq!(mica_cache::GcReport { dry_run: true, ..done }, planned);
    for cache in [&cache, &open(&root)] {
        assert!(cache.lookup(&key(1)).is_none());
        assert!(cache.lookup(&recipe.key()).is_some());
        assert!(cache.get(blake3::hash(b"target")).expect("get").is_some());
        assert!(cache.get(blake3::hash(b"cheap")).expect("get").is_none());
    }
}

#[test]
fn gc_spares_what_was_stored_a_moment_ago() {
    let root = root();
    let cache = open(&root);
    cache.put(b"its record is about to be written").expect("put");
    let none = Duration::ZERO;
    let greedy = GcOptions { keep: none, keep_targets: none, keep_state: none, ..GcOptions::default() };
    assert_eq!(cache.gc(&greedy).expect("gc").removed, Vec::<Digest>::new());
    let greedy = GcOptions { grace: none, now: SystemTime::now() + DAY, ..greedy };
    assert_eq!(cache.gc(&greedy).expect("gc").removed.len(), 1);
}

#[test]
fn gc_leaves_other_processes_to_their_work() {
    let root = root();
    let (busy, tidy) = (open(&root), open(&root));
    run(&busy, &key(1), &[("out", b"old")]);
    let options = GcOptions { now: SystemTime::now() + 30 * DAY, ..GcOptions::default() };
    assert_eq!(tidy.gc(&options).expect("gc").dropped, [key(1)]);
    // It still knows the record; it looks before it trusts, and does the work again.
    let record = busy.lookup(&key(1)).expect("record");
    assert!(!busy.contains(record.outputs[0].digest, record.outputs[0].size));
    assert!(busy.get(record.outputs[0].digest).expect("get").is_none());
    run(&busy, &key(1), &[("out", b"old")]);
    drop((busy, tidy));
    assert!(open(&root).lookup(&key(1)).is_some());
}

#[test]
fn blobs_and_log_are_as_readable_as_the_umask_says() {
    use std::os::unix::fs::PermissionsExt;
    let root = root();
    File::create(root.path().join("plain")).expect("create");
    run(&open(&root), &key(1), &[("out", b"bytes")]);
    let mode = |path: &PathBuf| fs::metadata(path).expect("stat").permissions().mode();
    let modes: Vec<_> = files(root.path()).iter().map(mode).collect();
    assert_eq!(modes.len(), 3);
    assert!(modes.iter().all(|m| *m == modes[0]), "{modes:?}");
}

#[test]
fn a_root_that_cannot_be_made_is_an_error_with_its_path() {
    let root = root();
    fs::write(root.path().join("file"), "in the way").expect("write");
    let error = Cache::open(&root.path().join("file").join("cache")).err().expect("no folder there");
    assert!(error.to_string().contains("cache"), "{error}");
}
