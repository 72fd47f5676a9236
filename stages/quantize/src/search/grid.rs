//! The integers that a format has, and which of their clamps can matter.
//!
//! Scales and the order of a search are not known here.

/// The integers of a format and how far the candidates go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(super) lo: f32,
    pub(super) hi: f32,
    pub(super) step: f32,
}

impl Grid {
    pub const I4: Grid = Grid { lo: -8.0, hi: 7.0, step: 1.0 / 32.0 };
    pub const I8: Grid = Grid { lo: -127.0, hi: 127.0, step: 1.0 / 384.0 };

    /// The integer that an infinity of either sign saturates to.
    pub fn limit(&self, negative: bool) -> i8 {
        (if negative { self.lo } else { self.hi }) as i8
    }

    /// Whether the integers have four bits.
    pub fn is_i4(&self) -> bool {
        self.hi <= 7.0
    }

    /// The first delivered integer that the format has no room for; i8 has room for all.
    pub fn outside(&self, q: &[i8]) -> Option<usize> {
        if !self.is_i4() {
            return None;
        }
        // Adding 8 maps −8..=7 to 0..=15; all bits together first, since nearly all weights are inside.
        let high = |q: i8| q.wrapping_add(8) as u8 & 0xf0;
        let any = q.iter().fold(0, |any, &q| any | high(q));
        if any == 0 { None } else { q.iter().position(|&q| high(q) != 0) }
    }

    /// The clamps that integers of magnitudes up to `most` need.
    pub(super) fn clamps(&self, most: f32) -> Clamps {
        if most > -self.lo {
            Clamps::Both
        } else if most > self.hi {
            Clamps::High
        } else {
            Clamps::Neither
        }
    }
}

/// Which clamps may change an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clamps {
    Neither,
    High,
    Both,
}
