//! Ids: a prefix for the kind of object, and 128 random bits.

/// Formats an id: `sbx_…`, `lay_…`, `snp_…`, `bat_…` and the like.
pub fn id(prefix: &str, random: [u8; 16]) -> String {
    format!("{prefix}_{}", crate::hex::encode(random))
}
