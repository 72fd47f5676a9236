//! A temporary workspace over the shipped deliveries.

use crate::mica::{Mica, Run};
use mica_fetch::testing::{copy_delivery, shipped};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use toml::{Table, Value};

/// The shipped deliveries that the default workspace names.
const DELIVERIES: [&str; 3] = ["tiny", "tiny-w4a16", "ops"];

/// The text that the default workspace's models are scored on.
const HELD_OUT: &str = "held-out.txt";

/// A folder with a `workspace.toml`: the default one, until a test changes it. The deliveries are links to
/// the shipped ones, until a test asks for its own copy.
pub struct Workspace {
    dir: TempDir,
    binary: PathBuf,
    cache: Option<PathBuf>,
    config: Table,
}

/// The folder of the default workspace.
pub fn shipped_workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

impl Workspace {
    /// The default workspace in a folder of its own; `binary` is the command.
    ///
    /// # Panics
    /// If the folder cannot be filled.
    pub fn shipped(binary: &str) -> Workspace {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let text =
            fs::read_to_string(shipped_workspace().join("workspace.toml")).expect("the default workspace");
        let config = text.parse().unwrap_or_else(|e| panic!("workspace.toml: {e}"));
        let deliveries = dir.path().join("tests/delivery");
        fs::create_dir_all(&deliveries).expect("a folder for the deliveries");
        for name in DELIVERIES {
            let from = shipped(name).canonicalize().expect("a shipped delivery");
            std::os::unix::fs::symlink(from, deliveries.join(name)).expect("a link to a delivery");
        }
        std::os::unix::fs::symlink(shipped(HELD_OUT), deliveries.join(HELD_OUT)).expect("a link to the text");
        let cache = Some(dir.path().join("cache"));
        let workspace = Workspace { dir, binary: binary.into(), cache, config };
        workspace.save();
        workspace
    }

    /// A synthetic delivery and its workspace, made by `mica synth` with these words.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn synthetic(binary: &str, words: &[&str]) -> Workspace {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let made =
            Mica::new(Path::new(binary)).arg("synth").arg("qwen3_5_35b_a3b").arg("--out").arg(dir.path());
        words.iter().fold(made, |mica, word| mica.arg(word)).run().exits(0);
        let text = fs::read_to_string(dir.path().join("workspace.toml")).expect("a workspace");
        let config = text.parse().unwrap_or_else(|e| panic!("workspace.toml: {e}"));
        let cache = Some(dir.path().join("cache"));
        Workspace { dir, binary: binary.into(), cache, config }
    }

    /// The same with one model alone, and nothing but its decode run.
    pub fn only(binary: &str, model: &str) -> Workspace {
        let mut workspace = Workspace::shipped(binary);
        workspace.table("model").retain(|name, _| name == model);
        workspace.table("vectors").clear();
        workspace.table("targets").retain(|name, _| name == "decode");
        workspace.save();
        workspace
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The cache's folder.
    pub fn cache(&self) -> PathBuf {
        self.cache.clone().unwrap_or_else(|| self.dir.path().join(".mica"))
    }

    /// Takes another cache; `None` leaves it to the command where that is.
    #[must_use]
    pub fn on_cache(self, cache: Option<PathBuf>) -> Workspace {
        Workspace { cache, ..self }
    }

    /// Sets a value by its dotted path (`model.tiny.block`).
    ///
    /// # Panics
    /// If the path leads through something that is no table.
    pub fn set(&mut self, path: &str, value: impl Into<Value>) {
        let (tables, key) = path.rsplit_once('.').unwrap_or(("", path));
        self.table(tables).insert(key.into(), value.into());
        self.save();
    }

    /// Takes a value away.
    pub fn unset(&mut self, path: &str) {
        let (tables, key) = path.rsplit_once('.').unwrap_or(("", path));
        self.table(tables).remove(key);
        self.save();
    }

    /// Puts a rule before all others of a recipe.
    ///
    /// # Panics
    /// If there is no such recipe or the rule is no inline table.
    pub fn first_rule(&mut self, recipe: &str, rule: &str) {
        let rule: Table = format!("rule = {{ {rule} }}").parse().expect("a rule");
        let rules = self.table(&format!("recipe.{recipe}"))["rules"].as_array_mut().expect("a list of rules");
        rules.insert(0, rule["rule"].clone());
        self.save();
    }

    /// Replaces the link to a delivery by a copy that may be edited; gives its folder.
    ///
    /// # Panics
    /// If it cannot be copied.
    pub fn own(&self, delivery: &str) -> PathBuf {
        let place = self.delivery(delivery);
        if place.is_symlink() {
            fs::remove_file(&place).expect("the link is removed");
        } else if place.exists() {
            fs::remove_dir_all(&place).expect("the copy is removed");
        }
        copy_delivery(&shipped(delivery), &place);
        place
    }

    /// The folder of a delivery.
    pub fn delivery(&self, name: &str) -> PathBuf {
        self.dir.path().join("tests/delivery").join(name)
    }

    /// The command in this workspace, on its own cache.
    pub fn mica(&self, words: &[&str]) -> Mica {
        let mut mica = Mica::new(&self.binary).arg("-C").arg(self.dir.path());
        if let Some(cache) = &self.cache {
            mica = mica.arg("--cache").arg(cache);
        }
        words.iter().fold(mica, |mica, word| mica.arg(word))
    }

    /// `mica build`, with events.
    pub fn build(&self, words: &[&str]) -> Run {
        self.mica(&[&["build"], words].concat()).events(self.dir.path().join("events.jsonl")).run()
    }

    /// `mica build` that has to go well.
    ///
    /// # Panics
    /// If it does not.
    pub fn build_well(&self, words: &[&str]) -> Run {
        self.build(words).exits(0)
    }

    fn table(&mut self, path: &str) -> &mut Table {
        path.split('.').filter(|key| !key.is_empty()).fold(&mut self.config, |table, key| {
            let inner = table.entry(key).or_insert_with(|| Value::Table(Table::new()));
            inner.as_table_mut().unwrap_or_else(|| panic!("{path}: {key} is no table"))
        })
    }

    /// Appends lines to `workspace.toml` that are written as they are; the next change drops them again.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn append(&self, lines: &str) {
        let path = self.dir.path().join("workspace.toml");
        let text = fs::read_to_string(&path).expect("workspace.toml");
        fs::write(path, text + lines).expect("workspace.toml is written");
    }

    fn save(&self) {
        let text = toml::to_string(&self.config).expect("a workspace is TOML");
        fs::write(self.dir.path().join("workspace.toml"), text).expect("workspace.toml is written");
    }
}
