//! Files that become shorter while they are mapped: a delivery that is being downloaded anew in place, a constant
//! segment that something cuts.
//!
//! The system answers a read beyond a mapped file's new end with a signal that ends the process without a word. Here the
//! missing page reads as zeros instead, and the cut is counted: whatever was computed meanwhile counts for nothing
//! ([`crate::action`]), and the command fails with a sentence. It must not know what a file holds.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::{mem, ptr};

/// Pages that were not there any more.
static CUTS: AtomicU64 = AtomicU64::new(0);
/// Bytes of a page, known before the handler may run.
static PAGE: AtomicUsize = AtomicUsize::new(0);

/// What is said of it, after the file's name where that is found ([`crate::action`]).
pub const MESSAGE: &str = "a file became shorter while it was read, so nothing of what was computed counts; \
                           see that nothing writes the delivery or the cache in place, and run it again";

/// Has cuts counted from now on, in the whole process.
pub fn watch() {
    // SAFETY: a plain question to the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    PAGE.store(usize::try_from(page).unwrap_or(4096), Ordering::Relaxed);
    // SAFETY: the struct is plain numbers, for which zeros are a value; the handler has the signature that SA_SIGINFO
    // asks for and calls only what a signal handler may call.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGBUS, &action, ptr::null_mut());
    }
}

/// How many pages have been missing so far.
pub fn count() -> u64 {
    CUTS.load(Ordering::SeqCst)
}

/// Puts a page of zeros where the file has none. Anything else that raises the signal ends the process as ever.
extern "C" fn on_bus_error(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the system hands a valid `info`; `mmap` is a system call, and it replaces a page that no file backs any more,
    // of a mapping that this process only reads. Where it succeeds, it leaves the thread's error number alone.
    unsafe {
        if (*info).si_code == libc::BUS_ADRERR {
            let page = PAGE.load(Ordering::Relaxed);
            let at = (*info).si_addr() as usize / page * page;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
            let zeros = libc::mmap(at as *mut c_void, page, libc::PROT_READ, flags, -1, 0);
            if zeros != libc::MAP_FAILED {
                CUTS.fetch_add(1, Ordering::SeqCst);
                return;
            }
        }
        // the access is tried again, and this time nobody catches it
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
    }
}
