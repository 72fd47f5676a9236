//! Commands that look and change nothing, and `invalidate`, which only forgets.

use super::{LISTING, WELL, out};
use crate::error::CliError;
use crate::graph::Job;
use crate::progress::say;
use crate::queries;
use crate::session::Session;
use crate::targets;
use crate::workspace::Workspace;
use mica_device::isa;
use mica_device::object::{Kernel, Object, OpInfo};
use serde_json::json;

fn select(w: &Workspace, s: &Session, selectors: &[String]) -> Result<Vec<usize>, CliError> {
    if selectors.is_empty() {
        return Ok((0..s.graph.names.len()).collect());
    }
    targets::select(selectors, &w.config.targets, &s.graph.names)
}

/// Lists targets; the workspace's own names first.
pub fn targets(w: &Workspace, s: &Session, selectors: &[String], as_json: bool) -> Result<u8, CliError> {
    let chosen = select(w, s, selectors)?;
    let names: Vec<&str> = chosen.iter().map(|&i| s.graph.names[i].as_str()).collect();
    if as_json {
        let named = &w.config.targets;
        let document =
            json!({ "schema": LISTING, "default": w.config.default, "named": named, "targets": names });
        out(&format!("{document:#}\n"))?;
        return Ok(WELL);
    }
    let mut text = String::new();
    if selectors.is_empty() {
        for (name, list) in &w.config.targets {
            let default = if *name == w.config.default { "  (default)" } else { "" };
            text += &format!("{name} = {}{default}\n", list.join(" "));
        }
    }
    for n in names {
        text += &format!("{n}\n");
    }
    out(&text)?;
    Ok(WELL)
}

/// Forgets what the targets were last built from, for this workspace; what others share stays.
pub fn invalidate(w: &Workspace, s: &Session, selectors: &[String]) -> Result<u8, CliError> {
    let env = s.env();
    let mut forgotten = 0;
    for i in select(w, s, selectors)? {
        let target = &s.graph.names[i];
        if let Some(recipe) = env.cache.last(target) {
            env.cache.forget(&recipe.key())?;
            forgotten += 1;
        }
    }
    env.cache.flush()?;
    say(&format!("{forgotten} results forgotten"));
    Ok(WELL)
}

/// Prints what the targets need.
pub fn graph(w: &Workspace, s: &Session, selectors: &[String], text: bool) -> Result<u8, CliError> {
    let asked = if selectors.is_empty() { vec![w.config.default.clone()] } else { selectors.to_vec() };
    let goals = targets::select(&asked, &w.config.targets, &s.graph.names)?;
    let wanted = s.graph.closure(&goals);
    let mut t = String::new();
    if text {
        for &i in &wanted {
            t += &format!("{}\n", s.graph.names[i]);
            for &n in &s.graph.needs[i] {
                t += &format!("    {}\n", s.graph.names[n]);
            }
        }
    } else {
        t += "digraph mica {\n  rankdir=LR;\n  node [shape=box];\n";
        for &i in &wanted {
            t += &format!("  n{i} [label={:?}];\n", s.graph.names[i]);
            for n in &s.graph.needs[i] {
                t += &format!("  n{n} -> n{i};\n");
            }
        }
        t += "}\n";
    }
    out(&t)?;
    Ok(WELL)
}

/// Prints a program. The result must have been built: this command runs nothing.
pub fn disasm(w: &Workspace, s: &Session, target: &str) -> Result<u8, CliError> {
    let chosen = targets::select(&[target.into()], &w.config.targets, &s.graph.names)?;
    let env = s.env();
    let mut printed = false;
    for i in chosen {
        let name = &s.graph.names[i];
        let output = match s.graph.nodes[i].job {
            Job::Link(_) => "kernel",
            Job::Compile(..) => "object",
            _ => continue,
        };
        let Some(record) = env.cache.last(name).and_then(|r| env.cache.lookup(&r.key())) else {
            return Err(CliError::Usage(format!("{name} is not built; run `mica build {name}` first")));
        };
        let found = record.outputs.iter().find(|o| o.name == output).map(|o| env.cache.get(o.digest));
        let Some(Some(blob)) = found.transpose()? else {
            return Err(CliError::Usage(format!("{name}: its result is gone; run `mica build {name}`")));
        };
        let broken = |e: mica_cache::CodecError| CliError::Usage(format!("{name}: {e}"));
        let (code, names, ops) = if output == "kernel" {
            let k: Kernel = mica_cache::decode(queries::KERNEL_KIND, &blob).map_err(broken)?;
            (k.code, s.facts[s.graph.nodes[i].model].parts.clone(), k.ops)
        } else {
            let o: Object = mica_cache::decode(queries::OBJECT_KIND, &blob).map_err(broken)?;
            (o.code, vec![o.kind], vec![o.ops])
        };
        out(&listing(&code, &names, &ops).map_err(|e| CliError::Usage(format!("{name}: {e}")))?)?;
        printed = true;
    }
    if printed {
        return Ok(WELL);
    }
    Err(CliError::Usage(format!("{target} holds no program; link:MODEL.kernel and compile:MODEL.KIND do")))
}

/// One line an instruction; a line of its own where the source op changes, with the name of the part.
fn listing(code: &[u8], names: &[String], ops: &[Vec<OpInfo>]) -> Result<String, isa::DecodeError> {
    let mut text = String::new();
    let mut at = None;
    for (i, instr) in isa::decode(code)?.iter().enumerate() {
        if at != Some(instr.src) {
            at = Some(instr.src);
            let (part, op) = ((instr.src >> 16) as usize, (instr.src & 0xffff) as usize);
            let name = names.get(part).map_or("?", String::as_str);
            let source = ops.get(part).and_then(|all| all.get(op));
            let source = source.map_or(String::new(), |o| format!(" {} {}", o.op, o.label));
            text += &format!("; {name} op {op}{}\n", source.trim_end());
        }
        text += &format!("{i:6}  {}\n", mica_device::disasm::line(instr));
    }
    Ok(text)
}
