//! Deliveries that lie elsewhere: a web server, a hub, a copy that a variable names.

use crate::{MICA, tiny};
use mica_download::testing::{Fault, Server, put_repository, sha256};
use mica_fetch::testing::{copy_delivery, shard, shipped};
use mica_tests::{Mica, Run, Status, Workspace, files_below, names};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What a build of `tiny` needs, and no more of the folder.
const NEEDED: [&str; 4] =
    ["config.json", "model.safetensors", "test_vectors_f64.safetensors", "tokenizer.json"];

const COMMIT: &str = "0123456789012345678901234567890123456789";

/// A server with the shipped delivery.
fn served() -> Server {
    let server = Server::start();
    server.put_folder("/tiny", &shipped("tiny"));
    server
}

/// The workspace of `tiny` with its delivery at an address.
fn at(source: &str) -> Workspace {
    let mut workspace = tiny();
    workspace.set("delivery.tiny.source", source);
    workspace
}

fn of_tiny(files: &[&str]) -> BTreeSet<String> {
    files.iter().map(|file| format!("tiny: {file}")).collect()
}

/// A build in an environment of its own.
fn build(workspace: &Workspace, words: &[&str], vars: &[(&str, &Path)]) -> Run {
    let mica = workspace.mica(&[&["build"], words].concat()).events(workspace.dir().join("events.jsonl"));
    vars.iter().fold(mica, |mica, (name, value)| mica.env(name, value)).run()
}

/// Asks of files, without the questions that only ask whether there is one.
fn fetched(server: &Server) -> Vec<String> {
    server.asked().into_iter().filter(|a| a.method == "GET").map(|a| a.path).collect()
}

#[test]
fn a_server_and_a_hub_give_what_the_folder_gives() {
    let folder = tiny();
    let local = folder.build_well(&[]);
    from_a_server(&folder, &local);
    from_a_hub(&folder, &local);
}

/// On the folder's cache, so that whatever were not the same would run.
fn from_a_server(folder: &Workspace, local: &Run) {
    let server = served();
    let workspace = at(&format!("{}/tiny", server.url())).on_cache(Some(folder.cache()));
    // code and constants need no captures
    let packed = workspace.build_well(&["pack:tiny.layer0"]);
    assert_eq!(packed.downloads(), of_tiny(&["config.json", "model.safetensors", "tokenizer.json"]));
    let first = workspace.build_well(&[]);
    assert_eq!(first.downloads(), of_tiny(&["test_vectors_f64.safetensors"]), "the captures alone");
    assert_eq!((first.ran(), first.keys()), (names(&[]), local.keys()));
    first.says_as(local, "from a server");
    let manifest = |path: &String| path.contains("SUMS") || path.contains("manifest");
    let got: Vec<String> = fetched(&server).into_iter().filter(|path| !manifest(path)).collect();
    assert_eq!(got.len(), NEEDED.len(), "{got:?}");
    drop(server);
    let second = workspace.build_well(&["--offline"]);
    assert_eq!((second.ran(), second.downloads()), (names(&[]), names(&[])));
    second.says_as(local, "with the server gone");
    // what only looks finds it too, and `mica check` takes it from the same place
    workspace.mica(&["status", "score:tiny.decode"]).run().exits(0);
    let check = ["check", "tiny:layer0", "--inputs", "random", "--twin", "--cosine", "0.99"];
    workspace.mica(&check).run().exits(0);
}

/// In shards, which only the index names, and in the hub's own layout.
fn from_a_hub(folder: &Workspace, local: &Run) {
    let (hub, store, home) = (Server::start(), Server::start(), tempfile::tempdir().expect("a folder"));
    let delivery = home.path().join("published");
    copy_delivery(&shipped("tiny"), &delivery);
    shard(&delivery, 3);
    let file = |p: PathBuf| {
        let name = p.file_name().expect("a name").to_string_lossy().into_owned();
        (name, fs::read(p).expect("a file"))
    };
    let files: Vec<(String, Vec<u8>)> = files_below(&delivery).into_iter().map(file).collect();
    let listed: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (name.as_str(), &bytes[..])).collect();
    put_repository(&hub, &store, "org/tiny", ("v1", COMMIT), &listed, |name| name.ends_with(".safetensors"));
    let workspace = at("hf://org/tiny@v1").on_cache(Some(folder.cache()));
    let url = hub.url();
    let token = Path::new("hf_secret");
    let vars = [("HF_ENDPOINT", Path::new(&url)), ("HF_HOME", home.path()), ("HF_TOKEN", token)];
    let first = build(&workspace, &[], &vars).exits(0);
    assert_eq!((first.ran(), first.keys()), (names(&[]), local.keys()));
    first.says_as(local, "from a hub");
    let shards = first.downloads().into_iter().filter(|file| file.contains("-of-00003"));
    assert_eq!(shards.count(), 3, "{:?}", first.downloads());
    let asked: Vec<String> = hub.asked().into_iter().map(|a| a.path).collect();
    let place = |ending: &str| asked.iter().position(|path| path.ends_with(ending));
    let (index, shard) = (place("model.safetensors.index.json"), place("-00001-of-00003.safetensors"));
    assert!(index.is_some() && index < shard, "the index comes first: {asked:?}");
    let repo = home.path().join("hub/models--org--tiny");
    assert!(repo.join("snapshots").join(COMMIT).join("config.json").is_symlink());
    assert_eq!(fs::read_to_string(repo.join("refs/v1")).expect("a reference"), COMMIT);
    let told = |server: &Server| server.asked().iter().any(|a| a.headers.contains_key("authorization"));
    assert!(told(&hub) && !told(&store), "the token is the hub's");
    drop((hub, store));
    let second = build(&workspace, &[], &vars).exits(0);
    assert_eq!((second.ran(), second.downloads()), (names(&[]), names(&[])));
    // a workspace on another cache takes what lies in the shared folder
    let other = at("hf://org/tiny@v1");
    let packed = build(&other, &["--offline", "pack:tiny.layer0"], &vars).exits(0);
    assert_eq!(packed.downloads(), names(&[]));
}

#[test]
fn a_variable_that_names_a_copy_downloads_nothing() {
    let server = served();
    let mut workspace = at(&format!("{}/tiny", server.url()));
    workspace.set("delivery.tiny.env", "A_BUNDLE_OF_TINY");
    // a config of its own is in the copy too
    workspace.set("delivery.tiny.config", format!("{}/tiny/config.json", server.url()));
    let copy = shipped("tiny");
    for variable in ["MICA_DELIVERY_TINY", "A_BUNDLE_OF_TINY"] {
        let built = build(&workspace, &["pack:tiny.layer0"], &[(variable, &copy)]).exits(0);
        assert_eq!(built.downloads(), names(&[]), "{variable}");
    }
    assert_eq!(server.asked(), []);
    let wrong = build(&workspace, &[], &[("A_BUNDLE_OF_TINY", Path::new("/no/such/folder"))]).exits(1);
    assert!(wrong.stderr.contains("A_BUNDLE_OF_TINY names /no/such/folder"), "{}", wrong.stderr);
    // an empty one names nothing
    build(&workspace, &["pack:tiny.layer0"], &[("MICA_DELIVERY_TINY", Path::new(""))]).exits(0);
    assert!(!server.asked().is_empty());
}

#[test]
fn config_and_tokenizer_come_from_sources_of_their_own() {
    let (server, home) = (served(), tempfile::tempdir().expect("a folder"));
    server.put_folder("/w4a16", &shipped("tiny-w4a16"));
    let config = fs::read(shipped("tiny").join("config.json")).expect("a file");
    put_repository(&server, &server, "org/repo", ("main", COMMIT), &[("config.json", &config)], |_| false);
    let mut workspace = Workspace::only(MICA, "tiny-w4a16");
    workspace.set("delivery.tiny-w4a16.source", format!("{}/w4a16/full_model.safetensors", server.url()));
    workspace.set("delivery.tiny-w4a16.config", "hf://org/repo/config.json");
    workspace.set("delivery.tiny-w4a16.tokenizer", format!("{}/tiny/tokenizer.json", server.url()));
    let both = workspace.build(&[]);
    assert_eq!(both.exit, Some(2), "the file is named twice: {}", both.stderr);
    assert!(both.stderr.contains("source names the weights"), "{}", both.stderr);
    workspace.unset("delivery.tiny-w4a16.weights");
    let url = server.url();
    let vars = [("HF_ENDPOINT", Path::new(&url)), ("HF_HOME", home.path())];
    let built = build(&workspace, &[], &vars).exits(0);
    assert!(built.stdout.contains("predicted ['"), "{}", built.stdout);
    // without a tokenizer the ids are printed
    workspace.unset("delivery.tiny-w4a16.tokenizer");
    let built = build(&workspace, &[], &vars).exits(0);
    assert!(
        !built.stdout.contains("predicted ['") && built.stdout.contains("predicted ["),
        "{}",
        built.stdout
    );
}

#[test]
fn a_killed_download_goes_on_and_is_checked_by_the_manifest() {
    let server = served();
    let weights = fs::read(shipped("tiny").join("model.safetensors")).expect("a file");
    server.put("/tiny/SHA256SUMS", format!("{}  model.safetensors\n", sha256(&weights)));
    server.fault("/tiny/model.safetensors", Fault::Stall(100_000));
    let workspace = at(&format!("{}/tiny", server.url()));
    let part = || {
        let found =
            files_below(&workspace.cache()).into_iter().find(|p| p.to_string_lossy().ends_with(".part"));
        found.map_or(0, |p| fs::metadata(p).map_or(0, |m| m.len()))
    };
    fs::create_dir_all(workspace.cache()).expect("a folder");
    let mut mica = workspace.mica(&["fetch", "tiny"]);
    let mut child = mica.spawn();
    let start = std::time::Instant::now();
    while part() < 100_000 {
        assert!(start.elapsed().as_secs() < 20, "{} bytes came", part());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    child.kill().expect("it is killed");
    mica.wait(child);
    let run = workspace.mica(&["fetch", "tiny"]).events(workspace.dir().join("e")).run();
    assert_eq!(run.exit, Some(0), "{}", run.stderr);
    assert_eq!(server.gets("/tiny/model.safetensors")[1].range(), Some("bytes=100000-"));
    assert!(run.stderr.contains("checked by the manifest"), "{}", run.stderr);
    let folder = run.stdout.trim().strip_prefix("tiny\t").expect("a line").to_owned();
    let file = Path::new(&folder).join("model.safetensors");
    assert!(fs::read(&file).expect("a file") == weights);
    // hashed again, a damaged file is found, dropped and fetched again
    let good = workspace.mica(&["fetch", "--check"]).run().exits(0);
    assert!(good.stdout.contains("good    tiny: model.safetensors  (by the manifest)"), "{}", good.stdout);
    let mut damaged = weights.clone();
    damaged[5000] ^= 1;
    fs::write(&file, damaged).expect("a file is written");
    let bad = workspace.mica(&["fetch", "--check"]).run().exits(1);
    assert!(bad.stdout.contains("bad     tiny: model.safetensors"), "{}", bad.stdout);
    workspace.mica(&["fetch"]).run().exits(0);
    assert!(fs::read(&file).expect("a file") == weights);
}

#[test]
fn what_only_looks_downloads_nothing_and_says_so() {
    let server = served();
    let mut workspace = at(&format!("{}/tiny", server.url()));
    workspace.set("targets.decode", vec!["score:*.decode"]);
    for words in [
        &["targets"][..],
        &["graph", "decode"],
        &["build", "-n"],
        &["why", "decode"],
        &["status"],
        &["debug", "tiny"],
    ] {
        let run = workspace.mica(words).run();
        assert!(run.stderr.contains("`mica fetch tiny` downloads it"), "{words:?}: {}", run.stderr);
    }
    for mica in [
        workspace.mica(&["build", "--offline"]),
        workspace.mica(&["build"]).env("MICA_OFFLINE", "1"),
        workspace.mica(&["fetch", "--offline"]),
        workspace.mica(&["check", "tiny:layer0", "--inputs", "random", "--cosine", "0.9", "--offline"]),
    ] {
        let run = Mica::run(mica);
        assert!(matches!(run.exit, Some(1 | 2)) && run.stderr.contains("MICA_OFFLINE"), "{run:?}");
    }
    assert_eq!(server.asked(), []);
}

#[test]
fn what_a_server_says_is_not_believed() {
    // an index that leads out of the folder
    let server = served();
    server.remove("/tiny/model.safetensors");
    server.put("/tiny/model.safetensors.index.json", r#"{"weight_map": {"a": "../../../x.safetensors"}}"#);
    let workspace = at(&format!("{}/tiny", server.url()));
    let run = workspace.build(&["pack:tiny.layer0"]).exits(1);
    assert!(run.stderr.contains("leaves the delivery"), "{}", run.stderr);
    assert!(!server.asked().iter().any(|a| a.path.contains("x.safetensors")));
    // a page in place of the weights, and nothing of it is remembered
    let server = served();
    server.fault("/tiny/model.safetensors", Fault::Page);
    let workspace = at(&format!("{}/tiny", server.url()));
    let run = workspace.build(&["pack:tiny.layer0"]).exits(1);
    assert!(run.stderr.contains("an HTML page"), "{}", run.stderr);
    workspace.build_well(&["pack:tiny.layer0"]);
    // two files that could each be the weights, and none
    let server = served();
    server.put("/tiny/model.safetensors.index.json", "{}");
    let run = at(&format!("{}/tiny", server.url())).build(&["pack:tiny.layer0"]).exits(1);
    assert!(run.stderr.contains("could each be the weights"), "{}", run.stderr);
    let run = at(&format!("{}/nothing", server.url())).build(&["pack:tiny.layer0"]).exits(1);
    assert!(run.stderr.contains("neither") && run.stderr.contains("weights = "), "{}", run.stderr);
}

#[test]
fn only_the_models_that_are_asked_for_are_fetched() {
    let server = served();
    let mut workspace = crate::both();
    workspace.set("delivery.tiny.source", format!("{}/tiny", server.url()));
    let run = workspace.build_well(&["pack:tiny-w4a16.layer0", "score:ops.router"]);
    assert!(!run.ran().is_empty());
    assert_eq!(run.with(Status::Failed), names(&[]));
    assert_eq!(server.asked(), []);
    workspace.build_well(&["pack:layer0"]);
    assert!(!server.asked().is_empty());
}
