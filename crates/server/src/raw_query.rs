//! Query parameters as raw bytes, for routes whose parameters name files: a file name may hold any bytes, and a parameter may be repeated.
//! Other routes deserialize their query into a type.

use crate::Shared;
use crate::refuse::Refusal;
use api::Rel;
use axum::extract::FromRequestParts;
use http::request::Parts;
use std::str::FromStr;
use terms::{Fault, Phase};

/// Maximum number of parameters in a query.
const MAX: usize = 1_000;

/// Names and values in the order of the query. A route takes the parameters it knows; the rest is refused.
#[derive(Debug)]
pub struct RawQuery(Vec<(String, Vec<u8>)>);

impl FromRequestParts<Shared> for RawQuery {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<RawQuery, Refusal> {
        RawQuery::read(parts.uri.query().unwrap_or_default()).map_err(Refusal::from)
    }
}

impl RawQuery {
    fn read(query: &str) -> Result<RawQuery, Fault> {
        let mut parameters = Vec::new();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let name = String::from_utf8(decoded(name)?).map_err(|_| invalid("a parameter name is not UTF-8"))?;
            parameters.push((name, decoded(value)?));
            if parameters.len() > MAX {
                return Err(invalid(&format!("more than {MAX} parameters")));
            }
        }
        Ok(RawQuery(parameters))
    }

    /// Removes and returns all values of `name`, as paths relative to the top of a workspace.
    pub fn paths(&mut self, name: &str) -> Result<Vec<Rel>, Fault> {
        let (matching, rest) = std::mem::take(&mut self.0).into_iter().partition(|(own, _)| own == name);
        self.0 = rest;
        let matching: Vec<(String, Vec<u8>)> = matching;
        let path = |(_, bytes): (String, Vec<u8>)| {
            let shown = String::from_utf8_lossy(&bytes).into_owned();
            if bytes.is_empty() {
                let fault = Fault::invalid(format!("the query: {name}: an empty path")).phase(Phase::Admission);
                return Err(fault.hint(format!("name one, or leave `{name}` out; `.` is the workspace's top")));
            }
            Rel::parse(&bytes)
                .ok_or_else(|| invalid(&format!("{name}: {shown:?} is not a path below the workspace's top")))
        };
        matching.into_iter().map(path).collect()
    }

    /// Removes and parses the value of `name`, which may be given once.
    pub fn optional<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, Fault> {
        let Some(at) = self.0.iter().position(|(own, _)| own == name) else { return Ok(None) };
        let (_, bytes) = self.0.remove(at);
        if self.0.iter().any(|(own, _)| own == name) {
            return Err(invalid(&format!("{name} is given twice")));
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        text.parse().map(Some).map_err(|_| invalid(&format!("{name}: cannot parse {text:?}")))
    }

    /// Refuses parameters that the route did not take.
    pub fn deny_rest(self) -> Result<(), Fault> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => Err(invalid(&format!("unknown parameter {name:?}"))),
        }
    }
}

fn invalid(why: &str) -> Fault {
    let fault = Fault::invalid(format!("the query: {why}")).phase(Phase::Admission);
    fault.hint("/v1/openapi.json lists the parameters of each route; percent-encode bytes that are not text")
}

fn decoded(text: &str) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: Option<u8>| byte.and_then(|b| char::from(b).to_digit(16));
                let (high, low) = (digit(rest.next()), digit(rest.next()));
                match (high, low) {
                    (Some(high), Some(low)) => (high * 16 + low) as u8,
                    _ => return Err(invalid("'%' is not followed by two hexadecimal digits")),
                }
            }
            byte => byte,
        });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_come_through_byte_for_byte() {
        let mut parameters = RawQuery::read("path=a%2Fb%20c&path=%ff&limit=10&all=true").unwrap();
        let paths = parameters.paths("path").unwrap();
        assert_eq!(paths.iter().map(Rel::as_bytes).collect::<Vec<_>>(), [&b"a/b c"[..], b"\xff"]);
        assert_eq!(
            (parameters.optional::<usize>("limit").unwrap(), parameters.optional::<bool>("all").unwrap()),
            (Some(10), Some(true))
        );
        assert_eq!(parameters.optional::<usize>("limit").unwrap(), None);
        parameters.deny_rest().unwrap();
    }

    #[test]
    fn what_cannot_be_read_or_is_not_known_is_refused() {
        for query in ["path=%2e%2e%2fx", "path=/etc", "path=%00", "path=", "path", "path=..%2f.."] {
            assert!(RawQuery::read(query).unwrap().paths("path").is_err(), "{query}");
        }
        assert!(RawQuery::read("path=.").unwrap().paths("path").unwrap()[0].is_top(), "the control");
        for query in ["a=%", "a=%f", "a=%zz", "%ff=a"] {
            assert!(RawQuery::read(query).is_err(), "{query}");
        }
        assert!(RawQuery::read("limit=ten").unwrap().optional::<usize>("limit").is_err());
        assert!(RawQuery::read("limit=1&limit=2").unwrap().optional::<usize>("limit").is_err());
        assert!(RawQuery::read("unknown=1").unwrap().deny_rest().is_err());
        assert!(RawQuery::read(&"a&".repeat(MAX + 1)).is_err());
    }
}
