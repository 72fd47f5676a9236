//! A map from byte ranges to the last instruction that touched them.

use std::collections::BTreeMap;

/// Ranges with the number last given to each byte; numbers only grow.
#[derive(Clone, Debug, Default)]
pub struct Intervals {
    /// Start → (end, number), disjoint.
    ranges: BTreeMap<u64, (u64, u64)>,
}

impl Intervals {
    /// Gives `number` to the bytes `from..to`.
    pub fn set(&mut self, from: u64, to: u64, number: u64) {
        if from >= to {
            return;
        }
        let overlapped: Vec<(u64, u64, u64)> = self
            .ranges
            .range(..to)
            .rev()
            .take_while(|(_, (end, _))| *end > from)
            .map(|(start, (end, n))| (*start, *end, *n))
            .collect();
        for (start, end, n) in overlapped {
            self.ranges.remove(&start);
            if start < from {
                self.ranges.insert(start, (from, n));
            }
            if end > to {
                self.ranges.insert(to, (end, n));
            }
        }
        self.ranges.insert(from, (to, number));
    }

    /// Whether each byte of `from..to` has a number.
    pub fn covers(&self, from: u64, to: u64) -> bool {
        let within = self.ranges.iter().map(|(start, (end, _))| (*start.max(&from), *end.min(&to)));
        within.filter(|(start, end)| start < end).map(|(start, end)| end - start).sum::<u64>() == to - from
    }

    /// The greatest number in `from..to`.
    pub fn last(&self, from: u64, to: u64) -> Option<u64> {
        self.ranges.range(..to).rev().take_while(|(_, (end, _))| *end > from).map(|(_, (_, n))| *n).max()
    }
}

#[cfg(test)]
mod tests {
    use super::Intervals;

    #[test]
    fn later_ranges_cover_earlier_ones() {
        let mut m = Intervals::default();
        m.set(0, 100, 1);
        m.set(40, 60, 2);
        m.set(90, 120, 3);
        m.set(20, 20, 4);
        for (range, last) in [
            ((0, 40), Some(1)),
            ((0, 41), Some(2)),
            ((60, 90), Some(1)),
            ((59, 61), Some(2)),
            ((100, 110), Some(3)),
            ((120, 130), None),
        ] {
            assert_eq!(m.last(range.0, range.1), last, "{range:?}");
        }
        for (range, covered) in [((0, 120), true), ((50, 95), true), ((110, 121), false), ((130, 140), false)]
        {
            assert_eq!(m.covers(range.0, range.1), covered, "{range:?}");
        }
    }
}
