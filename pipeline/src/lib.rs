//! The pipeline: workspace, query graph, scheduling, and the `mica` command.
//!
//! This crate knows all the others and is the only one that knows salsa. Stages stay pure functions:
//! what they read comes in as values, and whether they run at all is decided in [`action`].

pub mod action;
pub mod budget;
pub mod bytes;
pub mod calibrate;
pub mod check;
pub mod cli;
pub mod commands;
pub mod cut;
pub mod debug;
pub mod delivery;
pub mod env;
pub mod error;
pub mod events;
pub mod graph;
pub mod host;
pub mod limit;
pub mod obtain;
pub mod progress;
pub mod queries;
pub mod schedule;
pub mod session;
pub mod synth;
pub mod targets;
pub mod timing;
pub mod validations;
pub mod workspace;
