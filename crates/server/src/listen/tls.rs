//! TLS with the operator's own certificate.

use super::SettingNames;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use terms::{Fault, Phase};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{self, CertificateError, InconsistentKeys, RootCertStore, ServerConfig};

/// The result of reading certificate and key.
pub struct Tls {
    pub acceptor: TlsAcceptor,
    /// A reason why clients will refuse the certificate.
    pub note: Option<String>,
}

const HINT: &str = "give PEM files: the chain of certificates, and the key that belongs to the first";

fn bad(setting: &str, path: &Path, why: &str, hint: &str) -> Fault {
    Fault::invalid(format!("{setting} {}: {why}", path.display())).hint(hint).phase(Phase::Admission)
}

/// Reads a certificate chain and its key.
pub fn read((cert, key): &(PathBuf, PathBuf), names: &SettingNames) -> Result<Tls, Fault> {
    let chain = CertificateDer::pem_file_iter(cert).and_then(|all| all.collect::<Result<Vec<_>, _>>());
    let chain = chain.map_err(|e| bad(&names.tls_cert, cert, &e.to_string(), HINT))?;
    let Some(first) = chain.first().cloned() else {
        return Err(bad(&names.tls_cert, cert, "it contains no certificate", HINT));
    };
    let secret = secret(key, &names.tls_key)?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, secret));
    let mut config = config.map_err(|e| match e {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            let why = format!("it is not the key of the certificate in {}", cert.display());
            bad(&names.tls_key, key, &why, "give the key that belongs to the certificate")
        }
        e => bad(&names.tls_key, key, &e.to_string(), HINT),
    })?;
    config.alpn_protocols = vec![super::connection::HTTP2.to_vec(), b"http/1.1".to_vec()];
    let note = signs_others(&first).then(|| {
        format!(
            "{} {}: this certificate is for signing others (CA:TRUE), and clients refuse it as a server's; \
             make one with `openssl req -x509 … -addext basicConstraints=critical,CA:FALSE`",
            names.tls_cert,
            cert.display()
        )
    });
    Ok(Tls { acceptor: TlsAcceptor::from(Arc::new(config)), note })
}

fn secret(key: &Path, setting: &str) -> Result<PrivateKeyDer<'static>, Fault> {
    let mode = std::fs::metadata(key).map_err(|e| bad(setting, key, &e.to_string(), HINT))?.mode();
    if mode & 0o077 != 0 {
        return Err(bad(setting, key, "other users can read it", "run `chmod 600` on it"));
    }
    PrivateKeyDer::from_pem_file(key).map_err(|e| match std::fs::read_to_string(key) {
        // PKCS #8, and the older traditional format.
        Ok(text) if text.contains("BEGIN ENCRYPTED") || text.contains("Proc-Type: 4,ENCRYPTED") => bad(
            setting,
            key,
            "the key is encrypted",
            "decrypt it with `openssl pkey -in KEY -out NEW`, and `chmod 600` that",
        ),
        _ => bad(setting, key, &e.to_string(), HINT),
    })
}

/// Returns true for a CA certificate, which clients refuse for a server even if they trust it.
fn signs_others(certificate: &CertificateDer<'static>) -> bool {
    let mut roots = RootCertStore::empty();
    let (Ok(()), Ok(name)) = (roots.add(certificate.clone()), ServerName::try_from("localhost")) else { return false };
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider())).build();
    let Ok(verifier) = verifier else { return false };
    let seen = verifier.verify_server_cert(certificate, &[], &name, &[], UnixTime::now());
    // rustls has no variant for this case, and hands on the error of the library below it.
    let Err(rustls::Error::InvalidCertificate(CertificateError::Other(other))) = seen else { return false };
    matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}
