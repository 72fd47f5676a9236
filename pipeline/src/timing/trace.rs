//! A call as a timeline that Perfetto and Chrome open: a track an engine with an event an instruction, and a track
//! of the ops, each as long as it moved the end of the work.
//!
//! Times are in microseconds at the clock, as the format wants them; the arguments have them in cycles.

use super::On;
use mica_device::isa::Engine;
use mica_device::object::Kernel;
use mica_device::segment::SegmentPlan;
use mica_simulate::timing::{self, Inputs, Report, Span};
use mica_simulate::{Program, SimError};
use serde_json::{Value, json};
use std::io::{self, Write};

/// Raised when an event changes its meaning.
pub const SCHEMA: u32 = 1;

/// Names of the tracks, by number.
pub const TRACKS: [&str; 6] = ["ops", "scalar", "DMA in", "DMA out", "flow", "array"];

const fn track(e: Engine) -> usize {
    match e {
        Engine::Scalar => 1,
        Engine::DmaIn => 2,
        Engine::DmaOut => 3,
        Engine::Flow => 4,
        Engine::Array => 5,
    }
}

/// Why there is no timeline.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The count's refusal.
    #[error(transparent)]
    Count(#[from] SimError),
    /// It could not be written.
    #[error(transparent)]
    Write(#[from] io::Error),
}

/// Writes the timeline of one call and gives its count.
///
/// # Errors
/// A kernel that is no program, or what writing says.
pub fn write(
    kernel: &Kernel,
    plans: &[&SegmentPlan],
    parts: &[String],
    on: On<'_>,
    position: u64,
    out: &mut dyn Write,
) -> Result<Report, TraceError> {
    let program = Program::load(kernel)?;
    let mut t = Tracer {
        program: &program,
        parts,
        clock: on.rates.clock_mhz.into(),
        out,
        told: Ok(()),
        end: 0,
        open: None,
    };
    t.begin();
    let inputs = Inputs { position, plans };
    let report = timing::timeline(kernel, on.product, on.rates, inputs, |s| t.span(&s))?;
    t.finish(on)?;
    Ok(report)
}

struct Tracer<'a> {
    program: &'a Program,
    parts: &'a [String],
    /// Cycles a microsecond.
    clock: f64,
    out: &'a mut dyn Write,
    /// The first failure to write; nothing is written after it.
    told: io::Result<()>,
    /// The end of the work so far.
    end: u64,
    /// The op that moved it last, and since when.
    open: Option<(u32, u64)>,
}

impl Tracer<'_> {
    fn line(&mut self, text: &str) {
        if self.told.is_ok() {
            self.told = writeln!(self.out, "{text}");
        }
    }

    fn begin(&mut self) {
        self.line("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
        self.line(&json!({"ph":"M","pid":1,"name":"process_name","args":{"name":"vg1"}}).to_string());
        for (tid, name) in TRACKS.iter().enumerate() {
            let name = json!({"ph":"M","pid":1,"tid":tid,"name":"thread_name","args":{"name":name}});
            self.line(&format!(",{name}"));
            let order =
                json!({"ph":"M","pid":1,"tid":tid,"name":"thread_sort_index","args":{"sort_index":tid}});
            self.line(&format!(",{order}"));
        }
    }

    fn event(&mut self, track: usize, name: &str, start: u64, end: u64, mut args: Value) {
        args["start"] = start.into();
        args["cycles"] = (end - start).into();
        let (ts, dur) = (start as f64 / self.clock, (end - start) as f64 / self.clock);
        let event = json!({"ph":"X","pid":1,"tid":track,"name":name,"ts":ts,"dur":dur,"args":args});
        self.line(&format!(",{event}"));
    }

    fn source(&self, src: u32) -> (String, String) {
        let part = (src >> 16) as usize;
        let part = self.parts.get(part).cloned().unwrap_or_else(|| part.to_string());
        let op = self.program.op(src).map_or_else(String::new, |o| format!("{} {}", o.op, o.label));
        (part, op.trim_end().to_string())
    }

    fn span(&mut self, s: &Span) {
        let (layer, op) = self.source(s.src);
        let i = &self.program.code()[s.instruction];
        let mut args = json!({
            "layer": layer, "op": op, "instruction": s.instruction, "retired": s.retired,
        });
        if let Some(t) = &s.transfer {
            args["bytes"] = t.bytes.into();
        }
        self.event(track(s.engine), i.op.text(), s.start, s.end, args);
        if s.retired > self.end {
            match self.open {
                Some((src, _)) if src == s.src => {}
                _ => {
                    self.close();
                    self.open = Some((s.src, self.end));
                }
            }
            self.end = s.retired;
        }
    }

    /// Ends the op that moved the end of the work.
    fn close(&mut self) {
        if let Some((src, since)) = self.open.take() {
            let (layer, op) = self.source(src);
            let name = if op.is_empty() { layer.clone() } else { format!("{layer} {op}") };
            self.event(0, &name, since, self.end, json!({ "layer": layer, "op": op }));
        }
    }

    fn finish(mut self, on: On<'_>) -> io::Result<()> {
        self.close();
        let other = json!({
            "schema": SCHEMA, "product": on.product.name, "clock_mhz": on.rates.clock_mhz,
            "bus_bytes": on.rates.bus_bytes, "total_cycles": self.end,
        });
        self.line(&format!("],\"otherData\":{other}}}"));
        self.told
    }
}
