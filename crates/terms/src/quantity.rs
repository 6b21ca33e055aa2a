//! Parsing of quantities on command lines: `256m`, `1.5g`, `30s`, `1500ms`.

/// Parses bytes; suffixes are powers of 1024.
pub fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let factor: f64 = match unit.trim_end_matches("ib").trim_end_matches('b') {
        "" => 1.0,
        "k" => 1024.0,
        "m" => 1024.0 * 1024.0,
        "g" => 1024.0 * 1024.0 * 1024.0,
        "t" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return Err(format!("{text:?}: unknown unit {unit:?}; use k, m, g or t")),
    };
    whole(text, number * factor)
}

/// Parses a time into milliseconds; a bare number is seconds.
pub fn time(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let factor = match unit.as_str() {
        "ms" => 1.0,
        "" | "s" => 1000.0,
        "m" | "min" => 60_000.0,
        "h" => 3_600_000.0,
        "d" => 86_400_000.0,
        _ => return Err(format!("{text:?}: unknown unit {unit:?}; use ms, s, m, h or d")),
    };
    whole(text, number * factor)
}

fn split(text: &str) -> Result<(f64, String), String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().map_err(|_| format!("{text:?}: no number; write e.g. 256m or 30s"))?;
    Ok((number, text[end..].to_ascii_lowercase()))
}

fn whole(text: &str, amount: f64) -> Result<u64, String> {
    if !(1.0..=9e15).contains(&amount) {
        return Err(format!("{text:?}: out of range"));
    }
    Ok(amount.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_as_people_type_them() {
        for (text, want) in
            [("1", 1), ("1500k", 1_536_000), ("256m", 268_435_456), ("1.5G", 1_610_612_736), ("2MiB", 2_097_152)]
        {
            assert_eq!(size(text), Ok(want), "{text}");
        }
        for (text, want) in [
            ("30", 30_000),
            ("30s", 30_000),
            ("1500ms", 1500),
            ("0.5m", 30_000),
            ("2h", 7_200_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(time(text), Ok(want), "{text}");
        }
        for text in ["", "m", "-1", "1x", "0", "1e99", "∞"] {
            assert!(size(text).is_err(), "{text}");
            assert!(time(text).is_err(), "{text}");
        }
    }
}
