//! The debugger's view of a running kernel: a call at every op boundary.

use mica_device::format::Format;
use std::ops::ControlFlow;

/// An op boundary (`OPB`) that the program has reached.
#[derive(Clone, Copy, Debug)]
pub struct Boundary<'a> {
    /// `layer << 16 | op`.
    pub src: u32,
    /// Index of the `OPB` in the kernel.
    pub instruction: usize,
    /// The tile that holds the op's result, where the instruction names one.
    pub tile: Option<TileValues<'a>>,
}

/// The contents of a tile.
#[derive(Clone, Copy, Debug)]
pub struct TileValues<'a> {
    /// Element format.
    pub format: Format,
    /// Fraction bits of FX32.
    pub frac: u8,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub cols: u32,
    /// The elements, row-major, each exact.
    pub values: &'a [f64],
}

/// Gets every boundary of a call.
pub trait Observer {
    /// Whether it wants the boundary of `src` at all; what it does not want costs nothing.
    fn wants(&self, src: u32) -> bool {
        let _ = src;
        true
    }

    /// Looks at a boundary; `Break` ends the call there, as `halt` would.
    fn boundary(&mut self, boundary: &Boundary<'_>) -> ControlFlow<()>;
}
