//! TLS with the operator's own certificate.

use super::Named;
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
use tokio_rustls::rustls::{self, InconsistentKeys, RootCertStore, ServerConfig};

/// What the files make.
pub struct Tls {
    pub acceptor: TlsAcceptor,
    /// What clients will have against the certificate.
    pub note: Option<String>,
}

const HINT: &str = "give PEM files: the chain of certificates, and the key that belongs to the first";

fn bad(told: &str, path: &Path, why: &str, hint: &str) -> Fault {
    Fault::invalid(format!("{told} {}: {why}", path.display())).hint(hint).phase(Phase::Admission)
}

/// From the files of a chain and of its key.
pub fn read((cert, key): &(PathBuf, PathBuf), names: &Named) -> Result<Tls, Fault> {
    let chain = CertificateDer::pem_file_iter(cert).and_then(|all| all.collect::<Result<Vec<_>, _>>());
    let chain = chain.map_err(|e| bad(&names.tls_cert, cert, &e.to_string(), HINT))?;
    let Some(first) = chain.first().cloned() else {
        return Err(bad(&names.tls_cert, cert, "no certificate in it", HINT));
    };
    let secret = secret(key, &names.tls_key)?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, secret));
    let mut config = config.map_err(|e| match e {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            let why = format!("it is not the key of the certificate in {}", cert.display());
            bad(&names.tls_key, key, &why, "give the key and the certificate that were made together")
        }
        e => bad(&names.tls_key, key, &e.to_string(), HINT),
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
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

fn secret(key: &Path, told: &str) -> Result<PrivateKeyDer<'static>, Fault> {
    let mode = std::fs::metadata(key).map_err(|e| bad(told, key, &e.to_string(), HINT))?.mode();
    if mode & 0o077 != 0 {
        return Err(bad(told, key, "others may read it", "`chmod 600` it"));
    }
    PrivateKeyDer::from_pem_file(key).map_err(|e| match std::fs::read_to_string(key) {
        // As PKCS #8 and as older files say it.
        Ok(text) if text.contains("BEGIN ENCRYPTED") || text.contains("Proc-Type: 4,ENCRYPTED") => bad(
            told,
            key,
            "the key is encrypted",
            "decrypt it with `openssl pkey -in KEY -out NEW`, and `chmod 600` that",
        ),
        _ => bad(told, key, &e.to_string(), HINT),
    })
}

/// Whether a client that believes this very certificate would still refuse it, because it may sign others.
fn signs_others(certificate: &CertificateDer<'static>) -> bool {
    let mut roots = RootCertStore::empty();
    let (Ok(()), Ok(name)) = (roots.add(certificate.clone()), ServerName::try_from("localhost")) else { return false };
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider())).build();
    // The library has no name of its own for this mistake.
    verifier.is_ok_and(|verifier| {
        let seen = verifier.verify_server_cert(certificate, &[], &name, &[], UnixTime::now());
        seen.is_err_and(|e| e.to_string().contains("CaUsedAsEndEntity"))
    })
}
