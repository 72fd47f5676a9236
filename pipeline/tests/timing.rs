//! `mica analyze MODEL`: the report's sums, its documented form, its timeline read back, and what is refused.

use mica::workspace::FILE;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn mica(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mica"));
    command.current_dir(root()).env_remove("MICA_CACHE_DIR").args(words).output().unwrap()
}

fn well(words: &[&str]) -> String {
    let o = mica(words);
    assert!(o.status.success(), "mica {words:?}\n{}", String::from_utf8_lossy(&o.stderr));
    String::from_utf8(o.stdout).unwrap()
}

fn json(words: &[&str]) -> Value {
    serde_json::from_str(&well(&[words, &["--json"]].concat())).unwrap()
}

/// The default workspace with another device, its paths made absolute.
fn workspace(dir: &Path, device: &str) -> String {
    let text = std::fs::read_to_string(root().join(FILE)).unwrap();
    let (before, rest) = text.split_once("[device.sim]\n").unwrap();
    let after = &rest[rest.find("\n[").unwrap()..];
    let text = format!("{before}[device.sim]\n{device}\n{after}");
    let text = text.replace("\"tests/delivery", &format!("\"{}/tests/delivery", root().display()));
    let file = dir.join(FILE);
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}

fn number(v: &Value) -> u64 {
    v.as_u64().unwrap_or_else(|| panic!("{v} is no whole number"))
}

/// Sum of a field over the rows of a list.
fn sum(rows: &Value, field: &str) -> u64 {
    rows.as_array().unwrap().iter().map(|r| number(&r[field])).sum()
}

/// What must hold of any report.
fn consistent(t: &Value) {
    let share = &t["cycles"]["share"];
    let total = number(&t["cycles"]["total"]);
    let layers = t["cycles"]["layers"].as_array().unwrap();
    for field in ["elapsed", "compute", "ddr", "flow", "scalar", "instructions"] {
        let of = |s: &Value| number(&s["share"][field]);
        assert_eq!(layers.iter().map(of).sum::<u64>(), number(&share[field]), "{field} of the layers");
        for l in layers {
            assert_eq!(l["ops"].as_array().unwrap().iter().map(of).sum::<u64>(), of(l), "{field} of the ops");
        }
    }
    assert_eq!(number(&share["elapsed"]), total);
    let bytes: u64 = ["constants", "edges_in", "edges_out"].map(|k| number(&share["bytes"][k])).iter().sum();
    assert_eq!(sum(&t["cycles"]["traffic"], "bytes"), bytes);
    assert!(total >= bytes.div_ceil(number(&t["bus_bytes"])), "faster than the bus");
    assert!(
        total * number(&t["roofline"]["peak_macs"]) >= number(&share["work"]["macs"]),
        "faster than the array"
    );
    let tokens = number(&t["tokens"]);
    let rate = number(&t["clock_mhz"]) as f64 * 1e6 * tokens as f64 / total as f64;
    let each = |k: &str| t["per_token"][k].as_f64().unwrap() * tokens as f64;
    assert!((each("cycles") / total as f64 - 1.0).abs() < 1e-12);
    for k in ["constants", "edges_in", "edges_out"] {
        assert!((each(k) - number(&share["bytes"][k]) as f64).abs() < 1e-3, "{k} a token");
    }
    assert!((t["tokens_per_second"].as_f64().unwrap() / rate - 1.0).abs() < 1e-12);
    for (name, u) in t["utilization"].as_object().unwrap() {
        assert!((0.0..=1.0).contains(&u.as_f64().unwrap()), "{name} {u}");
    }
    for memory in ["lrm", "l2", "entries"] {
        let [used, size, slack] = ["used", "size", "slack"].map(|k| number(&t[memory][k]));
        assert_eq!(used + slack, size, "{memory}");
    }
    for part in t["memory"].as_array().unwrap() {
        for memory in ["lrm", "l2"] {
            let (peak, live) = (number(&part[memory]["peak"]), number(&part[memory]["live"]));
            assert!(live <= peak && peak <= number(&t[memory]["used"]), "{memory} of {}", part["kind"]);
        }
    }
    let e = &t["energy"];
    let parts = ["macs_uj", "lrm_uj", "l2_uj", "ddr_uj"].map(|k| e[k].as_f64().unwrap());
    assert!((parts.iter().sum::<f64>() / e["total_uj"].as_f64().unwrap() - 1.0).abs() < 1e-12);
    let ddr = bytes as f64 * e["assumed"]["ddr_byte_pj"].as_f64().unwrap() * 1e-6;
    assert!((parts[3] / ddr - 1.0).abs() < 1e-12);
    for p in t["roofline"]["points"].as_array().unwrap() {
        assert!(p["achieved"].as_f64() <= p["bound"].as_f64() || p["of"] == "op", "{p}");
    }
}

#[test]
fn a_model_from_shapes_alone_is_timed_as_the_build_times_it() {
    let cache = tempfile::tempdir().unwrap();
    let dir = cache.path().to_str().unwrap();
    let built: Value =
        serde_json::from_str(&well(&["--cache", dir, "build", "timing:*.kernel", "--json"])).unwrap();
    for model in ["tiny", "tiny-w4a16"] {
        let of = |r: &&Value| r["target"] == format!("timing:{model}.kernel");
        let built = &built["reports"].as_array().unwrap().iter().find(of).unwrap()["timing"];
        let mut analyzed = json(&["analyze", model, "--position", "19"])[0].take();
        assert_eq!(analyzed.as_object_mut().unwrap().remove("model"), Some(model.into()));
        assert!(analyzed == *built, "{model}: the two reports differ");
        consistent(&analyzed);
    }
}

#[test]
fn without_a_name_every_model_of_the_workspace_is_timed() {
    let each = ["tiny", "tiny-w4a16"].map(|name| json(&["analyze", name, "--device", "qb16"]));
    let all = json(&["analyze", "--device", "qb16"]);
    assert_eq!(all, Value::Array(each.iter().flat_map(|one| one.as_array().unwrap()).cloned().collect()));
    assert_eq!(all[1]["model"], "tiny-w4a16");
    let text = well(&["analyze", "--device", "qb16"]);
    for name in ["tiny", "tiny-w4a16"] {
        let one = format!("{name}\n\n{}", well(&["analyze", name, "--device", "qb16"]));
        assert!(text.contains(&one), "{text}");
    }
}

#[test]
fn the_published_dimensions_on_every_product() {
    for (product, at_least) in [("qb1", 0.85), ("qb4", 0.95), ("qb16", 0.95)] {
        let all = json(&[
            "analyze",
            "qwen3_5_35b_a3b",
            "--device",
            product,
            "--layers",
            "4",
            "--position",
            "0,4096",
        ]);
        let [short, long] = [&all[0], &all[1]];
        consistent(short);
        consistent(long);
        let bus = short["utilization"]["bus"].as_f64().unwrap();
        assert!(bus > at_least, "{product}: the bus works {bus} of the time");
        // one attention layer of four: rows of keys and of values, two heads of 256 f16 each
        let cached = |t: &Value| {
            let rows = t["cycles"]["traffic"].as_array().unwrap().clone();
            rows.iter().filter(|r| r["kind"] == "cache").map(|r| number(&r["bytes"])).sum::<u64>()
        };
        assert_eq!((cached(short), cached(long)), (0, 2 * 2 * 4096 * 256 * 2));
        assert!(number(&long["cycles"]["total"]) > number(&short["cycles"]["total"]));
        // eight experts of 256 a layer: int4, a scale of 16 bits a group of 128, three matrices
        let experts: u64 = 4 * 8 * 3 * 2048 * 512 / 2 * (128 * 4 + 16) / (128 * 4);
        let gathered =
            short["cycles"]["traffic"].as_array().unwrap().iter().find(|r| r["what"] == "experts i4");
        assert_eq!(number(&gathered.unwrap()["bytes"]), experts);
    }
}

/// What a call takes at least: its bytes on the bus, or where those are fewer the array's own cycles.
fn over_bound(t: &Value) -> f64 {
    let share = &t["cycles"]["share"];
    let bound = number(&share["ddr"]).max(number(&share["compute"]));
    number(&t["cycles"]["total"]) as f64 / bound as f64
}

/// Products, and calls on them at positions from the first to the config's last: several tests look at them.
static AT_POSITIONS: LazyLock<Vec<(&str, Value)>> = LazyLock::new(|| {
    let of = |product| {
        let words = ["--device", product, "--position", "0,8191,12287,32767,262143"];
        (product, json(&[&["analyze", "qwen3_5_35b_a3b"][..], &words].concat()))
    };
    ["qb1", "qb4", "qb16"].map(of).into()
});

/// At long context too a call is near what binds it: while attention works on a strip of the cache the next is loaded.
#[test]
fn long_context_is_near_its_bound_on_every_product() {
    for ((product, all), at_most) in AT_POSITIONS.iter().zip([1.15, 1.05, 1.05]) {
        for t in all.as_array().unwrap() {
            let (over, position) = (over_bound(t), number(&t["position"]));
            assert!(over <= at_most, "{product}, position {position}: {over} of its bound");
            // where the array is not what binds it, the bus alone is the bound that is asked for
            let share = &t["cycles"]["share"];
            let of_bus = number(&t["cycles"]["total"]) as f64 / number(&share["ddr"]) as f64;
            assert!(
                *product == "qb1" && position > 12287 || of_bus <= at_most,
                "{product}, {position}: {of_bus}"
            );
            // a call that took a quarter longer would be noticed
            let mut slow = t.clone();
            slow["cycles"]["total"] = (number(&t["cycles"]["total"]) * 5 / 4).into();
            assert!(over_bound(&slow) > at_most);
        }
    }
}

/// The cells of the table of a page whose first column is called so, without its head.
fn table(page: &str, head: &str) -> Vec<Vec<String>> {
    let lines = page.lines().skip_while(|l| !l.starts_with(head)).skip(2);
    let cells = |l: &str| l.trim_matches('|').split('|').map(|c| c.trim().to_string()).collect();
    lines.take_while(|l| l.starts_with('|')).map(cells).collect()
}

/// Whether a cell, in thousands apart and perhaps in percent, is the value rounded to as many places.
fn is_rounded(cell: &str, value: f64) -> bool {
    let digits = cell.trim_end_matches([' ', '%']).replace(',', "");
    let places = digits.split_once('.').map_or(0, |(_, after)| after.len());
    digits.parse::<f64>().is_ok_and(|v| (v - value).abs() <= 0.5001 * 10f64.powi(-(places as i32)))
}

/// What a row of today's figures has to say, cell by cell.
type Row<'a> = (&'a str, Vec<String>, Vec<f64>);

fn differing(rows: &[Vec<String>], expected: &[Row<'_>]) -> Vec<String> {
    let mut all = Vec::new();
    if rows.len() != expected.len() {
        all.push(format!("{} rows, not {}", rows.len(), expected.len()));
    }
    for (row, (what, names, values)) in rows.iter().zip(expected) {
        let (named, numbers) = row.split_at(names.len().min(row.len()));
        let same = named == names && numbers.iter().zip(values).all(|(c, v)| is_rounded(c, *v));
        if !same || numbers.len() < values.len() {
            all.push(format!("{what}: {row:?}, measured {names:?} {values:?}"));
        }
    }
    all
}

/// The tables of today's figures are what the commands beside them print.
#[test]
fn the_page_has_todays_figures() {
    let page = std::fs::read_to_string(root().join("docs/timing.md")).unwrap();
    let f = |v: &Value| v.as_f64().unwrap();
    let (mut at_once, mut growing) = (Vec::new(), Vec::new());
    for (product, all) in AT_POSITIONS.iter() {
        for t in all.as_array().unwrap() {
            let (total, rate, share) =
                (f(&t["cycles"]["total"]), f(&t["tokens_per_second"]), &t["cycles"]["share"]);
            let (ddr, compute) = (f(&share["ddr"]), f(&share["compute"]));
            let position = number(&t["position"]);
            if position == 0 {
                let bytes =
                    ["constants", "edges_in", "edges_out"].map(|k| f(&share["bytes"][k])).iter().sum::<f64>();
                let [bus, array, macs] = ["bus", "array", "macs"].map(|k| 100.0 * f(&t["utilization"][k]));
                let of_bound = bytes / f(&t["bus_bytes"]) / total;
                at_once.push((
                    "a call",
                    vec![(*product).to_string()],
                    vec![total, rate, of_bound, bus, array, macs],
                ));
            }
            let values = vec![position as f64, total, rate, compute, ddr, total / ddr, over_bound(t)];
            growing.push(("the cache", vec![(*product).to_string()], values));
        }
    }
    let mut several = Vec::new();
    let all = json(&["analyze", "qwen3_5_35b_a3b", "--device", "qb16", "--tokens", "1,2,4,8"]);
    for t in all.as_array().unwrap() {
        let (n, share) = (f(&t["tokens"]), &t["cycles"]["share"]);
        let [constants, read, written] =
            ["constants", "edges_in", "edges_out"].map(|k| f(&share["bytes"][k]) / n);
        let values = vec![
            n,
            f(&t["per_token"]["cycles"]),
            f(&t["tokens_per_second"]),
            constants + read + written,
            constants,
            f(&share["ddr"]) / n,
            f(&share["compute"]) / n,
            f(&t["lrm"]["used"]),
        ];
        several.push(("tokens", Vec::new(), values));
    }
    for (head, expected) in [
        ("| product | cycles a token |", at_once),
        ("| product | position |", growing),
        ("| tokens a call | cycles |", several),
    ] {
        let rows = table(&page, head);
        assert_eq!(differing(&rows, &expected), Vec::<String>::new(), "{head}");
        // a figure with a digit more is noticed
        let mut off = rows.clone();
        off[0][1] = format!("{}9", off[0][1]);
        assert!(!differing(&off, &expected).is_empty(), "{head}");
    }
}

/// What users come for: a matrix is fetched once a call, so its bytes fall with the tokens, and so do the cycles of a
/// kernel that bytes bind; experts are chosen token by token and do not fall.
#[test]
fn bytes_of_constants_a_token_fall_with_the_tokens_of_a_call() {
    let words = ["--device", "qb16", "--layers", "4", "--capacity", "4096", "--position", "300"];
    let all = json(&[&["analyze", "qwen3_5_35b_a3b", "--tokens", "1,2,4"][..], &words].concat());
    let of = |t: &Value, kind: &str| {
        let rows = t["cycles"]["traffic"].as_array().unwrap().clone();
        rows.iter().filter(|r| r["kind"] == kind).map(|r| number(&r["bytes"])).sum::<u64>()
    };
    let one = &all[0];
    for (t, n) in all.as_array().unwrap().iter().zip([1, 2, 4]) {
        consistent(t);
        assert_eq!(number(&t["tokens"]), n);
        assert_eq!(of(t, "constants"), of(one, "constants"), "{n} tokens: once a call");
        assert_eq!(of(t, "gathered"), n * of(one, "gathered"), "{n} tokens: as many experts and rows");
        // blocks that the first token reads come once, with the rows of those before the last
        assert_eq!(of(t, "cache"), of(one, "cache") / 300 * (300 + n - 1), "{n} tokens");
    }
    let cycles = |t: &Value| t["per_token"]["cycles"].as_f64().unwrap();
    assert!(cycles(&all[2]) < 0.5 * cycles(one), "{} and {}", cycles(&all[2]), cycles(one));
    let text = well(&[&["analyze", "tiny", "--tokens", "4", "--position", "3"][..]].concat());
    assert!(text.contains("cycles a call of 4 tokens at positions 3 to 6"), "{text}");
    let table = well(&["analyze", "tiny", "--tokens", "1,2"]);
    assert!(table.contains("| tokens a call |") || table.contains("tokens a call"), "{table}");
}

/// A call whose last token is past the caches, and one that no memory holds.
#[test]
fn calls_that_do_not_fit_are_refused() {
    for (words, why) in [
        (
            &["analyze", "tiny", "--tokens", "4", "--position", "253"][..],
            "a call of 4 tokens at position 253 is past the caches, which are compiled for 256 positions; \
             give --capacity 257 or more",
        ),
        // positions whose sum with the tokens has no number
        (
            &["analyze", "tiny", "--position", "18446744073709551615", "--tokens", "2"],
            "a call of 2 tokens at position 18446744073709551615: the model's config ends at",
        ),
        (
            &["analyze", "tiny", "--position", "18446744073709551615"],
            "position 18446744073709551615: the model's config ends at",
        ),
        (
            &["analyze", "tiny", "--position", "1", "--tokens", "18446744073709551615"],
            "'18446744073709551615' for '--tokens <N,…>': expected a whole number from 1 to 128",
        ),
        // as the workspace's `tokens_per_call`, and before it takes minutes
        (&["analyze", "tiny", "--tokens", "129"], "expected a whole number from 1 to 128"),
        (
            &["analyze", "tiny", "--tokens", "128", "--position", "129"],
            "a call of 128 tokens at position 129 is past",
        ),
        (
            &["analyze", "qwen3_5_35b_a3b", "--device", "qb1", "--layers", "4", "--tokens", "8"],
            "8 tokens a call: take fewer",
        ),
        (&["analyze", "tiny:layer0", "--tokens", "2"], "--tokens is of a whole model"),
        (&["analyze", "tiny", "--tokens", "0"], "expected a whole number from 1 to 128"),
    ] {
        let refused = mica(words);
        let said = String::from_utf8_lossy(&refused.stderr);
        // told in a frame as wide as the terminal
        let words_of = said.split(|c: char| c.is_whitespace() || c == '│').filter(|w| !w.is_empty());
        let said = words_of.collect::<Vec<_>>().join(" ");
        assert!(!refused.status.success() && said.contains(why), "{words:?}: {said}");
    }
}

/// Every path of a JSON value, list elements as `[]`.
fn paths(v: &Value, at: &str, out: &mut BTreeSet<String>) {
    match v {
        Value::Object(fields) => fields.iter().for_each(|(name, v)| {
            let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
            paths(v, &path, out);
        }),
        Value::Array(all) => all.iter().for_each(|v| paths(v, &format!("{at}[]"), out)),
        _ => drop(out.insert(at.to_string())),
    }
}

/// The page's table of fields is the report's fields, no more and no fewer.
#[test]
fn the_fields_are_those_that_the_page_lists() {
    let page = std::fs::read_to_string(root().join("docs/timing.md")).unwrap();
    let (_, section) = page.split_once("## Fields").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let listed = section.lines().filter_map(|l| l.strip_prefix("| `")?.split('`').next());
    let listed: BTreeSet<String> = listed.map(str::to_string).collect();
    let report = &json(&["analyze", "tiny"])[0];
    assert_eq!(number(&report["schema"]), u64::from(mica::timing::SCHEMA));
    let mut found = BTreeSet::new();
    paths(report, "", &mut found);
    // the same forms stand at several places; the page tells each once
    let plain = |p: String| {
        let mut p = p.replace("cycles.layers[].ops[].", "cycles.").replace("cycles.layers[].", "cycles.");
        for (from, to) in [("l2.", "lrm."), ("entries.", "lrm.")] {
            p = p.strip_prefix(from).map(|rest| format!("{to}{rest}")).unwrap_or(p);
        }
        p.replace("memory[].l2", "memory[].lrm")
    };
    let found: BTreeSet<String> = found.into_iter().map(plain).collect();
    assert_eq!(listed.difference(&found).collect::<Vec<_>>(), Vec::<&String>::new(), "listed and not there");
    assert_eq!(found.difference(&listed).collect::<Vec<_>>(), Vec::<&String>::new(), "there and not listed");
}

/// Checks a timeline against the report of the same call.
fn timeline_agrees(trace: &Value, report: &Value) -> Result<(), String> {
    let other = &trace["otherData"];
    let total = number(&report["cycles"]["total"]);
    let same = number(&other["total_cycles"]) == total && other["clock_mhz"] == report["clock_mhz"];
    if !same {
        return Err(format!("{other} is of another call"));
    }
    let clock = number(&report["clock_mhz"]) as f64;
    let mut tracks: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    let mut names: BTreeMap<u64, String> = BTreeMap::new();
    let (mut bytes, mut retired) = (0, 0);
    for e in trace["traceEvents"].as_array().unwrap() {
        let tid = e["tid"].as_u64().unwrap_or(0);
        if e["name"] == "thread_name" {
            names.insert(tid, e["args"]["name"].as_str().unwrap().into());
        }
        if e["ph"] != "X" {
            continue;
        }
        let (start, cycles) = (number(&e["args"]["start"]), number(&e["args"]["cycles"]));
        for (shown, n) in [(&e["ts"], start), (&e["dur"], cycles)] {
            if (shown.as_f64().unwrap() * clock - n as f64).abs() > 1e-6 * n.max(1) as f64 {
                return Err(format!("{e}: {shown} µs are not {n} cycles"));
            }
        }
        bytes += e["args"]["bytes"].as_u64().unwrap_or(0);
        retired = retired.max(e["args"]["retired"].as_u64().unwrap_or(0));
        tracks.entry(tid).or_default().push((start, start + cycles));
    }
    let mut busy = BTreeMap::new();
    for (tid, mut spans) in tracks {
        spans.sort_unstable();
        if let Some(w) = spans.windows(2).find(|w| w[0].1 > w[1].0) {
            return Err(format!("events overlap on {}: {w:?}", names[&tid]));
        }
        if names[&tid] == "ops" && (spans[0].0, spans[spans.len() - 1].1) != (0, total) {
            return Err("the ops do not reach from start to end".into());
        }
        busy.insert(names[&tid].clone(), spans.iter().map(|s| s.1 - s.0).sum::<u64>());
    }
    let share = &report["cycles"]["share"];
    let moved: u64 = ["constants", "edges_in", "edges_out"].map(|k| number(&share["bytes"][k])).iter().sum();
    for (what, found, expected) in [
        ("array", busy["array"], number(&share["compute"])),
        ("bus", busy["DMA in"] + busy["DMA out"], number(&share["ddr"])),
        ("flow", busy["flow"], number(&share["flow"])),
        ("scalar", busy["scalar"], number(&share["scalar"])),
        ("ops", busy["ops"], total),
        ("bytes", bytes, moved),
        ("end", retired, total),
    ] {
        if found != expected {
            return Err(format!("{what}: {found} in the timeline, {expected} in the report"));
        }
    }
    Ok(())
}

#[test]
fn the_timeline_is_the_report_laid_out() {
    let dir = tempfile::tempdir().unwrap();
    let slow = workspace(dir.path(), "product = \"qb4\"\nbus_bytes = 16\nclock_mhz = 600");
    let file = dir.path().join("trace.json");
    let words = ["-f", &slow, "analyze", "tiny", "--position", "140", "--trace", file.to_str().unwrap()];
    let report = &json(&words)[0];
    assert_eq!((number(&report["clock_mhz"]), report["product"].as_str()), (600, Some("qb4")));
    let trace: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    timeline_agrees(&trace, report).unwrap();
    // one event moved, stretched, dropped or told with other bytes is noticed
    let events = trace["traceEvents"].as_array().unwrap();
    let transfer = events.iter().position(|e| e["args"]["bytes"].is_u64()).unwrap();
    type Break = fn(&mut Value, usize);
    let breaks: [(&str, Break); 5] = [
        ("dropped", |t, n| drop(t["traceEvents"].as_array_mut().unwrap().remove(n))),
        ("other bytes", |t, n| t["traceEvents"][n]["args"]["bytes"] = 1.into()),
        ("other time", |t, n| t["traceEvents"][n]["ts"] = 1e9.into()),
        ("stretched", |t, n| {
            t["traceEvents"][n]["args"]["cycles"] = 600_000.into();
            t["traceEvents"][n]["dur"] = 1000.0.into();
        }),
        ("another end", |t, _| t["otherData"]["total_cycles"] = 7.into()),
    ];
    for (what, break_it) in breaks {
        let mut broken = trace.clone();
        break_it(&mut broken, transfer);
        assert!(timeline_agrees(&broken, report).is_err(), "{what}");
    }
}

#[test]
fn the_picture_has_everything_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("roof.svg");
    let report = &json(&["analyze", "tiny", "--svg", file.to_str().unwrap()])[0];
    let svg = std::fs::read_to_string(&file).unwrap();
    let points = report["roofline"]["points"].as_array().unwrap();
    assert_eq!(svg.matches("<circle").count(), points.len());
    assert!(points.len() > 20 && svg.contains("<polyline") && svg.trim_end().ends_with("</svg>"));
    for name in ["all", "linear_attention", "full_attention", "head", "MACs a byte of external memory"] {
        assert!(svg.contains(&format!(">{name}</text>")), "{name}");
    }
    let line = svg.split("<polyline points=\"").nth(1).unwrap().split('"').next().unwrap();
    for point in line.split(' ') {
        let (x, y) = point.split_once(',').unwrap();
        let at = |v: &str| v.parse::<f64>().unwrap();
        assert!((79.9..=860.1).contains(&at(x)) && (49.9..=500.1).contains(&at(y)), "the roof at {point}");
    }
    // all of it lies within the frame
    for (attribute, low, high) in [("cx", 80.0, 860.0), ("cy", 50.0, 500.0)] {
        for found in svg.split(&format!(" {attribute}=\"")).skip(1) {
            let at: f64 = found.split('"').next().unwrap().parse().unwrap();
            assert!((low..=high).contains(&at), "{attribute} = {at}");
        }
    }
}

#[test]
fn the_text_tells_parts_ops_and_memory() {
    let text = well(&["analyze", "tiny", "--position", "0,200", "--ops", "--memory"]);
    for said in [
        "bound by DDR",
        "energy (a proxy)",
        "experts i4",
        "layer7  full_attention",
        "matmul mlp.experts",
        "roofline: 4096 MACs a cycle",
        "most live at once",
        "left by the part before",
        "self_attn.q_proj.weight",
        "literals",
        "cache bytes",
    ] {
        assert!(text.contains(said), "{said}\n{text}");
    }
    let short = well(&["analyze", "tiny"]);
    assert!(short.contains("dearest ops") && !short.contains("most live at once"));
}

#[test]
fn what_cannot_be_timed_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let small =
        workspace(dir.path(), "product = \"qb1\"\nclock_mhz = 1400\nbus_bytes = 64\nconstants = \"edges\"");
    for (words, said) in [
        (
            "analyze tiny --position 256",
            "past the caches, which are compiled for 256 positions; give --capacity 257",
        ),
        ("analyze tiny --position 0,300", "position 300 is past the caches"),
        ("analyze qwen3_5_35b_a3b --position 262144", "the model's config ends at 262144 positions"),
        ("analyze tiny --capacity 100000", "the model's config ends at"),
        ("analyze qwen3_5_35b_a3b --layers 41", "has 40 layers, and 41 were asked for"),
        ("analyze tiny --dim ctx_len=4", "--dim is of a function"),
        ("analyze tiny:layer0 --layers 2", "--layers is of a whole model"),
        ("analyze --svg roof.svg", "--svg is of one model: name it, as in `mica analyze tiny --svg …`"),
        ("analyze --config c.json", "--config is of one model"),
        ("analyze tiny:layer0 --trace t.json", "--trace is of a whole model"),
        ("analyze tiny --device qb64", "expected qb1, qb4, qb16"),
        ("-f SMALL analyze tiny", "10 of them are the constants of a part each: bake them"),
        ("analyze tiny --svg /nowhere/roof.svg", "/nowhere/roof.svg"),
        ("analyze tiny --trace /nowhere/t.json", "/nowhere/t.json"),
        ("analyze tiny --trace /nowhere/t --svg /nowhere/t", "--svg and --trace both write /nowhere/t"),
    ] {
        let each = words.split_whitespace().map(|word| if word == "SMALL" { &small } else { word });
        let o = mica(&each.collect::<Vec<_>>());
        let solid = |t: &str| t.chars().filter(|c| !c.is_whitespace() && *c != '│').collect::<String>();
        let heard = String::from_utf8(o.stderr).unwrap();
        assert!(o.status.code() == Some(2) && solid(&heard).contains(&solid(said)), "{words}: {heard}");
        // what the product cannot have is told, once
        let warned = ["clock_mhz = 1400", "bus_bytes = 64"].map(|w| heard.matches(w).count());
        assert_eq!(warned, if words.contains("-f") { [1, 1] } else { [0, 0] }, "{words}: {heard}");
    }
    let grown = well(&["analyze", "tiny", "--position", "256", "--capacity", "300"]);
    assert!(grown.contains("at position 256"));
}
