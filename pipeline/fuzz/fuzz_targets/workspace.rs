//! Any bytes as a workspace file.
#![no_main]

use std::path::Path;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let path = Path::new("workspace.toml");
    let Ok(config) = mica::workspace::parse(path, text) else { return };
    for (name, device) in &config.device {
        let _ = device.machine(name);
    }
    let asked = [config.default.clone(), "decode[layers=3]".into()];
    let workspace = mica::workspace::Workspace { root: ".".into(), file: path.into(), config };
    let _ = workspace.with_parameters(&asked);
});
