//! `mica synth` where it can't go on.

use crate::MICA;
use std::fs;
use std::process::Command;

/// A delivery that meets a full disk halfway is told with what to do, and leaves nothing: no half delivery, and no
/// folder of its own.
#[test]
fn a_full_disk_leaves_no_half_delivery() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let out = dir.path().join("out");
    let synth = |blocks: &str| {
        // a limit of file sizes, in blocks of 512 bytes, fails a write as a full disk does, if it is no signal
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        Command::new("sh")
            .args([
                "-c",
                &script,
                MICA,
                "synth",
                "qwen3_5_35b_a3b",
                "--layers",
                "1",
                "--vocab",
                "16",
                "--out",
            ])
            .arg(&out)
            .output()
            .expect("a shell")
    };
    // the header fits, the first matrices do not
    let made = synth("9000");
    // as a line: the message is wrapped and framed for a terminal
    let told = String::from_utf8_lossy(&made.stderr).replace(['│', '╰', '─', '▶'], "");
    let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(made.status.code(), Some(2), "{told}");
    assert!(told.contains("out/model.safetensors: "), "{told}");
    assert!(told.contains("nothing is left behind: make room, or take fewer layers, --packed"), "{told}");
    assert!(made.stdout.is_empty(), "no workspace is named");
    let left: Vec<_> = fs::read_dir(dir.path()).expect("the folder").collect();
    assert!(left.is_empty(), "{left:?}");
}
