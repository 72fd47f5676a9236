//! A server on loopback that serves files and misbehaves on demand, and a hub made of it.
//!
//! For tests only, so everything here panics where it cannot go on.

use crate::names::hex;
use crate::policy::{Network, Policy, Setting};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How an answer to a GET goes wrong.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The connection ends after so many bytes of the body.
    Cut(usize),
    /// Nothing comes any more after so many bytes of the body.
    Stall(usize),
    /// More or fewer bytes are announced than come, and the connection ends well.
    Announce(i64),
    /// The header with the length is left out, and the connection ends the body.
    NoLength,
    /// The body comes in chunks, without a length before it.
    Chunked,
    /// A range is ignored: all of the file, with 200.
    IgnoreRange,
    /// Another range than was asked for, with 206.
    OtherRange,
    /// A status with a header, and no body.
    Status(u16, &'static str, &'static str),
    /// A page for people, with 200 and the type of one.
    Page,
}

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// `GET` or `HEAD`.
    pub method: String,
    /// With the query.
    pub path: String,
    /// By lowercase name.
    pub headers: BTreeMap<String, String>,
}

impl Asked {
    /// The range asked for.
    pub fn range(&self) -> Option<&str> {
        self.headers.get("range").map(String::as_str)
    }
}

/// What lies at a path.
#[derive(Clone, Debug, Default)]
struct Item {
    body: Arc<Vec<u8>>,
    /// Entity tag with its quotes; empty for none.
    tag: String,
    headers: Vec<(String, String)>,
    location: Option<String>,
}

#[derive(Default)]
struct State {
    items: BTreeMap<String, Item>,
    faults: BTreeMap<String, VecDeque<Fault>>,
    asked: Vec<Asked>,
}

/// A server; it ends when it is dropped.
pub struct Server {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// A server with nothing on it.
    ///
    /// # Panics
    /// If there is no free port.
    pub fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (state, stop) = (Arc::new(Mutex::new(State::default())), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let (state, stop) = (state.clone(), stop.clone());
            move || {
                for stream in listener.incoming() {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    let (state, stop) = (state.clone(), stop.clone());
                    if let Ok(stream) = stream {
                        // a client that goes away is what some tests are about
                        std::thread::spawn(move || serve(&stream, &state, &stop).ok());
                    }
                }
            }
        });
        Server { address, state, stop, thread: Some(thread) }
    }

    /// Its address, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a file at a path, under an entity tag of its content.
    pub fn put(&self, path: &str, body: impl Into<Vec<u8>>) {
        let body = body.into();
        let tag = format!("\"{}\"", sha256(&body));
        let item = Item { body: Arc::new(body), tag, ..Item::default() };
        self.state().items.insert(path.into(), item);
    }

    /// Puts every file directly in a folder below a path.
    ///
    /// # Panics
    /// If the folder cannot be read.
    pub fn put_folder(&self, path: &str, dir: &Path) {
        for entry in std::fs::read_dir(dir).expect("a folder") {
            let file = entry.expect("an entry").path();
            if file.is_file() {
                let name = file.file_name().expect("a name").to_string_lossy().into_owned();
                self.put(&format!("{path}/{name}"), std::fs::read(&file).expect("a file"));
            }
        }
    }

    /// Takes a file away.
    pub fn remove(&self, path: &str) {
        self.state().items.remove(path);
    }

    /// Gives a file another entity tag (with quotes), or none.
    pub fn tag(&self, path: &str, tag: &str) {
        self.state().items.entry(path.into()).or_default().tag = tag.into();
    }

    /// Adds a header to a path's answers.
    pub fn header(&self, path: &str, name: &str, value: &str) {
        self.state().items.entry(path.into()).or_default().headers.push((name.into(), value.into()));
    }

    /// Lets a path redirect.
    pub fn redirect(&self, path: &str, to: &str) {
        self.state().items.entry(path.into()).or_default().location = Some(to.into());
    }

    /// Lets the next GET of a path go wrong; several in turn.
    pub fn fault(&self, path: &str, fault: Fault) {
        self.state().faults.entry(path.into()).or_default().push_back(fault);
    }

    /// All that was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.state().asked.clone()
    }

    /// The GETs of a path so far.
    pub fn gets(&self, path: &str) -> Vec<Asked> {
        self.asked().into_iter().filter(|a| a.method == "GET" && a.path == path).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // wakes it
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(mut stream: &TcpStream, state: &Mutex<State>, stop: &AtomicBool) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_string());
    }
    let asked = Asked { method: method.into(), path: path.into(), headers };
    let bare = path.split('?').next().unwrap_or_default();
    let (item, fault) = {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state.asked.push(asked.clone());
        let fault = match method {
            "GET" => state.faults.get_mut(bare).and_then(VecDeque::pop_front),
            _ => None,
        };
        (state.items.get(bare).cloned(), fault)
    };
    let mut head = |status: u16, headers: &[(&str, String)]| {
        let mut text = format!("HTTP/1.1 {status} X\r\nconnection: close\r\n");
        headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
        stream.write_all(format!("{text}\r\n").as_bytes())
    };
    match fault {
        Some(Fault::Status(status, name, value)) => {
            return head(status, &[(name, value.into()), ("content-length", "0".into())]);
        }
        Some(Fault::Page) => {
            let page = "<p>Please log in to go on.</p>";
            head(200, &[("content-type", "text/html".into()), ("content-length", page.len().to_string())])?;
            return stream.write_all(page.as_bytes());
        }
        _ => {}
    }
    let Some(item) = item else { return head(404, &[("content-length", "0".into())]) };
    let mut said: Vec<(&str, String)> = item.headers.iter().map(|(n, v)| (n.as_str(), v.clone())).collect();
    if let Some(location) = &item.location {
        said.extend([("location", location.clone()), ("content-length", "0".into())]);
        return head(302, &said);
    }
    if !item.tag.is_empty() {
        said.push(("etag", item.tag.clone()));
    }
    let all = item.body.len();
    let same = asked.headers.get("if-range").is_none_or(|v| *v == item.tag);
    let first: Option<usize> =
        asked.range().and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let mut first = first.filter(|_| same && !matches!(fault, Some(Fault::IgnoreRange)));
    if first.is_some_and(|f| f >= all) {
        said.extend([("content-range", format!("bytes */{all}")), ("content-length", "0".into())]);
        return head(416, &said);
    }
    if matches!(fault, Some(Fault::OtherRange)) {
        first = first.map(|f| f / 2);
    }
    if let Some(f) = first {
        said.push(("content-range", format!("bytes {f}-{}/{all}", all - 1)));
    }
    let status = if first.is_some() { 206 } else { 200 };
    let body = &item.body[first.unwrap_or(0)..];
    match fault {
        Some(Fault::NoLength) => {}
        Some(Fault::Chunked) => said.push(("transfer-encoding", "chunked".into())),
        Some(Fault::Announce(more)) => said.push(("content-length", (body.len() as i64 + more).to_string())),
        // what a test says of the length of its own accord
        _ if item.headers.iter().any(|(name, _)| name == "content-length") => {}
        _ => said.push(("content-length", body.len().to_string())),
    }
    head(status, &said)?;
    if method == "HEAD" {
        return Ok(());
    }
    match fault {
        Some(Fault::Cut(n)) => stream.write_all(&body[..n.min(body.len())]),
        Some(Fault::Stall(n)) => {
            stream.write_all(&body[..n.min(body.len())])?;
            while !stop.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok(())
        }
        Some(Fault::Chunked) => {
            for chunk in body.chunks(1000) {
                write!(stream, "{:x}\r\n", chunk.len())?;
                stream.write_all(chunk)?;
                stream.write_all(b"\r\n")?;
            }
            stream.write_all(b"0\r\n\r\n")
        }
        _ => stream.write_all(body),
    }
}

/// The SHA-256 of some bytes, in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Puts a repository on a server as a hub has it: the description, small files served by the hub itself, and
/// the files for which `large` says so behind a redirection to a store at `elsewhere`.
pub fn put_repository(
    hub: &Server,
    elsewhere: &Server,
    repo: &str,
    (revision, commit): (&str, &str),
    files: &[(&str, &[u8])],
    large: impl Fn(&str) -> bool,
) {
    let siblings: Vec<_> = files.iter().map(|(name, _)| serde_json::json!({ "rfilename": name })).collect();
    let info = serde_json::json!({ "sha": commit, "siblings": siblings }).to_string();
    for revision in [revision, commit] {
        hub.put(&format!("/api/models/{repo}/revision/{revision}"), info.clone());
    }
    for (name, body) in files {
        let path = format!("/{repo}/resolve/{commit}/{name}");
        let sha256 = sha256(body);
        hub.put(&path, *body);
        if large(name) {
            let store = format!("/store/{sha256}");
            elsewhere.put(&store, *body);
            elsewhere.tag(&store, &format!("\"store-{}\"", &sha256[..8]));
            hub.header(&path, "x-linked-etag", &format!("\"{sha256}\""));
            hub.header(&path, "x-linked-size", &body.len().to_string());
            hub.redirect(&path, &format!("{}{store}?signature=secret", elsewhere.url()));
        } else {
            hub.tag(&path, &format!("\"{}\"", &sha256[..40]));
        }
        hub.header(&path, "x-repo-commit", commit);
    }
}

/// A setting for tests: short waits, nothing of the environment.
pub fn setting(hub: &Server, hub_cache: &Path) -> Setting {
    Setting {
        policy: Policy {
            tries: 4,
            first_wait: Duration::from_millis(2),
            longest_wait: Duration::from_millis(10),
            longest_asked: Duration::from_secs(2),
            stall: Duration::from_millis(300),
            connect: Duration::from_secs(5),
            headway: 1000,
        },
        network: Network::Open,
        hub_offline: false,
        endpoint: hub.url(),
        hub_cache: hub_cache.into(),
        token: Some("hf_token_of_a_test".into()),
        certificates: None,
    }
}
