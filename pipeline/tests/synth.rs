//! `mica synth` where it can't do what it was asked: nothing is left that looks like a delivery.

use std::path::Path;
use std::process::{Command, Output};

fn synth(args: &[&str], out: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mica"));
    command.args(["synth", "qwen3_5_35b_a3b", "--out"]).arg(out).args(args);
    command
}

fn said(o: &Output) -> String {
    // the terminal's width decides where lines break
    String::from_utf8_lossy(&o.stderr).split_whitespace().filter(|w| *w != "│").collect::<Vec<_>>().join(" ")
}

fn left(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// A disk that fills up is played by a limit on the size of files.
#[test]
fn a_write_that_fails_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let whole = synth(&["--layers", "1", "--vocab", "64"], &dir.path().join("new/folders/out"));
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\""]).arg(whole.get_program());
    let o = limited.args(whole.get_args()).output().unwrap();
    assert_eq!(o.status.code(), Some(2));
    assert!(said(&o).contains("model.safetensors: File too large"), "{}", said(&o));
    assert!(left(dir.path()).is_empty(), "{:?}", left(dir.path()));
}

#[test]
fn mistakes_are_named_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let full = dir.path().join("full");
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("a"), "a").unwrap();
    let new = dir.path().join("new");
    let [file, link] = ["file", "link"].map(|name| dir.path().join(name));
    std::fs::write(&file, "a").unwrap();
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    let table: [(&[&str], &Path, &str); 13] = [
        (&["--layers", "1"], &full, "is not empty"),
        (&["--layers", "1"], &file, "file is no folder"),
        (&["--layers", "1"], &link, "link is a link to nothing"),
        (&["--layers", "1"], &dir.path().join("n".repeat(256)), "File name too long"),
        (&["--layers", "1"], &dir.path().join("a/b").join("n".repeat(256)), "File name too long"),
        (&["--layers", "1", "--vocab", "64", "--set", "vocab_size=32"], &new, "vocab_size is set twice"),
        (&["--layers", "1", "--set", "num_hidden_layers=2"], &new, "--layers says how many"),
        (&["--layers", "1", "--set", "full_attention_interval=1"], &new, "layer_types names the kind"),
        (
            &["--layers", "1", "--tokens", "5", "--set", "max_position_embeddings=4"],
            &new,
            "ends at 4 positions",
        ),
        (&["--layers", "1", "--set", "hidden_size=4294967296"], &new, "no whole number from 0 to 4294967295"),
        (&["--layers", "41"], &new, "has 40 layers, and 41 were asked for"),
        (&["--layers", "8", "--distinct-layers", "3"], &new, "take a multiple of 4"),
        (&["--layers", "1", "--format", "bf16", "--packed"], &new, "needs --format w4a16"),
    ];
    for (args, out, words) in table {
        let o = synth(args, out).output().unwrap();
        assert_eq!(o.status.code(), Some(2), "{args:?}");
        assert!(said(&o).contains(words), "{args:?}: {}", said(&o));
    }
    let mut left = left(dir.path());
    left.sort();
    assert_eq!(left, ["file", "full", "link"]);
}
