//! A folder on a web server that misbehaves in every way that servers do.

use mica_download::testing::{Fault, Server, setting, sha256};
use mica_download::{
    Checked, Depot, DownloadError, Fetched, Held, Network, Outcome, Setting, Silent, Source, Voucher, Want,
    Watch,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use tempfile::TempDir;

const NAME: &str = "model.safetensors";
const PATH: &str = "/d/model.safetensors";

/// Bytes that differ at every place by which a file could be cut or shifted.
fn bytes(n: usize) -> Vec<u8> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

struct Lab {
    server: Server,
    dir: TempDir,
    body: Vec<u8>,
}

impl Lab {
    fn new() -> Lab {
        let (server, body) = (Server::start(), bytes(300_000));
        server.put(PATH, body.clone());
        Lab { server, dir: tempfile::tempdir().unwrap(), body }
    }

    fn setting(&self) -> Setting {
        let setting = setting(&self.server, &self.dir.path().join("hub"));
        // whose token is not for this server
        Setting { endpoint: "http://127.0.0.1:9".into(), ..setting }
    }

    fn held_by(&self, setting: Setting) -> Held {
        let source = Source::parse(&format!("{}/d", self.server.url()), false, |_| false).unwrap();
        Depot::new(self.dir.path().join("deliveries"), setting).open(&source).unwrap()
    }

    fn held(&self) -> Held {
        self.held_by(self.setting())
    }

    fn get(&self) -> Result<Vec<u8>, DownloadError> {
        let mut held = self.held();
        held.obtain(&[Want::required(NAME)], &Silent)?;
        Ok(fs::read(held.dir().unwrap().join(NAME)).unwrap())
    }

    fn refused(&self) -> DownloadError {
        match self.get() {
            Err(error) => error,
            Ok(bytes) => panic!("{} bytes came", bytes.len()),
        }
    }

    fn sums(&self, of: &[u8]) {
        self.server.put("/d/SHA256SUMS", format!("{}  {NAME}\n", sha256(of)));
    }

    /// Files below the depot whose name ends so.
    fn found(&self, ending: &str) -> Vec<PathBuf> {
        fn walk(dir: &Path, ending: &str) -> Vec<PathBuf> {
            let of = |entry: fs::DirEntry| match entry.path() {
                p if p.is_dir() => walk(&p, ending),
                p if p.to_string_lossy().ends_with(ending) => vec![p],
                _ => Vec::new(),
            };
            fs::read_dir(dir).map_or_else(|_| Vec::new(), |all| all.flat_map(|e| of(e.unwrap())).collect())
        }
        walk(self.dir.path(), ending)
    }

    fn left(&self, ending: &str) -> usize {
        self.found(ending).len()
    }

    /// Makes such files as old as what a dead process left.
    fn age(&self, ending: &str) {
        let then = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
        for path in self.found(ending) {
            fs::File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
        }
    }
}

/// Keeps what a watch is told.
#[derive(Default)]
struct Heard {
    fetched: Mutex<Vec<Fetched>>,
    notes: Mutex<Vec<String>>,
    begun: Mutex<Vec<(Option<u64>, u64)>>,
}

impl Watch for Heard {
    fn begin(&self, _name: &str, bytes: Option<u64>, have: u64) {
        self.begun.lock().unwrap().push((bytes, have));
    }
    fn note(&self, text: &str) {
        self.notes.lock().unwrap().push(text.into());
    }
    fn fetched(&self, file: &Fetched) {
        self.fetched.lock().unwrap().push(file.clone());
    }
}

#[test]
fn a_file_comes_once_and_nobody_is_asked_again() {
    let lab = Lab::new();
    assert_eq!(lab.get().unwrap(), lab.body);
    let asked = lab.server.asked().len();
    assert_eq!(lab.get().unwrap(), lab.body);
    assert_eq!(lab.server.asked().len(), asked, "a complete delivery was asked for again");
    let closed = Setting { network: Network::Closed("--offline".into()), ..lab.setting() };
    lab.held_by(closed).obtain(&[Want::required(NAME)], &Silent).unwrap();
    assert_eq!(lab.left(".part"), 0);
}

#[test]
fn one_that_is_cut_or_stalls_goes_on_where_it_stopped() {
    for (fault, what) in [(Fault::Cut(100_000), "ended after"), (Fault::Stall(100_000), "nothing came")] {
        let lab = Lab::new();
        lab.server.fault(PATH, fault);
        let heard = Heard::default();
        let mut held = lab.held();
        held.obtain(&[Want::required(NAME)], &heard).unwrap();
        assert_eq!(fs::read(held.dir().unwrap().join(NAME)).unwrap(), lab.body, "{what}");
        let gets = lab.server.gets(PATH);
        assert_eq!(gets.len(), 2, "{gets:?}");
        assert_eq!(gets[1].range(), Some("bytes=100000-"));
        assert!(gets[1].headers.contains_key("if-range"), "{:?}", gets[1]);
        let notes = heard.notes.lock().unwrap();
        assert!(notes.len() == 1 && notes[0].contains("trying again"), "{notes:?}");
    }
}

#[test]
fn a_later_run_goes_on_too() {
    let lab = Lab::new();
    for _ in 0..4 {
        lab.server.fault(PATH, Fault::Cut(500));
    }
    let error = lab.refused();
    assert!(matches!(error, DownloadError::Unreachable { tries: 4, .. }), "{error}");
    assert!(error.to_string().contains("run again to go on"), "{error}");
    assert_eq!(lab.left(".part"), 1);
    let heard = Heard::default();
    lab.held().obtain(&[Want::required(NAME)], &heard).unwrap();
    assert_eq!(heard.fetched.lock().unwrap()[0].resumed, 2000);
    assert_eq!(*heard.begun.lock().unwrap(), [(Some(300_000), 2000)]);
    assert_eq!(lab.get().unwrap(), lab.body);
    assert_eq!(lab.server.gets(PATH).last().unwrap().range(), Some("bytes=2000-"));
}

#[test]
fn headway_lets_a_bad_line_go_on_and_none_ends_it() {
    let lab = Lab::new();
    for _ in 0..20 {
        lab.server.fault(PATH, Fault::Cut(10_000));
    }
    assert_eq!(lab.get().unwrap(), lab.body, "20 cuts, each after good headway");
    let lab = Lab::new();
    for _ in 0..20 {
        lab.server.fault(PATH, Fault::Cut(10));
    }
    assert!(matches!(lab.refused(), DownloadError::Unreachable { .. }));
}

#[test]
fn all_of_it_for_a_range_is_never_appended() {
    let lab = Lab::new();
    lab.server.fault(PATH, Fault::Cut(100_000));
    lab.server.fault(PATH, Fault::IgnoreRange);
    assert_eq!(lab.get().unwrap(), lab.body);
    // nor a range that was not asked for
    let lab = Lab::new();
    lab.server.fault(PATH, Fault::Cut(100_000));
    lab.server.fault(PATH, Fault::OtherRange);
    assert_eq!(lab.get().unwrap(), lab.body);
}

#[test]
fn a_file_that_changes_in_between_is_begun_anew() {
    let lab = Lab::new();
    for _ in 0..4 {
        lab.server.fault(PATH, Fault::Cut(500));
    }
    lab.refused();
    lab.age(".part");
    let other = bytes(200_000);
    lab.server.put(PATH, [other.clone(), vec![1]].concat());
    assert_eq!(lab.get().unwrap(), [other, vec![1]].concat());
    assert_eq!(lab.left(".part"), 0, "a part of a version that is gone");
    // between the question and the answer: the tag of the answer is another
    let lab = Lab::new();
    lab.server.fault(PATH, Fault::Cut(100_000));
    struct Swap<'a>(&'a Server, Vec<u8>);
    impl Watch for Swap<'_> {
        fn note(&self, _: &str) {
            self.0.put(PATH, self.1.clone());
        }
    }
    let swapped: Vec<u8> = lab.body.iter().map(|b| !b).collect();
    let mut held = lab.held();
    held.obtain(&[Want::required(NAME)], &Swap(&lab.server, swapped.clone())).unwrap();
    assert_eq!(fs::read(held.dir().unwrap().join(NAME)).unwrap(), swapped, "halves of two files");
}

#[test]
fn a_server_without_versions_is_read_from_the_start_each_time() {
    let lab = Lab::new();
    lab.server.tag(PATH, "");
    for _ in 0..4 {
        lab.server.fault(PATH, Fault::Cut(500));
    }
    lab.refused();
    assert_eq!((lab.left(".part"), lab.left(".tmp")), (0, 0), "a part that nobody may go on with");
    assert_eq!(lab.get().unwrap(), lab.body);
    // with a manifest the digest is the version
    let lab = Lab::new();
    lab.sums(&lab.body);
    lab.server.tag(PATH, "W/\"weak\"");
    for _ in 0..4 {
        lab.server.fault(PATH, Fault::Cut(500));
    }
    lab.refused();
    assert_eq!(lab.get().unwrap(), lab.body);
    let last = lab.server.gets(PATH).pop().unwrap();
    assert_eq!((last.range(), last.headers.get("if-range")), (Some("bytes=2000-"), None));
}

#[test]
fn lies_about_the_length() {
    for more in [-1000, 1000] {
        let lab = Lab::new();
        for _ in 0..20 {
            lab.server.fault(PATH, Fault::Announce(more));
        }
        let error = lab.refused();
        assert!(matches!(error, DownloadError::Changing { .. }), "{more}: {error}");
        assert_eq!(lab.left(NAME), 0, "{more}: a file of the wrong length is kept");
        let lab = Lab::new();
        let entry = format!("{{\"size\": 300000, \"sha256\": \"{}\"}}", sha256(&lab.body));
        lab.server.put("/d/manifest.json", format!("{{\"files\": {{\"{NAME}\": {entry}}}}}"));
        lab.server.fault(PATH, Fault::Announce(more));
        let error = lab.refused();
        assert!(matches!(error, DownloadError::Length { expected: 300_000, .. }), "{error}");
        assert_eq!(lab.left(".part"), 0);
    }
}

#[test]
fn a_body_without_a_length() {
    let lab = Lab::new();
    lab.server.fault(PATH, Fault::Chunked);
    assert_eq!(lab.get().unwrap(), lab.body);
    let lab = Lab::new();
    lab.server.fault(PATH, Fault::NoLength);
    let error = lab.refused();
    assert!(error.to_string().contains("how long"), "{error}");
    let lab = Lab::new();
    lab.sums(&lab.body);
    lab.server.fault(PATH, Fault::NoLength);
    assert_eq!(lab.get().unwrap(), lab.body, "the manifest knows when it is whole");
}

#[test]
fn pages_and_empty_files_are_no_files() {
    let said = Lab::new();
    said.server.fault(PATH, Fault::Page);
    let unsaid = Lab::new();
    unsaid.server.put(PATH, "\n<!DOCTYPE html><html><body>Please log in to go on.</body></html>");
    for lab in [said, unsaid] {
        let error = lab.refused();
        assert!(matches!(error, DownloadError::Page { .. }), "{error}");
        assert_eq!((lab.left(".part"), lab.left(NAME)), (0, 0));
    }
    let lab = Lab::new();
    lab.server.put(PATH, "version https://git-lfs.github.com/spec/v1\noid sha256:00\n");
    assert!(lab.refused().to_string().contains("a Git LFS pointer"));
    lab.server.put(PATH, "");
    assert!(lab.refused().to_string().contains("empty"));
}

#[test]
fn servers_that_are_busy_are_asked_again_and_others_are_not() {
    for (status, after) in [(429, "0"), (503, "0"), (500, "no number"), (408, "1")] {
        let lab = Lab::new();
        lab.server.fault(PATH, Fault::Status(status, "retry-after", after));
        let start = std::time::Instant::now();
        assert_eq!(lab.get().unwrap(), lab.body, "{status}");
        assert!(after != "1" || start.elapsed().as_millis() >= 1000, "it came back too early");
    }
    let lab = Lab::new();
    lab.server.fault(PATH, Fault::Status(503, "retry-after", "86400"));
    let error = lab.refused().to_string();
    assert!(error.contains("503") && error.contains("86400 s"), "{error}");
    for (status, said) in [(403, "login"), (418, "418"), (451, "451")] {
        let lab = Lab::new();
        lab.server.fault(PATH, Fault::Status(status, "x", "y"));
        let error = lab.refused().to_string();
        assert!(error.contains(said), "{error}");
        assert_eq!(lab.server.gets(PATH).len(), 1);
    }
    let lab = Lab::new();
    lab.server.remove(PATH);
    let error = lab.refused();
    assert!(matches!(error, DownloadError::Missing { .. }) && error.to_string().contains(NAME), "{error}");
    // nobody is there
    let (dir, gone) = (tempfile::tempdir().unwrap(), Server::start());
    let (setting, url) = (setting(&gone, dir.path()), gone.url());
    drop(gone);
    let source = Source::parse(&url, false, |_| false).unwrap();
    let mut held = Depot::new(dir.path().into(), setting).open(&source).unwrap();
    let error = held.obtain(&[Want::required(NAME)], &Silent).unwrap_err();
    assert!(matches!(error, DownloadError::Unreachable { tries: 4, .. }), "{error}");
}

#[test]
fn a_manifest_decides_what_the_bytes_are() {
    let lab = Lab::new();
    lab.sums(&lab.body);
    let heard = Heard::default();
    lab.held().obtain(&[Want::required(NAME)], &heard).unwrap();
    assert_eq!(heard.fetched.lock().unwrap()[0].voucher, Voucher::Manifest);
    let lab = Lab::new();
    lab.sums(&bytes(299_999));
    let error = lab.refused();
    assert!(matches!(error, DownloadError::Digest { .. }), "{error}");
    assert!(error.to_string().contains("the manifest says"), "{error}");
    assert_eq!((lab.left(".part"), lab.left(NAME)), (0, 0), "wrong bytes are kept");
    for (path, text, said) in [
        ("/d/SHA256SUMS", format!("{}  ../../evil\n", "a".repeat(64)), "leaves the delivery"),
        (
            "/d/manifest.json",
            format!("{{\"files\": {{\"/evil\": {{\"sha256\": \"{}\"}}}}}}", "a".repeat(64)),
            "leaves",
        ),
        ("/d/SHA256SUMS", "nonsense".into(), "line 1"),
    ] {
        let lab = Lab::new();
        lab.server.put(path, text);
        let error = lab.refused().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn a_part_of_other_bytes_is_begun_anew_once() {
    let lab = Lab::new();
    lab.sums(&lab.body);
    for _ in 0..4 {
        lab.server.fault(PATH, Fault::Cut(500));
    }
    lab.refused();
    let parts = fs::read_dir(lab.dir.path().join("deliveries"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path()
        .join("parts");
    let part = fs::read_dir(parts).unwrap().next().unwrap().unwrap().path();
    let mut damaged = fs::read(&part).unwrap();
    damaged[100] ^= 1;
    fs::write(&part, damaged).unwrap();
    let heard = Heard::default();
    let mut held = lab.held();
    held.obtain(&[Want::required(NAME)], &heard).unwrap();
    assert_eq!(fs::read(held.dir().unwrap().join(NAME)).unwrap(), lab.body);
    assert!(heard.notes.lock().unwrap()[0].contains("begun anew"));
}

#[test]
fn redirections_are_followed_and_not_down_to_a_file_or_in_a_circle() {
    let (lab, store) = (Lab::new(), Server::start());
    store.put("/x", lab.body.clone());
    lab.server.redirect(PATH, &format!("{}/x?signature=secret", store.url()));
    store.fault("/x", Fault::Cut(1000));
    assert_eq!(lab.get().unwrap(), lab.body);
    assert_eq!(store.gets("/x?signature=secret").len(), 2);
    let told = |a: &mica_download::testing::Asked| a.headers.contains_key("authorization");
    assert!(!store.asked().iter().any(told), "the hub's token was told to another server");
    for (to, said) in [
        ("/d/model.safetensors", "redirections"),
        ("file:///etc/passwd", "only https"),
        ("http://example.org/x", "not encrypted"),
    ] {
        let lab = Lab::new();
        lab.server.redirect(PATH, to);
        let error = lab.refused().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn what_is_missing_and_may_be_is_asked_for_once() {
    let lab = Lab::new();
    let wants = [Want::required(NAME), Want::optional("tokenizer.json")];
    lab.held().obtain(&wants, &Silent).unwrap();
    let asked = lab.server.asked().len();
    let mut held = lab.held();
    held.obtain(&wants, &Silent).unwrap();
    assert!(!held.exists("tokenizer.json", &Silent).unwrap());
    assert_eq!(lab.server.asked().len(), asked);
    // the server has it now: an update finds it, and fetches nothing else
    lab.server.put("/d/tokenizer.json", "{}");
    held.update().unwrap();
    held.obtain(&wants, &Silent).unwrap();
    assert!(held.here("tokenizer.json"));
    assert_eq!(lab.server.gets(PATH).len(), 1, "an unchanged file came twice");
    let closed = Setting { network: Network::Closed("--offline".into()), ..lab.setting() };
    lab.held_by(closed).obtain(&wants, &Silent).unwrap();
    // an update that is cut short leaves what was not compared missing, and no mixture
    lab.server.put(PATH, bytes(99_000));
    for _ in 0..4 {
        lab.server.fault(PATH, Fault::Cut(10));
    }
    held.update().unwrap();
    held.obtain(&wants, &Silent).unwrap_err();
    assert!(!lab.held().here(NAME));
    // and what did change comes again
    lab.server.put(PATH, bytes(1234));
    let mut held = lab.held();
    held.update().unwrap();
    held.obtain(&wants, &Silent).unwrap();
    assert_eq!(lab.get().unwrap(), bytes(1234));
}

#[test]
fn without_the_network_it_is_said_what_is_missing() {
    let lab = Lab::new();
    let closed = Setting { network: Network::Closed("--offline forbids to ask".into()), ..lab.setting() };
    let mut held = lab.held_by(closed);
    held.obtain(&[Want::optional("x")], &Silent).unwrap();
    let error = held.obtain(&[Want::required(NAME)], &Silent).unwrap_err().to_string();
    assert!(error.contains(NAME) && error.contains("--offline"), "{error}");
    assert!(held.exists(NAME, &Silent).is_err() && held.update().is_err());
    assert_eq!(lab.server.asked(), []);
}

#[test]
fn names_that_lead_elsewhere_are_not_asked_for() {
    let lab = Lab::new();
    for name in ["../model.safetensors", "/etc/passwd", "a/../../b", "a\\b", ""] {
        let error = lab.held().obtain(&[Want::required(name)], &Silent).unwrap_err();
        assert!(matches!(error, DownloadError::Name { .. }), "{name}: {error}");
    }
    assert_eq!(lab.server.asked(), []);
}

#[test]
fn a_disk_that_is_too_small_is_seen_first() {
    let lab = Lab::new();
    lab.server.header(PATH, "content-length", "1000000000000000");
    let error = lab.refused();
    assert!(matches!(error, DownloadError::NoSpace { needed: 1_000_000_000_000_000, .. }), "{error}");
    assert!(error.to_string().contains("MICA_CACHE_DIR"), "{error}");
    assert_eq!(lab.server.gets(PATH), []);
}

#[test]
fn two_at_once_lose_nothing() {
    let lab = Lab::new();
    lab.server.fault(PATH, Fault::Cut(100_000));
    lab.server.fault(PATH, Fault::Cut(50_000));
    let got: Vec<_> = std::thread::scope(|scope| {
        let both: Vec<_> = (0..4).map(|_| scope.spawn(|| lab.get().unwrap())).collect();
        both.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(got.iter().all(|g| *g == lab.body));
    assert_eq!(lab.server.gets(PATH).len(), 3, "the second waits for the first and finds it done");
    // and so do two that share no lock, as on a file system that has none
    let lab = Lab::new();
    let locks = lab.dir.path().join("deliveries");
    lab.server.fault(PATH, Fault::Cut(100_000));
    std::thread::scope(|scope| {
        let unlock = || {
            for _ in 0..200 {
                for entry in fs::read_dir(&locks).into_iter().flatten().flatten() {
                    let _ = fs::remove_file(entry.path().join("lock"));
                }
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
        };
        scope.spawn(unlock);
        for _ in 0..6 {
            scope.spawn(|| assert!(lab.get().unwrap() == lab.body, "another file under the name"));
        }
    });
}

#[test]
fn a_damaged_file_is_found_dropped_and_fetched_again() {
    let lab = Lab::new();
    lab.sums(&lab.body);
    lab.server.put("/d/config.json", "{}");
    let wants = [Want::required(NAME), Want::required("config.json")];
    let mut held = lab.held();
    held.obtain(&wants, &Silent).unwrap();
    let outcomes = |held: &mut Held| -> Vec<Outcome> {
        held.check(&Silent).unwrap().into_iter().map(|c| c.outcome).collect()
    };
    assert_eq!(outcomes(&mut held), [Outcome::Good(Voucher::Length), Outcome::Good(Voucher::Manifest)]);
    let file = held.dir().unwrap().join(NAME);
    let mut damaged = lab.body.clone();
    damaged[7] ^= 1;
    fs::write(&file, damaged).unwrap();
    assert!(matches!(&outcomes(&mut held)[1], Outcome::Bad { .. }));
    assert!(!file.exists() && !held.here(NAME));
    assert_eq!(lab.get().unwrap(), lab.body);
    // a lost record costs nothing where a manifest vouches for the file
    let record = file.parent().unwrap().with_file_name("record.json");
    fs::write(&record, "{").unwrap();
    fs::write(record.with_file_name("record.json.1-0.tmp"), "{").unwrap();
    lab.age(".tmp");
    let gets = lab.server.gets(PATH).len();
    assert_eq!(lab.get().unwrap(), lab.body);
    assert_eq!((lab.server.gets(PATH).len(), lab.left(".tmp")), (gets, 0));
}

#[test]
fn a_folder_is_checked_by_its_own_manifest_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write("a", "a");
    write("b", "b");
    assert_eq!(Checked::folder(dir.path(), &Silent).unwrap(), None);
    let line = |name: &str| format!("{}  {name}\n", sha256(name.as_bytes()));
    write("SHA256SUMS", &[line("a"), line("b"), line("c")].concat());
    let outcomes = || -> Vec<Outcome> {
        let all = Checked::folder(dir.path(), &Silent).unwrap().unwrap();
        all.into_iter().map(|c| c.outcome).collect()
    };
    let good = Outcome::Good(Voucher::Manifest);
    assert_eq!(outcomes(), [good.clone(), good.clone(), Outcome::Gone]);
    write("b", "x");
    let bad = Outcome::Bad { expected: sha256(b"b"), got: sha256(b"x") };
    assert_eq!(outcomes(), [good, bad, Outcome::Gone]);
    assert_eq!(fs::read(dir.path().join("b")).unwrap(), b"x", "a folder of a person's own");
}

#[test]
fn one_file_by_its_own_address_and_query() {
    let lab = Lab::new();
    let text = format!("{}{PATH}?signature=secret", lab.server.url());
    let source = Source::parse(&text, false, |name| name.ends_with(".safetensors")).unwrap();
    assert_eq!(source.file.as_deref(), Some(NAME));
    let mut held = Depot::new(lab.dir.path().join("deliveries"), lab.setting()).open(&source).unwrap();
    held.obtain(&[Want::required(NAME), Want::optional("config.json")], &Silent).unwrap();
    assert_eq!(fs::read(held.dir().unwrap().join(NAME)).unwrap(), lab.body);
    let asked: Vec<String> = lab.server.asked().into_iter().map(|a| a.path).collect();
    assert!(asked.contains(&format!("{PATH}?signature=secret")));
    assert!(asked.contains(&"/d/config.json".to_string()), "{asked:?}");
}
