//! Asking for memory before it is needed. What lies in a mapped file comes page by page, and the processor foresees
//! nothing beyond a page.

/// How far ahead, in bytes: what is worked on while memory answers.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 8 << 10;
/// What memory gives at a time.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Asks for as many bytes as these, some way behind them. It is a hint: nothing is read, and where nothing lies, nothing
/// happens.
#[inline(always)]
pub(crate) fn ahead(of: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..of.len()).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(of.as_ptr().wrapping_add(at + AHEAD).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = of;
}
