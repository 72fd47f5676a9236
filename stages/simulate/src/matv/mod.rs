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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isa {
    #[default]
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

/// `out[r] = Σ_k W[r, k] · x[k]`: `out` has the padded rows of the matrix, `bytes` its whole layout.
///
/// A row whose block holds an infinite or NaN activation is NaN for integer weights; for F16
/// weights it is what IEEE arithmetic gives. NaNs are not yet canonical.
///
/// # Panics
/// If `isa` is not available on this machine, if `x` was prepared for another matrix or another
/// `isa`, or if `bytes` or `out` is shorter than the matrix.
pub fn matv(isa: Isa, m: &MatrixLayout, bytes: &[u8], x: &Activation, out: &mut [f32]) {
    Piece { matrix: *m, bytes, first: 0 }.run(isa, x, out);
}

/// Some consecutive tiles of a matrix.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The whole matrix's shape and format.
    pub matrix: MatrixLayout,
    /// The whole matrix's bytes.
    pub bytes: &'a [u8],
    /// The first of the tiles.
    pub first: usize,
}

impl<'a> Piece<'a> {
    /// A matrix in pieces of about so many bytes: each with the padded rows before it and its own.
    pub fn of(
        matrix: MatrixLayout,
        bytes: &'a [u8],
        about: u64,
    ) -> impl Iterator<Item = (Piece<'a>, usize, usize)> {
        let tiles = (about / matrix.tile_bytes(0).max(1)).max(1) as usize;
        let rows = matrix.rows.next_multiple_of(LANES) as usize;
        (0..matrix.tiles() as usize).step_by(tiles).map(move |first| {
            let start = first * ROWS;
            (Piece { matrix, bytes, first }, start, rows.min(start + tiles * ROWS) - start)
        })
    }

    /// Fills `out`, as many padded rows of the product as it is long.
    ///
    /// # Panics
    /// As [`matv`].
    pub fn run(&self, isa: Isa, x: &Activation, out: &mut [f32]) {
        assert!(isa.runs_here(), "{isa:?} on this machine");
        if !x.usable() {
            out.fill(f32::NAN);
            return;
        }
        let m = &self.matrix;
        for (t, out) in out.chunks_mut(ROWS).enumerate() {
            let view = TileView::new(m, self.bytes, (self.first + t) as u64);
            match isa {
                Isa::Portable => portable::tile(m, &view, x, out),
                // SAFETY: the machine has the features of `isa`, as was checked above.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => unsafe { avx2::tile(m, &view, x, out) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => unsafe { avx512::tile(m, &view, x, out) },
            }
        }
    }
}
