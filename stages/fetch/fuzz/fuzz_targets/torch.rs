//! Any bytes as a whole file of torch.save.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    mica_fetch::testing::check_torch(bytes);
});
