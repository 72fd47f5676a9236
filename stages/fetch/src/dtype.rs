//! The element type that a header names, or why that name is not read.
//!
//! The types themselves are [`mica_dtype`]'s; what one means to a model or to the device is not known here.

use mica_dtype::Dtype;
use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;

use crate::error::FetchError;

/// The type of a name. An error says whether safetensors has the name.
pub(crate) fn named(name: &str) -> Result<Dtype, FetchError> {
    name.parse().map_err(|_| {
        let reason = if is_safetensors(name) {
            "a safetensors type that has no use here"
        } else {
            "no safetensors type"
        };
        FetchError::DtypeName { name: name.to_owned(), reason }
    })
}

/// Whether it is on the format's own list of names, which grows beyond ours.
fn is_safetensors(name: &str) -> bool {
    let read: Result<safetensors::Dtype, serde::de::value::Error> =
        safetensors::Dtype::deserialize(name.into_deserializer());
    read.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_types_are_safetensors_types_of_that_width() {
        for dtype in Dtype::ALL {
            assert_eq!(named(dtype.name()), Ok(dtype));
            let theirs: safetensors::Dtype = serde_json::from_str(&format!("\"{dtype}\"")).unwrap();
            assert_eq!(theirs.bitsize() as u64, 8 * dtype.bytes(), "{dtype}");
        }
    }

    #[test]
    fn a_name_that_is_not_read_is_refused_with_the_reason() {
        for (name, said) in [("F8_E4M3", "has no use here"), ("f32", "no safetensors type")] {
            let message = named(name).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains(said), "{message}");
            assert!(
                message
                    .ends_with("mica reads F64, F32, F16, BF16, I64, I32, I16, I8, U8, U16, U32, U64, BOOL")
            );
        }
    }
}
