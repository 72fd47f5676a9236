//! What a process took of the processors.

/// Seconds in the process's own code and in the system's.
#[derive(Clone, Copy)]
pub struct Cpu {
    pub user: f64,
    pub system: f64,
}

impl Cpu {
    /// As the system counted it.
    pub fn of(usage: &libc::rusage) -> Cpu {
        let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
        Cpu { user: seconds(usage.ru_utime), system: seconds(usage.ru_stime) }
    }

    /// Of this process so far.
    pub fn own() -> Cpu {
        // SAFETY: `rusage` is plain numbers, for which zeros are a value, and the call writes one.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &mut usage), 0, "a process may ask for its own");
            usage
        };
        Cpu::of(&usage)
    }

    /// What was taken after `before`.
    pub fn since(self, before: Cpu) -> Cpu {
        Cpu { user: self.user - before.user, system: self.system - before.system }
    }

    /// Both.
    pub fn total(self) -> f64 {
        self.user + self.system
    }
}
