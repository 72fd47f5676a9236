//! The external bus, which both DMA engines share: a transfer takes the first gap that is long
//! enough, so one that still waits for its data does not hold back the other engine.

/// The taken intervals, ascending; those that touch are one.
#[derive(Debug, Default)]
pub struct Bus {
    taken: Vec<(u64, u64)>,
}

impl Bus {
    /// Takes `cycles` cycles from `ready` on and returns the first.
    pub fn take(&mut self, ready: u64, cycles: u64) -> u64 {
        let mut place = self.taken.partition_point(|t| t.1 <= ready);
        let mut start = ready;
        while let Some(&(from, to)) = self.taken.get(place) {
            if start + cycles <= from {
                break;
            }
            start = to;
            place += 1;
        }
        let end = start + cycles;
        let before = place.checked_sub(1).filter(|&p| self.taken[p].1 == start);
        let after = self.taken.get(place).is_some_and(|t| t.0 == end);
        match (before, after) {
            (Some(p), true) => {
                self.taken[p].1 = self.taken[place].1;
                self.taken.remove(place);
            }
            (Some(p), false) => self.taken[p].1 = end,
            (None, true) => self.taken[place].0 = start,
            (None, false) => self.taken.insert(place, (start, end)),
        }
        start
    }
}

#[cfg(test)]
mod tests {
    use super::Bus;
    use proptest::prelude::*;

    #[test]
    fn gaps_are_used() {
        let mut bus = Bus::default();
        assert_eq!(bus.take(100, 10), 100);
        assert_eq!(bus.take(0, 60), 0);
        assert_eq!(bus.take(0, 40), 60);
        assert_eq!(bus.take(0, 1), 110);
        assert_eq!(bus.taken, [(0, 111)]);
    }

    proptest! {
        #[test]
        fn no_cycle_is_taken_twice(
            requests in prop::collection::vec((0u64..200, 1u64..20), 1..60)
        ) {
            let mut bus = Bus::default();
            let mut cycles = [false; 2000];
            for (ready, n) in requests {
                let start = bus.take(ready, n);
                // the first place that is free for so long
                let free = |s: u64| (s..s + n).all(|c| !cycles[c as usize]);
                prop_assert_eq!(Some(start), (ready..).find(|&s| free(s)));
                cycles[start as usize..(start + n) as usize].fill(true);
            }
        }
    }
}
