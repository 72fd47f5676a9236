//! `mica synth`: a synthetic delivery at a model's published dimensions, streamed to disk; on request with
//! captures of our own evaluator, run on the files as they were written.

use super::{WELL, out};
use crate::check::published::{Files as Delivered, Published};
use crate::cli::{Synth, SynthFormat};
use crate::error::CliError;
use crate::progress::Progress;
use crate::progress::say;
use crate::synth::captures::{self, CaptureError, Plan};
use crate::synth::partial::{Parents, Partial, sweep};
use crate::synth::{
    About, Files, Form, GROUP, Label, Stream, Tensor, Values, config, delivery, workspace, write_file,
};
use mica_models::{Stack, describe};
use serde_json::Value;
use std::cell::Cell;
use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The file of the prompt's ids, and of what was captured on them.
const CAPTURES: &str = "captures.safetensors";

/// Writes the delivery into a folder beside `out` and renames that when all is there.
pub fn run(s: &Synth) -> Result<u8, CliError> {
    let start = Instant::now();
    let quantized = s.format == SynthFormat::W4a16;
    if s.packed && !quantized {
        return Err(CliError::Usage("--packed packs experts of four bits: it needs --format w4a16".into()));
    }
    let out_dir = place(&s.out)?;
    let usage = |e: &dyn std::fmt::Display| CliError::Usage(e.to_string());
    let mut set = s.set.clone();
    set.extend(s.vocab.map(|rows| ("vocab_size".to_string(), rows)));
    let text = config(&s.model, s.layers, &set, s.packed.then_some(GROUP)).map_err(|e| usage(&e))?;
    let stack = describe(&s.model, &text).map_err(|e| usage(&e))?;
    let form = Form {
        seed: s.seed,
        quantized,
        packed: s.packed,
        distinct: s.distinct_layers.map(usize::from),
        profile: s.profile,
    };
    let tensors = delivery(&stack, &form).map_err(|e| usage(&e))?;
    let files = Files::plan(&tensors, s.shard_size.unwrap_or(u64::MAX));
    let parent = match out_dir.parent() {
        Some(p) if p != Path::new("") => p,
        _ => Path::new("."),
    };
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |source| refused(path, source)
    };
    if u64::from(s.tokens) > stack.facts.max_positions {
        let most = stack.facts.max_positions;
        return Err(CliError::Usage(format!(
            "--tokens {}: the configuration ends at {most} positions",
            s.tokens
        )));
    }
    let prompt = prompt(s, &stack);
    let plan = match s.captures {
        Some(_) => Some(captures::plan(&stack, prompt.to_vec(), s.tokens.into()).map_err(|e| usage(&e))?),
        None => None,
    };
    let parents = Parents::make(parent).map_err(failed(parent))?;
    sweep(parent).map_err(failed(parent))?;
    room(parent, files.bytes.saturating_add(plan.as_ref().map_or(0, Plan::bytes)))?;
    let partial = Partial::new(parent, parents).map_err(failed(parent))?;
    // known before the first byte rather than after the last
    partial.fits(&out_dir).map_err(|e| {
        let path = s.out.display();
        CliError::Usage(format!("{path}: no folder can take its place ({e}); take a new one, or one in it"))
    })?;
    let progress = Progress::hidden();
    progress.start(files.bytes >> 20);
    let done = Cell::new(0);
    let wrote = |n: u64| {
        done.set(done.get() + n);
        progress.reach(done.get() >> 20);
    };
    for shard in &files.shards {
        progress.started(&shard.name);
        let file = partial.path().join(&shard.name);
        write(&file, &tensors[shard.tensors.clone()], &[], &wrote)
            .map_err(failed(&s.out.join(&shard.name)))?;
        progress.finished(&shard.name);
    }
    progress.clear();
    let written = start.elapsed().as_secs_f64();
    let about = About {
        model: &s.model,
        layers: s.layers,
        quantized,
        profile: s.profile,
        captured: s.captures,
        tokens: s.tokens,
        out: &s.out.display().to_string(),
        captures: CAPTURES,
    };
    let mut texts = vec![
        ("config.json", format!("{:#}\n", Value::Object(text.clone()))),
        (crate::workspace::FILE, workspace(&about)),
    ];
    texts.extend(files.index.clone());
    for (name, text) in texts {
        let path = partial.path().join(name);
        fs::write(&path, text).map_err(failed(&path))?;
    }
    let (file, named) = (partial.path().join(CAPTURES), s.out.join(CAPTURES));
    match &plan {
        None => write(&file, &prompt, &captures::prompt_label(), &|_| ()).map_err(failed(&named))?,
        Some(plan) => capture(&file, partial.path(), &stack, plan, &prompt[0]).map_err(|e| match e {
            CaptureError::Write(source) => failed(&named)(source),
            other => CliError::Usage(format!("{}: {other}", named.display())),
        })?,
    }
    partial.publish(&out_dir).map_err(failed(&s.out))?;
    let rate = files.bytes as f64 / 1e9 / written;
    say(&format!("{} in {written:.1} s, {rate:.2} GB/s", size(files.bytes)));
    if let Some(plan) = &plan {
        let (megabytes, seconds) = (plan.bytes() as f64 / 1e6, start.elapsed().as_secs_f64() - written);
        say(&format!("captures of our own evaluator, {megabytes:.1} MB in {seconds:.1} s"));
    }
    out(&format!("{}\n", s.out.join(crate::workspace::FILE).display()))?;
    Ok(WELL)
}

/// The folder that is written: `out`, or where a link leads. What is there already has to be an empty folder, and not the
/// one that the command was started in, which would be gone from under whoever stands in it.
fn place(out: &Path) -> Result<PathBuf, CliError> {
    let refuse = |why: &str| {
        let path = out.display();
        Err(CliError::Usage(format!("{path} {why}; take a folder that is empty, or a new one")))
    };
    if fs::symlink_metadata(out).is_err_and(|e| e.kind() == ErrorKind::NotFound) {
        return Ok(out.to_path_buf());
    }
    let read = |source| CliError::Read { path: out.to_path_buf(), source };
    let real = match fs::canonicalize(out) {
        Err(e) if e.kind() == ErrorKind::NotFound => return refuse("is a link to nothing"),
        found => found.map_err(read)?,
    };
    match real.read_dir().map(|mut entries| entries.next().is_none()) {
        Err(e) if e.kind() == ErrorKind::NotADirectory => refuse("is no folder"),
        Err(e) => Err(read(e)),
        Ok(false) => refuse("is not empty"),
        Ok(true) if std::env::current_dir().is_ok_and(|here| here == real) => {
            refuse("is the folder you are in")
        }
        Ok(true) => Ok(real),
    }
}

/// A file that could not be written; with what to do where a disk, a quota or a limit of file sizes is full.
fn refused(path: PathBuf, source: std::io::Error) -> CliError {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            let path = path.display();
            CliError::Usage(format!("{path}: {source}; nothing is left behind: make room, or {LESS}"))
        }
        _ => CliError::Write { path, source },
    }
}

/// Ways to a smaller delivery.
const LESS: &str = "take fewer layers, --packed, a smaller --vocab or another disk";

/// Fails where the file system has less free than the delivery needs.
fn room(dir: &Path, needed: u64) -> Result<(), CliError> {
    let free = rustix::fs::statvfs(dir)
        .map_err(|e| CliError::Read { path: dir.to_path_buf(), source: e.into() })
        .map(|s| s.f_bavail.saturating_mul(s.f_frsize))?;
    enough(dir, needed, free)
}

fn enough(dir: &Path, needed: u64, free: u64) -> Result<(), CliError> {
    if free >= needed {
        return Ok(());
    }
    Err(CliError::Usage(format!(
        "the delivery takes {} and {} has {} free; {LESS}",
        size(needed),
        dir.display(),
        size(free)
    )))
}

/// Bytes for a person.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

/// One file, on the disk when this returns.
fn write(path: &Path, tensors: &[Tensor], label: &Label, wrote: &dyn Fn(u64)) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    write_file(tensors, label, &mut file, wrote)?;
    file.flush()?;
    file.sync_data()
}

/// Runs the model on the delivery in `dir` and writes what is captured, on the disk when this returns.
fn capture(path: &Path, dir: &Path, stack: &Stack, plan: &Plan, ids: &Tensor) -> Result<(), CaptureError> {
    let Values::Given(ids) = &ids.values else { return Ok(()) };
    let read = |why: String| CaptureError::Delivery { why };
    let files = Delivered::delivery(dir, None, None).map_err(|e| read(e.to_string()))?;
    let delivery = Published::Files(Box::new(files));
    let progress = Progress::hidden();
    progress.start(stack.parts().len() as u64);
    progress.started("captures of our own evaluator");
    let mut file = BufWriter::new(File::create(path)?);
    let done = plan.write(stack, &delivery, ids, &mut file, &|_| progress.settled());
    progress.clear();
    done?;
    file.flush()?;
    Ok(file.get_ref().sync_data()?)
}

/// The prompt's ids, and those that follow each: uniform over the vocabulary.
fn prompt(s: &Synth, stack: &Stack) -> [Tensor; 2] {
    let stream = Stream::new(s.seed, "input_ids");
    let id = |i: u64| (stream.word(i) % stack.facts.vocab) as i64;
    let tokens = u64::from(s.tokens);
    let tensor = |name: &str, first: u64| Tensor {
        name: name.into(),
        dtype: "I64",
        shape: vec![tokens],
        values: Values::Given((first..first + tokens).map(id).collect()),
        stream,
        first: 0,
    };
    [tensor("input_ids", 0), tensor("next_ids", 1)]
}

#[cfg(test)]
mod tests {
    use super::enough;
    use std::path::Path;

    #[test]
    fn a_disk_without_room_is_named_with_both_figures() {
        assert!(enough(Path::new("d"), 1 << 30, 1 << 30).is_ok());
        let e = enough(Path::new("d"), 34_900_000_000, 1_250_000_000).unwrap_err().to_string();
        assert!(e.contains("takes 34.90 GB and d has 1.25 GB free"), "{e}");
    }
}
