//! The matrix–vector kernels: one rule (`numerics = 1` in the manual), several implementations that
//! give the same bits.
//!
//! Rows are lanes: a vector holds one dword of columns for each of 16 rows, so the sums of a row
//! never cross lanes and every implementation adds in the same order. Integer sums are exact; f32
//! operations are one multiply and one add each, never fused.

mod activation;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

pub use activation::{Activation, Block};

use mica_device::layout::{LANES, MatrixLayout, TILE_ROWS};
use rayon::prelude::*;

/// Bytes of weights from which on products are split over threads.
const PARALLEL_BYTES: u64 = 1 << 17;
/// Pieces a thread that work is cut into, so that threads of unequal speed end together, and the fewest bytes
/// of a piece.
const PIECES: u64 = 8;
const PIECE_BYTES: u64 = 1 << 16;

/// Rows of a full tile, as a length.
const ROWS: usize = TILE_ROWS as usize;

/// A tile of a matrix, its sections apart.
#[derive(Clone, Copy, Debug)]
pub struct TileView<'m> {
    /// Padded rows: 16, 32, 48 or 64.
    pub rows: usize,
    /// Scales, `[group][row]`.
    pub scales: &'m [u8],
    /// Zero points, `[group][row]`; empty where there are none.
    pub zeros: &'m [u8],
    /// Vectors of 64 bytes, `[step][sub-block]`.
    pub vectors: &'m [u8],
}

impl<'m> TileView<'m> {
    fn new(m: &MatrixLayout, bytes: &'m [u8], t: u64) -> TileView<'m> {
        let rows = m.tile_rows(t);
        let start = m.tile_offset(t) as usize;
        let tile = &bytes[start..start + m.tile_bytes(t) as usize];
        let (scales, rest) = tile.split_at(m.scale_bytes(rows) as usize);
        let (zeros, vectors) = rest.split_at(m.zero_bytes(rows) as usize);
        TileView { rows: rows as usize, scales, zeros, vectors }
    }

    /// Vectors of a step: sub-blocks of 16 rows.
    fn subs(&self) -> usize {
        self.rows / LANES as usize
    }
}

/// An implementation of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Safe Rust that the compiler vectorises as the target allows.
    Portable,
    /// AVX2 with F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 with VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    const ALL: &'static [Isa] = &[
        Isa::Portable,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512,
    ];

    /// Whether this machine runs it.
    pub fn runs_here(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vnni")
            }
        }
    }

    /// All that this machine runs, the fastest last.
    pub fn available() -> impl DoubleEndedIterator<Item = Isa> {
        Isa::ALL.iter().copied().filter(|isa| isa.runs_here())
    }

    /// The fastest that this machine runs.
    pub fn best() -> Isa {
        Isa::available().next_back().unwrap_or(Isa::Portable)
    }
}

/// One product: `out[r] = Σ_k W[r, k] · x[k]`.
#[derive(Debug)]
pub struct Product<'a> {
    /// W's shape and format.
    pub matrix: MatrixLayout,
    /// W's whole layout.
    pub bytes: &'a [u8],
    /// The vector, prepared for `matrix` and the implementation that runs.
    pub x: &'a Activation,
    /// The padded rows of the matrix.
    pub out: &'a mut [f32],
}

/// One product, as [`products`].
///
/// # Panics
/// As `products`.
pub fn matv(isa: Isa, m: &MatrixLayout, bytes: &[u8], x: &Activation, out: &mut [f32], threads: usize) {
    products(isa, vec![Product { matrix: *m, bytes, x, out }], threads);
}

/// Independent products, split over `threads` by whole tiles.
///
/// A row whose block holds an infinite or NaN activation is NaN for integer weights; for F16
/// weights it is what IEEE arithmetic gives. NaNs are not yet canonical.
///
/// # Panics
/// If `isa` is not available on this machine, if an `x` was prepared for another matrix or another
/// `isa`, or if `bytes` or `out` is shorter than the matrix.
pub fn products(isa: Isa, work: Vec<Product<'_>>, threads: usize) {
    assert!(isa.runs_here(), "{isa:?} on this machine");
    let total: u64 = work.iter().map(|p| p.matrix.bytes()).sum();
    let split = threads > 1 && total >= PARALLEL_BYTES;
    let piece_bytes = if split { (total / (PIECES * threads as u64)).max(PIECE_BYTES) } else { u64::MAX };
    let mut pieces = Vec::with_capacity(work.len());
    for Product { matrix, bytes, x, out } in work {
        if !x.usable() {
            out.fill(f32::NAN);
            continue;
        }
        let tiles = (piece_bytes / matrix.tile_bytes(0).max(1)).clamp(1, matrix.tiles().max(1)) as usize;
        for (n, out) in out.chunks_mut(tiles * ROWS).enumerate() {
            pieces.push(Piece { matrix, bytes, x, first: n * tiles, out });
        }
    }
    if split {
        pieces.into_par_iter().for_each(|p| p.run(isa));
    } else {
        pieces.into_iter().for_each(|p| p.run(isa));
    }
}

/// Some tiles of a product.
struct Piece<'a> {
    matrix: MatrixLayout,
    bytes: &'a [u8],
    x: &'a Activation,
    first: usize,
    out: &'a mut [f32],
}

impl Piece<'_> {
    fn run(self, isa: Isa) {
        let Piece { matrix: m, bytes, x, first, out } = self;
        for (t, out) in out.chunks_mut(ROWS).enumerate() {
            let view = TileView::new(&m, bytes, (first + t) as u64);
            match isa {
                Isa::Portable => portable::tile(&m, &view, x, out),
                // SAFETY: `products` has checked that the machine has the features of `isa`.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => unsafe { avx2::tile(&m, &view, x, out) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => unsafe { avx512::tile(&m, &view, x, out) },
            }
        }
    }
}
