//! One request and its answer, and the patience around it.
//!
//! Redirections are followed here and not by the library: the hub's headers stand on the first answer, and a
//! token goes to nobody but the server that it is for.

use crate::address::{Url, allowed};
use crate::error::DownloadError;
use crate::policy::{Policy, Setting};
use crate::watch::Watch;
use std::io::{self, Read};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;
use ureq::http::{HeaderMap, Method, Request};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

/// Redirections followed.
const REDIRECTIONS: usize = 10;

/// Why one request came to nothing.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Another try may help.
    Again {
        /// What happened.
        why: String,
        /// How long the server asks to wait.
        after: Option<Duration>,
    },
    /// None will.
    Never(DownloadError),
}

impl From<DownloadError> for Fault {
    fn from(e: DownloadError) -> Fault {
        Fault::Never(e)
    }
}

impl Fault {
    pub fn again(why: impl Into<String>) -> Fault {
        Fault::Again { why: why.into(), after: None }
    }
}

/// An answer whose body has not been read.
pub(crate) struct Answer {
    /// 200, 206, 404, 410 or 416, or a redirection that was not to be followed.
    pub status: u16,
    headers: HeaderMap,
    body: Body,
}

impl Answer {
    /// A header's text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// A header that is a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.header(name)?.trim().parse().ok()
    }

    /// Whether the server says that there is no such thing.
    pub fn is_absent(&self) -> bool {
        matches!(self.status, 404 | 410)
    }

    /// Whether it redirects.
    pub fn is_elsewhere(&self) -> bool {
        matches!(self.status, 301 | 302 | 303 | 307 | 308)
    }

    /// The body's bytes.
    pub fn into_reader(self) -> impl Read {
        self.body.into_reader()
    }

    /// A whole body of at most so many bytes.
    pub fn text(self, url: &Url, limit: u64) -> Result<Vec<u8>, Fault> {
        let said = self.number("content-length");
        let mut bytes = Vec::new();
        self.into_reader().take(limit + 1).read_to_end(&mut bytes).map_err(|e| cut(&e))?;
        let got = bytes.len() as u64;
        if got > limit {
            let why = format!("the answer is longer than {limit} bytes");
            return Err(Fault::Never(DownloadError::Protocol { url: url.to_string(), why }));
        }
        match said {
            Some(expected) if expected != got => {
                Err(Fault::again(format!("the answer ended after {got} of {expected} bytes")))
            }
            _ => Ok(bytes),
        }
    }
}

/// A body that could not be read to its end.
pub(crate) fn cut(e: &io::Error) -> Fault {
    let timed_out = e.kind() == io::ErrorKind::TimedOut || e.to_string().contains("timeout");
    Fault::again(if timed_out {
        "nothing came any more".into()
    } else {
        format!("the connection broke: {e}")
    })
}

/// Asks servers. It connects to nobody before the first question.
pub(crate) struct Client {
    pub setting: Setting,
    plain: bool,
    secret: Option<(Url, String)>,
    agent: OnceLock<Agent>,
}

impl Client {
    /// `plain` lets http lead to other machines.
    pub fn new(setting: Setting, plain: bool) -> Client {
        Client { secret: setting.secret(), setting, plain, agent: OnceLock::new() }
    }

    fn policy(&self) -> &Policy {
        &self.setting.policy
    }

    fn agent(&self) -> Result<&Agent, DownloadError> {
        if let Some(agent) = self.agent.get() {
            return Ok(agent);
        }
        let roots = match &self.setting.certificates {
            Some(file) => certificates(file)?,
            None => RootCerts::WebPki,
        };
        let policy = self.policy();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("mica/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .timeout_resolve(Some(policy.connect))
            .timeout_connect(Some(policy.connect))
            .timeout_recv_response(Some(policy.stall))
            .timeout_per_read(Some(policy.stall))
            .build();
        Ok(self.agent.get_or_init(|| Agent::new_with_config(config)))
    }

    /// A HEAD. Where `first` is set, a redirection to another server, or one that says which blob it leads to,
    /// is an answer.
    pub fn head(&self, url: &Url, first: bool) -> Result<Answer, Fault> {
        self.ask(Method::HEAD, url, &[], first)
    }

    /// A GET with further headers.
    pub fn get(&self, url: &Url, headers: &[(&str, &str)]) -> Result<Answer, Fault> {
        self.ask(Method::GET, url, headers, false)
    }

    fn ask(&self, method: Method, url: &Url, headers: &[(&str, &str)], first: bool) -> Result<Answer, Fault> {
        let mut at = url.clone();
        for _ in 0..=REDIRECTIONS {
            let answer = self.once(&method, &at, headers)?;
            if !answer.is_elsewhere() {
                return self.judged(answer, &at);
            }
            let Some(location) = answer.header("location") else {
                let why = format!("the server answers {} and not where to go", answer.status);
                return Err(Fault::Never(DownloadError::Protocol { url: at.to_string(), why }));
            };
            let next = at.redirected(location)?;
            if first && (answer.header("x-linked-etag").is_some() || !next.same_origin(&at)) {
                return Ok(answer);
            }
            if at.is_secure() && !next.is_secure() {
                let why = format!("it redirects to {next}, which is not encrypted");
                return Err(Fault::Never(DownloadError::Protocol { url: at.to_string(), why }));
            }
            at = next;
        }
        let why = format!("more than {REDIRECTIONS} redirections");
        Err(Fault::Never(DownloadError::Protocol { url: url.to_string(), why }))
    }

    fn once(&self, method: &Method, url: &Url, headers: &[(&str, &str)]) -> Result<Answer, Fault> {
        allowed(url, self.plain)?;
        let mut request = Request::builder().method(method).uri(url.whole());
        // bytes as they lie there: lengths and ranges of a packed answer are of other bytes
        request = request.header("accept-encoding", "identity");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some((_, token)) = self.secret.as_ref().filter(|(origin, _)| origin.same_origin(url)) {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let bad = |why: String| Fault::Never(DownloadError::Protocol { url: url.to_string(), why });
        let request = request.body(()).map_err(|e| bad(e.to_string()))?;
        let agent = self.agent()?;
        let sent = if url.is_loopback() {
            // no proxy reaches this machine's own loopback
            agent.run(agent.configure_request(request).proxy(None).build())
        } else {
            agent.run(request)
        };
        let (parts, body) = sent.map_err(|e| fault(url, &e))?.into_parts();
        Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body })
    }

    /// Sorts an answer that redirects nowhere.
    fn judged(&self, answer: Answer, url: &Url) -> Result<Answer, Fault> {
        let refused = |hint| {
            let url = url.to_string();
            Err(Fault::Never(DownloadError::Refused { url, status: answer.status, hint }))
        };
        match answer.status {
            200 | 206 | 404 | 410 | 416 => Ok(answer),
            401 | 403 => refused(match &self.setting.endpoint {
                e if Url::parse(e).is_ok_and(|e| e.same_origin(url)) => {
                    "; a private or gated repository needs a token in HF_TOKEN, and its licence accepted"
                }
                _ => "; it wants a login, and there is none to give",
            }),
            408 | 425 | 429 | 500 | 502 | 503 | 504 => {
                let after = answer.number("retry-after").map(Duration::from_secs);
                let why = format!("the server answers {}", answer.status);
                match after {
                    Some(wait) if wait > self.policy().longest_asked => {
                        let last = format!("{why} and asks to come back in {} s", wait.as_secs());
                        let url = url.to_string();
                        Err(Fault::Never(DownloadError::Unreachable { url, tries: 1, last }))
                    }
                    _ => Err(Fault::Again { why, after }),
                }
            }
            _ => refused(""),
        }
    }

    /// Tries until it goes well, no further try helps, or the failures in a row are too many. `reached` says
    /// how far it has come; where that grew well since the last failure, counting starts anew.
    pub fn patiently<T, S>(
        &self,
        url: &Url,
        watch: &dyn Watch,
        state: &mut S,
        reached: impl Fn(&S) -> u64,
        mut attempt: impl FnMut(&mut S) -> Result<T, Fault>,
    ) -> Result<T, DownloadError> {
        let mut failures = 0;
        loop {
            let before = reached(state);
            let (why, after) = match attempt(state) {
                Ok(done) => return Ok(done),
                Err(Fault::Never(e)) => return Err(e),
                Err(Fault::Again { why, after }) => (why, after),
            };
            if reached(state) >= before.saturating_add(self.policy().headway) {
                failures = 0;
            }
            failures += 1;
            if failures >= self.policy().tries {
                return Err(DownloadError::Unreachable { url: url.to_string(), tries: failures, last: why });
            }
            let wait = after.unwrap_or_else(|| self.policy().wait(failures));
            watch.note(&format!("{url}: {why}; trying again in {:.1} s", wait.as_secs_f64()));
            std::thread::sleep(wait);
        }
    }

    /// [`Client::patiently`] for questions that have no state.
    pub fn insist<T>(
        &self,
        url: &Url,
        watch: &dyn Watch,
        mut attempt: impl FnMut() -> Result<T, Fault>,
    ) -> Result<T, DownloadError> {
        self.patiently(url, watch, &mut (), |()| 0, |()| attempt())
    }
}

/// A question that was not answered.
fn fault(url: &Url, e: &ureq::Error) -> Fault {
    let url = url.to_string();
    let text = e.to_string();
    match e {
        _ if text.contains("certificate") || text.contains("UnknownIssuer") => {
            Fault::Never(DownloadError::Certificate { url, why: text })
        }
        ureq::Error::Io(e) => Fault::again(e.to_string()),
        ureq::Error::Timeout(_) => Fault::again("no answer in time"),
        ureq::Error::HostNotFound => Fault::again("no such host is known"),
        ureq::Error::BadUri(_)
        | ureq::Error::Http(_)
        | ureq::Error::InvalidProxyUrl
        | ureq::Error::LargeResponseHeader(..) => Fault::Never(DownloadError::Protocol { url, why: text }),
        _ => Fault::again(text),
    }
}

fn certificates(file: &Path) -> Result<RootCerts, DownloadError> {
    let pem = std::fs::read(file).map_err(DownloadError::io(file))?;
    let roots: Vec<Certificate<'static>> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(c)) => Some(c),
            _ => None,
        })
        .collect();
    if roots.is_empty() {
        let none =
            io::Error::new(io::ErrorKind::InvalidData, "SSL_CERT_FILE names it, and it has no certificate");
        return Err(DownloadError::Io { path: file.into(), source: none });
    }
    Ok(RootCerts::new_with_certs(&roots))
}
