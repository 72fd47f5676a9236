//! The roofline: how many multiplications a cycle something does, against how many it does a byte that it moves
//! over the external bus. It can be no faster than the array, nor than the bus brings the bytes.

use super::{On, by_kind};
use mica_simulate::timing::{Report, Share};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// A kernel under its roof.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Roofline {
    /// Multiplications a cycle at most.
    pub peak_macs: u64,
    /// Bytes a cycle on the external bus.
    pub bus_bytes: u64,
    /// Multiplications a byte from which on the array is the bound, not the bus.
    pub ridge: f64,
    /// The whole, the kinds of parts, then their ops.
    pub points: Vec<Point>,
}

/// What a point stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Of {
    /// The whole call.
    Whole,
    /// All parts of a kind.
    Kind,
    /// An op in all parts of a kind.
    Op,
}

/// Something under the roof.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// What it stands for.
    pub of: Of,
    /// Its name.
    pub name: String,
    /// Multiplications.
    pub macs: u64,
    /// Bytes on the external bus.
    pub bytes: u64,
    /// Multiplications a byte.
    pub intensity: f64,
    /// Multiplications a cycle that were done.
    pub achieved: f64,
    /// Multiplications a cycle that could be, at this intensity.
    pub bound: f64,
}

impl Point {
    /// A point; `None` of what multiplies nothing or moves nothing, which has no place under a roof.
    fn new(of: Of, name: String, s: &Share, on: On<'_>) -> Option<Point> {
        let (macs, bytes) = (s.work.macs, s.bytes.total());
        if macs == 0 || bytes == 0 || s.elapsed == 0 {
            return None;
        }
        let intensity = macs as f64 / bytes as f64;
        let bound = (intensity * f64::from(on.rates.bus_bytes)).min(on.peak_macs() as f64);
        Some(Point { of, name, macs, bytes, intensity, achieved: macs as f64 / s.elapsed as f64, bound })
    }
}

impl Roofline {
    /// The roofline of a count.
    pub fn new(r: &Report, on: On<'_>) -> Roofline {
        let kinds = by_kind(r);
        let whole = Point::new(Of::Whole, "all".into(), &r.share, on);
        let of_kinds = kinds.iter().filter_map(|k| Point::new(Of::Kind, k.kind.clone(), &k.share, on));
        let ops = kinds.iter().flat_map(|k| {
            k.ops.iter().filter_map(move |(name, s)| Point::new(Of::Op, format!("{}: {name}", k.kind), s, on))
        });
        Roofline {
            peak_macs: on.peak_macs(),
            bus_bytes: on.rates.bus_bytes.into(),
            ridge: on.peak_macs() as f64 / f64::from(on.rates.bus_bytes),
            points: whole.into_iter().chain(of_kinds).chain(ops).collect(),
        }
    }

    /// A picture: both axes logarithmic, the roof, the whole and the kinds with their names, the ops as dots that
    /// tell theirs when pointed at.
    pub fn svg(&self, title: &str) -> String {
        let frame = Frame::new(self);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n\
             <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}</text>\n",
            escaped(title)
        );
        frame.axes(&mut svg);
        let ridge = (self.ridge, self.peak_macs as f64);
        let bus = |x: f64| (x, x * self.bus_bytes as f64);
        let roof = [bus(frame.x.0), ridge, (frame.x.1, ridge.1)].map(|(x, y)| frame.at(x, y));
        let points: Vec<String> = roof.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"#222222\" stroke-width=\"2\"/>",
            points.join(" ")
        );
        for p in self.points.iter().rev() {
            let (x, y) = frame.at(p.intensity, p.achieved);
            let (radius, fill) = match p.of {
                Of::Whole => (6, "#c0392b"),
                Of::Kind => (5, "#2060a0"),
                Of::Op => (3, "#9ab8d6"),
            };
            let told = format!("{}: {:.2} MACs a byte, {:.1} a cycle", p.name, p.intensity, p.achieved);
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{fill}\"><title>{}</title></circle>",
                escaped(&told)
            );
        }
        frame.labels(self, &mut svg);
        svg + "</svg>\n"
    }
}

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 560.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 50.0;
const RIGHT: f64 = 860.0;
const BOTTOM: f64 = 500.0;
/// From the last point to the names, and from one name to the next.
const LEADER: f64 = 60.0;
const LINE: f64 = 16.0;

/// The picture's axes: whole powers of ten around everything in it.
struct Frame {
    x: (f64, f64),
    y: (f64, f64),
}

impl Frame {
    fn new(r: &Roofline) -> Frame {
        let powers = |values: &mut dyn Iterator<Item = f64>| {
            let (low, high) = values.fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
            (10f64.powf(low.log10().floor()), 10f64.powf(high.log10().ceil()))
        };
        let intensities = r.points.iter().map(|p| p.intensity);
        let rates = r.points.iter().map(|p| p.achieved);
        let x = powers(&mut intensities.chain([r.ridge, r.ridge * 4.0]));
        let roof = [x.0 * r.bus_bytes as f64, r.peak_macs as f64 * 2.0];
        Frame { x, y: powers(&mut rates.chain(roof)) }
    }

    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        let along = |v: f64, (low, high): (f64, f64)| (v / low).log10() / (high / low).log10();
        (LEFT + along(x, self.x) * (RIGHT - LEFT), BOTTOM - along(y, self.y) * (BOTTOM - TOP))
    }

    /// Names of the whole and the kinds, one below the other beside their points, which often lie close together.
    fn labels(&self, r: &Roofline, svg: &mut String) {
        let named = r.points.iter().filter(|p| p.of != Of::Op);
        let mut all: Vec<_> = named.map(|p| (self.at(p.intensity, p.achieved), &p.name)).collect();
        all.sort_by(|a, b| a.0.1.total_cmp(&b.0.1));
        let right = all.iter().map(|((x, _), _)| *x).fold(LEFT, f64::max) + LEADER;
        let mut below = TOP;
        for ((x, y), name) in all {
            let at = y.max(below);
            below = at + LINE;
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\" stroke=\"#888888\"/>\n\
                 <text x=\"{right:.1}\" y=\"{:.1}\">{}</text>",
                right - 4.0,
                at + 4.0,
                escaped(name)
            );
        }
    }

    fn axes(&self, svg: &mut String) {
        let mut line = |(a, b): (f64, f64), (c, d): (f64, f64)| {
            let _ = writeln!(
                svg,
                "<line x1=\"{a:.1}\" y1=\"{b:.1}\" x2=\"{c:.1}\" y2=\"{d:.1}\" stroke=\"#dddddd\"/>"
            );
        };
        let decades = |(low, high): (f64, f64)| {
            let (first, last) = (low.log10().round() as i32, high.log10().round() as i32);
            (first..=last).map(|n| 10f64.powi(n))
        };
        decades(self.x).for_each(|x| line(self.at(x, self.y.0), self.at(x, self.y.1)));
        decades(self.y).for_each(|y| line(self.at(self.x.0, y), self.at(self.x.1, y)));
        for x in decades(self.x) {
            let (at, _) = self.at(x, self.y.0);
            let _ = writeln!(
                svg,
                "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{x}</text>",
                BOTTOM + 18.0
            );
        }
        for y in decades(self.y) {
            let (_, at) = self.at(self.x.0, y);
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{y}</text>",
                LEFT - 6.0,
                at + 4.0
            );
        }
        let (middle, low) = ((LEFT + RIGHT) / 2.0, BOTTOM + 40.0);
        let _ = writeln!(
            svg,
            "<text x=\"{middle}\" y=\"{low}\" text-anchor=\"middle\">MACs a byte of external memory</text>\n\
             <text x=\"20\" y=\"{0}\" text-anchor=\"middle\" transform=\"rotate(-90 20 {0})\">MACs a cycle</text>",
            (TOP + BOTTOM) / 2.0
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
