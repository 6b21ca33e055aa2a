//! Credentials in URLs, for requests of browsers that can send no header: tickets for one request, and signatures of one method and URL. A
//! grant stands for the token that asked for it, as long as that is valid, and never for more.
//!
//! ```text
//!  ?cofferdam_ticket=HEX                                              in memory, 30 s, one GET of one path
//!  ?cofferdam_token=ID&cofferdam_expires=MS&cofferdam_signature=HEX   HMAC-SHA256 over method, URL, token and time
//! ```

use crate::refuse::Refusal;
use hmac::{Hmac, KeyInit, Mac};
use http::{Method, StatusCode, Uri};
use sha2::Sha256;
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use terms::clock::now_ms;
use terms::{Fault, LimitKind, Phase};

const TICKET: &str = "cofferdam_ticket";
const TOKEN: &str = "cofferdam_token";
const EXPIRES: &str = "cofferdam_expires";
const SIGNATURE: &str = "cofferdam_signature";
/// Time until which the request of a ticket must begin.
const TICKET_TIME: Duration = Duration::from_secs(30);
/// Bound on tickets that are not used yet.
const MAX_TICKETS: usize = 4096;
/// Word for the daemon's own user, who needs no token.
const OWNER: &str = "owner";
const KEY_BYTES: usize = 32;
const KEY_FILE: &str = "url.key";

/// A grant as a request presents it.
#[derive(Debug, PartialEq, Eq)]
pub enum UrlGrant {
    Ticket(String),
    Signed { token: String, expires_ms: u64, signature: Vec<u8> },
}

/// Holder of a grant: a token by its id, or the daemon's own user.
pub type Holder = Option<String>;

struct Ticket {
    holder: Holder,
    path: String,
    expires_ms: u64,
}

pub struct UrlGrants {
    key: [u8; KEY_BYTES],
    tickets: Mutex<HashMap<String, Ticket>>,
}

fn invalid(message: &str) -> Refusal {
    let hint = "send the URL as it was given out, once for a ticket; or a token in a header";
    Refusal::http(StatusCode::UNAUTHORIZED, message, hint)
}

/// Takes the grant out of a request target.
pub fn take(uri: &Uri) -> Result<(Uri, Option<UrlGrant>), Refusal> {
    let query = uri.query().unwrap_or_default();
    if !query.contains("cofferdam_") {
        return Ok((uri.clone(), None));
    }
    let (mut rest, mut ticket, mut token, mut expires, mut signature) = (Vec::new(), None, None, None, None);
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let slot = match name {
            TICKET => &mut ticket,
            TOKEN => &mut token,
            EXPIRES => &mut expires,
            SIGNATURE => &mut signature,
            _ => {
                rest.push(pair);
                continue;
            }
        };
        if slot.replace(value.to_owned()).is_some() {
            return Err(invalid(&format!("{name} is given twice")));
        }
    }
    let grant = match (ticket, token, expires, signature) {
        (None, None, None, None) => None,
        (Some(ticket), None, None, None) => Some(UrlGrant::Ticket(ticket)),
        (None, Some(token), Some(expires), Some(signature)) => {
            let expires_ms = expires.parse().map_err(|_| invalid("the signature of the URL is incomplete"))?;
            let signature =
                terms::hex::decode(&signature).ok_or_else(|| invalid("the signature of the URL is no hex"))?;
            Some(UrlGrant::Signed { token, expires_ms, signature })
        }
        _ => return Err(invalid("the signature of the URL is incomplete")),
    };
    let bare = if rest.is_empty() { uri.path().to_owned() } else { format!("{}?{}", uri.path(), rest.join("&")) };
    let bare = bare.parse().map_err(|_| Fault::invalid("the request target is no path").phase(Phase::Admission))?;
    Ok((bare, grant))
}

impl UrlGrants {
    /// Reads the key that signs, or creates it: URLs are good beyond a restart of the daemon.
    pub fn open(state: &Path) -> io::Result<UrlGrants> {
        let path = state.join(KEY_FILE);
        let mut key = [0; KEY_BYTES];
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(mut file) => {
                key[..16].copy_from_slice(&node::random::id_bytes());
                key[16..].copy_from_slice(&node::random::id_bytes());
                file.write_all(&key)?;
                file.sync_all()?;
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
                OpenOptions::new().read(true).custom_flags(flags).open(&path)?.read_exact(&mut key)?;
            }
            Err(e) => return Err(e),
        }
        Ok(UrlGrants { key, tickets: Mutex::default() })
    }

    /// Makes a ticket for one GET of a path.
    pub fn ticket(&self, holder: &Holder, path: &str) -> Result<(String, u64), Refusal> {
        let now = now_ms();
        let expires_ms = now.saturating_add(TICKET_TIME.as_millis() as u64);
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.retain(|_, ticket| ticket.expires_ms > now);
        if tickets.len() >= MAX_TICKETS {
            let message = format!("{MAX_TICKETS} tickets are not used yet");
            let hint = "ask for a ticket right before the request that it is for";
            return Err(Refusal::limit(StatusCode::TOO_MANY_REQUESTS, LimitKind::Waiting, message, hint));
        }
        let word = terms::hex::encode([node::random::id_bytes(), node::random::id_bytes()].concat());
        tickets.insert(word.clone(), Ticket { holder: holder.clone(), path: path.to_owned(), expires_ms });
        Ok((word, expires_ms))
    }

    /// Signs one method and URL.
    pub fn sign(&self, holder: &Holder, method: &str, url: &str, expires_ms: u64) -> String {
        let token = holder.as_deref().unwrap_or(OWNER);
        let signature = terms::hex::encode(self.mac(method, url, token, expires_ms).finalize().into_bytes());
        let join = if url.contains('?') { '&' } else { '?' };
        format!("{url}{join}{TOKEN}={token}&{EXPIRES}={expires_ms}&{SIGNATURE}={signature}")
    }

    fn mac(&self, method: &str, url: &str, token: &str, expires_ms: u64) -> Hmac<Sha256> {
        // A key of any length is accepted.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).unwrap_or_else(|_| Hmac::new(&Default::default()));
        mac.update(format!("{method}\n{url}\n{token}\n{expires_ms}").as_bytes());
        mac
    }

    /// Returns whose request it is. A ticket is spent by this, whatever it was presented for.
    pub fn redeem(&self, grant: &UrlGrant, method: &Method, uri: &Uri) -> Result<Holder, Refusal> {
        let now = now_ms();
        match grant {
            UrlGrant::Ticket(word) => {
                let ticket = self.tickets.lock().unwrap_or_else(PoisonError::into_inner).remove(word);
                let good =
                    |ticket: &Ticket| ticket.expires_ms > now && ticket.path == uri.path() && method == Method::GET;
                let found = ticket.filter(good).map(|ticket| ticket.holder);
                found.ok_or_else(|| invalid("the ticket is unknown, used, expired or for another path"))
            }
            UrlGrant::Signed { token, expires_ms, signature } => {
                let url = uri.path_and_query().map_or("/", |target| target.as_str());
                let is_signed = self.mac(method.as_str(), url, token, *expires_ms).verify_slice(signature).is_ok();
                if !is_signed || *expires_ms <= now {
                    return Err(invalid("the signature of the URL is of another method or URL, or has expired"));
                }
                Ok((token != OWNER).then(|| token.clone()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_for_one_request_only() {
        let grants = UrlGrants { key: [7; KEY_BYTES], tickets: Mutex::default() };
        let redeem = |method: &str, url: &str| {
            let (bare, grant) = take(&url.parse().unwrap()).ok()?;
            grants.redeem(&grant?, &method.parse().unwrap(), &bare).ok()
        };
        let holder = Some("t".to_owned());
        let soon = now_ms() + 60_000;
        let url = grants.sign(&holder, "GET", "/v1/a?path=b", soon);
        assert_eq!(redeem("GET", &url), Some(holder.clone()));
        assert_eq!(redeem("GET", &url), Some(holder.clone()), "as often as it is sent");
        assert_eq!(redeem("GET", &grants.sign(&None, "GET", "/v1/a", soon)), Some(None));
        assert_eq!(redeem("PUT", &url), None);
        for (from, to) in [("path=b", "path=c"), ("/v1/a", "/v1/b"), ("=t&", "=u&"), ("expires=1", "expires=2")] {
            assert_eq!(redeem("GET", &url.replace(from, to)), None, "{from}");
        }
        assert_eq!(redeem("GET", &format!("{url}&more=1")), None);
        assert_eq!(redeem("GET", &grants.sign(&holder, "GET", "/v1/a", now_ms())), None, "expired");
        let ticket = |path: &str| grants.ticket(&holder, path).ok().unwrap().0;
        let (used, other) = (ticket("/v1/a"), ticket("/v1/a"));
        assert_eq!(redeem("GET", &format!("/v1/a?from=1&cofferdam_ticket={used}")), Some(holder.clone()));
        assert_eq!(redeem("GET", &format!("/v1/a?cofferdam_ticket={used}")), None);
        assert_eq!(redeem("GET", &format!("/v1/b?cofferdam_ticket={other}")), None);
        assert_eq!(redeem("GET", &format!("/v1/a?cofferdam_ticket={other}")), None, "spent");
        assert!(take(&"/v1/a?cofferdam_ticket=1&cofferdam_ticket=2".parse().unwrap()).is_err());
        assert!(take(&"/v1/a?cofferdam_signature=00".parse().unwrap()).is_err());
    }
}
