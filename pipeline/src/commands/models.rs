//! `mica models`: the described models, one as a tree, and their shipped source. It opens no workspace.

use super::{LISTING, WELL, out};
use crate::check::published;
use crate::error::CliError;
use mica_models::forest::{counts, forest};
use mica_models::{Described, describe, described};
use mica_score::table::{Align, Table};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// What is asked for.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which model [default: list them].
    pub name: Option<String>,
    /// The config.json whose dimensions it is printed at [default: the published one].
    #[arg(long, value_name = "FILE", requires = "name")]
    pub config: Option<PathBuf>,
    /// List the shipped source files and the directory that holds them.
    #[arg(long, requires = "name")]
    pub source: bool,
    /// With --source: write the files to a new folder.
    #[arg(long, value_name = "DIR", requires = "source")]
    pub out: Option<PathBuf>,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<u8, CliError> {
    let Some(name) = &args.name else {
        out(&list(args.json)?)?;
        return Ok(WELL);
    };
    let model = described().iter().find(|m| m.name == name).ok_or_else(|| {
        let known: Vec<&str> = described().iter().map(|m| m.name).collect();
        CliError::Usage(format!("no model `{name}` is described, expected one of: {}", known.join(", ")))
    })?;
    if args.source {
        let directory = match &args.out {
            Some(dir) => extract(model, dir)?,
            None => checkout(model),
        };
        out(&source(model, directory.as_deref(), args.json))?;
        return Ok(WELL);
    }
    let config = match &args.config {
        Some(file) => published::config(file)?,
        None => model.published_config().map_err(usage)?,
    };
    let tree = forest(&describe(name, &config).map_err(usage)?).map_err(usage)?;
    out(&match args.json {
        true => {
            let mut document = json!(tree);
            document["schema"] = LISTING.into();
            format!("{document:#}\n")
        }
        false => tree.to_string(),
    })?;
    Ok(WELL)
}

fn usage(e: impl std::fmt::Display) -> CliError {
    CliError::Usage(e.to_string())
}

fn list(as_json: bool) -> Result<String, CliError> {
    let mut rows = Vec::new();
    for m in described() {
        rows.push((m, counts(&m.published().map_err(usage)?).map_err(usage)?));
    }
    if as_json {
        let one = |(m, c): &(&Described, _)| json!({ "schema": LISTING, "model": m.name, "model_types": m.model_types, "counts": c });
        return Ok(format!("{:#}\n", Value::from(rows.iter().map(one).collect::<Vec<_>>())));
    }
    let right = Align::Right;
    let columns = [
        ("model", Align::Left),
        ("modules", right),
        ("leaf modules", right),
        ("functions", right),
        ("reads model_type", Align::Left),
    ];
    let mut table = Table::new(&columns);
    for (m, c) in rows {
        let numbers = [c.modules, c.leaf_modules, c.functions].map(|n| n.to_string());
        let [modules, leaves, functions] = numbers;
        table.row([m.name.into(), modules, leaves, functions, m.model_types.join(", ")]);
    }
    Ok(format!("{table}\n"))
}

/// The model's directory in the checkout that this binary was built from, if it still holds these very files.
fn checkout(model: &Described) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    let directory = root.join(model.directory);
    let same = |f: &mica_models::Shipped| {
        std::fs::read(directory.join(f.path)).is_ok_and(|b| b == f.text.as_bytes())
    };
    model.files.iter().all(same).then_some(directory)
}

/// Writes the files to a folder that is not there yet.
fn extract(model: &Described, dir: &Path) -> Result<Option<PathBuf>, CliError> {
    let failed = |source| CliError::Write { path: dir.into(), source };
    if dir.exists() {
        return Err(CliError::Usage(format!("{} is there already; --out makes a new folder", dir.display())));
    }
    std::fs::create_dir_all(dir).map_err(failed)?;
    for f in model.files {
        std::fs::write(dir.join(f.path), f.text).map_err(failed)?;
    }
    Ok(Some(dir.into()))
}

fn source(model: &Described, directory: Option<&Path>, as_json: bool) -> String {
    if as_json {
        let files = model.files.iter().map(|f| json!({ "path": f.path, "summary": f.summary() }));
        let files: Vec<Value> = files.collect();
        let document =
            json!({ "schema": LISTING, "model": model.name, "directory": directory, "files": files });
        return format!("{document:#}\n");
    }
    let place = match directory {
        Some(d) => d.display().to_string(),
        None => format!(
            "{} of a checkout; `mica models {} --source --out DIR` writes the files",
            model.directory, model.name
        ),
    };
    let width = model.files.iter().map(|f| f.path.len()).max().unwrap_or(0);
    let lines = model.files.iter().map(|f| format!("{:<width$}  {}\n", f.path, f.summary()));
    format!("{place}\n{}", lines.collect::<String>())
}
