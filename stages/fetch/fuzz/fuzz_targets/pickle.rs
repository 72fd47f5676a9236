//! Any bytes as the pickle in a sound archive of torch.save.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    mica_fetch::testing::check_pickle(bytes);
});
