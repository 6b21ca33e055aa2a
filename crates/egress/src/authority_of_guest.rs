//! The certificate authority of one guest: born with the run, trusted by that guest alone, gone with it. Its key and
//! the key of its leaves are never written anywhere.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType, SerialNumber,
};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use terms::Fault;
use tokio_rustls::rustls::crypto::ring::sign::any_supported_type;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::sign::{CertifiedKey, SigningKey};

const HOUR: Duration = Duration::from_secs(3600);
/// A guest may live for months, and nothing but this process can use the authority.
const AUTHORITY_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
const LEAF_LIFE: Duration = Duration::from_secs(24 * 3600);
/// A leaf is handed out for so long and then made anew, so that no connection starts with one that is about to end.
const LEAF_USE: Duration = Duration::from_secs(12 * 3600);
/// How far the clock of a guest may be behind ours.
const SKEW: Duration = HOUR;
const MAX_LEAVES: usize = 256;

pub struct Authority {
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
    /// One key for all leaves: they are all ours, and a key each would only cost time.
    leaf_key: KeyPair,
    signer: Arc<dyn SigningKey>,
    leaves: Mutex<Leaves>,
}

/// Whom a leaf is for. With an address, it is valid under that too.
type Whom = (Option<String>, Option<IpAddr>);

#[derive(Default)]
struct Leaves {
    made: BTreeMap<Whom, (Instant, Arc<CertifiedKey>)>,
    last_serial: u64,
}

impl Authority {
    pub fn new() -> Result<Authority, Fault> {
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "Cofferdam: authority of one sandbox");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        valid_for(&mut params, AUTHORITY_LIFE);
        let certificate_pem = params.self_signed(&key).map_err(failed)?.pem();
        let leaf_key = KeyPair::generate().map_err(failed)?;
        let pkcs8 = PrivateKeyDer::try_from(leaf_key.serialize_der()).map_err(failed)?;
        let signer = any_supported_type(&pkcs8).map_err(failed)?;
        let issuer = Issuer::new(params, key);
        Ok(Authority { certificate_pem, issuer, leaf_key, signer, leaves: Mutex::default() })
    }

    /// The certificate to be trusted, as PEM.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// A certificate for a name, an address or both.
    pub(crate) fn leaf(&self, name: Option<&str>, addr: Option<IpAddr>) -> Result<Arc<CertifiedKey>, Fault> {
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        let whom = (name.map(str::to_owned), addr);
        if let Some((made, leaf)) = leaves.made.get(&whom)
            && made.elapsed() < LEAF_USE
        {
            return Ok(leaf.clone());
        }
        leaves.last_serial += 1;
        let leaf = Arc::new(self.sign(&whom, leaves.last_serial)?);
        leaves.keep(whom, leaf.clone());
        Ok(leaf)
    }

    fn sign(&self, (name, addr): &Whom, serial: u64) -> Result<CertifiedKey, Fault> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "Cofferdam: inspected");
        if let Some(name) = name {
            params.subject_alt_names.push(SanType::DnsName(name.as_str().try_into().map_err(failed)?));
        }
        params.subject_alt_names.extend(addr.map(SanType::IpAddress));
        // Clients take two certificates with one number for a forgery.
        params.serial_number = Some(SerialNumber::from(serial));
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        valid_for(&mut params, LEAF_LIFE);
        let certificate = params.signed_by(&self.leaf_key, &self.issuer).map_err(failed)?;
        Ok(CertifiedKey::new(vec![certificate.into()], self.signer.clone()))
    }
}

impl Leaves {
    fn keep(&mut self, whom: Whom, leaf: Arc<CertifiedKey>) {
        if self.made.len() >= MAX_LEAVES {
            let oldest = self.made.iter().min_by_key(|(_, (made, _))| *made).map(|(whom, _)| whom.clone());
            oldest.and_then(|whom| self.made.remove(&whom));
        }
        self.made.insert(whom, (Instant::now(), leaf));
    }
}

fn valid_for(params: &mut CertificateParams, life: Duration) {
    let now = SystemTime::now();
    params.not_before = (now - SKEW).into();
    params.not_after = (now + life).into();
}

fn failed(error: impl std::fmt::Display) -> Fault {
    Fault::internal(format!("a certificate cannot be made: {error}"))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn leaves_are_kept_and_bounded() {
        let authority = Authority::new().unwrap();
        let first = authority.leaf(Some("a.example.org"), None).unwrap();
        assert!(Arc::ptr_eq(&first, &authority.leaf(Some("a.example.org"), None).unwrap()));
        assert!(!Arc::ptr_eq(&first, &authority.leaf(Some("b.example.org"), None).unwrap()));
        for i in 0..MAX_LEAVES + 10 {
            authority.leaf(Some(&format!("n{i}.example.org")), None).unwrap();
        }
        assert_eq!(authority.leaves.lock().unwrap().made.len(), MAX_LEAVES);
    }

    #[test]
    fn each_guest_has_its_own() {
        let (one, other) = (Authority::new().unwrap(), Authority::new().unwrap());
        assert_ne!(one.certificate_pem(), other.certificate_pem());
        assert!(one.certificate_pem().starts_with("-----BEGIN CERTIFICATE-----"));
        assert!(!one.certificate_pem().contains("PRIVATE"));
    }
}
