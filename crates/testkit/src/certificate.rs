//! Certificates for test servers: each is its own authority, so that a client that trusts it trusts no other.

use super::Place;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Paths of a certificate and its key, as words for flags.
pub struct Certificate {
    pub cert: String,
    pub key: String,
}

impl Certificate {
    /// Makes a certificate for one server, e.g. `DNS:localhost`; both files belong to the test's user, and only that
    /// user can read the key.
    pub fn new(place: &Place, file: &str, server: &str) -> Certificate {
        // A CA certificate is refused as a server certificate, with any name.
        Certificate::made(place, file, server, &["-addext", "basicConstraints=critical,CA:FALSE"])
    }

    /// Makes a CA certificate, the default of `openssl`.
    #[allow(dead_code)]
    pub fn authority(place: &Place, file: &str, server: &str) -> Certificate {
        Certificate::made(place, file, server, &[])
    }

    fn made(place: &Place, file: &str, server: &str, more: &[&str]) -> Certificate {
        let (cert, key) = (place.root.join(format!("{file}.pem")), place.root.join(format!("{file}.key")));
        let common = server.split(':').next_back().unwrap();
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
            .args(["-subj", &format!("/CN={common}"), "-addext", &format!("subjectAltName={server}")])
            .args(more)
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&cert)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        for (path, mode) in [(&cert, 0o644), (&key, 0o600)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            place.own(path);
        }
        let word = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
        Certificate { cert: word(cert), key: word(key) }
    }
}
