//! A repository of a hub, in the cache folder that its tools share.

use mica_download::testing::{Fault, Server, put_repository, setting, sha256};
use mica_download::{Depot, DownloadError, Held, Network, Outcome, Setting, Silent, Source, Voucher, Want};
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

const REPO: &str = "org/repo";
const ONE: &str = "1111111111111111111111111111111111111111";
const TWO: &str = "2222222222222222222222222222222222222222";
const WEIGHTS: &str = "model.safetensors";

struct Lab {
    hub: Server,
    store: Server,
    dir: TempDir,
}

impl Lab {
    fn new() -> Lab {
        let lab = Lab { hub: Server::start(), store: Server::start(), dir: tempfile::tempdir().unwrap() };
        lab.publish(ONE, &[7; 50_000]);
        lab
    }

    fn publish(&self, commit: &str, weights: &[u8]) {
        let files: [(&str, &[u8]); 3] =
            [(WEIGHTS, weights), ("config.json", b"{\"a\": 1}"), ("sub/dir/x.json", b"{}")];
        put_repository(&self.hub, &self.store, REPO, ("main", commit), &files, |n| n == WEIGHTS);
    }

    fn setting(&self) -> Setting {
        setting(&self.hub, &self.dir.path().join("hub"))
    }

    fn held_of(&self, text: &str, setting: Setting) -> Held {
        let source = Source::parse(text, false, |_| false).unwrap();
        Depot::new(self.dir.path().join("deliveries"), setting).open(&source).unwrap()
    }

    fn held(&self) -> Held {
        self.held_of("hf://org/repo", self.setting())
    }

    fn repo(&self) -> PathBuf {
        self.dir.path().join("hub/models--org--repo")
    }
}

fn wants() -> [Want; 3] {
    [Want::required(WEIGHTS), Want::required("config.json"), Want::optional("tokenizer.json")]
}

#[test]
fn files_lie_as_the_hubs_own_tools_lay_them() {
    let lab = Lab::new();
    let mut held = lab.held();
    held.obtain(&wants(), &Silent).unwrap();
    let snapshot = lab.repo().join("snapshots").join(ONE);
    assert_eq!(held.dir(), Some(snapshot.clone()));
    assert_eq!(fs::read(snapshot.join(WEIGHTS)).unwrap(), [7; 50_000]);
    let link = fs::read_link(snapshot.join(WEIGHTS)).unwrap();
    let blob = link.file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(link, PathBuf::from("../../blobs").join(&blob));
    assert_eq!(blob.len(), 64, "named by the digest of its bytes");
    assert_eq!(fs::read_to_string(lab.repo().join("refs/main")).unwrap(), ONE);
    assert!(lab.repo().join(".no_exist").join(ONE).join("tokenizer.json").is_file());
    held.obtain(&[Want::required("sub/dir/x.json")], &Silent).unwrap();
    assert!(fs::read_link(snapshot.join("sub/dir/x.json")).unwrap().starts_with("../../../../blobs"));
    // a folder of the repository is a source too
    let mut folder = lab.held_of("hf://org/repo@main/sub/dir", lab.setting());
    folder.obtain(&[Want::required("x.json"), Want::optional("y.json")], &Silent).unwrap();
    assert_eq!(folder.dir(), Some(snapshot.join("sub/dir")));
}

#[test]
fn nobody_is_asked_again_and_a_branch_that_moves_is_followed_when_asked_to() {
    let lab = Lab::new();
    lab.held().obtain(&wants(), &Silent).unwrap();
    let asked = || lab.hub.asked().len() + lab.store.asked().len();
    let before = asked();
    lab.publish(TWO, &[8; 60_000]);
    let closed = Setting { network: Network::Closed("--offline".into()), ..lab.setting() };
    let mut held = lab.held_of("hf://org/repo@main", closed);
    held.obtain(&wants(), &Silent).unwrap();
    // another tool moved the shared reference: the commit that was taken stays
    fs::write(lab.repo().join("refs/main"), TWO).unwrap();
    let mut held = lab.held();
    held.obtain(&wants(), &Silent).unwrap();
    assert!(held.dir().unwrap().ends_with(ONE));
    assert_eq!(asked(), before);
    held.update().unwrap();
    held.obtain(&wants(), &Silent).unwrap();
    assert!(held.dir().unwrap().ends_with(TWO));
    assert_eq!(fs::read(held.dir().unwrap().join(WEIGHTS)).unwrap(), [8; 60_000]);
    let small = format!("/org/repo/resolve/{TWO}/config.json");
    assert_eq!(lab.hub.gets(&small), [], "an unchanged blob came twice");
    assert_eq!(fs::read_to_string(lab.repo().join("refs/main")).unwrap(), TWO);
}

#[test]
fn what_another_tool_brought_is_taken_as_it_lies() {
    let lab = Lab::new();
    let snapshot = lab.repo().join("snapshots").join(ONE);
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(lab.repo().join("refs")).unwrap();
    fs::write(lab.repo().join("refs/main"), ONE).unwrap();
    for name in [WEIGHTS, "config.json", "tokenizer.json"] {
        fs::write(snapshot.join(name), name).unwrap();
    }
    let mut held = lab.held();
    held.obtain(&wants(), &Silent).unwrap();
    assert_eq!(held.dir(), Some(snapshot));
    assert_eq!((lab.hub.asked(), lab.store.asked()), (vec![], vec![]));
}

#[test]
fn a_large_file_goes_on_where_it_stopped_and_its_digest_is_checked() {
    let lab = Lab::new();
    let body: Vec<u8> = (0..50_000u32).map(|i| (i * 7) as u8).collect();
    lab.publish(ONE, &body);
    let store = format!("/store/{}", sha256(&body));
    lab.store.fault(&store, Fault::Cut(20_000));
    lab.held().obtain(&wants(), &Silent).unwrap();
    let gets: Vec<_> = lab.store.asked().into_iter().filter(|a| a.path.starts_with(&store)).collect();
    assert_eq!(gets.iter().map(|g| g.range()).collect::<Vec<_>>(), [None, Some("bytes=20000-")]);
    assert!(gets.iter().all(|g| !g.headers.contains_key("authorization")), "the token went to the store");
    let token = |a: &mica_download::testing::Asked| a.headers.get("authorization").cloned();
    assert!(lab.hub.asked().iter().all(|a| token(a).as_deref() == Some("Bearer hf_token_of_a_test")));
    // other bytes of the right length
    let lab = Lab::new();
    let store = format!("/store/{}", sha256(&[7; 50_000]));
    lab.store.put(&store, [9; 50_000]);
    let error = lab.held().obtain(&wants(), &Silent).unwrap_err();
    assert!(
        matches!(error, DownloadError::Digest { .. }) && error.to_string().contains("the hub says"),
        "{error}"
    );
    lab.store.put(&store, [7; 40_000]);
    let error = lab.held().obtain(&wants(), &Silent).unwrap_err();
    assert!(matches!(error, DownloadError::Length { expected: 50_000, .. }), "{error}");
}

#[test]
fn refusals_say_what_to_do() {
    let lab = Lab::new();
    let error =
        lab.held_of("hf://org/other", lab.setting()).obtain(&wants(), &Silent).unwrap_err().to_string();
    assert!(error.contains("no such repository or revision") && error.contains("HF_TOKEN"), "{error}");
    let info = "/api/models/org/repo/revision/main";
    lab.hub.fault(info, Fault::Status(401, "x", "y"));
    let error = lab.held().obtain(&wants(), &Silent).unwrap_err().to_string();
    assert!(error.contains("HF_TOKEN") && !error.contains("hf_token_of_a_test"), "{error}");
    for (body, said) in [("{\"sha\": \"../../x\"}", "is no commit"), ("<html>", "no description")] {
        lab.hub.put(info, body);
        let error = lab.held().obtain(&wants(), &Silent).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let lab = Lab::new();
    let path = format!("/org/repo/resolve/{ONE}/config.json");
    lab.hub.tag(&path, "\"../../../evil\"");
    let error = lab.held().obtain(&wants(), &Silent).unwrap_err().to_string();
    assert!(error.contains("names no blob"), "{error}");
    let lab = Lab::new();
    lab.publish(ONE, &[7; 10]);
    lab.hub.put(&path, "{}");
    lab.hub.header(&path, "x-repo-commit", TWO);
    let error = lab.held().obtain(&wants(), &Silent).unwrap_err().to_string();
    assert!(error.contains(TWO) && error.contains(ONE), "{error}");
    let error = lab.held().obtain(&[Want::required("nothing.json")], &Silent).unwrap_err();
    assert!(matches!(error, DownloadError::Missing { .. }), "{error}");
}

#[test]
fn the_hub_may_keep_large_files_itself_and_may_be_forbidden_alone() {
    let lab = Lab { store: Server::start(), ..Lab::new() };
    let files: [(&str, &[u8]); 2] = [(WEIGHTS, &[5; 40_000]), ("config.json", b"{}")];
    put_repository(&lab.hub, &lab.hub, REPO, ("main", ONE), &files, |n| n == WEIGHTS);
    let forbidden = Setting { hub_offline: true, ..lab.setting() };
    let error = lab.held_of("hf://org/repo", forbidden.clone()).obtain(&wants(), &Silent).unwrap_err();
    assert!(error.to_string().contains("HF_HUB_OFFLINE"), "{error}");
    let mut held = lab.held();
    held.obtain(&wants(), &Silent).unwrap();
    let blob = held.dir().unwrap().join(WEIGHTS).canonicalize().unwrap();
    assert_eq!(blob.file_name().unwrap().to_str(), Some(&*sha256(&[5; 40_000])));
    // which says nothing of web servers
    let address = format!("{}/org/repo/resolve/{ONE}", lab.hub.url());
    lab.held_of(&address, forbidden).obtain(&[Want::required("config.json")], &Silent).unwrap();
}

#[test]
fn a_commit_is_taken_at_its_word() {
    let lab = Lab::new();
    let text = format!("hf://org/repo@{ONE}");
    lab.held_of(&text, lab.setting()).obtain(&wants(), &Silent).unwrap();
    assert!(!lab.repo().join("refs").exists(), "a commit needs no reference");
    lab.hub.put(&format!("/api/models/org/repo/revision/{TWO}"), format!("{{\"sha\": \"{ONE}\"}}"));
    let text = format!("hf://org/repo@{TWO}");
    let error = lab.held_of(&text, lab.setting()).obtain(&wants(), &Silent).unwrap_err().to_string();
    assert!(error.contains(&format!("answers for commit {ONE}")), "{error}");
}

#[test]
fn a_damaged_blob_is_found_dropped_and_fetched_again() {
    let lab = Lab::new();
    let mut held = lab.held();
    held.obtain(&wants(), &Silent).unwrap();
    let outcomes: Vec<Outcome> = held.check(&Silent).unwrap().into_iter().map(|c| c.outcome).collect();
    assert_eq!(outcomes, [Outcome::Unvouched, Outcome::Good(Voucher::Hub)]);
    let file = held.dir().unwrap().join(WEIGHTS);
    fs::write(file.canonicalize().unwrap(), [6; 50_000]).unwrap();
    assert!(matches!(held.check(&Silent).unwrap()[1].outcome, Outcome::Bad { .. }));
    assert!(!held.here(WEIGHTS));
    lab.held().obtain(&wants(), &Silent).unwrap();
    assert_eq!(fs::read(file).unwrap(), [7; 50_000]);
}
