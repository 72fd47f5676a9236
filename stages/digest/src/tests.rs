#![expect(clippy::single_range_in_vec_init, reason = "a content in one range")]

use super::*;
use proptest::prelude::*;

fn content(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// The digest of a content that comes in ranges.
fn of(bytes: &[u8], ranges: impl IntoIterator<Item = Range<u64>>, pieces: Pieces) -> Option<Hash> {
    for range in ranges {
        pieces.add(range.start, &bytes[range.start as usize..range.end as usize]);
    }
    pieces.digest()
}

fn plain(bytes: &[u8], ranges: impl IntoIterator<Item = Range<u64>>) -> Option<Hash> {
    of(bytes, ranges, Pieces::new(bytes.len() as u64))
}

#[test]
fn every_length_in_one_piece_and_in_cuts() {
    for len in [0, 1, 63, 64, 1023, 1024, 1025, 2048, 2049, 3000, 4096, 5000, 16384, 65536, 65537, 100_000] {
        let bytes = content(len);
        let whole = blake3::hash(&bytes);
        assert_eq!(plain(&bytes, [0..len as u64]), Some(whole), "{len}");
        for size in [1, 1024, 4096, 5000, 1 << 20] {
            let pieces = Pieces::new(len as u64);
            let cuts: Vec<_> = pieces.cuts(size).collect();
            assert_eq!(of(&bytes, cuts.into_iter().rev(), pieces), Some(whole), "{len} by {size}");
        }
    }
}

#[test]
fn a_heading_in_a_context() {
    for (heading, len) in
        [(&b""[..], 0), (b"heading", 0), (b"heading", 900), (b"heading", 5000), (&[7; 3000], 9000)]
    {
        let bytes = content(len);
        let mut hasher = Hasher::new_derive_key("a context of this test");
        let whole = hasher.update(heading).update(&bytes).finalize();
        let pieces = Pieces::derived("a context of this test", heading, len as u64);
        let cuts: Vec<_> = pieces.cuts(2048).collect();
        assert_eq!(cuts.iter().map(|cut| cut.end - cut.start).sum::<u64>(), len as u64);
        assert_eq!(of(&bytes, cuts, pieces), Some(whole), "{} and {len}", heading.len());
    }
}

#[test]
fn cuts_are_where_subtrees_start() {
    // Bytes of the heading, of the content and of a cut; where cuts end.
    let cases: &[(usize, u64, u64, &[u64])] = &[
        (0, 10_000, 4096, &[4096, 8192, 10_000]),
        (0, 8192, 4096, &[4096, 8192]),
        (0, 10_000, 5000, &[8192, 10_000]),
        (0, 2000, 1, &[1024, 2000]),
        (7, 10_000, 4096, &[4089, 8185, 10_000]),
        (5000, 5000, 2048, &[1144, 3192, 5000]),
        (0, 0, 1024, &[]),
        (7, 0, 1024, &[]),
    ];
    for &(heading, len, size, ends) in cases {
        let pieces = Pieces::derived("cuts", &content(heading), len);
        let starts = [0].iter().chain(ends);
        let expected: Vec<_> = starts.zip(ends).map(|(&start, &end)| start..end).collect();
        assert_eq!(pieces.cuts(size).collect::<Vec<_>>(), expected, "{len} behind {heading} by {size}");
    }
}

#[test]
fn what_is_missing_or_came_twice_gives_no_digest() {
    let bytes = content(10_000);
    assert_eq!(plain(&bytes, [0..4096]), None);
    assert_eq!(plain(&bytes, [0..4096, 4097..10_000]), None);
    assert_eq!(plain(&bytes, [0..4096, 0..4096, 8192..10_000, 0..0]), None);
    // as many bytes as there are, but not those
    assert_eq!(plain(&bytes, [0..5000, 4000..9000]), None);
    assert_eq!(plain(&bytes, [0..5000, 0..5000]), None);
    assert_eq!(plain(&content(2048), [0..1024, 0..1024]), None);
    assert_eq!(plain(&content(2048), [0..1000, 0..1000, 1000..1048]), None);
    assert_eq!(plain(&content(2048), [0..512, 0..512, 1024..2048]), None);
    assert_eq!(plain(&content(100), [0..50, 0..50]), None);
    assert_eq!(plain(&content(100), []), None);
    assert_eq!(plain(&content(100), [0..50]), None);
    assert_eq!(plain(&content(100), [0..50, 25..75]), None);
    assert_eq!(plain(&content(100), [0..50, 0..25, 75..100]), None);
    assert_eq!(plain(&content(2048), [0..1024, 0..1024, 1024..2048]), None);
    assert_eq!(plain(&content(2048), [0..600, 500..924, 1024..2048]), None);
}

#[test]
#[should_panic(expected = "bytes 1..11 of a content of 10")]
fn bytes_beyond_the_end() {
    Pieces::new(10).add(1, &[0; 10]);
}

proptest! {
    /// Any cuts, in any order.
    #[test]
    fn pieces_of_any_length_in_any_order(len in 1usize..60_000, cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20), seed: u64) {
        let bytes = content(len);
        let mut ends: Vec<u64> = cuts.iter().map(|cut| cut.index(len) as u64).chain([0, len as u64]).collect();
        ends.sort_unstable();
        let mut ranges: Vec<_> = ends.windows(2).map(|ends| ends[0]..ends[1]).collect();
        ranges.sort_by_key(|range| blake3::hash(&[range.start.to_le_bytes(), seed.to_le_bytes()].concat()).to_string());
        prop_assert_eq!(plain(&bytes, ranges), Some(blake3::hash(&bytes)));
    }
}
