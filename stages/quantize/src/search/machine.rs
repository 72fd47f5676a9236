//! Values of sixteen lanes and what the search does with them, by kind of processor. Every operation gives the same bits
//! on all kinds.

use super::lanes::{LANES, Lanes};

/// 1.5 · 2^23: adding and subtracting it rounds |x| < 2^22 to an integer, ties to even.
pub(super) const ROUND: f32 = 12_582_912.0;

/// A kind of processor. A value of it is the proof that this one is of the kind.
///
/// With AVX-512 a value of all lanes is a register. The others have arrays, and loops that a compiler makes what it can of.
pub(super) trait Machine: Copy {
    /// Binary32 of each lane.
    type Float: Copy;
    /// Binary64 of each lane.
    type Double: Copy;
    /// A word of each lane.
    type Word: Copy;

    /// Whether there are registers for the sums of some candidates side by side.
    const MANY: bool;

    fn floats(self, lanes: &Lanes) -> Self::Float;
    fn lanes(self, x: Self::Float) -> Lanes;
    fn doubles(self, lanes: &Lanes<f64>) -> Self::Double;
    fn double_lanes(self, x: Self::Double) -> Lanes<f64>;
    fn words(self, lanes: &Lanes<u32>) -> Self::Word;
    fn word_lanes(self, x: Self::Word) -> Lanes<u32>;

    fn add(self, a: Self::Float, b: Self::Float) -> Self::Float;
    fn sub(self, a: Self::Float, b: Self::Float) -> Self::Float;
    fn mul(self, a: Self::Float, b: Self::Float) -> Self::Float;
    /// w − q·s, for a product that is exact.
    fn sub_exact(self, w: Self::Float, q: Self::Float, s: Self::Float) -> Self::Float;
    /// The nearest integer of |x| < 2^22, ties to even. The sign of a zero is open: it changes no sum, error nor integer.
    fn nearest(self, x: Self::Float) -> Self::Float;
    /// `limit` where x is more.
    fn at_most(self, limit: Self::Float, x: Self::Float) -> Self::Float;
    /// `limit` where x is less.
    fn at_least(self, limit: Self::Float, x: Self::Float) -> Self::Float;
    /// The largest of all lanes, none of which is negative.
    fn most(self, x: Self::Float) -> f32;

    /// `total` + x.
    fn fold(self, total: Self::Double, x: Self::Float) -> Self::Double;
    /// x where a < b, else y.
    fn choose(self, a: Self::Double, b: Self::Double, x: Self::Double, y: Self::Double) -> Self::Double;

    /// The larger of `most` and the bits of a float without its sign.
    fn magnitude(self, most: Self::Word, bits: Self::Word) -> Self::Word;
    /// One more where the floats differ.
    fn count(self, count: Self::Word, a: Self::Float, b: Self::Float) -> Self::Word;
    /// Byte `at` of the words, zero before, from the low bits of a float.
    fn place(self, words: Self::Word, at: usize, x: Self::Float) -> Self::Word;
    /// Rows become columns.
    fn turn(self, rows: [Self::Word; LANES]) -> [Self::Word; LANES];
}

/// Arrays; `ROUNDS`: whether rounding to an integer is one instruction. Without it two additions do the same.
#[derive(Clone, Copy)]
pub(super) struct Arrays<const ROUNDS: bool>;

impl<const ROUNDS: bool> Machine for Arrays<ROUNDS> {
    type Float = Lanes;
    type Double = Lanes<f64>;
    type Word = Lanes<u32>;

    const MANY: bool = false;

    #[inline(always)]
    fn floats(self, lanes: &Lanes) -> Lanes {
        *lanes
    }

    #[inline(always)]
    fn lanes(self, x: Lanes) -> Lanes {
        x
    }

    #[inline(always)]
    fn doubles(self, lanes: &Lanes<f64>) -> Lanes<f64> {
        *lanes
    }

    #[inline(always)]
    fn double_lanes(self, x: Lanes<f64>) -> Lanes<f64> {
        x
    }

    #[inline(always)]
    fn words(self, lanes: &Lanes<u32>) -> Lanes<u32> {
        *lanes
    }

    #[inline(always)]
    fn word_lanes(self, x: Lanes<u32>) -> Lanes<u32> {
        x
    }

    #[inline(always)]
    fn add(self, mut a: Lanes, b: Lanes) -> Lanes {
        for l in 0..LANES {
            a[l] += b[l];
        }
        a
    }

    #[inline(always)]
    fn sub(self, mut a: Lanes, b: Lanes) -> Lanes {
        for l in 0..LANES {
            a[l] -= b[l];
        }
        a
    }

    #[inline(always)]
    fn mul(self, mut a: Lanes, b: Lanes) -> Lanes {
        for l in 0..LANES {
            a[l] *= b[l];
        }
        a
    }

    #[inline(always)]
    fn sub_exact(self, w: Lanes, q: Lanes, s: Lanes) -> Lanes {
        self.sub(w, self.mul(q, s))
    }

    #[inline(always)]
    fn nearest(self, mut x: Lanes) -> Lanes {
        for x in &mut x {
            *x = if ROUNDS { x.round_ties_even() } else { (*x + ROUND) - ROUND };
        }
        x
    }

    // Selections, which are one instruction each; `f32::min` and `max` also order NaN.
    #[inline(always)]
    fn at_most(self, limit: Lanes, mut x: Lanes) -> Lanes {
        for l in 0..LANES {
            x[l] = if x[l] > limit[l] { limit[l] } else { x[l] };
        }
        x
    }

    #[inline(always)]
    fn at_least(self, limit: Lanes, mut x: Lanes) -> Lanes {
        for l in 0..LANES {
            x[l] = if x[l] < limit[l] { limit[l] } else { x[l] };
        }
        x
    }

    #[inline(always)]
    fn most(self, x: Lanes) -> f32 {
        x.iter().fold(0.0, |most, &x| if x > most { x } else { most })
    }

    #[inline(always)]
    fn fold(self, mut total: Lanes<f64>, x: Lanes) -> Lanes<f64> {
        for l in 0..LANES {
            total[l] += f64::from(x[l]);
        }
        total
    }

    #[inline(always)]
    fn choose(self, a: Lanes<f64>, b: Lanes<f64>, x: Lanes<f64>, mut y: Lanes<f64>) -> Lanes<f64> {
        for l in 0..LANES {
            y[l] = if a[l] < b[l] { x[l] } else { y[l] };
        }
        y
    }

    #[inline(always)]
    fn magnitude(self, mut most: Lanes<u32>, bits: Lanes<u32>) -> Lanes<u32> {
        for l in 0..LANES {
            most[l] = most[l].max(bits[l] & 0x7fff_ffff);
        }
        most
    }

    #[inline(always)]
    fn count(self, mut count: Lanes<u32>, a: Lanes, b: Lanes) -> Lanes<u32> {
        for l in 0..LANES {
            count[l] += u32::from(a[l] != b[l]);
        }
        count
    }

    #[inline(always)]
    fn place(self, mut words: Lanes<u32>, at: usize, x: Lanes) -> Lanes<u32> {
        for l in 0..LANES {
            words[l] |= (x[l].to_bits() & 0xff) << (8 * at);
        }
        words
    }

    #[inline(always)]
    fn turn(self, rows: [Lanes<u32>; LANES]) -> [Lanes<u32>; LANES] {
        let mut columns = [[0; LANES]; LANES];
        for (r, row) in rows.iter().enumerate() {
            for (column, &word) in columns.iter_mut().zip(row) {
                column[r] = word;
            }
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows_become_columns<M: Machine>(machine: M) {
        let rows: [Lanes<u32>; LANES] =
            std::array::from_fn(|r| std::array::from_fn(|c| (r * LANES + c) as u32));
        let columns = machine.turn(rows.map(|row| machine.words(&row)));
        let columns = columns.map(|column| machine.word_lanes(column));
        assert_eq!(columns, std::array::from_fn(|c| rows.map(|row| row[c])));
    }

    #[test]
    fn every_kind_turns_rows_into_columns() {
        rows_become_columns(Arrays::<true>);
        #[cfg(target_arch = "x86_64")]
        if let Some(machine) = super::super::avx512::Avx512::new() {
            rows_become_columns(machine);
        }
    }
}
