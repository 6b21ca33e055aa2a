//! Table of configuration keys. Flags, environment variables, listings and the reference page are made from it.

use super::Value;
use ValueKind::{Count, Number, Path, Size, Switch, Text, Texts, Time, Word};
use std::sync::LazyLock;

/// Notation of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// An absolute path.
    Path,
    Text,
    /// Word from a fixed set.
    Word(&'static [&'static str]),
    Texts,
    Switch,
    Count,
    /// A number with decimals.
    Number,
    /// Bytes: a number, or text like `64m`.
    Size,
    /// Text like `30s`; stored in milliseconds.
    Time,
}

#[derive(Clone, Copy, Debug)]
pub struct ConfigKey {
    /// Dotted name in the file: `serve.socket`.
    pub name: &'static str,
    pub kind: ValueKind,
    /// Default in the notation of `kind`; `None` means unset.
    pub default: Option<&'static str>,
    /// The flag of `serve` that sets it, without dashes.
    pub flag: Option<&'static str>,
    /// Variable of another convention with the same meaning; `COFFERDAM_…` takes precedence.
    pub also: Option<&'static str>,
    pub about: &'static str,
}

/// Key without a default, a flag or a second variable.
const fn key(name: &'static str, kind: ValueKind, about: &'static str) -> ConfigKey {
    ConfigKey { name, kind, default: None, flag: None, also: None, about }
}

impl ConfigKey {
    const fn default(self, text: &'static str) -> ConfigKey {
        ConfigKey { default: Some(text), ..self }
    }

    const fn flag(self, flag: &'static str) -> ConfigKey {
        ConfigKey { flag: Some(flag), ..self }
    }

    const fn also(self, variable: &'static str) -> ConfigKey {
        ConfigKey { also: Some(variable), ..self }
    }
}

/// Prefix of keys per tenant, with the tenant's name in place of `*`. They can be set only in the file.
pub const TENANT: &str = "tenant.*.";

#[rustfmt::skip]
const SERVICE: &[ConfigKey] = &[
    key("serve.socket", Path, "Unix socket to listen on; if unset, cofferdam.sock in the state directory").flag("socket"),
    key("serve.listen", Text,
        "Also listen on this ADDRESS:PORT, for tokens; loopback only, unless listen_anywhere is set").flag("listen"),
    key("serve.listen_anywhere", Switch, "Permit a listen address that other machines can reach; needs TLS").default("false").flag("listen-anywhere"),
    key("serve.tls_cert", Path, "Certificate chain (PEM) for TLS on the listen address; needs tls_key").flag("tls-cert"),
    key("serve.tls_key", Path, "Private key (PEM) of the certificate").flag("tls-key"),
    key("serve.allow_hosts", Texts, "Accept these names in the Host header, besides the loopback names").default("").flag("allow-host"),
    key("serve.allow_origins", Texts,
        "Let pages of these origins send requests (CORS), e.g. https://app.example; they need a token, a ticket or a signed URL").default(""),
    key("serve.grace", Time, "Time that requests have to finish at shutdown").default("30s").flag("grace"),
    key("serve.patience", Time,
        "Timeout for a client to send the head of a request, the next part of a body, or the next request").default("30s"),
    key("serve.max_body", Size, "Maximum size of a JSON body; streamed files have no such limit").default("1m"),
    key("serve.max_connections", Count, "Maximum connections at a time, in total").default("16384"),
    key("serve.max_connections_per_peer", Count, "Maximum connections at a time per peer: an address, or a user of the socket").default("12288"),
    key("serve.max_event_streams", Count, "Maximum event streams at a time, in total; a tenant has at most half of them").default("1024"),
    key("log.format", Word(&["auto", "text", "json"]),
        "Format of log lines on stderr: text, json, or auto (text on a terminal, else json)").default("auto").flag("log-format"),
    key("log.level", Word(&["error", "warn", "info", "debug"]),
        "Log level: error, warn, info (each request) or debug").default("info").flag("log-level"),
    key("telemetry.otlp_endpoint", Text,
        "Send traces and metrics to this collector by OTLP over HTTP(S), e.g. http://127.0.0.1:4318").flag("otlp-endpoint").also("OTEL_EXPORTER_OTLP_ENDPOINT"),
    key("telemetry.otlp_ca", Path,
        "Trust the CA certificates in this file (PEM) for the collector instead of the system's").flag("otlp-ca").also("OTEL_EXPORTER_OTLP_CERTIFICATE"),
    key("telemetry.otlp_headers_file", Path,
        "File (mode 0600) with one header per line for the collector, e.g. authorization: Bearer …").flag("otlp-headers-file"),
    key("telemetry.service_name", Text, "Service name in traces and metrics").default("cofferdam").also("OTEL_SERVICE_NAME"),
    key("telemetry.interval", Time, "Interval between two exports of metrics").default("15s"),
    key("run.continue", Switch,
        "Make `cofferdam run` continue in the last used sandbox of the directory, if there is one, as with --continue").default("false"),
    key("run.live", Switch,
        "Let `cofferdam run` begin in a live sandbox, as with --live, unless it has --events or --explain").default("false"),
    key("warm.max", Count, "Maximum spares in the pools of all templates, on the whole node").default("8"),
    key("limits.total_disk", Size, "Disk limit for all layers of a state directory together; applies to every run, with or without a daemon"),
    key("limits.total_files", Count, "Maximum files, directories and links in all layers of a state directory together"),
];

#[rustfmt::skip]
const RECORDS: &[ConfigKey] = &[
    key("keep.runs", Count,
        "Maximum records of ended runs; the oldest are collected first. The last 64 of each existing sandbox always stay").default("10000"),
    key("keep.runs_for", Time, "Maximum age of records of ended runs").default("30d"),
    key("keep.removed", Count, "Maximum records of removed sandboxes; the oldest are collected first").default("10000"),
    key("keep.removed_for", Time, "Maximum age of records of removed sandboxes").default("30d"),
    key("keep.journal", Count,
        "Journal entries in the store; when it holds a tenth more, the oldest move to files in journal/ of the state directory").default("500000"),
    key("keep.interval", Time, "Interval at which a daemon collects old records and expired idempotency keys").default("10m"),
    key("quota.sandboxes", Count, "Maximum sandboxes, on the whole node"),
    key("quota.live_sandboxes", Count, "Maximum live sandboxes, on the whole node"),
    key("quota.memory", Size, "Maximum sum of the memory limits of live sandboxes, on the whole node"),
    key("quota.cpus", Number, "Maximum sum of the processor limits of live sandboxes, on the whole node"),
    key("quota.disk", Size, "Maximum disk space of layers and of kept output of runs, on the whole node"),
    key("quota.snapshots", Count, "Maximum snapshots, on the whole node"),
    key("quota.templates", Count, "Maximum templates, on the whole node"),
    key("quota.requests_per_minute", Count, "Maximum requests per minute, on the whole node"),
    key("quota.runs", Count, "Maximum runs at a time, on the whole node"),
];

#[rustfmt::skip]
const TENANT_QUOTAS: &[ConfigKey] = &[
    key("tenant.*.quota.sandboxes", Count, "Maximum sandboxes of the tenant"),
    key("tenant.*.quota.live_sandboxes", Count, "Maximum live sandboxes of the tenant"),
    key("tenant.*.quota.memory", Size, "Maximum sum of the memory limits of the tenant's live sandboxes"),
    key("tenant.*.quota.cpus", Number, "Maximum sum of the processor limits of the tenant's live sandboxes"),
    key("tenant.*.quota.disk", Size, "Maximum disk space of the tenant's layers and of kept output of its runs"),
    key("tenant.*.quota.snapshots", Count, "Maximum snapshots of the tenant, including those that other verbs take on the way"),
    key("tenant.*.quota.templates", Count, "Maximum templates of the tenant"),
    key("tenant.*.quota.requests_per_minute", Count, "Maximum requests per minute of the tenant"),
    key("tenant.*.quota.runs", Count, "Maximum runs at a time of the tenant"),
];

/// Default or maximum limits of one section, in the order of `bounds::KINDS`. The last two texts describe built-in amounts.
#[rustfmt::skip]
macro_rules! limits {
    ($at:literal, $which:literal, $memory:literal, $processes:literal) => {
        &[
            key(concat!($at, ".max_wall_ms"), Count, concat!($which, " wall time of one command, in milliseconds")),
            key(concat!($at, ".max_cpu_ms"), Count, concat!($which, " processor time of a sandbox, in milliseconds")),
            key(concat!($at, ".max_memory_mb"), Number, concat!($which, " memory of a sandbox, in MiB", $memory)),
            key(concat!($at, ".max_output_bytes"), Count, concat!($which, " output of one command, in bytes")),
            key(concat!($at, ".max_processes"), Count, concat!($which, " number of processes and threads of a sandbox", $processes)),
            key(concat!($at, ".max_open_files"), Count, concat!($which, " number of open files of one process")),
            key(concat!($at, ".max_disk_mb"), Number, concat!($which, " disk space that a sandbox writes, in MiB")),
            key(concat!($at, ".max_files"), Count, concat!($which, " number of files that a sandbox creates")),
            key(concat!($at, ".max_net_bytes"), Count, concat!($which, " network traffic of a sandbox, in bytes")),
            key(concat!($at, ".cpus"), Number, concat!($which, " number of processors of a sandbox")),
        ]
    };
}

const PARTS: &[&[ConfigKey]] = &[
    SERVICE,
    limits!("limits.default", "Default", "", ""),
    limits!(
        "limits.ceiling",
        "Maximum",
        "; if unset, half of the machine's memory for tokens without scope operator",
        "; if unset, 1024 or 64 per processor, whichever is more, for tokens without scope operator"
    ),
    RECORDS,
    TENANT_QUOTAS,
    limits!("tenant.*.limits.default", "Tenant: default", "", ""),
    limits!("tenant.*.limits.ceiling", "Tenant: maximum", "", ""),
];

/// Every key, in the order of listings.
pub static KEYS: LazyLock<Vec<ConfigKey>> = LazyLock::new(|| PARTS.concat());

/// Returns the key of a name, including keys per tenant.
pub fn of(name: &str) -> Option<&'static ConfigKey> {
    super::file::known(name)
}

impl ConfigKey {
    /// Returns the name of the environment variable: `COFFERDAM_SERVE_SOCKET`.
    pub fn variable(&self) -> String {
        format!("COFFERDAM_{}", self.name.replace('.', "_").to_ascii_uppercase())
    }

    pub fn is_of_tenants(&self) -> bool {
        self.name.starts_with(TENANT)
    }

    pub fn default_value(&self) -> Value {
        let value = self.default.map(|text| self.kind.of_texts(&[text]));
        value.and_then(Result::ok).unwrap_or(Value::Unset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_value_of_its_kind() {
        for key in KEYS.iter() {
            assert!(key.about.len() > 10 && key.name.contains('.'), "{}", key.name);
            if let Some(text) = key.default.filter(|text| !text.is_empty()) {
                assert!(key.kind.of_texts(&[text]).is_ok(), "{}: {text}", key.name);
            }
        }
        let mut names: Vec<_> = KEYS.iter().map(|key| key.name).collect();
        names.dedup();
        assert_eq!(names.len(), KEYS.len());
    }
}
