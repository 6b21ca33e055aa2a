//! The document's keys as one table: the reader refuses keys that are not in it, and the reference is printed from it.

/// An object of the document.
pub(crate) struct Section {
    /// Path of the object in the reference; empty for the document itself.
    pub(crate) path: &'static str,
    pub(crate) about: &'static str,
    pub(crate) keys: &'static [SchemaKey],
}

pub(crate) struct SchemaKey {
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) default: &'static str,
    pub(crate) meaning: &'static str,
    pub(crate) example: &'static str,
}

const fn key(
    name: &'static str,
    kind: &'static str,
    default: &'static str,
    meaning: &'static str,
    example: &'static str,
) -> SchemaKey {
    SchemaKey { name, kind, default, meaning, example }
}

pub(crate) const SECTIONS: [&Section; 16] = [
    &DOCUMENT,
    &DEFAULTS,
    &FS,
    &FS_RULE,
    &NET,
    &NET_RULE,
    &EXEC,
    &EXEC_RULE,
    &SYSCALLS,
    &ENV,
    &HOME,
    &SECRET,
    &INJECT,
    &AUDIT,
    &LIMITS,
    &CAPABILITY,
];

#[rustfmt::skip]
pub(crate) const DOCUMENT: Section = Section {
    path: "",
    about: "The document itself.",
    keys: &[
        key("version", "number", "required", "Version of the document: 1.", "1"),
        key("extends", "list of strings", "[]", "Presets that come before this document. Each counts once.", r#"["workspace-write"]"#),
        key("defaults", "object", "{}", "Actions where no rule matches.", r#"{"fs": "deny"}"#),
        key("fs", "object", "{}", "Files and directories.", r#"{"rules": []}"#),
        key("net", "object", "{}", "The network.", r#"{"rules": []}"#),
        key("exec", "object", "{}", "Programs.", r#"{"rules": []}"#),
        key("syscalls", "object", "{}", "System calls refused beyond those that are always refused.", r#"{"deny": ["ptrace"]}"#),
        key("env", "object", "the built-in list passes", "Environment variables.", r#"{"pass": ["LANG"]}"#),
        key("home", "object", "{}", "The sandbox's own home.", r#"{"copy": ["~/.config/tool"]}"#),
        key("secrets", "list of objects", "[]", "Secrets that the broker adds to requests; they never enter the guest.", "[]"),
        key("audit", "object", "{}", "Events to record.", r#"{"events": ["fs.write"]}"#),
        key("limits", "object", "{}", "Bounds on what a run may use. Absent means no limit of ours.", r#"{"max_wall_ms": 30000}"#),
        key("capabilities", "object of objects", "{}", "Capabilities that a program may call, by name.", r#"{"net.fetch": {"allow": true}}"#),
        key("degrade", "list of strings", "nothing may be missing", "Mechanisms that may be missing on this host; the outcome then says `partial`.", "[]"),
    ],
};

#[rustfmt::skip]
pub(crate) const DEFAULTS: Section = Section {
    path: "defaults",
    about: "`allow` or `deny` for each. Merging keeps the most restrictive.",
    keys: &[
        key("fs", "string", "deny", "Files that no rule names.", r#""deny""#),
        key("net", "string", "deny", "Addresses that no rule names. `allow` means every public address.", r#""deny""#),
        key("exec", "string", "allow", "Programs that no exec rule names. `allow`: every file for which an fs rule grants `execute`.", r#""allow""#),
    ],
};

#[rustfmt::skip]
pub(crate) const FS: Section = Section {
    path: "fs",
    about: "Files and directories.",
    keys: &[key("rules", "list of objects", "[]", "See `fs.rules[]`.", "[]")],
};

#[rustfmt::skip]
pub(crate) const FS_RULE: Section = Section {
    path: "fs.rules[]",
    about: "A rule on a directory covers what is below it.",
    keys: &[
        key("action", "string", "required", "`allow`, `warn`, `ask` or `deny`. `ask`: a person is asked before something is opened; only `read_file`, `read_dir`, `write_file`, `truncate` and `make_reg` can be asked for.", r#""allow""#),
        key("path", "string", "required", "Absolute, or below `~`, `$HOME`, `$WORKSPACE` or `$TOOLCHAINS`; wildcards allowed.", r#""/opt/tools""#),
        key("perms", "list of strings", "required for allow and warn; all for deny and ask", "Permissions by landlock's names; `make_*` and `remove_*` stand for all of theirs.", r#"["read_file", "read_dir", "execute"]"#),
    ],
};

#[rustfmt::skip]
pub(crate) const NET: Section = Section {
    path: "net",
    about: "The network.",
    keys: &[key("rules", "list of objects", "[]", "See `net.rules[]`.", "[]")],
};

#[rustfmt::skip]
pub(crate) const NET_RULE: Section = Section {
    path: "net.rules[]",
    about: "Exactly one of `host`, `cidr` and, with `\"proto\": \"unix\"`, `path`.",
    keys: &[
        key("action", "string", "required", "`allow`, `warn`, `ask` or `deny`.", r#""allow""#),
        key("proto", "string", "tcp and udp", "`tcp`, `udp`, `icmp` (echo requests, as `ping` sends them; neither ports nor methods nor paths) or `unix`.", r#""tcp""#),
        key("host", "string", "", "A name, `*.name` (below it), `**.name` (it and below), `*`, or an address.", r#""*.example.org""#),
        key("cidr", "string", "", "A range of addresses.", r#""10.0.0.0/8""#),
        key("path", "string", "", "A socket's path, written as in `fs.rules[]`.", r#""~/run/agent.sock""#),
        key("ports", "string", "all", "A port, a list, a range.", r#""80,443""#),
        key("methods", "list of strings", "all", "HTTP methods. A rule with methods needs a connection the broker can read.", r#"["GET"]"#),
        key("paths", "list of strings", "all", "Patterns over the URL's whole path: `*` within a segment, `**` over segments.", r#"["/v1/*"]"#),
        key("opaque", "boolean", "false", "Only address and port decide: traffic is not read, and the host name in it is ignored. For protocols that look like HTTP and are not; only with `host`, and not with `methods` or `paths`.", "true"),
        key("quiet", "boolean", "false", "Refusals by this rule are expected, as of telemetry: the outcome lists them, but they are not shown when the run ends and do not make it `denied`. Only with `deny`.", "true"),
    ],
};

#[rustfmt::skip]
pub(crate) const EXEC: Section = Section {
    path: "exec",
    about: "Programs.",
    keys: &[key("rules", "list of objects", "[]", "See `exec.rules[]`.", "[]")],
};

#[rustfmt::skip]
pub(crate) const EXEC_RULE: Section = Section {
    path: "exec.rules[]",
    about: "An allow rule also lets the file be read; one that asks grants nothing, and the file must be readable by others. A rule on a directory covers the programs below it.",
    keys: &[
        key("action", "string", "required", "`allow`, `warn`, `ask` or `deny`. `ask`: a person is asked before a program starts; a yes holds for the rest of the run.", r#""allow""#),
        key("path", "string", "required", "Written as in `fs.rules[]`.", r#""/usr/bin/python3""#),
        key("sha256", "string", "any bytes", "64 hexadecimal digits; the rule holds only for a file with this digest, and one that asks refuses any other. Not with deny.", "\"…\""),
    ],
};

#[rustfmt::skip]
pub(crate) const SYSCALLS: Section = Section {
    path: "syscalls",
    about: "System calls.",
    keys: &[key("deny", "list of strings", "[]", "Names of calls that fail with EPERM.", r#"["ptrace"]"#)],
};

#[rustfmt::skip]
pub(crate) const ENV: Section = Section {
    path: "env",
    about: "Environment variables. `COFFERDAM` and `COFFERDAM_RUN_ID` are always set by the product.",
    keys: &[
        key("pass", "list of strings", "PATH, HOME, USER, LOGNAME, SHELL, LANG, LC_*, TERM, COLORTERM, TZ", "Names that pass from outside; a final `*` stands for any rest.", r#"["LANG", "LC_*"]"#),
        key("set", "object of strings", "{}", "Names with the value they have inside.", r#"{"CI": "1"}"#),
    ],
};

#[rustfmt::skip]
pub(crate) const HOME: Section = Section {
    path: "home",
    about: "The sandbox's own home, which stands in the place of the host's.",
    keys: &[
        key("copy", "list of strings", "[]", "Files and directories below `~` that are copied into the home when the sandbox is made. Files with credentials are copied only when they are named themselves.", r#"["~/.config/tool"]"#),
    ],
};

#[rustfmt::skip]
pub(crate) const SECRET: Section = Section {
    path: "secrets[]",
    about: "A secret that the broker holds.",
    keys: &[
        key("name", "string", "required", "The name under which the host keeps it.", r#""API_KEY""#),
        key("inject", "object", "required", "Where it is added.", "{}"),
        key("optional", "boolean", "false", "Without a value for it, the run goes on without the secret. It is required if another entry of its name is, or if its source is named.", "true"),
    ],
};

#[rustfmt::skip]
pub(crate) const INJECT: Section = Section {
    path: "secrets[].inject",
    about: "The request that receives it.",
    keys: &[
        key("host", "string", "required", "The one host, no wildcard.", r#""api.example.org""#),
        key("header", "string", "required", "The header's name.", r#""authorization""#),
        key("format", "string", "\"{}\"", "The header's value; `{}` stands for the secret and must be there once.", r#""Bearer {}""#),
    ],
};

#[rustfmt::skip]
pub(crate) const AUDIT: Section = Section {
    path: "audit",
    about: "Events to record.",
    keys: &[key("events", "list of strings", "[]", "Kinds of events, see below.", r#"["fs.write", "exec", "net"]"#)],
};

#[rustfmt::skip]
pub(crate) const LIMITS: Section = Section {
    path: "limits",
    about: "Merging keeps the smallest. Exactly at the limit succeeds.",
    keys: &[
        key("max_wall_ms", "number", "none", "Milliseconds from start to end.", "30000"),
        key("max_cpu_ms", "number", "none", "Milliseconds of processor time.", "10000"),
        key("max_memory_mb", "number, decimals allowed", "none", "Megabytes of memory.", "512"),
        key("max_output_bytes", "number", "none", "Bytes of stdout and stderr together.", "1000000"),
        key("max_processes", "number", "none", "Processes and threads at once.", "64"),
        key("max_open_files", "number", "none", "Open files of one process.", "256"),
        key("max_disk_mb", "number, decimals allowed", "none", "Megabytes written.", "1024"),
        key("max_files", "number", "none", "Files made.", "10000"),
        key("max_net_bytes", "number", "none", "Bytes through the broker.", "100000000"),
        key("max_steps", "number", "none", "Steps of a program.", "1000000"),
        key("on_output_limit", "string", "\"end\"", "`end` or `truncate`: what happens at `max_output_bytes`.", r#""truncate""#),
    ],
};

#[rustfmt::skip]
pub(crate) const CAPABILITY: Section = Section {
    path: "capabilities.<name>",
    about: "Merging keeps `allow` only where both sides allow, and the smaller budget.",
    keys: &[
        key("allow", "boolean", "required", "True if it may be called.", "true"),
        key("budget", "number", "none", "Maximum number of calls.", "2"),
    ],
};

/// Names for `audit.events`.
pub const AUDIT_EVENTS: [(&str, &str); 8] = [
    ("fs.read", "a file was opened for reading"),
    ("fs.write", "a file was changed, made or removed"),
    ("exec", "a program was started"),
    ("net", "a connection or a request went through the broker"),
    ("syscall", "a refused system call was made"),
    ("secret", "a secret was added to a request"),
    ("limit", "a limit was reached"),
    ("denial", "an operation was refused"),
];

/// Names for `degrade`: mechanisms that this host may lack. The name of a limit's field is accepted too.
pub const DEGRADES: [(&str, &str); 7] = [
    ("namespaces", "no namespaces, no root and no home of its own: landlock and seccomp alone confine the run"),
    (
        "ask",
        "rules may ask for permissions that cannot be asked for (all but opening files and directories); those are refused",
    ),
    (
        "core_dumps",
        "a program that crashes inside hands a core dump to the host's `core_pattern` handler: the pattern names a socket, or the hard limit on core dumps is 0 and it names a pipe",
    ),
    ("landlock.refer", "kernels before 5.19 cannot distinguish moving between directories from other changes"),
    ("landlock.truncate", "kernels before 6.2 cannot refuse truncation by itself"),
    ("landlock.ioctl_dev", "kernels before 6.10 cannot refuse device controls"),
    ("landlock.scope", "kernels before 6.12 cannot restrict signals and abstract sockets by landlock"),
];

/// Returns the known name closest to `wrong`, if it is close enough to be a typo.
pub fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if wrong.len() > 64 {
        return None;
    }
    let wrong = wrong.to_ascii_lowercase();
    let allowed = if wrong.chars().count() <= 5 { 1 } else { 2 };
    // Among equally near names the one of equal length wins: letters are swapped and missed more often than added.
    let near = known
        .into_iter()
        .map(|name| (distance(&wrong, &name.to_ascii_lowercase()), name.len().abs_diff(wrong.len()), name));
    near.filter(|(d, ..)| *d <= allowed).min().map(|(.., name)| name)
}

/// Edit distance: letters added, dropped, changed or swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let same = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + same);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn slips_are_found() {
        let keys = || DOCUMENT.keys.iter().map(|k| k.name);
        assert_eq!(nearest("extend", keys()), Some("extends"));
        assert_eq!(nearest("Limits", keys()), Some("limits"));
        assert_eq!(nearest("secrest", keys()), Some("secrets"));
        assert_eq!(nearest("filesystem", keys()), None);
        assert_eq!(nearest("", keys()), None);
    }
}
