//! Any bytes as the header of a safetensors file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    mica_fetch::testing::check_safetensors(bytes);
});
