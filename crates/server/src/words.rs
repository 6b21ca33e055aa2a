//! The words of a query, byte for byte: names of files may be any bytes, and may be given several times. Routes whose query
//! names no file read it as a type.

use crate::Shared;
use crate::refuse::Refusal;
use axum::extract::FromRequestParts;
use http::request::Parts;
use node::review::Rel;
use std::str::FromStr;
use terms::{Fault, Phase};

/// Most words that a query has.
const MOST: usize = 1_000;

/// Each name with its value, as they came; what a route knows is taken out, and the rest is refused.
#[derive(Debug)]
pub struct Words(Vec<(String, Vec<u8>)>);

impl FromRequestParts<Shared> for Words {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Words, Refusal> {
        Words::read(parts.uri.query().unwrap_or_default()).map_err(Refusal::from)
    }
}

impl Words {
    fn read(query: &str) -> Result<Words, Fault> {
        let mut words = Vec::new();
        for word in query.split('&').filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let name = String::from_utf8(decoded(name)?).map_err(|_| invalid("a name in it is no UTF-8"))?;
            words.push((name, decoded(value)?));
            if words.len() > MOST {
                return Err(invalid(&format!("more than {MOST} words")));
            }
        }
        Ok(Words(words))
    }

    /// All values of a name, as paths from the top of a workspace.
    pub fn paths(&mut self, name: &str) -> Result<Vec<Rel>, Fault> {
        let (mine, others) = std::mem::take(&mut self.0).into_iter().partition(|(own, _)| own == name);
        self.0 = others;
        let mine: Vec<(String, Vec<u8>)> = mine;
        let path = |(_, bytes): (String, Vec<u8>)| {
            let shown = String::from_utf8_lossy(&bytes).into_owned();
            if bytes.is_empty() {
                let fault = Fault::invalid(format!("the query: {name}: an empty path")).phase(Phase::Admission);
                return Err(fault.hint(format!("name one, or leave `{name}` out; `.` is the workspace's top")));
            }
            Rel::parse(&bytes)
                .ok_or_else(|| invalid(&format!("{name}: {shown:?} is no path below the workspace's top")))
        };
        mine.into_iter().map(path).collect()
    }

    /// The value of a name that may be there once, in the form that is wanted.
    pub fn one<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, Fault> {
        let Some(at) = self.0.iter().position(|(own, _)| own == name) else { return Ok(None) };
        let (_, bytes) = self.0.remove(at);
        if self.0.iter().any(|(own, _)| own == name) {
            return Err(invalid(&format!("{name} is there twice")));
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        text.parse().map(Some).map_err(|_| invalid(&format!("{name}: {text:?} cannot be read")))
    }

    /// Nothing may be left that nobody knows.
    pub fn end(self) -> Result<(), Fault> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => Err(invalid(&format!("{name:?} is no parameter of this route"))),
        }
    }
}

fn invalid(why: &str) -> Fault {
    let fault = Fault::invalid(format!("the query: {why}")).phase(Phase::Admission);
    fault.hint("/v1/openapi.json lists the parameters of each route; bytes that are no text are written %XX")
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
                    _ => return Err(invalid("a '%' without two hexadecimal digits behind it")),
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
        let mut words = Words::read("path=a%2Fb%20c&path=%ff&limit=10&all=true").unwrap();
        let paths = words.paths("path").unwrap();
        assert_eq!(paths.iter().map(Rel::as_bytes).collect::<Vec<_>>(), [&b"a/b c"[..], b"\xff"]);
        assert_eq!((words.one::<usize>("limit").unwrap(), words.one::<bool>("all").unwrap()), (Some(10), Some(true)));
        assert_eq!(words.one::<usize>("limit").unwrap(), None);
        words.end().unwrap();
    }

    #[test]
    fn what_cannot_be_read_or_is_not_known_is_refused() {
        for query in ["path=%2e%2e%2fx", "path=/etc", "path=%00", "path=", "path", "path=..%2f.."] {
            assert!(Words::read(query).unwrap().paths("path").is_err(), "{query}");
        }
        assert!(Words::read("path=.").unwrap().paths("path").unwrap()[0].is_top(), "the control");
        for query in ["a=%", "a=%f", "a=%zz", "%ff=a"] {
            assert!(Words::read(query).is_err(), "{query}");
        }
        assert!(Words::read("limit=ten").unwrap().one::<usize>("limit").is_err());
        assert!(Words::read("limit=1&limit=2").unwrap().one::<usize>("limit").is_err());
        assert!(Words::read("unknown=1").unwrap().end().is_err());
        assert!(Words::read(&"a&".repeat(MOST + 1)).is_err());
    }
}
