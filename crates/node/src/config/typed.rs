//! The same values as types, for those who use them.

use super::{Config, Origin, Setting, Value};
use crate::Caller;
use crate::bounds::{self, Amounts, BuiltIn, Configured, Level};
use crate::total::Total;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use terms::{Fault, LimitKind, Limits, Phase};

/// How the daemon is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serve {
    /// None: `cofferdam.sock` in the state directory.
    pub socket: Option<PathBuf>,
    pub listen: Option<SocketAddr>,
    pub listen_anywhere: bool,
    /// Certificate chain and key.
    pub tls: Option<(PathBuf, PathBuf)>,
    pub allow_hosts: Vec<String>,
    pub grace: Duration,
    pub patience: Duration,
    pub max_body: u64,
    pub max_connections: usize,
    pub max_connections_per_peer: usize,
    pub max_event_streams: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    #[default]
    Auto,
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Logs {
    pub format: LogFormat,
    pub level: LogLevel,
}

/// Where traces and metrics go; nowhere without an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Telemetry {
    pub endpoint: Option<String>,
    /// Certificates that are believed instead of those of the system.
    pub ca: Option<PathBuf>,
    /// A file of headers that are sent along.
    pub headers: Option<PathBuf>,
    pub service_name: String,
    pub interval: Duration,
}

/// How long what is past is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    pub runs: u64,
    pub runs_ms: u64,
    pub removed: u64,
    pub removed_ms: u64,
    /// Entries of the journal in the store.
    pub journal: u64,
    /// How often a daemon looks.
    pub interval: Duration,
}

/// Where nobody has set anything.
impl Default for Keep {
    fn default() -> Keep {
        Config::unset().keep()
    }
}

impl Keep {
    /// What the caller's configuration says.
    pub fn of(caller: &Caller) -> Result<Keep, Fault> {
        Ok(Config::load(None, &[], caller)?.keep())
    }
}

/// What may be used at most; none is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quota {
    pub sandboxes: Option<u64>,
    pub live_sandboxes: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub cpus: Option<f64>,
    pub disk_bytes: Option<u64>,
    pub snapshots: Option<u64>,
    pub templates: Option<u64>,
    pub requests_per_minute: Option<u64>,
    pub runs: Option<u64>,
}

impl Config {
    pub fn serve(&self) -> Result<Serve, Fault> {
        let tls = match (self.path("serve.tls_cert"), self.path("serve.tls_key")) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) => {
                return Err(self.wrong("serve.tls_cert", "has no key beside it").hint("set serve.tls_key, too"));
            }
            (None, Some(_)) => {
                return Err(self
                    .wrong("serve.tls_key", "has no certificate beside it")
                    .hint("set serve.tls_cert, too"));
            }
        };
        Ok(Serve {
            socket: self.path("serve.socket"),
            listen: self.text("serve.listen").map(|_| self.listen()).transpose()?,
            listen_anywhere: matches!(self.value("serve.listen_anywhere"), Value::Switch(true)),
            tls,
            allow_hosts: self.texts("serve.allow_hosts"),
            grace: self.time("serve.grace"),
            patience: self.time("serve.patience"),
            max_body: self.count("serve.max_body").unwrap_or(1 << 20),
            max_connections: self.count("serve.max_connections").unwrap_or(1) as usize,
            max_connections_per_peer: self.count("serve.max_connections_per_peer").unwrap_or(1) as usize,
            max_event_streams: self.count("serve.max_event_streams").unwrap_or(2),
        })
    }

    pub fn logs(&self) -> Logs {
        let format = match self.text("log.format") {
            Some("json") => LogFormat::Json,
            Some("text") => LogFormat::Text,
            _ => LogFormat::Auto,
        };
        let level = match self.text("log.level") {
            Some("error") => LogLevel::Error,
            Some("warn") => LogLevel::Warn,
            Some("debug") => LogLevel::Debug,
            _ => LogLevel::Info,
        };
        Logs { format, level }
    }

    pub fn telemetry(&self) -> Telemetry {
        Telemetry {
            endpoint: self.text("telemetry.otlp_endpoint").map(str::to_owned),
            ca: self.path("telemetry.otlp_ca"),
            headers: self.path("telemetry.otlp_headers_file"),
            service_name: self.text("telemetry.service_name").unwrap_or("cofferdam").to_owned(),
            interval: self.time("telemetry.interval"),
        }
    }

    /// Sandboxes that stand ready at most.
    pub fn warm_max(&self) -> u64 {
        self.count("warm.max").unwrap_or(0)
    }

    pub fn keep(&self) -> Keep {
        let of = |key: &str| self.count(key).unwrap_or(u64::MAX);
        Keep {
            runs: of("keep.runs"),
            runs_ms: of("keep.runs_for"),
            removed: of("keep.removed"),
            removed_ms: of("keep.removed_for"),
            journal: of("keep.journal"),
            interval: self.time("keep.interval"),
        }
    }

    /// Of all layers of a state directory.
    pub fn total(&self) -> Total {
        Total { disk_bytes: self.count("limits.total_disk"), files: self.count("limits.total_files") }
    }

    /// Of the whole node.
    pub fn quota(&self) -> Quota {
        self.quota_at("quota")
    }

    /// Of one tenant; nothing is bound that the file does not bind.
    pub fn quota_of(&self, tenant: &str) -> Quota {
        self.quota_at(&format!("tenant.{tenant}.quota"))
    }

    /// Tenants that have quotas of their own.
    pub fn tenants_with_quotas(&self) -> BTreeSet<&str> {
        self.tenants_with(".quota.")
    }

    fn tenants_with(&self, section: &str) -> BTreeSet<&str> {
        let of_tenants = self.settings.iter().filter_map(|setting| setting.key.strip_prefix("tenant."));
        of_tenants.filter_map(|rest| rest.split_once(section).map(|(tenant, _)| tenant)).collect()
    }

    /// Defaults and ceilings of limits: of the node, of tenants, and what is built in.
    pub fn limit_bounds(&self, built_in: BuiltIn) -> Configured {
        let tenants = self.tenants_with(".limits.").into_iter();
        let tenants = tenants.map(|tenant| (tenant.to_owned(), self.level_at(&format!("tenant.{tenant}.limits"))));
        Configured { node: self.level_at("limits"), tenants: tenants.collect(), built_in }
    }

    fn level_at(&self, section: &str) -> Level {
        let amounts = |which: &str| {
            let amount = |kind: LimitKind| match self.value(&format!("{section}.{which}.{}", bounds::field(kind))) {
                Value::Count(count) => Some(*count as f64),
                Value::Number(number) => Some(*number),
                _ => None,
            };
            let mut limits = Limits::default();
            for kind in bounds::KINDS {
                amount(kind).into_iter().for_each(|amount| limits.set_amount(kind, amount));
            }
            Amounts::new(&limits, amount(LimitKind::Cpus))
        };
        Level { default: amounts("default"), ceiling: amounts("ceiling") }
    }

    fn quota_at(&self, section: &str) -> Quota {
        let count = |name: &str| self.count(&format!("{section}.{name}"));
        let cpus = match self.value(&format!("{section}.cpus")) {
            Value::Number(cpus) => Some(*cpus),
            _ => None,
        };
        Quota {
            sandboxes: count("sandboxes"),
            live_sandboxes: count("live_sandboxes"),
            memory_bytes: count("memory"),
            cpus,
            disk_bytes: count("disk"),
            snapshots: count("snapshots"),
            templates: count("templates"),
            requests_per_minute: count("requests_per_minute"),
            runs: count("runs"),
        }
    }

    fn listen(&self) -> Result<SocketAddr, Fault> {
        let text = self.text("serve.listen").unwrap_or_default();
        text.parse().map_err(|_| {
            let fault = self.wrong("serve.listen", &format!("is {text:?}, which is no ADDRESS:PORT"));
            fault.hint("write e.g. 127.0.0.1:7070 or [::1]:7070")
        })
    }

    fn value(&self, key: &str) -> &Value {
        self.find(key).map_or(&Value::Unset, |setting: &Setting| &setting.value)
    }

    fn text(&self, key: &str) -> Option<&str> {
        match self.value(key) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        self.text(key).map(PathBuf::from)
    }

    fn texts(&self, key: &str) -> Vec<String> {
        match self.value(key) {
            Value::Texts(texts) => texts.clone(),
            _ => Vec::new(),
        }
    }

    fn count(&self, key: &str) -> Option<u64> {
        match self.value(key) {
            Value::Count(count) => Some(*count),
            _ => None,
        }
    }

    fn time(&self, key: &str) -> Duration {
        Duration::from_millis(self.count(key).unwrap_or_default())
    }

    /// How somebody named a value: the words that a refusal of it begins with.
    pub fn named(&self, key: &str) -> String {
        match self.find(key).map(|setting| &setting.origin) {
            Some(Origin::Flag { flag }) => format!("--{flag}"),
            Some(Origin::Environment { variable }) => variable.clone(),
            Some(origin @ Origin::File { .. }) => format!("{origin}: {key}"),
            Some(Origin::Default | Origin::BuiltIn { .. }) | None => key.to_owned(),
        }
    }

    /// A value that is wrong in view of others, told with where it came from.
    fn wrong(&self, key: &str, why: &str) -> Fault {
        let from = self.find(key).map_or(String::new(), |setting| format!(" ({})", setting.origin));
        Fault::invalid(format!("{key} {why}{from}")).phase(Phase::Admission)
    }
}

/// What single values do not show.
pub fn check(config: &Config) -> Result<(), Fault> {
    let serve = config.serve()?;
    for (key, given) in [("serve.tls_cert", serve.tls.is_some()), ("serve.listen_anywhere", serve.listen_anywhere)] {
        if given && serve.listen.is_none() {
            let fault = config.wrong(key, "is given, and serve.listen is not");
            return Err(fault.hint("say where to listen, e.g. --listen 127.0.0.1:7070"));
        }
    }
    if let Some(host) = serve.allow_hosts.iter().find(|host| !is_host(host)) {
        let fault = config.wrong("serve.allow_hosts", &format!("has {host:?}, which is no name of a host"));
        return Err(fault.hint("give a name, or a name and a port: box.example:7070"));
    }
    if serve.listen.is_some_and(|at| !at.ip().is_loopback()) {
        if !serve.listen_anywhere {
            let fault = config.wrong("serve.listen", "is an address that others can reach");
            return Err(fault.hint("use a loopback address, or set serve.listen_anywhere and TLS"));
        }
        if serve.tls.is_none() {
            let fault = config.wrong("serve.listen_anywhere", "needs TLS, or tokens would be read on the way");
            return Err(fault.hint("set serve.tls_cert and serve.tls_key"));
        }
    }
    check_bounds(config)?;
    check_telemetry(config)
}

/// Amounts that nothing can be held to.
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

/// A name that a client can send in `Host`.
fn is_host(host: &str) -> bool {
    let name = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'[' | b']' | b':');
    !name.is_empty() && name.len() <= 253 && name.bytes().all(plain)
}

/// Whatever is sent along to prove who we are is read by nobody on the way.
fn check_telemetry(config: &Config) -> Result<(), Fault> {
    let telemetry = config.telemetry();
    let (ca, headers) = ("telemetry.otlp_ca", "telemetry.otlp_headers_file");
    let Some(endpoint) = telemetry.endpoint else { return Ok(()) };
    let of = |key: &str, why: &str| config.wrong(key, why);
    let split = endpoint.split_once("://").filter(|(scheme, _)| ["http", "https"].contains(scheme));
    let authority = split.and_then(|(_, rest)| rest.split('/').next()).filter(|host| !host.is_empty());
    let Some((scheme, authority)) = split.map(|(scheme, _)| scheme).zip(authority) else {
        let fault = of("telemetry.otlp_endpoint", &format!("is {endpoint:?}, which is no http:// or https:// URL"));
        return Err(fault.hint("write e.g. http://127.0.0.1:4318 or https://collector.example:4318"));
    };
    if authority.contains('@') || endpoint.contains(['?', '#']) {
        let fault = of("telemetry.otlp_endpoint", "holds more than a host, a port and a path");
        return Err(fault.hint("what proves who we are stands in telemetry.otlp_headers_file"));
    }
    if scheme == "http" && telemetry.ca.is_some() {
        return Err(of(ca, "is for TLS, and the collector is spoken to without").hint("write https:// in the endpoint"));
    }
    if scheme == "http" && telemetry.headers.is_some() && !is_loopback(authority) {
        let fault = of(headers, "would be read on the way to the collector");
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
