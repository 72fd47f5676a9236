//! A report as text, line by line like the published walkthrough's.
//!
//! It knows the report alone; how ids become text is the caller's, and so is where the text goes.

use super::divergence::Cell;
use super::{
    CaptureLabel, DecodeReport, Difficulty, FirstDivergence, Peak, Precision, Routing, Source, TokenScore,
};
use crate::Verdict;
use crate::gate;
use crate::metrics::{Divergence, Perplexity, Scale};
use crate::table::{Align, Table};
use std::fmt::{self, Write as _};

/// How many flips are listed one by one.
const LISTED_FLIPS: usize = 8;

/// What ids mean to a reader.
pub struct Texts<'a> {
    /// The prompt's text, if there is a tokenizer.
    pub prompt: Option<&'a str>,
    /// The text of one id, if there is a tokenizer and it knows the id.
    pub token: &'a dyn Fn(i64) -> Option<String>,
}

impl Texts<'_> {
    /// No tokenizer: ids are shown as numbers.
    #[must_use]
    pub fn none() -> Self {
        Texts { prompt: None, token: &|_| None }
    }

    /// `304 ' was'`, or the id alone.
    fn id_and_text(&self, id: i64) -> String {
        match (self.token)(id) {
            Some(text) => format!("{id} {}", quoted(&text)),
            None => id.to_string(),
        }
    }

    fn text_or_id(&self, id: i64) -> String {
        (self.token)(id).map_or_else(|| id.to_string(), |text| quoted(&text))
    }
}

/// The report as lines, each ended by a newline.
#[must_use]
pub fn render(report: &DecodeReport, texts: &Texts<'_>) -> String {
    let mut text = String::new();
    write_report(&mut text, report, texts).expect("a String takes whatever is written to it");
    text
}

fn write_report(out: &mut String, report: &DecodeReport, texts: &Texts<'_>) -> fmt::Result {
    for token in &report.tokens {
        write_token(out, token, report.oracle, texts)?;
    }
    match texts.prompt {
        Some(prompt) => writeln!(out, "prompt {}", quoted(prompt))?,
        None => {
            let ids: Vec<String> = report.tokens.iter().map(|token| token.id.to_string()).collect();
            writeln!(out, "prompt ids [{}]", ids.join(", "))?;
        }
    }
    let predicted = |token: &TokenScore| token.predicted.map_or("none".into(), |id| texts.text_or_id(id));
    let predicted: Vec<String> = report.tokens.iter().map(predicted).collect();
    writeln!(out, "predicted [{}]", predicted.join(", "))?;
    write_perplexity(out, report)?;
    write_routing(out, &report.routing)?;
    write_difficulty(out, &report.difficulty)?;
    if let Some(shares) = &report.shares {
        let (min, median, layers) = (shares.min * 100.0, shares.median * 100.0, shares.layers.len());
        writeln!(out, "shared-expert share over {layers} layers: min {min:.3}%, median {median:.3}%")?;
    }
    if let Some(label) = report.capture {
        writeln!(out, "captures: {}", describe(label))?;
    }
    writeln!(out, "\n{}\n", gate::table(&report.gates))?;
    let verdict = report.verdict();
    if verdict == Verdict::Fail {
        write_divergence(out, &report.divergence, report.capture)?;
    }
    let not_passed = report.gates.iter().filter(|gate| !gate.passed()).count();
    write!(
        out,
        "decode_loop ({} layers, {} tokens, caches threaded): {verdict}",
        report.layers,
        report.tokens.len()
    )?;
    match not_passed {
        0 => writeln!(out)?,
        _ => writeln!(out, " ({not_passed} of {} gates not passed)", report.gates.len())?,
    }
    if report.oracle == Source::SelfMade {
        writeln!(out, "oracle: self; nothing here was compared with the published implementation")?;
    }
    Ok(())
}

fn write_token(out: &mut String, token: &TokenScore, oracle: Source, texts: &Texts<'_>) -> fmt::Result {
    let position = token.position;
    if let Some(chain) = token.float64.chain {
        writeln!(
            out,
            "token {position} device vs host float64: cosine {:.8} norm ratio {:.6}",
            chain.cosine, chain.norm_ratio
        )?;
    }
    if let Some(chain) = token.capture.and_then(|capture| capture.chain) {
        let by = if oracle == Source::SelfMade { " vs self" } else { "" };
        writeln!(out, "token {position} chain{by}: cosine {:.8}", chain.cosine)?;
    }
    let predicted =
        token.predicted.map_or("none, its logits are not finite".into(), |id| texts.id_and_text(id));
    let verdict = if token.pass { Verdict::Pass } else { Verdict::Fail };
    write!(out, "token {position} (id {}): {verdict} -> {predicted}", token.id)?;
    let capture = if oracle == Source::SelfMade { "our own capture" } else { "the capture" };
    let others = [("float64", Some(token.float64)), (capture, token.capture)].map(|(name, against)| {
        let missed = against?.token.filter(|token| !token.attains)?;
        let best = missed.best.map_or("none".into(), |id| texts.id_and_text(id as i64));
        Some(match missed.chosen {
            Some(_) => format!("{name} says {best}, by {}", gate::figure(missed.shortfall)),
            None => format!("{name} says {best}"),
        })
    });
    for other in others.into_iter().flatten() {
        write!(out, "; {other}")?;
    }
    writeln!(out)
}

fn write_perplexity(out: &mut String, report: &DecodeReport) -> fmt::Result {
    let Some(perplexity) = &report.perplexity else {
        return writeln!(out, "perplexity: not scored, the ids that follow are not known");
    };
    let device = perplexity.device;
    let against = |name: &str, other: Perplexity| {
        let percent = (device.value / other.value - 1.0) * 100.0;
        format!(" vs {name} {:.2} ({percent:+.2}%)", other.value)
    };
    write!(out, "perplexity: device {:.2}{}", device.value, against("float64", perplexity.float64))?;
    if let Some(capture) = perplexity.capture {
        write!(out, ",{}", against("capture", capture))?;
    }
    writeln!(out, " over {} positions", device.positions)?;
    let nats = |name: &str, d: Divergence| {
        let Divergence { mean, worst, worst_position, .. } = d;
        format!("{name} mean {mean:.3e} worst {worst:.3e} (token {worst_position})")
    };
    write!(out, "KL in nats: {}", nats("device from float64", perplexity.from_float64))?;
    if let Some(capture) = perplexity.from_capture {
        write!(out, ", {}", nats("from capture", capture))?;
    }
    writeln!(out)
}

fn write_routing(out: &mut String, routing: &Routing) -> fmt::Result {
    let Routing { choices, flips, reordered } = routing;
    writeln!(
        out,
        "routing, free-running vs float64: flips {} of {choices} choices, reordered {reordered}",
        flips.len()
    )?;
    let ids = |ids: &[i64]| ids.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
    for flip in flips.iter().take(LISTED_FLIPS) {
        writeln!(
            out,
            "  layer {}, token {}: expert {} for {}, margin {:.3e} in logits, {:.3e} in probability",
            flip.layer,
            flip.token,
            ids(&flip.gained),
            ids(&flip.lost),
            flip.logit_margin,
            flip.probability_margin
        )?;
    }
    if flips.len() > LISTED_FLIPS {
        writeln!(out, "  and {} more", flips.len() - LISTED_FLIPS)?;
    }
    Ok(())
}

fn write_difficulty(out: &mut String, d: &Difficulty) -> fmt::Result {
    let Peak { value, channel, place, token } = d.peak;
    writeln!(
        out,
        "float64 chain: residual up to {value:.4} (channel {channel}, {place}, token {token}), the last without that channel {:.4} rms",
        d.rest
    )?;
    let margins = d.margins.map(|m| format!("{:.3e} least, {:.3e} median", m.least, m.median));
    writeln!(
        out,
        "  cosine of embedding and last residual at most {:.4}, and post-norm hidden {:.4}; router margins {}",
        d.embed_to_last,
        d.embed_to_hidden,
        margins.unwrap_or_else(|| "none".into())
    )?;
    writeln!(
        out,
        "  without that channel, routing forced: worst layer cosine {:.8} (layer {})",
        d.forced_without_peak, d.forced_layer
    )
}

fn write_divergence(
    out: &mut String,
    divergence: &FirstDivergence,
    capture: Option<CaptureLabel>,
) -> fmt::Result {
    let third = match capture {
        Some(CaptureLabel { same_weights: false, .. }) => "quantization alone",
        Some(CaptureLabel { source: Source::SelfMade, .. }) => "float64 vs self",
        _ => "float64 vs capture",
    };
    let own = capture.is_some_and(|label| label.source == Source::SelfMade);
    let mut table = Table::new(&[
        ("worst relative error", Align::Left),
        (if own { "device vs self" } else { "device vs capture" }, Align::Right),
        ("device vs float64", Align::Right),
        (third, Align::Right),
        ("", Align::Left),
    ]);
    for row in &divergence.rows {
        let mark = if divergence.first_outside == Some(row.place) { "<- first outside" } else { "" };
        table.row([
            row.place.to_string(),
            cell_text(row.device_vs_capture),
            cell_text(row.device_vs_float64),
            cell_text(row.float64_vs_capture),
            mark.into(),
        ]);
    }
    writeln!(out, "{table}")?;
    writeln!(out, "routing forced; ! is outside the tight bounds, @ the worst token\n")
}

fn cell_text(cell: Option<Cell>) -> String {
    cell.map_or("-".into(), |cell| {
        let outside = if cell.outside { "! " } else { "" };
        let absolute = if cell.scale == Scale::Absolute { " absolute" } else { "" };
        format!("{outside}{:.3e}{absolute} @ {}", cell.error, cell.token)
    })
}

fn describe(label: CaptureLabel) -> String {
    let maker = match label.source {
        Source::Published => "the published implementation",
        Source::SelfMade => "our own evaluator",
    };
    let precision = match label.precision {
        Precision::F64 => "float64",
        Precision::F32 => "float32",
        Precision::BF16 => "bfloat16",
    };
    let weights = if label.same_weights { "of the same weights" } else { "of the unquantized model" };
    format!("{weights}, in {precision}, by {maker}")
}

/// A text in single quotes on one line. Model output may hold anything, escape sequences included, and none
/// of it may reach a terminal as such.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("'");
    for c in text.chars() {
        match c {
            '"' => quoted.push(c),
            _ => quoted.extend(c.escape_debug()),
        }
    }
    quoted + "'"
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn quoted_text_stays_on_its_line_and_off_the_terminal() {
        let cases = [
            (" was", "' was'"),
            ("it's", r"'it\'s'"),
            ("say \"no\"", "'say \"no\"'"),
            ("a\nb\tc", r"'a\nb\tc'"),
            ("\u{1b}[31m", r"'\u{1b}[31m'"),
            ("back\\slash", r"'back\\slash'"),
            ("naïve – 字", "'naïve – 字'"),
            ("\u{202e}", r"'\u{202e}'"),
        ];
        for (text, expected) in cases {
            assert_eq!(quoted(text), expected);
        }
    }
}
