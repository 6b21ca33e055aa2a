//! TLS certificates that are trusted, and files that hold secrets. No error shows the content of such a file.

use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use terms::{ErrorKind, Fault, Phase};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Returns a TLS connector for HTTP/1.1 that verifies the server's name. `ca` is a file of certificates that are trusted instead of those
/// of the system; faults name it by `setting`, and the server by `whose`.
pub fn connector(ca: Option<&Path>, setting: &str, whose: &str) -> Result<TlsConnector, Fault> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(file) => {
            let refuse = |why: String| {
                let fault = Fault::invalid(format!("{setting} {}: {why}", file.display()));
                let hint = format!("give a PEM file with the certificate that signed the {whose}'s");
                fault.hint(hint).phase(Phase::Admission)
            };
            let all = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            for certificate in all.map_err(|e| refuse(e.to_string()))? {
                roots.add(certificate).map_err(|e| refuse(e.to_string()))?;
            }
            if roots.is_empty() {
                return Err(refuse("no certificate in it".into()));
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                let fault = Fault::new(ErrorKind::UnsupportedHost, "this system has no trusted certificates");
                return Err(fault.hint(format!("name the {whose}'s own with {setting}")).phase(Phase::Admission));
            }
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| Fault::internal(format!("TLS: {e}")))?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Reads a text file of at most `most` bytes that no other user can read or change.
pub fn secret_text(file: &Path, most: u64) -> Result<String, String> {
    // A FIFO or device that blocks on open is no secret file.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(file);
    let opened = opened.map_err(|e| e.to_string())?;
    let meta = opened.metadata().map_err(|e| e.to_string())?;
    if !meta.is_file() {
        return Err("not a regular file".into());
    }
    if meta.mode() & 0o077 != 0 {
        return Err("other users can read or change it; run `chmod 600` on it".into());
    }
    if meta.uid() != rustix::process::geteuid().as_raw() && meta.uid() != 0 {
        return Err("it belongs to another user".into());
    }
    let mut text = String::new();
    opened.take(most + 1).read_to_string(&mut text).map_err(|_| "it is not UTF-8 text")?;
    match text.len() as u64 > most {
        true => Err(format!("it is larger than {} KiB", most >> 10)),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_is_taken_from_a_file_of_our_own() {
        let dir = std::env::temp_dir().join(format!("cofferdam-secret-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let file = dir.join("secret");
        let read = |text: &[u8], mode| {
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            secret_text(&file, 1024)
        };
        assert_eq!(read(b"canary", 0o600).unwrap(), "canary");
        assert_eq!(read(&[b'x'; 1024], 0o600).unwrap().len(), 1024, "exactly at the limit");
        for (text, mode, why) in [
            (&b"canary"[..], 0o640, "other users can read"),
            (b"canary", 0o602, "other users can read"),
            (&[b'x'; 1025], 0o600, "larger than 1 KiB"),
            (b"canary\xff", 0o600, "not UTF-8"),
        ] {
            let told = read(text, mode).unwrap_err();
            assert!(told.contains(why) && !told.contains("canary"), "{told}");
        }
        let pipe = dir.join("pipe");
        assert!(std::process::Command::new("mkfifo").args(["-m", "600"]).arg(&pipe).status().unwrap().success());
        assert_eq!(secret_text(&pipe, 1024).unwrap_err(), "not a regular file");
        assert!(secret_text(&dir.join("missing"), 1024).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
