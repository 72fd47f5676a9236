//! Processes that are killed in the middle of their work, beside others that go on.

use mica_cache::{ActionKey, ActionRecord, Cache, Output, Recipe};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

const ROOT: &str = "MICA_CACHE_TEST_ROOT";
const ACTIONS: u32 = 5000;

fn key(n: u32) -> ActionKey {
    Recipe::new("stage", n).key()
}

fn bytes(n: u32) -> Vec<u8> {
    n.to_le_bytes().repeat(5000)
}

#[test]
fn whatever_is_killed_what_is_found_is_right() {
    if let Some(root) = std::env::var_os(ROOT) {
        return work(Path::new(&root));
    }
    let root = tempfile::tempdir().expect("tempdir");
    let program = std::env::current_exe().expect("own name");
    let start = || -> Child {
        Command::new(&program).arg("--nocapture").env(ROOT, root.path()).spawn().expect("run again")
    };
    for round in 0..12 {
        let mut both = [start(), start()];
        std::thread::sleep(Duration::from_millis(20 + 7 * round));
        for child in &mut both {
            child.kill().expect("kill");
            child.wait().expect("wait");
        }
    }
    let cache = Cache::open(root.path()).expect("open");
    assert_eq!(std::fs::read_dir(root.path().join("tmp")).expect("list").count(), 0, "swept");
    let found: Vec<_> = (0..ACTIONS).filter_map(|n| Some((n, cache.lookup(&key(n))?))).collect();
    assert!(!found.is_empty());
    for (n, record) in found {
        let output = &record.outputs[0];
        assert!(cache.contains(output.digest, output.size), "the blob came first");
        assert_eq!(&cache.get(output.digest).expect("get").expect("there")[..], bytes(n));
    }
    let report = cache.verify(&mut |_, _| ()).expect("verify");
    assert_eq!((report.corrupt.len(), report.dropped.len()), (0, 0));
}

/// Does what is not done yet, and forgets some of it again so that the log has something to tidy.
fn work(root: &Path) {
    let cache = Cache::open(root).expect("open");
    for n in 0..ACTIONS {
        if cache.lookup(&key(n)).is_some() {
            continue;
        }
        let bytes = bytes(n);
        let digest = cache.put(&bytes).expect("put");
        let output = Output { name: "out".into(), digest, size: bytes.len() as u64 };
        let record = ActionRecord { outputs: vec![output], wall_ms: 0, note: Vec::new() };
        cache.record(&key(n), &record).expect("record");
        if n % 50 == 0 {
            cache.forget(&key(n)).expect("forget");
            cache.flush().expect("flush");
        }
    }
}
