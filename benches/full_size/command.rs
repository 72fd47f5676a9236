//! Runs of the command, and what each took.

use crate::cpu::Cpu;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The command.
pub const MICA: &str = env!("CARGO_BIN_EXE_mica-under-test");
/// The described model.
pub const MODEL: &str = "qwen3_5_35b_a3b";

/// How often the memory of a run is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// What a run took.
pub struct Taken {
    pub wall: f64,
    pub cpu: Cpu,
    /// Most memory at a time beside mapped files.
    pub memory: u64,
    /// Bytes that went to files.
    pub written: u64,
}

/// A folder that goes when the bench ends.
pub struct Place(pub PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.0) {
            eprintln!("{}: {e}", self.0.display());
        }
    }
}

impl Place {
    /// Runs the command on the delivery in this folder, with the cache in it.
    pub fn mica(&self, arguments: &[&str]) -> Taken {
        let mut command = Command::new(MICA);
        command
            .arg("-C")
            .arg(self.0.join("delivery"))
            .arg("--cache")
            .arg(self.0.join("cache"))
            .args(arguments);
        run(command)
    }
}

/// Runs the command to its end.
#[expect(clippy::zombie_processes, reason = "`wait4` waits for it, and tells what it took")]
pub fn run(mut command: Command) -> Taken {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let start = Instant::now();
    let child = command.spawn().expect("the command starts");
    let pid = child.id();
    let mut memory = 0;
    let mut status = 0;
    // SAFETY: `rusage` is plain numbers, for which zeros are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers are to live values of the types that the call writes; the child is this
        // process's own and nobody else waits for it.
        let waited = unsafe { libc::wait4(pid.cast_signed(), &mut status, libc::WNOHANG, &mut usage) };
        if waited == pid.cast_signed() {
            break;
        }
        assert_eq!(waited, 0, "the child can be waited for");
        memory = memory.max(anonymous(pid));
        std::thread::sleep(LOOK);
    }
    assert_eq!(status, 0, "{command:?} succeeds");
    Taken {
        wall: start.elapsed().as_secs_f64(),
        cpu: Cpu::of(&usage),
        memory,
        // counted in blocks of 512 bytes
        written: usage.ru_oublock as u64 * 512,
    }
}

/// Resident bytes of a process that are no file's.
fn anonymous(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB")).and_then(|n| n.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
