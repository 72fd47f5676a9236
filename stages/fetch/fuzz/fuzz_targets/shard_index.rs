//! Any bytes as a shard index.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    mica_fetch::testing::check_shard_index(bytes);
});
