//! The name of a tensor's content: what it holds, not where it came from.
//!
//! Two tensors have one digest exactly if type, shape and canonical bytes are the same, whatever file,
//! shard, container or name they arrived under.

use mica_digest::Pieces;
use mica_dtype::Dtype;

/// BLAKE3-256.
pub type Digest = blake3::Hash;

/// Sets these digests apart from all others. A new encoding needs a new one.
const CONTEXT: &str = "mica 2026 tensor: dtype, rank, shape, row-major little-endian bytes";

/// From this size on, more threads are worth their start: 1 MiB.
const PARALLEL_FROM: usize = 1 << 20;

/// The digest of a tensor whose canonical row-major little-endian bytes are `chunks`, concatenated.
///
/// `chunks` must hold exactly as many bytes as type and shape say; how they are cut does not matter.
pub fn tensor_digest<'a>(dtype: Dtype, shape: &[u64], chunks: impl Iterator<Item = &'a [u8]>) -> Digest {
    let mut hasher = tensor_hasher(dtype, shape);
    chunks.for_each(|chunk| {
        hasher.update(chunk);
    });
    hasher.finalize()
}

/// The same digest as [`tensor_digest`], large chunks hashed by rayon's threads.
pub fn tensor_digest_parallel<'a>(
    dtype: Dtype,
    shape: &[u64],
    chunks: impl Iterator<Item = &'a [u8]>,
) -> Digest {
    let mut hasher = tensor_hasher(dtype, shape);
    for chunk in chunks {
        if chunk.len() >= PARALLEL_FROM {
            hasher.update_rayon(chunk);
        } else {
            hasher.update(chunk);
        }
    }
    hasher.finalize()
}

/// The same digest as [`tensor_digest`] of `bytes` canonical bytes that come in pieces.
pub fn tensor_pieces(dtype: Dtype, shape: &[u64], bytes: u64) -> Pieces {
    Pieces::derived(CONTEXT, &heading(dtype, shape), bytes)
}

fn tensor_hasher(dtype: Dtype, shape: &[u64]) -> blake3::Hasher {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    hasher.update(&heading(dtype, shape));
    hasher
}

/// Type and shape, each field of a stated length, so that no two tensors run into each other. The canonical bytes follow.
fn heading(dtype: Dtype, shape: &[u64]) -> Vec<u8> {
    let name = dtype.name().as_bytes();
    let mut heading = Vec::new();
    heading.extend((name.len() as u64).to_le_bytes());
    heading.extend(name);
    heading.extend((shape.len() as u64).to_le_bytes());
    heading.extend(shape.iter().flat_map(|axis| axis.to_le_bytes()));
    heading
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(dtype: Dtype, shape: &[u64], bytes: &[u8]) -> Digest {
        tensor_digest(dtype, shape, [bytes].into_iter())
    }

    #[test]
    fn cutting_and_threads_do_not_matter() {
        let bytes: Vec<u8> = (0..3 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let shape = [bytes.len() as u64];
        let whole = of(Dtype::U8, &shape, &bytes);
        for cut in [1, 1000, 1 << 20, bytes.len() - 1] {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(tensor_digest(Dtype::U8, &shape, [a, b].into_iter()), whole);
            assert_eq!(tensor_digest_parallel(Dtype::U8, &shape, [a, b].into_iter()), whole);
        }
    }

    #[test]
    fn type_and_shape_matter() {
        let bytes = [0; 8];
        let all = [
            of(Dtype::F32, &[2], &bytes),
            of(Dtype::I32, &[2], &bytes),
            of(Dtype::F32, &[2, 1], &bytes),
            of(Dtype::F32, &[1, 2], &bytes),
            of(Dtype::F64, &[], &bytes),
            of(Dtype::F64, &[1], &bytes),
            of(Dtype::U8, &[0], &[]),
            of(Dtype::U8, &[0, 8], &[]),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b), "{i}");
        }
    }

    /// Digests are keys in caches that outlive a build: this value may change only with [`CONTEXT`].
    #[test]
    fn golden() {
        assert_eq!(
            of(Dtype::BF16, &[2, 3], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]).to_hex().as_str(),
            "29469c7bcc684726cb87518edcabe1e906503cb3c88aba4bff0b30f38f67b6ed"
        );
    }
}
