//! The certificate authority of one guest: created with the run, trusted by that guest alone, dropped with it. Its key
//! and the key of its leaf certificates stay in memory.

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
/// Validity of the CA certificate. A guest may live for months, and only this process can use the key.
const AUTHORITY_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
const LEAF_LIFE: Duration = Duration::from_secs(24 * 3600);
/// Age up to which a leaf is reused, so that no connection starts with a certificate about to expire.
const LEAF_USE: Duration = Duration::from_secs(12 * 3600);
/// Tolerance for a guest whose clock is behind.
const SKEW: Duration = HOUR;
const MAX_LEAVES: usize = 256;

pub struct GuestCa {
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
    /// Shared by all leaves: one process holds them all, and generating a key for each costs time.
    leaf_key: KeyPair,
    signer: Arc<dyn SigningKey>,
    leaves: Mutex<LeafCache>,
}

/// Name and address that a leaf is valid for.
type LeafIdentity = (Option<String>, Option<IpAddr>);

#[derive(Default)]
struct LeafCache {
    made: BTreeMap<LeafIdentity, (Instant, Arc<CertifiedKey>)>,
    last_serial: u64,
}

impl GuestCa {
    pub fn new() -> Result<GuestCa, Fault> {
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
        Ok(GuestCa { certificate_pem, issuer, leaf_key, signer, leaves: Mutex::default() })
    }

    /// The CA certificate in PEM.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Returns a leaf certificate for a name, an address or both.
    pub(crate) fn leaf(&self, name: Option<&str>, addr: Option<IpAddr>) -> Result<Arc<CertifiedKey>, Fault> {
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        let identity = (name.map(str::to_owned), addr);
        if let Some((made, leaf)) = leaves.made.get(&identity)
            && made.elapsed() < LEAF_USE
        {
            return Ok(leaf.clone());
        }
        leaves.last_serial += 1;
        let leaf = Arc::new(self.sign(&identity, leaves.last_serial)?);
        leaves.keep(identity, leaf.clone());
        Ok(leaf)
    }

    fn sign(&self, (name, addr): &LeafIdentity, serial: u64) -> Result<CertifiedKey, Fault> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "Cofferdam: inspected");
        if let Some(name) = name {
            params.subject_alt_names.push(SanType::DnsName(name.as_str().try_into().map_err(failed)?));
        }
        params.subject_alt_names.extend(addr.map(SanType::IpAddress));
        // Clients reject two certificates with the same serial number.
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

impl LeafCache {
    fn keep(&mut self, identity: LeafIdentity, leaf: Arc<CertifiedKey>) {
        if self.made.len() >= MAX_LEAVES {
            let oldest = self.made.iter().min_by_key(|(_, (made, _))| *made).map(|(identity, _)| identity.clone());
            oldest.and_then(|identity| self.made.remove(&identity));
        }
        self.made.insert(identity, (Instant::now(), leaf));
    }
}

fn valid_for(params: &mut CertificateParams, life: Duration) {
    let now = SystemTime::now();
    params.not_before = (now - SKEW).into();
    params.not_after = (now + life).into();
}

fn failed(error: impl std::fmt::Display) -> Fault {
    Fault::internal(format!("cannot create a certificate: {error}"))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn leaves_are_kept_and_bounded() {
        let authority = GuestCa::new().unwrap();
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
        let (one, other) = (GuestCa::new().unwrap(), GuestCa::new().unwrap());
        assert_ne!(one.certificate_pem(), other.certificate_pem());
        assert!(one.certificate_pem().starts_with("-----BEGIN CERTIFICATE-----"));
        assert!(!one.certificate_pem().contains("PRIVATE"));
    }
}
