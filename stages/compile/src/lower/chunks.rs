//! A tiled matrix cut into transfers: runs of whole tiles.

use mica_device::layout::{MatrixLayout, TILE_ROWS};

/// One transfer of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// First row.
    pub row: u64,
    /// Rows, without padding.
    pub rows: u64,
    /// Offset from the start of the matrix.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The transfers of a matrix, each at most `limit` bytes or one tile.
pub(super) fn chunks(m: &MatrixLayout, limit: u64) -> Vec<Chunk> {
    let tiles = m.tiles();
    let step = (limit / m.tile_bytes(0).max(1)).max(1);
    (0..tiles)
        .step_by(step as usize)
        .map(|first| {
            let last = (first + step).min(tiles) - 1;
            let row = first * TILE_ROWS;
            let offset = m.tile_offset(first);
            Chunk {
                row,
                rows: ((last + 1) * TILE_ROWS).min(m.rows) - row,
                offset,
                bytes: m.tile_offset(last) + m.tile_bytes(last) - offset,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mica_device::format::Format;
    use mica_device::layout::{MatrixFormat, Scaling, WeightFormat};

    #[test]
    fn chunks_cover_the_matrix_without_overlap() {
        let scaling = Some(Scaling { group: 32, scale: Format::F16, zero: true });
        let formats = [
            MatrixFormat { weight: WeightFormat::I4, scaling },
            MatrixFormat { weight: WeightFormat::F16, scaling: None },
        ];
        for format in formats {
            for rows in [1, 16, 63, 64, 65, 200, 1024] {
                let m = MatrixLayout { rows, cols: 96, format };
                for limit in [1, 10_000, 1 << 20] {
                    let (mut row, mut offset) = (0, 0);
                    for c in chunks(&m, limit) {
                        assert_eq!((c.row, c.offset), (row, offset));
                        assert!(c.bytes <= limit.max(m.tile_bytes(0)));
                        row += c.rows;
                        offset += c.bytes;
                    }
                    assert_eq!((row, offset), (rows, m.bytes()));
                }
            }
        }
    }
}
