//! A disk that fills up in the middle of a write, played by a limit on the size of files: the test runs
//! itself again under a shell that sets the limit and ignores the signal.

use mica_cache::{ActionRecord, Cache, Recipe};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs;
use std::path::Path;
use std::process::Command;

const ROOT: &str = "MICA_CACHE_TEST_ROOT";

#[test]
fn a_write_cut_short_leaves_nothing_and_stops_nothing() {
    if let Some(root) = std::env::var_os(ROOT) {
        return under_the_limit(Path::new(&root));
    }
    let root = tempfile::tempdir().expect("tempdir");
    let program = std::env::current_exe().expect("own name");
    // Its words go through pipes: the limit holds for an inherited log file too, however long that already is.
    let run = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$0\" --nocapture"])
        .arg(program)
        .env(ROOT, root.path())
        .output()
        .expect("run again");
    let words = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{words}");
    // The limit is gone, as when room was made; what was recorded under it counts.
    let cache = Cache::open(root.path()).expect("open");
    let found = (0..100).filter(|n| cache.lookup(&Recipe::new("s", *n).key()).is_some()).count();
    assert!((1..100).contains(&found), "{found}");
    assert!(cache.put(&vec![1; 1 << 20]).is_ok());
}

/// Files end at 64 blocks: 32 or 64 KiB, by the shell's taste.
fn under_the_limit(root: &Path) {
    let cache = Cache::open(root).expect("open");
    let large = vec![1; 1 << 20];
    assert!(cache.put(&large).is_err());
    assert!(cache.put_pieces(1 << 20, |blob| blob.write(0, &large)).is_err());
    let mut asked = false;
    let early = cache.put_pieces(1 << 20, |_| {
        asked = true;
        Ok(())
    });
    assert!(early.is_err());
    let probe = tempfile::tempfile_in(root).expect("a file");
    let able = fallocate(&probe, FallocateFlags::empty(), 0, 1).is_ok();
    assert!(!able || !asked, "a full disk is told of before the work");
    // small enough that its writes tell
    let small = &large[..(1 << 20) - 1];
    assert!(cache.put_pieces(small.len() as u64, |blob| blob.write(0, small)).is_err());
    let hidden = cache.put_pieces(small.len() as u64, |blob| {
        let _ = blob.write(0, small);
        Ok(())
    });
    assert!(hidden.is_err());
    assert_eq!(fs::read_dir(root.join("tmp")).expect("list").count(), 0);
    assert_eq!(cache.stats().expect("stats").blobs, 0);
    assert!(!cache.contains(blake3::hash(&large), 1 << 20));
    // The log fills up too. A record too many is an error, not a lie, and smaller ones go on.
    let record = ActionRecord { note: vec![9; 5000], ..ActionRecord::default() };
    let refused = (0..100).filter(|n| cache.record(&Recipe::new("s", *n).key(), &record).is_err()).count();
    let known = (0..100).filter(|n| cache.lookup(&Recipe::new("s", *n).key()).is_some()).count();
    assert!((1..100).contains(&refused), "{refused}");
    assert_eq!(known, 100 - refused);
    assert!(cache.put(b"small").is_ok());
}
