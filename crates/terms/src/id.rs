//! Ids: a prefix that says of what, and 128 random bits.

/// `sbx_…`, `lay_…`, `snp_…`, `bat_…` and the like.
pub fn id(prefix: &str, random: [u8; 16]) -> String {
    let mut text = String::with_capacity(prefix.len() + 33);
    text.push_str(prefix);
    text.push('_');
    for byte in random {
        text.push(char::from(b"0123456789abcdef"[usize::from(byte >> 4)]));
        text.push(char::from(b"0123456789abcdef"[usize::from(byte & 15)]));
    }
    text
}
