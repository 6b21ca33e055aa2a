//! The daemon of a connection: its address, the certificates that are trusted, and the token that is sent.

use super::address::Address;
use crate::trust;
use std::fmt;
use std::path::Path;
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase};
use tokio_rustls::TlsConnector;

#[derive(Clone)]
pub struct Server {
    pub address: Address,
    pub(super) token: Option<BearerToken>,
    /// Set for `https` addresses.
    pub(super) tls: Option<TlsConnector>,
    /// An upper bound on every timeout.
    max_timeout: Option<Duration>,
}

impl Server {
    /// `ca` is a file of certificates that are trusted instead of those of the system.
    pub fn new(address: Address, token: Option<BearerToken>, ca: Option<&Path>) -> Result<Server, Fault> {
        if address.needs_token() && token.is_none() {
            let message = format!("{address} needs a token, and none is given");
            let hint = "name a file with the token by --token-file or COFFERDAM_TOKEN_FILE";
            return Err(Fault::new(ErrorKind::Unauthenticated, message).hint(hint).phase(Phase::Admission));
        }
        let tls = match (&address, ca) {
            (Address::Https { .. }, ca) => Some(trust::connector(ca, "--server-ca", "daemon")?),
            (_, None) => None,
            (_, Some(_)) => {
                let fault = Fault::invalid(format!("--server-ca: {address} does not use TLS"));
                return Err(fault.hint("leave it out, or use https://").phase(Phase::Admission));
            }
        };
        Ok(Server { address, token, tls, max_timeout: None })
    }

    /// Sets an upper bound on every timeout.
    pub fn with_max_timeout(self, max_timeout: Option<Duration>) -> Server {
        Server { max_timeout, ..self }
    }

    /// Returns a timeout, shortened to the upper bound.
    pub fn timeout(&self, usual: Duration) -> Duration {
        self.max_timeout.map_or(usual, |max| usual.min(max))
    }
}

/// A bearer token. Neither `Debug` nor any fault shows it.
#[derive(Clone)]
pub struct BearerToken(String);

impl BearerToken {
    const MAX_BYTES: u64 = 4096;

    /// Reads a token from a file that no other user can read or change.
    pub fn read(file: &Path) -> Result<BearerToken, Fault> {
        let refuse = |why: &str| {
            let fault = Fault::invalid(format!("the token's file {}: {why}", file.display()));
            fault.hint("name a file of your own that contains only the token").phase(Phase::Admission)
        };
        let text = trust::secret_text(file, Self::MAX_BYTES).map_err(|why| refuse(&why))?;
        let word = text.trim();
        match !word.is_empty() && word.bytes().all(|b| b.is_ascii_graphic()) {
            true => Ok(BearerToken(word.to_owned())),
            false => Err(refuse("no token in it")),
        }
    }

    pub(super) fn header(&self) -> Option<http::HeaderValue> {
        let mut value = http::HeaderValue::from_str(&format!("Bearer {}", self.0)).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    // promise 27
    #[test]
    fn a_token_that_others_can_read_is_not_sent() {
        let file = std::env::temp_dir().join(format!("cofferdam-token-{}", std::process::id()));
        std::fs::write(&file, "cof_secret\n").unwrap();
        for (mode, good) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false)] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(BearerToken::read(&file).is_ok(), good, "{mode:o}");
        }
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(!format!("{:?}", BearerToken::read(&file).unwrap()).contains("secret"));
        for text in ["", "\n", "two words", "x\ny"] {
            std::fs::write(&file, text).unwrap();
            assert!(BearerToken::read(&file).is_err(), "{text:?}");
        }
        std::fs::remove_file(&file).unwrap();
        assert!(BearerToken::read(&file).is_err() && BearerToken::read(Path::new("/tmp")).is_err());
    }

    #[test]
    fn without_a_token_no_port_is_asked() {
        let address = |text| Address::parse(text).unwrap();
        assert!(Server::new(address("/run/x.sock"), None, None).is_ok(), "the control");
        let refused = Server::new(address("http://127.0.0.1:1"), None, None).err().unwrap();
        assert_eq!(refused.error_kind, ErrorKind::Unauthenticated);
        assert!(Server::new(address("/run/x.sock"), None, Some(Path::new("/ca"))).is_err());
    }
}
