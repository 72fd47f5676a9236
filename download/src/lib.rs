//! Files from the network: a folder on a web server, or a repository of a hub that speaks Hugging Face's
//! protocol, brought to disk once and for all.
//!
//! ```no_run
//! # fn main() -> Result<(), mica_download::DownloadError> {
//! use mica_download::{Depot, Setting, Silent, Source, Want};
//! let depot = Depot::new("cache/deliveries".into(), Setting::of_environment());
//! let source = Source::parse("hf://org/repo@main", false, |_| false)?;
//! let mut held = depot.open(&source)?;
//! held.obtain(&[Want::required("config.json"), Want::optional("tokenizer.json")], &Silent)?;
//! # Ok(()) }
//! ```
//!
//! What was obtained is never asked for again. A download that was cut short, by the network or by a signal,
//! goes on where it stopped. Two processes that want the same do it once, or twice with the same outcome.
//!
//! It knows names and bytes: not what a file is for, no model, no cache of results, no terminal. Progress goes
//! to a [`Watch`]. Nothing here is a result of a build, and no error of it is worth remembering.

mod address;
mod client;
mod depot;
mod digest;
mod error;
mod file;
mod hub;
mod manifest;
mod names;
mod place;
mod policy;
mod record;
mod shelf;
#[cfg(feature = "testing")]
pub mod testing;
mod watch;
mod web;

pub use address::{Hub, Place, Source, Url};
pub use depot::{Checked, Depot, Held, Outcome, Want};
pub use error::DownloadError;
pub use manifest::{MANIFESTS, Manifest};
pub use policy::{Network, Policy, Setting};
pub use watch::{Fetched, Silent, Voucher, Watch};
