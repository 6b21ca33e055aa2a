//! What there is to set: one table, from which flags, variables, listings and the reference are made.

use super::Value;

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An absolute path.
    Path,
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    Texts,
    Switch,
    Count,
    /// A number with decimals.
    Number,
    /// Bytes: a number, or text like `64m`.
    Size,
    /// Text like `30s`; held in milliseconds.
    Time,
}

#[derive(Debug)]
pub struct Key {
    /// Where it stands in the file: `serve.socket`.
    pub name: &'static str,
    pub kind: Kind,
    /// As it would be written; none means unset.
    pub default: Option<&'static str>,
    /// The flag of `serve` that sets it, without dashes.
    pub flag: Option<&'static str>,
    /// A variable of others that means the same; ours wins.
    pub also: Option<&'static str>,
    pub about: &'static str,
}

const NOTHING: Key = Key { name: "", kind: Kind::Text, default: None, flag: None, also: None, about: "" };

/// A default or a ceiling for one limit; the order of `bounds::KINDS`.
const fn bound(name: &'static str, kind: Kind, about: &'static str) -> Key {
    Key { name, kind, about, ..NOTHING }
}

/// Keys that begin so have the tenant's name in the place of `*`; they stand in the file only.
pub const TENANT: &str = "tenant.*.";

pub const KEYS: &[Key] = &[
    Key {
        name: "serve.socket",
        kind: Kind::Path,
        flag: Some("socket"),
        about: "The Unix socket; cofferdam.sock in the state directory unless set",
        ..NOTHING
    },
    Key {
        name: "serve.listen",
        kind: Kind::Text,
        flag: Some("listen"),
        about: "Also listen on this ADDRESS:PORT, for bearers of tokens; a loopback address unless listen_anywhere is set",
        ..NOTHING
    },
    Key {
        name: "serve.listen_anywhere",
        kind: Kind::Switch,
        default: Some("false"),
        flag: Some("listen-anywhere"),
        about: "Let listen be an address that others can reach; needs TLS",
        ..NOTHING
    },
    Key {
        name: "serve.tls_cert",
        kind: Kind::Path,
        flag: Some("tls-cert"),
        about: "The certificate chain in PEM, for TLS on listen; needs tls_key",
        ..NOTHING
    },
    Key { name: "serve.tls_key", kind: Kind::Path, flag: Some("tls-key"), about: "Its private key in PEM", ..NOTHING },
    Key {
        name: "serve.allow_hosts",
        kind: Kind::Texts,
        default: Some(""),
        flag: Some("allow-host"),
        about: "Names that requests may have in Host, beside those of loopback",
        ..NOTHING
    },
    Key {
        name: "serve.grace",
        kind: Kind::Time,
        default: Some("30s"),
        flag: Some("grace"),
        about: "How long requests may take to end when the daemon is told to",
        ..NOTHING
    },
    Key {
        name: "serve.patience",
        kind: Kind::Time,
        default: Some("30s"),
        about: "How long a client may take for the head of a request, between parts of its body, and between requests",
        ..NOTHING
    },
    Key {
        name: "serve.max_body",
        kind: Kind::Size,
        default: Some("1m"),
        about: "The largest JSON body that is read; files stream and have no such bound",
        ..NOTHING
    },
    Key {
        name: "serve.max_connections",
        kind: Kind::Count,
        default: Some("16384"),
        about: "Connections at a time, all together",
        ..NOTHING
    },
    Key {
        name: "serve.max_connections_per_peer",
        kind: Kind::Count,
        default: Some("12288"),
        about: "Connections at a time of one peer: an address, or a user of the socket",
        ..NOTHING
    },
    Key {
        name: "serve.max_event_streams",
        kind: Kind::Count,
        default: Some("1024"),
        about: "Streams of events at a time, all together; one tenant has at most half of them",
        ..NOTHING
    },
    Key {
        name: "log.format",
        kind: Kind::Word(&["auto", "text", "json"]),
        default: Some("auto"),
        flag: Some("log-format"),
        about: "How lines are written to stderr: text, json, or auto (text on a terminal, else json)",
        ..NOTHING
    },
    Key {
        name: "log.level",
        kind: Kind::Word(&["error", "warn", "info", "debug"]),
        default: Some("info"),
        flag: Some("log-level"),
        about: "What is logged: error, warn, info (each request) or debug",
        ..NOTHING
    },
    Key {
        name: "telemetry.otlp_endpoint",
        kind: Kind::Text,
        flag: Some("otlp-endpoint"),
        also: Some("OTEL_EXPORTER_OTLP_ENDPOINT"),
        about: "Send traces and metrics to this collector by OTLP over HTTP, e.g. http://127.0.0.1:4318 or https://collector.example:4318",
        ..NOTHING
    },
    Key {
        name: "telemetry.otlp_ca",
        kind: Kind::Path,
        flag: Some("otlp-ca"),
        also: Some("OTEL_EXPORTER_OTLP_CERTIFICATE"),
        about: "Certificates in PEM that the collector's is signed by; those of the system unless set",
        ..NOTHING
    },
    Key {
        name: "telemetry.otlp_headers_file",
        kind: Kind::Path,
        flag: Some("otlp-headers-file"),
        about: "A file of mode 0600 with a header in each line that the collector wants, e.g. authorization: Bearer …",
        ..NOTHING
    },
    Key {
        name: "telemetry.service_name",
        kind: Kind::Text,
        default: Some("cofferdam"),
        also: Some("OTEL_SERVICE_NAME"),
        about: "What we are called there",
        ..NOTHING
    },
    Key {
        name: "telemetry.interval",
        kind: Kind::Time,
        default: Some("15s"),
        about: "How often metrics are sent",
        ..NOTHING
    },
    Key {
        name: "warm.max",
        kind: Kind::Count,
        default: Some("8"),
        about: "Sandboxes that stand ready for templates at most, on the whole node",
        ..NOTHING
    },
    Key {
        name: "limits.total_disk",
        kind: Kind::Size,
        about: "What all layers of a state directory may take together; holds for every run, with a daemon or without",
        ..NOTHING
    },
    Key {
        name: "limits.total_files",
        kind: Kind::Count,
        about: "Files, directories and links in all layers of a state directory together",
        ..NOTHING
    },
    bound("limits.default.max_wall_ms", Kind::Count, "Default wall time of one command, in milliseconds"),
    bound("limits.default.max_cpu_ms", Kind::Count, "Default processor time of a sandbox, in milliseconds"),
    bound("limits.default.max_memory_mb", Kind::Number, "Default memory of a sandbox, in MiB"),
    bound("limits.default.max_output_bytes", Kind::Count, "Default output of one command, in bytes"),
    bound("limits.default.max_processes", Kind::Count, "Default processes and threads of a sandbox"),
    bound("limits.default.max_open_files", Kind::Count, "Default open files of one process"),
    bound("limits.default.max_disk_mb", Kind::Number, "Default disk that a sandbox writes, in MiB"),
    bound("limits.default.max_files", Kind::Count, "Default files that a sandbox makes"),
    bound("limits.default.max_net_bytes", Kind::Count, "Default network traffic of a sandbox, in bytes"),
    bound("limits.default.cpus", Kind::Number, "Default processors of a sandbox"),
    bound("limits.ceiling.max_wall_ms", Kind::Count, "Highest wall time of one command, in milliseconds"),
    bound("limits.ceiling.max_cpu_ms", Kind::Count, "Highest processor time of a sandbox, in milliseconds"),
    bound(
        "limits.ceiling.max_memory_mb",
        Kind::Number,
        "Highest memory of a sandbox, in MiB; half of the machine's for agents' tokens, where nothing is set",
    ),
    bound("limits.ceiling.max_output_bytes", Kind::Count, "Highest output of one command, in bytes"),
    bound(
        "limits.ceiling.max_processes",
        Kind::Count,
        "Highest processes and threads of a sandbox; 1024, or 64 for each processor, for agents' tokens, where nothing is set",
    ),
    bound("limits.ceiling.max_open_files", Kind::Count, "Highest open files of one process"),
    bound("limits.ceiling.max_disk_mb", Kind::Number, "Highest disk that a sandbox writes, in MiB"),
    bound("limits.ceiling.max_files", Kind::Count, "Highest files that a sandbox makes"),
    bound("limits.ceiling.max_net_bytes", Kind::Count, "Highest network traffic of a sandbox, in bytes"),
    bound("limits.ceiling.cpus", Kind::Number, "Highest processors of a sandbox"),
    Key {
        name: "keep.runs",
        kind: Kind::Count,
        default: Some("10000"),
        about: "Records of runs that have ended, at most; the oldest are collected. The last 64 of each sandbox that is there stay",
        ..NOTHING
    },
    Key { name: "keep.runs_for", kind: Kind::Time, default: Some("30d"), about: "How long they are kept", ..NOTHING },
    Key {
        name: "keep.removed",
        kind: Kind::Count,
        default: Some("10000"),
        about: "Records of sandboxes that were removed, at most; the oldest are collected",
        ..NOTHING
    },
    Key {
        name: "keep.removed_for",
        kind: Kind::Time,
        default: Some("30d"),
        about: "How long they are kept",
        ..NOTHING
    },
    Key {
        name: "keep.journal",
        kind: Kind::Count,
        default: Some("500000"),
        about: "Entries of the journal in the store; when there are a tenth more, the oldest are moved to files in journal/ of the state directory",
        ..NOTHING
    },
    Key {
        name: "keep.interval",
        kind: Kind::Time,
        default: Some("10m"),
        about: "How often a daemon collects such records, and keys that have expired, by itself",
        ..NOTHING
    },
    Key { name: "quota.sandboxes", kind: Kind::Count, about: "Sandboxes at most, on the whole node", ..NOTHING },
    Key {
        name: "quota.live_sandboxes",
        kind: Kind::Count,
        about: "Live sandboxes at most, on the whole node",
        ..NOTHING
    },
    Key {
        name: "quota.memory",
        kind: Kind::Size,
        about: "What the memory limits of live sandboxes may come to, on the whole node",
        ..NOTHING
    },
    Key {
        name: "quota.cpus",
        kind: Kind::Number,
        about: "What the processors of live sandboxes may come to, on the whole node",
        ..NOTHING
    },
    Key {
        name: "quota.disk",
        kind: Kind::Size,
        about: "What layers and the kept output of runs may take, on the whole node",
        ..NOTHING
    },
    Key { name: "quota.snapshots", kind: Kind::Count, about: "Snapshots at most, on the whole node", ..NOTHING },
    Key { name: "quota.templates", kind: Kind::Count, about: "Templates at most, on the whole node", ..NOTHING },
    Key {
        name: "quota.requests_per_minute",
        kind: Kind::Count,
        about: "Requests in a minute, on the whole node",
        ..NOTHING
    },
    Key { name: "quota.runs", kind: Kind::Count, about: "Runs at a time, on the whole node", ..NOTHING },
    Key { name: "tenant.*.quota.sandboxes", kind: Kind::Count, about: "Sandboxes of the tenant at most", ..NOTHING },
    Key {
        name: "tenant.*.quota.live_sandboxes",
        kind: Kind::Count,
        about: "Live sandboxes of the tenant at most",
        ..NOTHING
    },
    Key {
        name: "tenant.*.quota.memory",
        kind: Kind::Size,
        about: "What the memory limits of the tenant's live sandboxes may come to",
        ..NOTHING
    },
    Key {
        name: "tenant.*.quota.cpus",
        kind: Kind::Number,
        about: "What the processors of the tenant's live sandboxes may come to",
        ..NOTHING
    },
    Key {
        name: "tenant.*.quota.disk",
        kind: Kind::Size,
        about: "What the tenant's layers and the kept output of its runs may take",
        ..NOTHING
    },
    Key {
        name: "tenant.*.quota.snapshots",
        kind: Kind::Count,
        about: "Snapshots of the tenant at most, those included that are taken on the way to something else",
        ..NOTHING
    },
    Key { name: "tenant.*.quota.templates", kind: Kind::Count, about: "Templates of the tenant at most", ..NOTHING },
    Key {
        name: "tenant.*.quota.requests_per_minute",
        kind: Kind::Count,
        about: "The tenant's requests in a minute",
        ..NOTHING
    },
    Key { name: "tenant.*.quota.runs", kind: Kind::Count, about: "The tenant's runs at a time", ..NOTHING },
    bound(
        "tenant.*.limits.default.max_wall_ms",
        Kind::Count,
        "Tenant: default wall time of one command, in milliseconds",
    ),
    bound(
        "tenant.*.limits.default.max_cpu_ms",
        Kind::Count,
        "Tenant: default processor time of a sandbox, in milliseconds",
    ),
    bound("tenant.*.limits.default.max_memory_mb", Kind::Number, "Tenant: default memory of a sandbox, in MiB"),
    bound("tenant.*.limits.default.max_output_bytes", Kind::Count, "Tenant: default output of one command, in bytes"),
    bound("tenant.*.limits.default.max_processes", Kind::Count, "Tenant: default processes and threads of a sandbox"),
    bound("tenant.*.limits.default.max_open_files", Kind::Count, "Tenant: default open files of one process"),
    bound("tenant.*.limits.default.max_disk_mb", Kind::Number, "Tenant: default disk that a sandbox writes, in MiB"),
    bound("tenant.*.limits.default.max_files", Kind::Count, "Tenant: default files that a sandbox makes"),
    bound(
        "tenant.*.limits.default.max_net_bytes",
        Kind::Count,
        "Tenant: default network traffic of a sandbox, in bytes",
    ),
    bound("tenant.*.limits.default.cpus", Kind::Number, "Tenant: default processors of a sandbox"),
    bound(
        "tenant.*.limits.ceiling.max_wall_ms",
        Kind::Count,
        "Tenant: highest wall time of one command, in milliseconds",
    ),
    bound(
        "tenant.*.limits.ceiling.max_cpu_ms",
        Kind::Count,
        "Tenant: highest processor time of a sandbox, in milliseconds",
    ),
    bound("tenant.*.limits.ceiling.max_memory_mb", Kind::Number, "Tenant: highest memory of a sandbox, in MiB"),
    bound("tenant.*.limits.ceiling.max_output_bytes", Kind::Count, "Tenant: highest output of one command, in bytes"),
    bound("tenant.*.limits.ceiling.max_processes", Kind::Count, "Tenant: highest processes and threads of a sandbox"),
    bound("tenant.*.limits.ceiling.max_open_files", Kind::Count, "Tenant: highest open files of one process"),
    bound("tenant.*.limits.ceiling.max_disk_mb", Kind::Number, "Tenant: highest disk that a sandbox writes, in MiB"),
    bound("tenant.*.limits.ceiling.max_files", Kind::Count, "Tenant: highest files that a sandbox makes"),
    bound(
        "tenant.*.limits.ceiling.max_net_bytes",
        Kind::Count,
        "Tenant: highest network traffic of a sandbox, in bytes",
    ),
    bound("tenant.*.limits.ceiling.cpus", Kind::Number, "Tenant: highest processors of a sandbox"),
];

/// The key that a name means, those of tenants included.
pub fn of(name: &str) -> Option<&'static Key> {
    super::file::known(name)
}

impl Key {
    /// Its variable in the environment: `COFFERDAM_SERVE_SOCKET`.
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
        for key in KEYS {
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
