//! The pages and the commands that print them: every link, every quotation, every command on a page.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn mica(dir: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mica")).current_dir(dir).args(words).output().unwrap()
}

fn text(out: &[u8]) -> String {
    String::from_utf8(out.to_vec()).unwrap()
}

/// Every Markdown file of the checkout's own docs.
fn pages() -> Vec<PathBuf> {
    let mut found = vec![root().join("README.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|e| e == "md") => found.push(path),
                false => {}
            }
        }
    }
    found
}

/// A heading as an anchor: lower case, spaces to dashes, other marks gone.
fn anchor(title: &str) -> String {
    let kept = title.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(page: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(page).unwrap();
    mica::commands::spec::sections(&text).iter().map(|s| anchor(s.title)).collect()
}

#[test]
fn links_lead_somewhere() {
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            if link.starts_with("http") {
                continue;
            }
            let (file, section) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            assert!(target.exists(), "{}: {link} leads nowhere", page.display());
            if !section.is_empty() {
                let known = anchors(&target);
                assert!(known.contains(section), "{}: {link} has no such section", page.display());
            }
        }
    }
}

#[test]
fn section_numbers_stay() {
    for (topic, number, title) in [
        ("hir", "1.3", "No promotion"),
        ("hir", "3.8", "topk"),
        ("hir", "3.11", "cache_update"),
        ("hir", "4", "Cost"),
        ("runtime", "1.1", "Module, entry, forward, call and twin"),
        ("runtime", "1.1.1", "Load"),
        ("runtime", "1.1.2", "Prepare"),
        ("runtime", "1.1.3", "Twin"),
        ("runtime", "2", "Decode"),
        ("runtime", "4.4", "Predicates"),
    ] {
        let page = mica::commands::spec::page(topic).unwrap();
        let found = mica::commands::spec::find(page, number).unwrap();
        assert_eq!(found.title, format!("{number} {title}"));
    }
    for page in mica::commands::spec::PAGES {
        let mut numbers: Vec<String> =
            mica::commands::spec::sections(page.text).iter().map(|s| s.number().to_string()).collect();
        numbers.retain(|n| !n.is_empty());
        let once: BTreeSet<&String> = numbers.iter().collect();
        assert_eq!(once.len(), numbers.len(), "{}: a number stands twice", page.topic);
    }
}

#[test]
fn every_operation_has_its_section() {
    let spec = mica::commands::spec::page("hir").unwrap();
    for op in "add sub mul div neg exp square rsqrt softplus sigmoid silu matmul reduce rms_norm softmax rope topk \
               index_select concat slice reshape transpose repeat_interleave cast full_like cache_update tuple_get \
               max round call"
        .split_whitespace()
    {
        let found = mica::commands::spec::find(spec, op).unwrap();
        assert!(found.number().starts_with("3."), "{op} is in {}", found.title);
    }
}

#[test]
fn the_spec_is_read_by_topic_outline_and_section() {
    let table: &[(&[&str], &[&str])] = &[
        (&["spec"], &["device", "hir", "runtime", "`mica spec TOPIC SECTION`"]),
        (&["spec", "hir"], &["3 Operations", "    3.11 cache_update"]),
        (&["spec", "hir", "cache_update"], &["### 3.11 cache_update", "`cur_pos` below 0"]),
        (&["spec", "runtime", "1.1"], &["### 1.1 Module, entry, forward, call and twin", "#### 1.1.3 Twin"]),
        (&["spec", "device", "matv"], &["### MATV"]),
        (&["spec", "runtime", "1.1.2", "--json"], &["\"number\": \"1.1.2\"", "\"topic\": \"runtime\""]),
    ];
    for (words, said) in table {
        let out = mica(&root(), words);
        let page = text(&out.stdout);
        assert!(out.status.success(), "{words:?}");
        assert!(said.iter().all(|s| page.contains(s)), "{words:?}: {page}");
    }
    for (words, said) in [
        (&["spec", "hirr"][..], "expected one of: device, hir, runtime"),
        (&["spec", "runtime", "9.9"], "`mica spec runtime` prints its outline"),
        (&["tutorial", "describ"], "expected one of: describe, make-it-fast"),
        (&["models", "qwen"], "expected one of: qwen3_5_35b_a3b"),
    ] {
        let out = mica(&root(), words);
        assert_eq!(out.status.code(), Some(2), "{words:?}");
        // the display breaks lines and frames them
        let solid = |t: &str| t.chars().filter(|c| !c.is_whitespace() && *c != '│').collect::<String>();
        assert!(solid(&text(&out.stderr)).contains(&solid(said)), "{words:?}: {}", text(&out.stderr));
    }
}

/// JSON that a program reads says what form it has, whatever the command.
#[test]
fn json_has_the_version_of_its_form() {
    for words in [
        "targets link:*",
        "models",
        "models qwen3_5_35b_a3b",
        "models qwen3_5_35b_a3b --source",
        "spec",
        "spec device",
        "spec device matv",
        "tutorial",
        "tutorial describe",
        "analyze tiny:layer3",
        "analyze tiny --layers 1",
        "build -n timing:tiny.kernel",
        "status score:tiny.decode",
        "fetch --check",
        "calibrate tiny",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let cache = ["--json", "--cache", dir.path().to_str().unwrap()];
        let out = mica(&root(), &[&words.split_whitespace().collect::<Vec<_>>()[..], &cache].concat());
        let json: Value = serde_json::from_str(&text(&out.stdout)).unwrap_or_else(|e| panic!("{words}: {e}"));
        let all = json.as_array().cloned().unwrap_or_else(|| vec![json]);
        assert!(!all.is_empty() && all.iter().all(|one| one["schema"].is_u64()), "{words}: {all:?}");
    }
}

#[test]
fn the_models_are_listed_and_printed() {
    let list = text(&mica(&root(), &["models"]).stdout);
    assert!(list.contains("qwen3_5_35b_a3b") && list.contains("leaf modules"), "{list}");
    let tree = text(&mica(&root(), &["models", "qwen3_5_35b_a3b"]).stdout);
    for said in [
        "layer0..layer2 ×3: linear_attention_layer",
        "layer4..layer6 ×3: as layer0",
        "weight q_proj.weight: bf16[8192, 2048]",
    ] {
        assert!(tree.contains(said), "{said}: {tree}");
    }
    let json = text(&mica(&root(), &["models", "qwen3_5_35b_a3b", "--json"]).stdout);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["counts"]["leaf_modules"], 80);
    let small = ["models", "qwen3_5_35b_a3b", "--config", "tests/delivery/tiny/config.json"];
    assert!(text(&mica(&root(), &small).stdout).contains("weight q_proj.weight: bf16[512, 128]"));
}

#[test]
fn the_source_is_listed_and_written_out() {
    let source = ["models", "qwen3_5_35b_a3b", "--source"];
    let list = text(&mica(&root(), &source).stdout);
    assert!(list.starts_with(&format!("{}", root().join("models/src/qwen3_5_moe").display())), "{list}");
    assert!(list.contains("moe.rs") && list.contains("The mixture of experts"), "{list}");
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("source");
    let words = [&source[..], &["--out", to.to_str().unwrap()]].concat();
    assert!(mica(dir.path(), &words).status.success());
    for name in ["mod.rs", "config.json", "moe.rs"] {
        let shipped = std::fs::read(root().join("models/src/qwen3_5_moe").join(name)).unwrap();
        assert_eq!(std::fs::read(to.join(name)).unwrap(), shipped, "{name}");
    }
    assert_eq!(mica(dir.path(), &words).status.code(), Some(2), "the folder is there already");
}

/// The commands of a page's shell blocks, and the exit status that each is to have.
fn commands(page: &str) -> Vec<(i32, Vec<String>)> {
    let mut shell = false;
    let mut found = Vec::new();
    for line in page.lines() {
        match (line.strip_prefix("```"), shell) {
            (Some("sh"), _) => shell = true,
            (Some(_), _) => shell = false,
            (None, true) => {
                let mut words: Vec<String> = line.split_whitespace().map(str::to_string).collect();
                let status = i32::from(words[0] == "!");
                words.drain(..=status as usize);
                found.push((status, words));
            }
            (None, false) => {}
        }
    }
    found
}

#[test]
fn the_tutorial_quotes_and_its_commands_run() {
    let mut count = 0;
    for step in mica::commands::tutorial::STEPS {
        let out = mica(&root(), &["tutorial", step.name]);
        assert!(out.status.success(), "{}", text(&out.stderr));
        let page = text(&out.stdout);
        assert!(!page.contains("{{") && page.contains("```rust\n// models/src/"), "{}", step.name);
        for (status, words) in commands(&page) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let out = mica(&root(), &words);
            assert_eq!(
                out.status.code(),
                Some(status),
                "mica {}\n{}{}",
                words.join(" "),
                text(&out.stdout),
                text(&out.stderr)
            );
            count += 1;
        }
    }
    assert!(count > 15, "{count} commands");
}

/// The same commands in a folder whose workspace is broken, in an address space little larger than the command itself:
/// they do not look at it, and read nothing large. They leave nothing behind.
#[test]
fn reading_opens_no_workspace_and_maps_nothing_large() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("workspace.toml"), "this is no workspace").unwrap();
    for words in [&["--help"][..], &["models"], &["spec"], &["spec", "hir"], &["tutorial"]] {
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -v 400000; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_mica")]).args(words);
        let out = limited.current_dir(dir.path()).output().unwrap();
        assert!(out.status.success() && !out.stdout.is_empty(), "{words:?}: {}", text(&out.stderr));
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "only the workspace is there");
}

#[test]
fn help_is_a_word_as_well() {
    let heard = |words: &[&str]| {
        let out = mica(&root(), words);
        assert!(out.status.success(), "{words:?}: {}", text(&out.stderr));
        text(&out.stdout)
    };
    assert_eq!(heard(&["help"]), heard(&["--help"]));
    assert_eq!(heard(&["help", "build"]), heard(&["build", "--help"]));
    assert_eq!(mica(&root(), &["help", "bild"]).status.code(), Some(2));
}

/// What the system says of a file is told once, with what to do.
#[test]
fn what_the_system_says_is_told_once_with_advice() {
    for (words, file, advice) in [
        (&["analyze", "tiny", "--svg", "/nonexistent/r.svg"][..], "/nonexistent/r.svg", "folder is there"),
        (&["-f", "nonexistent.toml", "targets"], "nonexistent.toml", "see that it is there"),
        (&["-C", "/nonexistent", "targets"], "/nonexistent", "see that it is there"),
    ] {
        let out = mica(&root(), words);
        let told = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{words:?}: {told}");
        assert_eq!(told.matches("No such file").count(), 1, "{words:?}: {told}");
        assert!(told.contains(file) && told.contains(advice), "{words:?}: {told}");
    }
}
