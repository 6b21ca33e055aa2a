//! Hexadecimal text for digests, random ids and extended attributes: written in lower case, read in either case.

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};

/// Encodes bytes as lower-case digits, two for each byte.
pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    HEXLOWER.encode(bytes.as_ref())
}

/// Decodes digits of either case; `None` for an odd number of them or for any other character.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_in_lower_case_and_read_in_either() {
        let all: Vec<u8> = (0..=255).collect();
        let spelled: String = all.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(encode(&all), spelled);
        assert_eq!((decode(&spelled), decode(&spelled.to_uppercase())), (Some(all.clone()), Some(all)));
        assert_eq!((encode([]), decode("")), (String::new(), Some(Vec::new())));
        for text in ["0", "0g", " 00", "00 ", "0x00", "+1", "-1", "00\n", "é0", "0\u{ff10}"] {
            assert_eq!(decode(text), None, "{text:?}");
        }
    }
}
