//! Sections of the configuration as types, and checks across several values.

use super::{Config, Value, ValueOrigin};
use crate::Caller;
use crate::bounds::{BuiltIn, Configured};
use crate::total::Total;
use api::LimitBounds;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use terms::{Fault, Phase};

/// Listeners and request limits of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Serve {
    /// Unix socket; `None` for `cofferdam.sock` in the state directory.
    pub socket: Option<PathBuf>,
    pub listen: Option<SocketAddr>,
    pub listen_anywhere: bool,
    /// Certificate chain and key.
    #[serde(skip)]
    pub tls: Option<(PathBuf, PathBuf)>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    pub allow_hosts: Vec<String>,
    pub allow_origins: Vec<String>,
    #[serde(deserialize_with = "milliseconds")]
    pub grace: Duration,
    #[serde(deserialize_with = "milliseconds")]
    pub patience: Duration,
    pub max_body: u64,
    pub max_connections: usize,
    pub max_connections_per_peer: usize,
    pub max_event_streams: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    #[default]
    Auto,
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Logs {
    pub format: LogFormat,
    pub level: LogLevel,
}

/// Destination of traces and metrics; without an endpoint none are sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Telemetry {
    #[serde(rename = "otlp_endpoint")]
    pub endpoint: Option<String>,
    /// CA certificates that are trusted instead of the system's.
    #[serde(rename = "otlp_ca")]
    pub ca: Option<PathBuf>,
    /// File of headers that are sent along.
    #[serde(rename = "otlp_headers_file")]
    pub headers: Option<PathBuf>,
    pub service_name: String,
    #[serde(deserialize_with = "milliseconds")]
    pub interval: Duration,
}

/// Retention of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Keep {
    pub runs: u64,
    #[serde(rename = "runs_for")]
    pub runs_ms: u64,
    pub removed: u64,
    #[serde(rename = "removed_for")]
    pub removed_ms: u64,
    /// Entries of the journal in the store.
    pub journal: u64,
    /// Interval of a daemon's retention passes.
    #[serde(deserialize_with = "milliseconds")]
    pub interval: Duration,
}

impl Default for Keep {
    fn default() -> Keep {
        Config::unset().keep()
    }
}

impl Keep {
    /// Reads the caller's configuration.
    pub fn of(caller: &Caller) -> Result<Keep, Fault> {
        Ok(Config::load(None, &[], caller)?.keep())
    }
}

/// Quotas of the node or of a tenant; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct Quota {
    pub sandboxes: Option<u64>,
    pub live_sandboxes: Option<u64>,
    #[serde(rename = "memory")]
    pub memory_bytes: Option<u64>,
    pub cpus: Option<f64>,
    #[serde(rename = "disk")]
    pub disk_bytes: Option<u64>,
    pub snapshots: Option<u64>,
    pub templates: Option<u64>,
    pub requests_per_minute: Option<u64>,
    pub runs: Option<u64>,
}

/// Reads a time, which is stored in milliseconds.
fn milliseconds<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    u64::deserialize(from).map(Duration::from_millis)
}

impl Config {
    /// Reads the values of one section as a type whose fields have the names of its keys.
    fn section<T: DeserializeOwned>(&self, at: &str) -> Result<T, serde_json::Error> {
        let below = |setting: &super::Setting| {
            let name = setting.key.strip_prefix(at)?.strip_prefix('.')?;
            let is_set = setting.value != Value::Unset && !name.contains('.');
            is_set.then(|| Ok((name.to_owned(), serde_json::to_value(&setting.value)?)))
        };
        let values: serde_json::Map<_, _> =
            self.settings.iter().filter_map(below).collect::<Result<_, serde_json::Error>>()?;
        serde_json::from_value(values.into())
    }

    /// Reads a section of which every value that the table allows fits its type.
    fn whole<T: DeserializeOwned>(&self, at: &str) -> T {
        self.section(at).unwrap_or_else(|e| panic!("the keys of [{at}] and its type do not agree: {e}"))
    }

    pub fn serve(&self) -> Result<Serve, Fault> {
        let mut serve: Serve = self.section("serve").map_err(|_| {
            let given = match self.find("serve.listen").map(|setting| &setting.value) {
                Some(Value::Text(text)) => text.as_str(),
                _ => "",
            };
            let fault = self.wrong("serve.listen", &format!("is {given:?}, which is not ADDRESS:PORT"));
            fault.hint("write e.g. 127.0.0.1:7070 or [::1]:7070")
        })?;
        serve.tls = match (serve.tls_cert.take(), serve.tls_key.take()) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (cert, _) => {
                let (given, other, what) = match cert {
                    Some(_) => ("serve.tls_cert", "serve.tls_key", "key"),
                    None => ("serve.tls_key", "serve.tls_cert", "certificate"),
                };
                return Err(self.wrong(given, &format!("is set without {what}")).hint(format!("set {other}, too")));
            }
        };
        Ok(serve)
    }

    pub fn logs(&self) -> Logs {
        self.whole("log")
    }

    pub fn telemetry(&self) -> Telemetry {
        self.whole("telemetry")
    }

    /// Returns whether a run goes on in the last sandbox of its directory.
    pub fn run_continues(&self) -> bool {
        self.find("run.continue").is_some_and(|setting| setting.value == Value::Switch(true))
    }

    /// Returns whether a run begins in a live sandbox.
    pub fn run_is_live(&self) -> bool {
        self.find("run.live").is_some_and(|setting| setting.value == Value::Switch(true))
    }

    /// Returns the bound on spares.
    pub fn warm_max(&self) -> u64 {
        self.count("warm.max").unwrap_or(0)
    }

    pub fn keep(&self) -> Keep {
        self.whole("keep")
    }

    /// Returns the bounds of all layers of a state directory together.
    pub fn total(&self) -> Total {
        Total { disk_bytes: self.count("limits.total_disk"), files: self.count("limits.total_files") }
    }

    /// Returns the quotas of the whole node.
    pub fn quota(&self) -> Quota {
        self.whole("quota")
    }

    /// Returns the quotas of one tenant; unset ones are unlimited.
    pub fn quota_of(&self, tenant: &str) -> Quota {
        self.whole(&format!("tenant.{tenant}.quota"))
    }

    /// Returns the tenants that have quotas of their own.
    pub fn tenants_with_quotas(&self) -> BTreeSet<&str> {
        self.tenants_with(".quota.")
    }

    fn tenants_with(&self, section: &str) -> BTreeSet<&str> {
        let of_tenants = self.settings.iter().filter_map(|setting| setting.key.strip_prefix("tenant."));
        of_tenants.filter_map(|rest| rest.split_once(section).map(|(tenant, _)| tenant)).collect()
    }

    /// Returns defaults and ceilings of limits: of the node, of tenants, and what is built in.
    pub fn limit_bounds(&self, built_in: BuiltIn) -> Configured {
        let level = |at: &str| LimitBounds {
            default: self.whole(&format!("{at}.default")),
            ceiling: self.whole(&format!("{at}.ceiling")),
        };
        let tenants = self.tenants_with(".limits.").into_iter();
        let tenants = tenants.map(|tenant| (tenant.to_owned(), level(&format!("tenant.{tenant}.limits"))));
        Configured { node: level("limits"), tenants: tenants.collect(), built_in }
    }

    fn count(&self, key: &str) -> Option<u64> {
        match self.find(key).map(|setting| &setting.value) {
            Some(Value::Count(count)) => Some(*count),
            _ => None,
        }
    }

    /// Returns the name under which a value was set, for the start of a fault's message.
    pub fn named(&self, key: &str) -> String {
        match self.find(key).map(|setting| &setting.origin) {
            Some(ValueOrigin::Flag { flag }) => format!("--{flag}"),
            Some(ValueOrigin::Environment { variable }) => variable.clone(),
            Some(origin @ ValueOrigin::File { .. }) => format!("{origin}: {key}"),
            Some(ValueOrigin::Default | ValueOrigin::BuiltIn { .. }) | None => key.to_owned(),
        }
    }

    /// Builds the fault for a value, with its origin.
    fn wrong(&self, key: &str, why: &str) -> Fault {
        let from = self.find(key).map_or(String::new(), |setting| format!(" ({})", setting.origin));
        Fault::invalid(format!("{key} {why}{from}")).phase(Phase::Admission)
    }
}

/// Checks constraints between values.
pub fn check(config: &Config) -> Result<(), Fault> {
    let serve = config.serve()?;
    for (key, given) in [("serve.tls_cert", serve.tls.is_some()), ("serve.listen_anywhere", serve.listen_anywhere)] {
        if given && serve.listen.is_none() {
            let fault = config.wrong(key, "is given without serve.listen");
            return Err(fault.hint("add an address to listen on, e.g. --listen 127.0.0.1:7070"));
        }
    }
    if let Some(host) = serve.allow_hosts.iter().find(|host| !is_host(host)) {
        let fault = config.wrong("serve.allow_hosts", &format!("has {host:?}, which is not a host name"));
        return Err(fault.hint("give a name, or a name and a port: box.example:7070"));
    }
    if let Some(origin) = serve.allow_origins.iter().find(|origin| !is_origin(origin)) {
        let fault = config.wrong("serve.allow_origins", &format!("has {origin:?}, which is no origin"));
        return Err(fault.hint("give scheme and host, and the port where it is not the usual one: https://app.example"));
    }
    if serve.listen.is_some_and(|at| !at.ip().is_loopback()) {
        if !serve.listen_anywhere {
            let fault = config.wrong("serve.listen", "is an address that other machines can reach");
            return Err(fault.hint("use a loopback address, or set serve.listen_anywhere and TLS"));
        }
        if serve.tls.is_none() {
            let fault = config.wrong("serve.listen_anywhere", "needs TLS, because others could read tokens on the way");
            return Err(fault.hint("set serve.tls_cert and serve.tls_key"));
        }
    }
    check_bounds(config)?;
    check_telemetry(config)
}

/// Refuses amounts out of range.
fn check_bounds(config: &Config) -> Result<(), Fault> {
    let Configured { node, tenants, .. } = config.limit_bounds(BuiltIn::default());
    let tenants = tenants.iter().map(|(tenant, level)| (format!("tenant.{tenant}."), level));
    for (prefix, level) in [(String::new(), &node)].into_iter().chain(tenants) {
        level.check().map_err(|fault| {
            let key = fault.message.split_once(": ").map_or("", |(key, _)| key);
            let from = config.find(&format!("{prefix}{key}")).map_or(String::new(), |s| format!(" ({})", s.origin));
            Fault { message: format!("{prefix}{}{from}", fault.message), ..fault }
        })?;
    }
    Ok(())
}

/// Returns whether a client can send this in `Host`.
fn is_host(host: &str) -> bool {
    let name = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'[' | b']' | b':');
    !name.is_empty() && name.len() <= 253 && name.bytes().all(plain)
}

/// Returns true for an origin as browsers send it: no path, no capitals, and neither `null` nor a pattern.
fn is_origin(origin: &str) -> bool {
    let split = origin.split_once("://").filter(|(scheme, _)| ["http", "https"].contains(scheme));
    split.is_some_and(|(_, host)| is_host(host)) && origin == origin.to_ascii_lowercase()
}

/// Refuses to send credentials to a collector over an unencrypted connection.
fn check_telemetry(config: &Config) -> Result<(), Fault> {
    let telemetry = config.telemetry();
    let (ca, headers) = ("telemetry.otlp_ca", "telemetry.otlp_headers_file");
    let Some(endpoint) = telemetry.endpoint else { return Ok(()) };
    let of = |key: &str, why: &str| config.wrong(key, why);
    let split = endpoint.split_once("://").filter(|(scheme, _)| ["http", "https"].contains(scheme));
    let authority = split.and_then(|(_, rest)| rest.split('/').next()).filter(|host| !host.is_empty());
    let Some((scheme, authority)) = split.map(|(scheme, _)| scheme).zip(authority) else {
        let fault = of("telemetry.otlp_endpoint", &format!("is {endpoint:?}, which is not an http:// or https:// URL"));
        return Err(fault.hint("write e.g. http://127.0.0.1:4318 or https://collector.example:4318"));
    };
    if authority.contains('@') || endpoint.contains(['?', '#']) {
        let fault = of("telemetry.otlp_endpoint", "has more than a host, a port and a path");
        return Err(fault.hint("put credentials into telemetry.otlp_headers_file"));
    }
    if scheme == "http" && telemetry.ca.is_some() {
        return Err(of(ca, "is for TLS, but the endpoint is http://").hint("write https:// in the endpoint"));
    }
    if scheme == "http" && telemetry.headers.is_some() && !is_loopback(authority) {
        let fault = of(headers, "would be sent to the collector unencrypted");
        return Err(fault.hint("write https:// in the endpoint, or send to a collector on loopback"));
    }
    Ok(())
}

fn is_loopback(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::super::{KEYS, Setting, ValueKind};
    use super::*;

    /// Every key set to a value of its kind, tenants' included, is read into the type of its section.
    #[test]
    fn every_section_is_read_whatever_its_keys_are_set_to() {
        let value = |kind: ValueKind| match kind {
            ValueKind::Path | ValueKind::Text => Value::Text("/x".into()),
            ValueKind::Word(words) => Value::Text(words[words.len() - 1].into()),
            ValueKind::Texts => Value::Texts(vec!["a".into()]),
            ValueKind::Switch => Value::Switch(true),
            ValueKind::Count | ValueKind::Size | ValueKind::Time => Value::Count(7),
            ValueKind::Number => Value::Number(7.0),
        };
        let setting = |key: &super::super::ConfigKey| Setting {
            key: key.name.replace('*', "blue"),
            value: if key.name == "serve.listen" { Value::Text("[::1]:7".into()) } else { value(key.kind) },
            origin: ValueOrigin::Default,
        };
        let config = Config { file: None, settings: KEYS.iter().map(setting).collect() };
        let serve = config.serve().unwrap();
        assert_eq!(serve.tls, Some(("/x".into(), "/x".into())));
        assert_eq!((serve.grace, serve.max_body, serve.listen_anywhere), (Duration::from_millis(7), 7, true));
        assert_eq!(config.logs(), Logs { format: LogFormat::Json, level: LogLevel::Debug });
        assert_eq!(config.telemetry().headers, Some("/x".into()));
        assert_eq!((config.keep().runs_ms, config.warm_max()), (7, 7));
        assert_eq!((config.total().disk_bytes, config.total().files), (Some(7), Some(7)));
        assert_eq!((config.quota(), config.quota().disk_bytes), (config.quota_of("blue"), Some(7)));
        let all = config.limit_bounds(BuiltIn::default());
        assert_eq!(all.node, all.tenants["blue"]);
        for kind in crate::bounds::KINDS {
            assert_eq!((all.node.default.amount(kind), all.node.ceiling.amount(kind)), (Some(7.0), Some(7.0)));
        }
        let unset = Config::unset();
        assert_eq!(unset.serve().unwrap().max_connections, 16384);
        assert_eq!((unset.quota(), unset.logs()), (Quota::default(), Logs::default()));
    }
}
