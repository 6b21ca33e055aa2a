//! The present time, and times as text.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The present time in milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Formats seconds since 1970 in universal time: `2024-05-01 13:37:00Z`.
pub fn date(seconds: u64) -> String {
    let (day, rest) = ((seconds / 86_400) as i64, seconds % 86_400);
    // Days are counted in eras of 400 years that begin in March, so that the leap day comes last.
    let z = day + 719_468;
    let (era, of_era) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let (dom, month) = (of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{dom:02} {:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Formats a time by RFC 3339, in UTC, with milliseconds.
pub fn timestamp(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let date = date(since.as_secs());
    let (day, time) = date.trim_end_matches('Z').split_once(' ').unwrap_or_default();
    format!("{day}T{time}.{:03}Z", since.subsec_millis())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, want) in [
            (0, "1970-01-01 00:00:00Z"),
            (951_782_399, "2000-02-28 23:59:59Z"),
            (951_782_400, "2000-02-29 00:00:00Z"),
            (1_714_570_620, "2024-05-01 13:37:00Z"),
            (4_107_542_400, "2100-03-01 00:00:00Z"),
        ] {
            assert_eq!(super::date(seconds), want);
        }
    }

    #[test]
    fn times_are_written_by_rfc_3339() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (4_102_444_800, "2100-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(super::timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
