//! Types of query parameters: durations, waits, the encoding of output.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::time::Duration;
use utoipa::ToSchema;

/// A duration as people write it: `30s`, `500ms`, `2m`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, examples("30s"), pattern = "^[0-9]{1,9}(ms|s|m|h|d)$")]
pub struct DurationParam(pub Duration);

impl DurationParam {
    pub fn parse(text: &str) -> Option<DurationParam> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if !(1..=9).contains(&digits) {
            return None;
        }
        let amount: u64 = text[..digits].parse().ok()?;
        let unit = match &text[digits..] {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        Some(DurationParam(Duration::from_millis(amount * unit)))
    }

    pub fn ms(self) -> u64 {
        self.0.as_millis() as u64
    }
}

impl<'de> Deserialize<'de> for DurationParam {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<DurationParam, D::Error> {
        let text = String::deserialize(from)?;
        DurationParam::parse(&text)
            .ok_or_else(|| D::Error::custom(format!("{text:?} is no time; write e.g. 30s, 500ms or 2m")))
    }
}

/// Maximum time to wait for the response: `?wait=30s`, at most ten minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, examples("5m"), pattern = "^[0-9]{1,9}(ms|s|m|h|d)$")]
pub struct WaitParam(pub Duration);

impl WaitParam {
    /// Longer than most builds and tests take. Who waits holds a connection and no thread.
    pub const LONGEST: Duration = Duration::from_secs(600);
}

impl<'de> Deserialize<'de> for WaitParam {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<WaitParam, D::Error> {
        let text = String::deserialize(from)?;
        match DurationParam::parse(&text) {
            Some(DurationParam(time)) if time <= WaitParam::LONGEST => Ok(WaitParam(time)),
            Some(_) => {
                Err(D::Error::custom(format!("{text:?} is longer than 10m; wait for at most 10m, and ask again")))
            }
            None => Err(D::Error::custom(format!("{text:?} is no time; write e.g. 30s, 500ms or 2m"))),
        }
    }
}

/// Labels that a sandbox must have, as a URL-encoded query within a parameter.
#[derive(Clone, Debug, Default, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, examples("job%3D17%26team%3Dred"))]
pub struct MetadataFilter(Vec<(String, String)>);

impl MetadataFilter {
    pub fn matches(&self, metadata: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|(name, value)| metadata.get(name) == Some(value))
    }

    /// Reads `job=17&team=red`, where names and values may be percent-encoded once more.
    fn parse(text: &str) -> Option<MetadataFilter> {
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=')?;
            Some((percent_decoded(name)?, percent_decoded(value)?))
        };
        text.split('&').filter(|part| !part.is_empty()).map(pair).collect::<Option<_>>().map(MetadataFilter)
    }
}

impl<'de> Deserialize<'de> for MetadataFilter {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<MetadataFilter, D::Error> {
        let text = String::deserialize(from)?;
        MetadataFilter::parse(&text)
            .ok_or_else(|| D::Error::custom(format!("{text:?} is no list of labels; write e.g. job%3D17%26team%3Dred")))
    }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        bytes.push(match first {
            b'%' => {
                let (digits, behind) = behind.split_at_checked(2)?;
                rest = behind;
                u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?
            }
            b'+' => b' ',
            other => *other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[derive(Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputEncodingParam {
    #[default]
    Auto,
    Base64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, ms) in [("30s", 30_000), ("500ms", 500), ("2m", 120_000), ("1d", 86_400_000), ("0s", 0)] {
            assert_eq!(DurationParam::parse(text).map(DurationParam::ms), Some(ms), "{text}");
        }
        for bad in ["", "s", "30", "-1s", "1.5s", "9999999999s", "30 s", "1y"] {
            assert_eq!(DurationParam::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn labels_are_read_as_a_query_within_a_query() {
        let has = |filter: &str, pairs: &[(&str, &str)]| {
            let metadata = pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            MetadataFilter::parse(filter).map(|filter| filter.matches(&metadata))
        };
        let pairs = &[("job", "17"), ("a b", "x=y&z")];
        for (filter, matches) in
            [("", true), ("job=17", true), ("job=1", false), ("no=", false), ("job=17&a+b=x%3Dy%26z", true)]
        {
            assert_eq!(has(filter, pairs), Some(matches), "{filter}");
        }
        for bad in ["job", "job=%", "job=%f", "job=%ff"] {
            assert_eq!(has(bad, pairs), None, "{bad}");
        }
    }
}
