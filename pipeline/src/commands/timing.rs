//! A kernel's cycles as a person reads them: the total, then a row a part.

use crate::queries::Timing;
use mica_score::table::{Align, Table};
use mica_simulate::timing::{Bound, Share};

/// The report as lines, each ended by a newline.
pub fn render(t: &Timing) -> String {
    let total = t.cycles.total;
    let seconds = total as f64 / (f64::from(t.clock_mhz) * 1e6);
    let bytes = t.cycles.share.bytes;
    let moved = bytes.constants + bytes.edges_in + bytes.edges_out;
    let least = moved.div_ceil(t.bus_bytes.into());
    let mut text = format!(
        "{}, {} MHz, {} bytes a cycle: {total} cycles a token at position {}, {:.0} tokens a second, bound by {}\n",
        t.product,
        t.clock_mhz,
        t.bus_bytes,
        t.position,
        1.0 / seconds.max(f64::MIN_POSITIVE),
        bound(t.cycles.share.bound_by),
    );
    text += &format!(
        "external memory: {} bytes of constants, {} in, {} out: at least {least} cycles, {:.2} of the total\n",
        bytes.constants,
        bytes.edges_in,
        bytes.edges_out,
        least as f64 / total.max(1) as f64,
    );
    text += &format!(
        "on chip: LRM {} of {} bytes, L2 {} of {}; entry pointers {} of {}\n\n",
        t.lrm.0, t.lrm.1, t.l2.0, t.l2.1, t.entries.0, t.entries.1,
    );
    let columns = ["part", "kind", "cycles", "compute", "DDR", "flow", "stall", "bound by"];
    let align = |c: &str| if matches!(c, "part" | "kind" | "bound by") { Align::Left } else { Align::Right };
    let mut table = Table::new(&columns.map(|c| (c, align(c))));
    for l in &t.cycles.layers {
        table.row(row(l.layer.to_string(), l.kind.clone(), &l.share));
    }
    table.row(row("all".into(), String::new(), &t.cycles.share));
    text + &format!("{table}\n")
}

fn row(part: String, kind: String, s: &Share) -> [String; 8] {
    let n = |v: u64| v.to_string();
    [part, kind, n(s.elapsed), n(s.compute), n(s.ddr), n(s.flow), n(s.stall), bound(s.bound_by).into()]
}

fn bound(b: Bound) -> &'static str {
    match b {
        Bound::Compute => "compute",
        Bound::Ddr => "DDR",
        Bound::Flow => "flow",
        Bound::Stall => "stall",
    }
}
