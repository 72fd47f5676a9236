//! What one token of a call has of an entry: the same bytes in the same places, however many tokens a call takes.

use mica_device::layout::ALIGN;
use mica_device::object::Entry;

/// A part's share of an entry, of one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Where the first token's bytes begin in the entry.
    from: u64,
    /// Where they begin in the entry of a kernel of one token.
    pub at: u64,
    /// Bytes of a token.
    pub bytes: u64,
}

/// The shares of an entry with a leading axis of tokens, one token at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub shares: Vec<Share>,
    /// Bytes of the entry of a kernel of one token.
    pub bytes: u64,
}

impl Layout {
    pub fn new(e: &Entry, tokens: u64) -> Layout {
        let mut end: u64 = 0;
        let mut shares = Vec::new();
        for (_, from, what) in &e.shares {
            // as link places them
            let at = if what.is_scalar() { 0 } else { end.next_multiple_of(ALIGN) };
            let bytes = what.bytes / tokens;
            shares.push(Share { from: *from, at, bytes });
            end = end.max(at + bytes);
        }
        Layout { shares, bytes: if tokens == 1 { e.bytes } else { end } }
    }

    /// The entry of one token out of that of all.
    pub fn token(&self, all: &[u8], token: u64) -> Vec<u8> {
        let mut one = vec![0; self.bytes as usize];
        for s in &self.shares {
            let from = (s.from + token * s.bytes) as usize;
            one[s.at as usize..][..s.bytes as usize].copy_from_slice(&all[from..from + s.bytes as usize]);
        }
        one
    }
}

#[cfg(test)]
mod tests {
    use super::Layout;
    use mica_device::format::Format;
    use mica_device::object::{Direction, EdgeUse, Entry};

    #[test]
    fn tokens_are_taken_apart_into_what_one_has() {
        let share = |shape: &[u64]| {
            let bytes = shape.iter().product();
            let (name, shape) = ("x".into(), shape.to_vec());
            EdgeUse { name, direction: Direction::Out, format: Format::I8, frac: 0, shape, bytes }
        };
        let shares = vec![(0, 0, share(&[2, 3])), (1, 64, share(&[2, 2]))];
        let e = Entry { name: "x.out".into(), register: 1, direction: Direction::Out, bytes: 68, shares };
        let mut all = vec![0; 68];
        all[..6].copy_from_slice(&[1, 2, 3, 4, 5, 6]);
        all[64..].copy_from_slice(&[7, 8, 9, 10]);
        let layout = Layout::new(&e, 2);
        let one = layout.token(&all, 1);
        assert_eq!((one.len(), &one[..3], &one[64..]), (66, &[4, 5, 6][..], &[9, 10][..]));
        assert_eq!(Layout::new(&e, 1).token(&all, 0), all, "of one token nothing moves");
    }
}
