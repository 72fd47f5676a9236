//! Which bytes of a memory were written in this call: the strict run's guard against reads of what
//! nothing wrote.

/// One bit a byte.
#[derive(Clone, Debug, Default)]
pub struct Written {
    words: Vec<u64>,
}

impl Written {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.words.clear();
    }

    /// Notes a write of `[start, start + bytes)`.
    pub fn set(&mut self, start: u64, bytes: u64) {
        let words = (start + bytes).div_ceil(64) as usize;
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
        for (word, mask) in masks(start, bytes) {
            self.words[word] |= mask;
        }
    }

    /// Whether all of `[start, start + bytes)` was written.
    pub fn all(&self, start: u64, bytes: u64) -> bool {
        masks(start, bytes).all(|(word, mask)| self.words.get(word).copied().unwrap_or(0) & mask == mask)
    }
}

/// The words that a range touches, and the bits of it in each.
fn masks(start: u64, bytes: u64) -> impl Iterator<Item = (usize, u64)> {
    let end = start + bytes;
    let words = if bytes == 0 { 0..0 } else { start / 64..end.div_ceil(64) };
    words.map(move |word| {
        let from = start.max(word * 64) - word * 64;
        let to = end.min(word * 64 + 64) - word * 64;
        // `to - from` is 1 to 64
        (word as usize, (u64::MAX >> (64 - (to - from))) << from)
    })
}

#[cfg(test)]
mod tests {
    use super::Written;

    #[test]
    fn every_byte_counts() {
        let mut w = Written::default();
        w.set(60, 70);
        assert!(w.all(60, 70));
        assert!(w.all(64, 64));
        assert!(!w.all(59, 2));
        assert!(!w.all(129, 2));
        assert!(!w.all(1 << 20, 1));
        assert!(w.all(500, 0));
        w.clear();
        assert!(!w.all(60, 1));
    }
}
