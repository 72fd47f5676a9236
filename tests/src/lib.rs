//! What the end-to-end tests and the figures share.
//!
//! [`Workspace`] is a temporary workspace over the shipped deliveries, [`Mica`] runs the command in it, and
//! [`Run`] is what came of it: status, texts, events. [`port`] takes a model through the stages in a straight
//! line, without cache or queries, so that one thing on the way can be broken.
//!
//! For tests only, so everything here panics where it cannot go on. It writes only below folders of its own.

mod events;
mod mica;
mod names;
pub mod port;
mod tree;
mod workspace;

pub use events::{Event, Status};
pub use mica::{Mica, Run};
pub use names::names;
pub use tree::{copy_tree, files_below, fingerprint};
pub use workspace::{Workspace, shipped_workspace};
