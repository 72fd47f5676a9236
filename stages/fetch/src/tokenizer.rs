//! tokenizer.json: text to ids and back.
//!
//! The file says which tokenizer it is; nothing about any model is known here.

use crate::error::FetchError;

/// A delivery's tokenizer.
#[derive(Clone)]
pub struct Tokenizer(tokenizers::Tokenizer);

impl Tokenizer {
    /// Reads tokenizer.json.
    ///
    /// # Errors
    /// [`FetchError::Tokenizer`] if the file describes no tokenizer.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FetchError> {
        tokenizers::Tokenizer::from_bytes(bytes).map(Tokenizer).map_err(|e| refused(e.as_ref()))
    }

    /// The text that the ids stand for, special tokens included. An id that has no token (a vocabulary
    /// table is often larger than its tokenizer) shows as `<id 2040>`.
    ///
    /// # Errors
    /// If the file's decoder refuses its own tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String, FetchError> {
        let mut text = String::new();
        for run in ids.chunk_by(|a, b| self.has(*a) && self.has(*b)) {
            match run {
                [id] if !self.has(*id) => text.push_str(&format!("<id {id}>")),
                known => text.push_str(&self.0.decode(known, false).map_err(|e| refused(e.as_ref()))?),
            }
        }
        Ok(text)
    }

    /// The ids of the text; no special token is added.
    ///
    /// # Errors
    /// If the file's own normalizer or pre-tokenizer refuses the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, FetchError> {
        let encoding = self.0.encode(text, false).map_err(|e| refused(e.as_ref()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The token as the vocabulary spells it (`Ġwas`, not ` was`).
    pub fn token(&self, id: u32) -> Option<String> {
        self.0.id_to_token(id)
    }

    /// The number of ids that have a token, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.0.get_vocab_size(true)
    }

    fn has(&self, id: u32) -> bool {
        self.token(id).is_some()
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).finish()
    }
}

fn refused(error: &dyn std::error::Error) -> FetchError {
    FetchError::Tokenizer { message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped() -> Tokenizer {
        let path = crate::testing::shipped("tiny").join("tokenizer.json");
        Tokenizer::from_bytes(&std::fs::read(path).unwrap()).unwrap()
    }

    /// The ids and pieces that the published tokenizer gave when the captures were made.
    #[test]
    fn agrees_with_the_captures() {
        let path = crate::testing::shipped("tiny").join("test_vectors.json");
        let said: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let ids: Vec<u32> = serde_json::from_value(said["input_ids"].clone()).unwrap();
        let pieces: Vec<String> = serde_json::from_value(said["prompt_tokens"].clone()).unwrap();
        let prompt = said["prompt"].as_str().unwrap();
        let tokenizer = shipped();
        assert_eq!(tokenizer.encode(prompt).unwrap(), ids);
        assert_eq!(tokenizer.decode(&ids).unwrap(), prompt);
        let decoded: Vec<String> = ids.iter().map(|id| tokenizer.decode(&[*id]).unwrap()).collect();
        assert_eq!(decoded, pieces);
    }

    #[test]
    fn ids_without_a_token_show() {
        let tokenizer = shipped();
        assert_eq!(tokenizer.vocab_size(), 2032);
        assert_eq!(tokenizer.token(304).as_deref(), Some("Ġwas"));
        assert_eq!(tokenizer.token(2040), None);
        assert_eq!(
            tokenizer.decode(&[2040, 304, 304, 2041, 2042]).unwrap(),
            "<id 2040> was was<id 2041><id 2042>"
        );
        assert_eq!(tokenizer.decode(&[2029]).unwrap(), "<|endoftext|>");
        assert_eq!(tokenizer.decode(&[]).unwrap(), "");
    }

    #[test]
    fn text_survives() {
        let tokenizer = shipped();
        for text in ["", "Emma Woodhouse, handsome, clever, and rich", "é ñ 日本 🦀\r\n\t  12345"] {
            assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()).unwrap(), text);
        }
    }

    #[test]
    fn no_tokenizer() {
        for bytes in [&b""[..], b"{}", b"<html>", b"\xff\xfe", b"{\"model\": {\"type\": \"BPE\"}}"] {
            assert!(matches!(Tokenizer::from_bytes(bytes), Err(FetchError::Tokenizer { .. })));
        }
    }
}
