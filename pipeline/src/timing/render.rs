//! A timing report as a person reads it: what the call takes, where the time and the bytes go, how near the
//! bounds it is, and on request every op and what lies where.

use super::roofline::{Of, Point};
use super::{OfKind, Timing, by_kind};
use mica_score::table::{Align, Table};
use mica_simulate::memory::Use;
use mica_simulate::timing::{Bound, Share};

/// Ops listed where not all are asked for.
const DEAREST: usize = 10;

/// What is shown beside the usual.
#[derive(Clone, Copy, Debug, Default)]
pub struct Show {
    /// Every op of every kind, not only the dearest.
    pub ops: bool,
    /// What lies where.
    pub memory: bool,
}

fn table(columns: &[&'static str], text: &[&str]) -> Table {
    let align = |c: &str| if text.contains(&c) { Align::Left } else { Align::Right };
    let columns: Vec<(&str, Align)> = columns.iter().map(|&c| (c, align(c))).collect();
    Table::new(&columns)
}

fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

fn share_of(part: u64, whole: u64) -> String {
    percent(part as f64 / whole.max(1) as f64)
}

/// The report as lines, each ended by a newline.
pub fn text(t: &Timing, show: Show) -> String {
    let mut out = head(t);
    out += &format!("{}\n\n{}\n\n", bytes(t), parts(t));
    out += &format!("{}\n\n{}\n", ops(t, show.ops), roofline(t));
    if show.memory {
        out += &memory(t);
    }
    out
}

fn head(t: &Timing) -> String {
    let total = t.cycles.total;
    let b = t.cycles.share.bytes;
    let least = b.total().div_ceil(t.bus_bytes.into());
    let u = &t.utilization;
    let call = match t.tokens {
        1 => format!("{total} cycles a token at position {}", t.position),
        n => format!(
            "{total} cycles a call of {n} tokens at positions {} to {}, {:.0} a token",
            t.position,
            t.position + n - 1,
            t.per_token.cycles
        ),
    };
    let mut text = format!(
        "{}, {} MHz, {} bytes a cycle: {call}, {} tokens a second, bound by {}\n",
        t.product,
        t.clock_mhz,
        t.bus_bytes,
        rate(t.tokens_per_second),
        bound(t.cycles.share.bound_by),
    );
    text += &format!(
        "external memory: {} bytes of constants, {} in, {} out: at least {least} cycles, {:.2} of the total\n",
        b.constants,
        b.edges_in,
        b.edges_out,
        least as f64 / total.max(1) as f64,
    );
    if t.tokens > 1 {
        let e = &t.per_token;
        text += &format!(
            "of that a token: {:.0} bytes of constants, {:.0} in, {:.0} out\n",
            e.constants, e.edges_in, e.edges_out
        );
    }
    text += &format!(
        "busy: bus {}, array {}, flow {}; {} MACs, {} of what the array could do\n",
        percent(u.bus),
        percent(u.array),
        percent(u.flow),
        t.cycles.share.work.macs,
        percent(u.macs),
    );
    let e = &t.energy;
    let (unit, per) = if e.total_uj < 1e4 { ("µJ", 1.0) } else { ("mJ", 1e3) };
    let [all, ddr, l2, lrm, macs] = [e.total_uj, e.ddr_uj, e.l2_uj, e.lrm_uj, e.macs_uj].map(|uj| uj / per);
    text += &format!(
        "energy (a proxy): {all:.1} {unit}: external memory {ddr:.1}, L2 {l2:.1}, LRM {lrm:.1}, MACs {macs:.1}\n"
    );
    text + &format!(
        "on chip: LRM {} of {} bytes, L2 {} of {}; entry pointers {} of {}\n\n",
        t.lrm.used, t.lrm.size, t.l2.used, t.l2.size, t.entries.used, t.entries.size,
    )
}

/// Calls a second, with as many places as tell something.
pub fn rate(tokens: f64) -> String {
    if tokens < 100.0 { format!("{tokens:.2}") } else { format!("{tokens:.0}") }
}

fn bytes(t: &Timing) -> Table {
    let mut rows = table(&["bytes", "of", "transfers", "total", "share"], &["bytes", "of"]);
    let all = t.cycles.share.bytes.total();
    for b in &t.cycles.traffic {
        let [moved, transfers] = [b.bytes, b.transfers].map(|n| n.to_string());
        rows.row([b.kind.text().into(), b.what.clone(), transfers, moved, share_of(b.bytes, all)]);
    }
    rows
}

const SHARES: [&str; 7] = ["cycles", "compute", "DDR", "flow", "stall", "bytes", "bound by"];

fn shares(s: &Share) -> [String; 7] {
    let [cycles, compute, ddr, flow, stall, bytes] =
        [s.elapsed, s.compute, s.ddr, s.flow, s.stall, s.bytes.total()].map(|n| n.to_string());
    [cycles, compute, ddr, flow, stall, bytes, bound(s.bound_by).into()]
}

fn parts(t: &Timing) -> Table {
    let [a, b, c, d, e, f, g] = SHARES;
    let mut rows = table(&["part", "kind", a, b, c, d, e, f, g], &["part", "kind", "bound by"]);
    let mut row = |part: String, kind: String, s: &Share| {
        let [a, b, c, d, e, f, g] = shares(s);
        rows.row([part, kind, a, b, c, d, e, f, g]);
    };
    for l in &t.cycles.layers {
        row(t.part(l.layer), l.kind.clone(), &l.share);
    }
    row("all".into(), String::new(), &t.cycles.share);
    rows
}

fn kind_name(k: &OfKind) -> String {
    if k.count > 1 { format!("{} ×{}", k.kind, k.count) } else { k.kind.clone() }
}

fn ops(t: &Timing, every: bool) -> Table {
    let kinds = by_kind(&t.cycles);
    let mut all: Vec<(String, &String, &Share)> =
        kinds.iter().flat_map(|k| k.ops.iter().map(move |(name, s)| (kind_name(k), name, s))).collect();
    let first = if every { "op" } else { "dearest ops" };
    if !every {
        all.sort_by_key(|(_, _, s)| std::cmp::Reverse(s.elapsed));
        all.truncate(DEAREST);
    }
    let [a, b, c, d, e, f, g] = SHARES;
    let mut rows = table(&["kind", first, a, b, c, d, e, f, g], &["kind", first, "bound by"]);
    for (kind, name, s) in all {
        let [a, b, c, d, e, f, g] = shares(s);
        rows.row([kind, name.clone(), a, b, c, d, e, f, g]);
    }
    rows
}

fn roofline(t: &Timing) -> Table {
    let r = &t.roofline;
    let name = format!("roofline: {} MACs a cycle from {:.0} a byte on", r.peak_macs, r.ridge);
    let align = |c| (c, Align::Right);
    let columns = ["MACs", "bytes", "MACs a byte", "a cycle", "bound", "of bound"];
    let mut heads = vec![(name.as_str(), Align::Left)];
    heads.extend(columns.map(align));
    let mut rows = Table::new(&heads);
    for p in r.points.iter().filter(|p| p.of != Of::Op) {
        let Point { name, macs, bytes, intensity, achieved, bound, .. } = p;
        rows.row([
            name.clone(),
            macs.to_string(),
            bytes.to_string(),
            format!("{intensity:.3}"),
            format!("{achieved:.2}"),
            format!("{bound:.2}"),
            percent(achieved / bound),
        ]);
    }
    rows
}

fn memory(t: &Timing) -> String {
    let mut out = String::new();
    for m in &t.memory {
        let count = if m.count > 1 { format!(", {} parts alike", m.count) } else { String::new() };
        for (name, used, room) in [("LRM", &m.lrm, t.lrm), ("L2", &m.l2, t.l2)] {
            let Use { peak, live, live_at, regions } = used;
            out += &format!(
                "\n{} ({}{count}): {name} up to {peak} of {} bytes, {} left; most live at once {live}, in {live_at}\n",
                t.part(m.part),
                m.kind,
                room.size,
                room.size - peak,
            );
            let mut rows = table(&["from", "to", "largest", "writes", "instructions", "what"], &["what"]);
            for r in regions {
                rows.row([
                    format!("{:#x}", r.from),
                    format!("{:#x}", r.to),
                    r.bytes.to_string(),
                    r.writes.to_string(),
                    format!("{}–{}", r.first, r.last),
                    r.what.clone(),
                ]);
            }
            out += &format!("{rows}\n");
        }
    }
    let mut rows = table(&["offset", "bytes", "part", "external memory"], &["part", "external memory"]);
    for c in &t.constants {
        rows.row([format!("{:#x}", c.offset), c.bytes.to_string(), c.part.clone(), c.what.clone()]);
    }
    out + &format!("\n{rows}\n")
}

/// What limits it, in a word.
pub fn bound(b: Bound) -> &'static str {
    match b {
        Bound::Compute => "compute",
        Bound::Ddr => "DDR",
        Bound::Flow => "flow",
        Bound::Stall => "stall",
    }
}

/// A row a number of tokens a call, of each token: what they share falls.
pub fn calls(all: &[Timing]) -> String {
    let columns = [
        "tokens a call",
        "position",
        "cycles a token",
        "tokens a second",
        "constants a token",
        "in",
        "out",
        "compute",
        "DDR",
        "flow",
        "LRM",
        "bound by",
    ];
    let mut rows = table(&columns, &["bound by"]);
    for t in all {
        let (s, e) = (&t.cycles.share, &t.per_token);
        let each = |n: u64| format!("{:.0}", n as f64 / t.tokens as f64);
        let whole = |n: f64| format!("{n:.0}");
        rows.row([
            t.tokens.to_string(),
            t.position.to_string(),
            whole(e.cycles),
            rate(t.tokens_per_second),
            whole(e.constants),
            whole(e.edges_in),
            whole(e.edges_out),
            each(s.compute),
            each(s.ddr),
            each(s.flow),
            t.lrm.used.to_string(),
            bound(s.bound_by).into(),
        ]);
    }
    format!("{rows}\n")
}

/// A row a position: how a call grows with what is cached.
pub fn positions(all: &[Timing]) -> String {
    let columns =
        ["position", "cycles", "tokens a second", "compute", "DDR", "flow", "cache bytes", "bound by"];
    let mut rows = table(&columns, &["bound by"]);
    for t in all {
        let s = &t.cycles.share;
        let cached = t.cycles.traffic.iter().filter(|b| b.kind == mica_simulate::timing::Kind::Cache);
        rows.row([
            t.position.to_string(),
            t.cycles.total.to_string(),
            rate(t.tokens_per_second),
            s.compute.to_string(),
            s.ddr.to_string(),
            s.flow.to_string(),
            cached.map(|b| b.bytes).sum::<u64>().to_string(),
            bound(s.bound_by).into(),
        ]);
    }
    format!("{rows}\n")
}
