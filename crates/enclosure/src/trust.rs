//! Certificate bundles. A guest whose requests the broker reads is given one more CA, in every bundle that is in use.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Generated files of every guest under inspection, whatever its host has.
pub const BUNDLE: &str = "/.cofferdam/ca-bundle.pem";
pub const OWN: &str = "/.cofferdam/ca.pem";

/// Environment variables that point programs to a bundle, or to one CA beside their own.
pub const VARIABLES: [(&str, &str); 9] = [
    ("SSL_CERT_FILE", BUNDLE),
    ("REQUESTS_CA_BUNDLE", BUNDLE),
    ("CURL_CA_BUNDLE", BUNDLE),
    ("GIT_SSL_CAINFO", BUNDLE),
    ("PIP_CERT", BUNDLE),
    ("CARGO_HTTP_CAINFO", BUNDLE),
    ("AWS_CA_BUNDLE", BUNDLE),
    ("NODE_EXTRA_CA_CERTS", OWN),
    ("DENO_CERT", OWN),
];

/// Bundles of the distributions: Debian, Arch, Alpine; Fedora; openSUSE; Alpine again; NixOS.
const BUNDLES: [&str; 7] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/var/lib/ca-certificates/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs/ca-bundle.crt",
];

/// Bytes of the largest bundle that is read; real ones have a quarter of a megabyte.
const LARGEST: u64 = 4 << 20;

/// Returns the host's bundles by their real paths, each with `authority` appended.
pub fn bundles(authority: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let found = BUNDLES.iter().filter_map(|name| std::fs::canonicalize(name).ok());
    found.filter_map(|path| read(&path).map(|bytes| (path, with(bytes, authority)))).collect()
}

/// Returns the content of `BUNDLE`: the host's certificates, where there are any, and ours.
pub fn whole(bundles: &BTreeMap<PathBuf, Vec<u8>>, authority: &str) -> Vec<u8> {
    bundles.values().next().cloned().unwrap_or_else(|| with(Vec::new(), authority))
}

fn with(mut bytes: Vec<u8>, authority: &str) -> Vec<u8> {
    if bytes.last().is_some_and(|last| *last != b'\n') {
        bytes.push(b'\n');
    }
    bytes.extend(authority.as_bytes());
    bytes
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).ok().filter(|f| f.metadata().is_ok_and(|m| m.is_file()))?;
    file.take(LARGEST + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= LARGEST).then_some(bytes)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn ours_comes_last_and_on_a_line_of_its_own() {
        assert_eq!(with(b"a".to_vec(), "b\n"), b"a\nb\n");
        assert_eq!(with(b"a\n".to_vec(), "b\n"), b"a\nb\n");
        assert_eq!(whole(&BTreeMap::new(), "b\n"), b"b\n");
        for bytes in bundles("the end").values() {
            assert!(bytes.ends_with(b"\nthe end"));
        }
    }
}
