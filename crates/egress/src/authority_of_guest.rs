//! The certificate authority of one guest: born with the run, trusted by that guest alone, gone with it.

use terms::Fault;

pub struct Authority {
    certificate_pem: String,
}

impl Authority {
    pub fn new() -> Result<Authority, Fault> {
        todo!()
    }

    /// The certificate to be trusted, as PEM.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }
}
