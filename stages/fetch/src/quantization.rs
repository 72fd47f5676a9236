//! What a delivery says of how its weights are quantized, as it stands.
//!
//! Finds the fields; what they mean is for the stage that reads the weights.

use serde_json::{Map, Value};

use crate::config::RawConfig;
use crate::error::FetchError;
use crate::files::DeliveryFiles;
use crate::listing::Listing;
use crate::strict_json;

/// The key in config.json.
const KEY: &str = "quantization_config";

/// The fields of the delivery's quantization configuration: `quantization_config` in config.json, or the
/// file of its own that the listing names. `None` where neither is there.
///
/// # Errors
/// If the file is no JSON object, or both are there and differ in a field that both have: which one a
/// framework would go by differs between frameworks.
pub fn quantization(
    files: &dyn DeliveryFiles,
    listing: &Listing,
    config: &RawConfig,
) -> Result<Option<Map<String, Value>>, FetchError> {
    let inner = config.top.get(KEY).or_else(|| config.text.get(KEY)).and_then(Value::as_object).cloned();
    let Some(file) = listing.quantization else { return Ok(inner) };
    let path = files.path(file);
    let Value::Object(own) = strict_json::value(&path, files.bytes(file)?)? else {
        let message = "the file is not a JSON object".to_owned();
        return Err(FetchError::Json { path, line: 1, column: 1, message });
    };
    let Some(inner) = inner else { return Ok(Some(own)) };
    match own.iter().find(|(key, value)| inner.get(*key).is_some_and(|other| other != *value)) {
        Some((key, _)) => Err(FetchError::QuantizationDiffers { path, key: key.clone() }),
        None => Ok(Some(inner)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::testing::{NewTensor, write_safetensors};
    use crate::{ListOptions, MappedDelivery, list};

    fn read(config: &str, own: Option<(&str, &str)>) -> Result<Option<Map<String, Value>>, FetchError> {
        let dir = tempfile::tempdir().unwrap();
        write_safetensors(&dir.path().join("model.safetensors"), &[NewTensor::f32("a", &[1], &[1.0])]);
        if let Some((name, text)) = own {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let listing = list(dir.path(), &ListOptions::default()).unwrap();
        let files = MappedDelivery::open(dir.path(), &listing).unwrap();
        let config = RawConfig::from_bytes(Path::new("config.json"), config.as_bytes()).unwrap();
        quantization(&files, &listing, &config)
    }

    #[test]
    fn either_place() {
        let inner = r#"{"quantization_config": {"bits": 4}}"#;
        let nested = r#"{"text_config": {"quantization_config": {"bits": 4}}}"#;
        let own = Some(("quantization_config.json", r#"{"bits": 4}"#));
        let usual = Some(("quantize_config.json", r#"{"bits": 4, "damp": 0.1}"#));
        for (config, own) in [(inner, None), (nested, None), ("{}", own), (inner, own), (inner, usual)] {
            let fields = read(config, own).unwrap().unwrap();
            assert_eq!(fields["bits"], 4, "{config} {own:?}");
        }
        assert_eq!(read("{}", None), Ok(None));
        assert_eq!(read(r#"{"quantization_config": null}"#, None), Ok(None));
    }

    #[test]
    fn refusals() {
        let inner = r#"{"quantization_config": {"bits": 4}}"#;
        for (text, said) in [
            (r#"{"bits": 8}"#, "quantization_config.json: bits is not what config.json says"),
            ("[]", "is not a JSON object"),
            ("{\"a\": 1, \"a\": 2}", "occurs twice"),
        ] {
            let message = read(inner, Some(("quantization_config.json", text))).unwrap_err().to_string();
            assert!(message.contains(said), "{message}");
        }
    }
}
