//! TLS with the operator's own certificate.

use super::Settings;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use terms::{Fault, Phase};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

fn bad(flag: &str, path: &Path, why: &str, hint: &str) -> Fault {
    Fault::invalid(format!("{flag} {}: {why}", path.display())).hint(hint).phase(Phase::Admission)
}

/// None where no certificate is given.
pub fn acceptor(settings: &Settings) -> Result<Option<TlsAcceptor>, Fault> {
    let Some((cert, key)) = &settings.tls else { return Ok(None) };
    let hint = "give PEM files: the chain of certificates, and the key that belongs to the first";
    let chain = CertificateDer::pem_file_iter(cert).and_then(|all| all.collect::<Result<Vec<_>, _>>());
    let chain = chain.map_err(|e| bad("--tls-cert", cert, &e.to_string(), hint))?;
    if chain.is_empty() {
        return Err(bad("--tls-cert", cert, "no certificate in it", hint));
    }
    let mode = std::fs::metadata(key).map_err(|e| bad("--tls-key", key, &e.to_string(), hint))?.mode();
    if mode & 0o077 != 0 {
        return Err(bad("--tls-key", key, "others may read it", "`chmod 600` it"));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|e| bad("--tls-key", key, &e.to_string(), hint))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, secret));
    let mut config = config.map_err(|e| bad("--tls-key", key, &e.to_string(), hint))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}
