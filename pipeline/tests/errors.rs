//! How errors look to a program that reads them.

use std::process::Command;

/// A line is whole however long it is, so that it can be searched.
#[test]
fn no_line_is_broken_where_no_terminal_reads() {
    let dir = tempfile::tempdir().unwrap();
    let long = dir.path().join("a ".repeat(60) + "folder");
    std::fs::create_dir(&long).unwrap();
    std::fs::write(long.join("workspace.toml"), [0xff]).unwrap();
    let o = Command::new(env!("CARGO_BIN_EXE_mica")).arg("-C").arg(&long).arg("build").output().unwrap();
    let heard = String::from_utf8(o.stderr).unwrap();
    assert_eq!(o.status.code(), Some(2), "{heard}");
    let path = long.join("workspace.toml");
    assert!(heard.contains(path.to_str().unwrap()), "{heard}");
}
