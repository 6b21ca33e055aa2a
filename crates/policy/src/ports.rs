//! Lists of ports: `"443"`, `"80,443"`, `"8000-8999"`.

use crate::path::PathRefusal;
use std::fmt;

/// Port ranges in rising order that neither touch nor overlap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ports(Vec<(u16, u16)>);

impl Ports {
    pub fn parse(text: &str) -> Result<Ports, PathRefusal> {
        let mut ranges = Vec::new();
        for item in text.split(',') {
            let (low, high) = item.split_once('-').unwrap_or((item, item));
            match (port(low), port(high)) {
                (Some(low), Some(high)) if low <= high => ranges.push((low, high)),
                _ => {
                    return Err(PathRefusal::new(format!("{item:?} is not a port or a range of ports"))
                        .hint("write \"443\", \"80,443\" or \"8000-8999\", from 1 to 65535"));
                }
            }
        }
        Ok(Ports(tidy(ranges)))
    }

    pub fn one(port: u16) -> Ports {
        Ports(vec![(port, port)])
    }

    /// Returns every port, in rising order.
    pub fn each(&self) -> impl Iterator<Item = u16> {
        self.0.iter().flat_map(|(low, high)| *low..=*high)
    }

    pub fn contains(&self, port: u16) -> bool {
        self.0.iter().any(|(low, high)| (*low..=*high).contains(&port))
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (low, high)) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match low == high {
                true => write!(f, "{comma}{low}")?,
                false => write!(f, "{comma}{low}-{high}")?,
            }
        }
        Ok(())
    }
}

fn port(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|port| plain && *port > 0)
}

fn tidy(mut ranges: Vec<(u16, u16)>) -> Vec<(u16, u16)> {
    ranges.sort_unstable();
    let mut out: Vec<(u16, u16)> = Vec::new();
    for (low, high) in ranges {
        match out.last_mut() {
            Some(last) if u32::from(low) <= u32::from(last.1) + 1 => last.1 = last.1.max(high),
            _ => out.push((low, high)),
        }
    }
    out
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn reading() {
        for (text, spelled) in [
            ("443", "443"),
            ("443,80", "80,443"),
            ("80,81,443", "80-81,443"),
            ("1-65535", "1-65535"),
            ("8000-8999,8500-9000", "8000-9000"),
        ] {
            assert_eq!(Ports::parse(text).unwrap().to_string(), spelled);
        }
        for text in ["", "0", "65536", "80,", ",80", "80-", "-80", "90-80", "+80", "080", "80 ", "http", "1-2-3"] {
            assert!(Ports::parse(text).is_err(), "{text:?} was taken");
        }
    }
}
