//! A file that becomes shorter under a reader: the process goes on, and what was computed counts for nothing. One test,
//! since cuts are counted for the process.

use memmap2::Mmap;
use mica::action::{BodyError, Produced, Request, action};
use mica::cut;
use mica::env::Env;
use mica::error::NodeError;
use mica_cache::{Cache, Recipe, StampMemo};
use std::fs::File;
use std::path::Path;

const PAGES: usize = 16;
const PAGE: usize = 64 << 10;

fn env(dir: &Path) -> Env {
    let cache = Cache::open(&dir.join("cache")).expect("a cache");
    Env::new(cache, StampMemo::load(&dir.join("stamps")), 1 << 20)
}

/// Sums a mapped file within an action; `meanwhile` happens once it is mapped, and `then` is what the body makes of it.
fn sum(
    env: &Env,
    path: &Path,
    meanwhile: impl Fn(&File),
    then: Result<(), BodyError>,
) -> Result<u64, NodeError> {
    let recipe = Recipe::new("sum", 1);
    let mut sum = 0;
    action(env, Request { target: "sum:file", recipe, memory: 1, bytes_in: 0 }, || {
        let file = File::options().read(true).write(true).open(path).map_err(BodyError::environment)?;
        // SAFETY: the file is this test's own; that it becomes shorter is what is tested.
        let map = unsafe { Mmap::map(&file) }.map_err(BodyError::environment)?;
        meanwhile(&file);
        sum = map.iter().map(|&b| u64::from(b)).sum();
        then.map(|()| Produced::default())
    })?;
    Ok(sum)
}

#[test]
fn what_was_read_from_a_cut_file_is_not_published() {
    cut::watch();
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("file");
    std::fs::write(&path, vec![1; PAGES * PAGE]).expect("a file");
    let env = env(dir.path());
    let before = cut::count();
    let target = || "sum:file".to_string();
    let environment = |message: &str| NodeError::Environment { target: target(), message: message.into() };
    let blob = blake3::hash(b"constants");
    // a blob that was cut is made again, and a body that knows which file it was says so better
    for (then, expected) in [
        (Ok(()), environment(cut::MESSAGE)),
        (Err(BodyError::stage("a scale is zero")), environment(cut::MESSAGE)),
        (Err(BodyError::environment("that file changed")), environment("that file changed")),
        (Err(BodyError::Lost(blob)), NodeError::Lost { target: target(), blob: blob.to_string() }),
    ] {
        std::fs::write(&path, vec![1; PAGES * PAGE]).expect("a file");
        let shorter = |file: &File| file.set_len(PAGE as u64).expect("a shorter file");
        assert_eq!(sum(&env, &path, shorter, then), Err(expected));
    }
    assert!(cut::count() > before);
    // the file is named where it is a delivery's
    std::fs::write(&path, vec![1; PAGES * PAGE]).expect("a file");
    env.delivers([(path.clone(), (PAGES * PAGE) as u64)]);
    let shorter = |file: &File| file.set_len(PAGE as u64).expect("a shorter file");
    let named = |file: &Path| environment(&format!("{}: {}", file.display(), cut::MESSAGE));
    assert_eq!(sum(&env, &path, shorter, Ok(())), Err(named(&path)));
    // and where it is a blob that the action takes
    std::fs::write(&path, vec![1; PAGES * PAGE]).expect("a file");
    let blob = env.cache.put(&vec![7; PAGES * PAGE]).expect("a blob");
    let file = env.cache.file(blob).expect("its file");
    let recipe = Recipe::new("sum", 1).input("constants", blob);
    let made = action(&env, Request { target: "sum:file", recipe, memory: 1, bytes_in: 0 }, || {
        let bytes = env.cache.get(blob)?.ok_or(BodyError::Lost(blob))?;
        let shortened = std::fs::metadata(&file).expect("the blob").permissions();
        #[expect(clippy::permissions_set_readonly_false, reason = "the test's own folder")]
        let writable = |mut p: std::fs::Permissions| {
            p.set_readonly(false);
            p
        };
        std::fs::set_permissions(&file, writable(shortened)).expect("it may be written");
        File::options().write(true).open(&file).and_then(|f| f.set_len(PAGE as u64)).expect("a shorter blob");
        assert!(bytes.contains(&0));
        Ok(Produced::default())
    });
    let told = format!("{} (constants): {}", file.display(), cut::MESSAGE);
    assert_eq!(made, Err(environment(&told)));
    // nothing was kept, so it runs again, and what is whole is fine
    std::fs::write(&path, vec![1; PAGES * PAGE]).expect("a file");
    let counted = cut::count();
    assert_eq!(sum(&env, &path, |_| {}, Ok(())), Ok((PAGES * PAGE) as u64));
    assert_eq!(cut::count(), counted);
}
