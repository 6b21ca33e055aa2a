//! Generated pages of `docs/reference` (command line, faults, outcomes) match the code. `UPDATE_REFERENCE=1 cargo test`
//! writes them anew.

#[allow(dead_code, unused_imports)] // The tree of flags is all that is wanted of it here.
#[path = "../src/args/mod.rs"]
mod args;
mod promises;

use clap::Command;
use serde_json::Value;
use std::path::Path;
use terms::*;

#[track_caller]
fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(name);
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "docs/reference/{name} is old; run this test with UPDATE_REFERENCE=1");
}

/// The OpenAPI document of the daemon.
#[test]
fn the_http_api() {
    let text = serde_json::to_string_pretty(&server::document()).unwrap();
    check("openapi.json", &format!("{text}\n"));
}

/// Tests behind each promise. Every promise has at least one, and every mark names an existing promise.
#[test]
fn the_promises() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let promises = promises::titles(&std::fs::read_to_string(root.join("PROMISES.md")).unwrap());
    let marks = promises::marks(&root);
    let unknown: Vec<_> = marks.iter().filter(|mark| !promises.contains_key(&mark.promise)).collect();
    assert!(unknown.is_empty(), "PROMISES.md has no such promise: {unknown:?}");
    let mut page = String::from(
        "# Tests of each promise\n\nGenerated from marks on tests (`// promise N`); do not edit. The promises themselves: \
         [PROMISES.md](../../PROMISES.md).\n",
    );
    for (number, title) in &promises {
        page.push_str(&format!("\n## {number}. {title}\n\n"));
        let tests: Vec<_> = marks.iter().filter(|mark| mark.promise == *number).collect();
        assert!(!tests.is_empty(), "no test is marked `// promise {number}`");
        for same_file in tests.chunk_by(|one, next| one.file == next.file) {
            page.push_str(&format!("`{}`\n", same_file[0].file));
            same_file.iter().for_each(|mark| page.push_str(&format!("- {}\n", mark.test.replace('_', " "))));
            page.push('\n');
        }
        page.pop();
    }
    check("promises.md", &page);
}

#[test]
fn the_command_line() {
    let mut page = String::from(
        "# Command line\n\nGenerated from `crates/cli/src/args/mod.rs`: what `--help` prints for each verb. Do not edit.\n",
    );
    let mut whole = args::whole().disable_help_subcommand(true);
    whole.build();
    write_help(&mut page, &mut whole, "cofferdam");
    check("cli.md", &page);
}

#[test]
fn configuration() {
    use node::config::{KEYS, ValueKind};
    let mut page = String::from(
        "# Configuration\n\nGenerated from `crates/state/src/config/keys.rs`; do not edit. Where the file is and who wins: \
         [guide/operations.md](../guide/operations.md).\n\n\
         | key | written as | default | variable | flag of `serve` | meaning |\n|---|---|---|---|---|---|\n",
    );
    for key in KEYS.iter() {
        let form = match key.kind {
            ValueKind::Path => "absolute path".to_owned(),
            ValueKind::Text => "text".to_owned(),
            ValueKind::Word(words) => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", "),
            ValueKind::Texts => "list of strings".to_owned(),
            ValueKind::Switch => "`true`, `false`".to_owned(),
            ValueKind::Count => "whole number".to_owned(),
            ValueKind::Number => "number".to_owned(),
            ValueKind::Size => "bytes, or `\"64m\"`".to_owned(),
            ValueKind::Time => "`\"30s\"`".to_owned(),
        };
        let default = key.default.filter(|text| !text.is_empty()).map_or(String::new(), |text| format!("`{text}`"));
        let variables = match key.is_of_tenants() {
            true => String::new(),
            false => [Some(key.variable()), key.also.map(str::to_owned)]
                .into_iter()
                .flatten()
                .map(|name| format!("`{name}`"))
                .collect::<Vec<_>>()
                .join(", "),
        };
        let flag = key.flag.map_or(String::new(), |flag| format!("`--{flag}`"));
        page.push_str(&format!("| `{}` | {form} | {default} | {variables} | {flag} | {} |\n", key.name, key.about));
    }
    page.push_str("\n`*` is the name of a tenant. Sizes take `k`, `m`, `g`, `t` (powers of 1024); times take `ms`, `s`, `m`, `h`, `d`.\n");
    check("config.md", &page);
}

fn write_help(page: &mut String, command: &mut Command, name: &str) {
    let depth = if name.contains(' ') { "##" } else { "#" };
    let help = command.render_long_help().to_string();
    let help: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    page.push_str(&format!("\n#{depth} `{name}`\n\n```text\n{}\n```\n", help.join("\n")));
    let verbs: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    for verb in verbs.iter().filter(|v| *v != "help") {
        let below = command.find_subcommand_mut(verb).unwrap();
        write_help(page, below, &format!("{name} {verb}"));
    }
}

/// Every verb that the binary accepts is in the tree from which help, man page and this reference are generated.
#[test]
fn no_verb_is_hidden() {
    for verb in args::all_verbs().filter(|v| *v != "help") {
        assert!(args::whole().find_subcommand(verb).is_some(), "{verb}");
    }
}

const KINDS: [ErrorKind; 12] = [
    ErrorKind::InvalidRequest,
    ErrorKind::Unauthenticated,
    ErrorKind::PolicyDenied,
    ErrorKind::NotFound,
    ErrorKind::Conflict,
    ErrorKind::LimitExceeded,
    ErrorKind::UnsupportedLimit,
    ErrorKind::UnsupportedPolicy,
    ErrorKind::UnsupportedHost,
    ErrorKind::Unavailable,
    ErrorKind::ProviderFailed,
    ErrorKind::Internal,
];

/// HTTP status, meaning and remedy of a kind. A kind without a row does not compile.
fn about(kind: ErrorKind) -> (&'static str, &'static str, &'static str) {
    match kind {
        ErrorKind::InvalidRequest => (
            "400",
            "The request itself is wrong: an unknown flag or key, an amount that is no amount, a policy with a mistake, a file \
             that cannot be read, a command that is not an executable file. Nothing was started.",
            "Read the message: it names the flag, or the file with line and column. Correct it and ask again.",
        ),
        ErrorKind::Unauthenticated => (
            "401",
            "The caller did not say who it is, or not convincingly. The daemon gives this kind; no verb of the command line does.",
            "Send a valid token.",
        ),
        ErrorKind::PolicyDenied => (
            "403",
            "A rule refuses it. As a fault: the command itself may not be started. In an outcome: the command ran, failed, and \
             at least one operation of its was refused; `denials` lists them.",
            "Read `denials`, or the hint of the fault: it names the rule and what would allow the operation. Allow it, or leave it refused.",
        ),
        ErrorKind::NotFound => (
            "404",
            "What was named does not exist: the command is not on PATH, or its interpreter is not there inside.",
            "Check the name. If it exists outside, `cofferdam policy explain PATH` says whether it is shown inside.",
        ),
        ErrorKind::Conflict => (
            "409",
            "Something changed while it was being used: a program named by its digest was replaced while the run was prepared.",
            "Find out who changed it, then ask again.",
        ),
        ErrorKind::LimitExceeded => (
            "429 (413 for bodies)",
            "A run met one of its limits and was ended. `limit_kind` names the limit, `limit` and `used` give the amounts, `phase` says where.",
            "Raise the limit or make the command use less. Exactly at the limit succeeds.",
        ),
        ErrorKind::UnsupportedLimit => (
            "501",
            "A limit was asked for that cannot be held here, so nothing was started. `limit_kind` names it.",
            "The hint says what would help: delegated control groups (`cofferdam setup`), or leaving the limit out.",
        ),
        ErrorKind::UnsupportedPolicy => (
            "501",
            "A rule was understood but cannot be enforced by this version or in this combination, so nothing was started.",
            "The message names the rule and the hint a form that can be held.",
        ),
        ErrorKind::UnsupportedHost => (
            "501",
            "The kernel, or what surrounds us, does not offer a wall that is needed. Nothing was started.",
            "Run `cofferdam doctor`: it names the missing mechanisms and the smallest fix. A policy may consent to less under `degrade`.",
        ),
        ErrorKind::Unavailable => (
            "503",
            "A part of the product cannot be reached or used at the moment: the disk, the store, a daemon that is about to end.",
            "Ask again later.",
        ),
        ErrorKind::ProviderFailed => (
            "502",
            "A service outside failed. No verb of the command line gives this kind yet.",
            "Look at that service.",
        ),
        ErrorKind::Internal => (
            "500",
            "A mistake of ours, or something nobody thought of. The message names the call that failed.",
            "Report it with the message and the output of `cofferdam doctor --json`.",
        ),
    }
}

#[test]
fn faults() {
    let mut page = String::from(ERRORS_HEAD);
    for kind in KINDS {
        page.push_str(&format!("| [`{0}`](#{0}) | {1} | {2} |\n", kind.name(), about(kind).0, exit(kind)));
    }
    for kind in KINDS {
        let (_, meaning, remedy) = about(kind);
        page.push_str(&format!("\n## {}\n\n{meaning}\n\n**What to do.** {remedy}\n", kind.name()));
    }
    page.push_str(ERRORS_FOOT);
    check("errors.md", &page);
}

fn exit(kind: ErrorKind) -> String {
    match kind {
        ErrorKind::LimitExceeded => "124 (wall limit of a run), 137 (any other limit of a run)".into(),
        ErrorKind::NotFound => format!("127 (the command), else {}", kind.exit_status()),
        ErrorKind::InvalidRequest => format!("{}; 126 (the command is not executable)", kind.exit_status()),
        _ => kind.exit_status().to_string(),
    }
}

const ERRORS_HEAD: &str = "# Error kinds

Generated from `crates/terms`; do not edit.

A *fault* says that a verb could not be done. A command that exits 1, is killed or meets a limit is not a fault but an
[outcome](outcome.md); an outcome uses two of the kinds below in its `error_kind`, `limit_exceeded` and `policy_denied`.

The list is closed. Programs branch on `error_kind`; the message is for people and may change. The HTTP column is the
status that the [daemon](../concepts/daemon.md) answers with.

| kind | HTTP | exit status of the command line |
|---|---|---|
";

const ERRORS_FOOT: &str = "
## The document

With `--json` a fault is printed on standard output, and with `--status-fd` or `--status-file` it is written there in the
place of an outcome. `success` is `false` in both; an outcome has a `verdict`, a fault has none.

```json
{
  \"protocol_version\": 1,
  \"success\": false,
  \"error_kind\": \"not_found\",
  \"message\": \"nosuch: command not found\",
  \"retry\": \"never\",
  \"phase\": \"start\"
}
```

`hint` (what would help), `subject` (what it is about) and `limit_kind` are there where they apply. `retry` is `never`,
`later` or `now`. `phase` is one of `admission`, `planning`, `preparation`, `start`, `execution`, `serialization`,
`review`, `application`, `delivery`, `close`.
";

#[test]
fn the_example_of_a_fault_is_one() {
    let example = ERRORS_FOOT.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let fault: Fault = serde_json::from_str(example).unwrap();
    assert_eq!(serde_json::to_value(&fault).unwrap(), serde_json::from_str::<Value>(example).unwrap());
}

/// Every field of an outcome: path, type, meaning.
const FIELDS: [(&str, &str, &str); 56] = [
    ("protocol_version", "number", "Version of the document: 1."),
    ("run_id", "string", "Identifies the run: `run_` and 32 hexadecimal digits. Inside it is `COFFERDAM_RUN_ID`."),
    ("success", "boolean", "The command exited with 0 and met no limit."),
    ("verdict", "string", "How the run ended, see below."),
    (
        "exit",
        "object or null",
        "How the command itself ended; `null` when nobody knows. We never make up an exit code.",
    ),
    ("exit.code", "number", "Its exit status, when it exited."),
    ("exit.signal", "number", "The signal that ended it, in the place of `code`."),
    ("exit.name", "string", "That signal's name, e.g. `SIGKILL`."),
    ("error_kind", "string, optional", "`limit_exceeded` or `policy_denied`; see [errors.md](errors.md)."),
    ("limit_kind", "string, optional", "The limit that ended the run: the name of its field without `max_`."),
    ("phase", "string, optional", "Where it happened: `execution`, or `start` for a limit met before the command ran."),
    ("limit", "number, optional", "What was allowed, in the unit of the limit's name."),
    ("used", "number, optional", "What was used or asked for, in the same unit."),
    ("message", "string, optional", "The same for people."),
    (
        "denials",
        "list",
        "What was refused, or allowed with a warning; filled whatever the verdict. At most 256 different ones.",
    ),
    (
        "denials[].op",
        "string",
        "`fs.read`, `fs.write`, `fs.create`, `fs.remove`, `fs.lock`, `exec`, `net.resolve`, `net.connect`, `net.request` or `syscall`.",
    ),
    ("denials[].target", "string", "The real path, the address, `unix:` and a socket's path, or the call's name."),
    (
        "denials[].rule",
        "string",
        "What decided: a rule by document and place (`mine.json:fs.rules[0]`), a flag, or a default (`defaults.fs`).",
    ),
    ("denials[].action", "string", "`deny`; `ask` where nobody could answer; `warn` where it was let through."),
    ("denials[].count", "number", "How often, over the whole run."),
    ("denials[].pid", "number", "The first process that tried and was found, by its number inside; else 0."),
    ("denials[].exe", "string", "That process's program."),
    ("denials[].hint", "string, optional", "The rule or flag that would allow it."),
    (
        "denials[].quiet",
        "boolean, absent if false",
        "The rule says that such refusals are expected: not shown when the run ends, and no reason for `denied`.",
    ),
    ("denials_dropped", "number, optional", "How many refusals did not fit the list; absent when none."),
    (
        "notes",
        "list of strings, optional",
        "Advice on failures that no rule caused, such as a service that listens on the host and not inside; at most 16.",
    ),
    ("events_dropped", "number, optional", "How many events the journal of `--events` lacks; absent when none."),
    ("events_reason", "string, optional", "Why the first of them is not in it."),
    ("usage", "object", "What the run used."),
    ("usage.wall_ms", "number", "Milliseconds from the start of the command to its end."),
    ("usage.cpu_ms", "number", "Milliseconds of processor time of all its processes."),
    (
        "usage.memory_peak_bytes",
        "number",
        "Most memory at a time: of all processes where the run has a control group, else of the largest process.",
    ),
    ("usage.output_bytes", "number", "Bytes of both streams that were passed on or kept."),
    (
        "usage.disk_bytes",
        "number",
        "The most bytes seen in the private `/tmp` and, under a limit on space, in the workspace; files without a name included.",
    ),
    ("usage.net_bytes", "number", "Bytes over the network, both ways, published ports included."),
    (
        "usage.processes_peak",
        "number, optional",
        "Most processes and threads at a time; absent where the run has no control group to count them.",
    ),
    (
        "stdout",
        "string, optional",
        "Standard output, with `--json` and over HTTP with `wait`: to the byte, as `stdout_encoding` says. At most 16 MiB, over HTTP 4 MiB.",
    ),
    (
        "stdout_encoding",
        "string, optional",
        "There whenever `stdout` is: `utf-8`, or `base64` of all of it where it is not UTF-8 (also where a limit cut a character in two).",
    ),
    ("stderr", "string, optional", "Standard error, likewise."),
    ("stderr_encoding", "string, optional", "How `stderr` stands there: `utf-8` or `base64`."),
    ("truncated", "object", "Output that was dropped."),
    ("truncated.stdout", "number", "Bytes of standard output."),
    ("truncated.stderr", "number", "Bytes of standard error."),
    (
        "output_lost",
        "string, optional",
        "Why output did not arrive where the caller sent it, on a full disk say. A reader that left early is no loss.",
    ),
    ("changes", "object", "Changes in a workspace; all 0 where there is none."),
    ("changes.added", "number", "Entries added."),
    ("changes.modified", "number", "Entries changed."),
    ("changes.deleted", "number", "Entries removed."),
    ("sandbox", "string, optional", "The sandbox that holds the changes, where one does."),
    ("policy", "object", "Under which policy it ran."),
    (
        "policy.digest",
        "string",
        "SHA-256 of the effective policy's meaning; labels, order and repetition of rules do not count.",
    ),
    (
        "policy.revision",
        "number",
        "Of the sandbox's policy and limits, as they were when the run ended; counted from 1, which it stays for a run that is in no sandbox.",
    ),
    (
        "policy.left_out",
        "list of strings",
        "Settings of another tool's file (`-s`) that have no equivalent here and are not in force, one for each key. Absent when there are none.",
    ),
    ("enforcement", "object", "What held during the run."),
    ("enforcement.level", "string", "`full`, or `partial` where the policy consented to missing walls."),
    ("enforcement.missing", "list of strings", "The walls that were missing."),
];

const VERDICTS: [(Verdict, &str); 6] = [
    (Verdict::Ok, "The command exited with 0."),
    (Verdict::Failed, "It exited otherwise or was ended by a signal, and nothing was refused."),
    (Verdict::Denied, "It failed, and at least one operation was refused."),
    (Verdict::LimitExceeded, "It met a limit and was ended."),
    (Verdict::Cancelled, "It was ended by a signal that the caller sent through `cofferdam`."),
    (Verdict::Lost, "Somebody outside killed the guest's first process; how the command ended is not known."),
];

#[test]
fn outcomes() {
    let mut page = String::from(OUTCOME_HEAD);
    for (path, kind, meaning) in FIELDS {
        page.push_str(&format!("| `{path}` | {kind} | {meaning} |\n"));
    }
    page.push_str("\n## Verdicts\n\n| verdict | meaning |\n|---|---|\n");
    for (verdict, meaning) in VERDICTS {
        page.push_str(&format!("| `{}` | {meaning} |\n", serde_json::to_value(verdict).unwrap().as_str().unwrap()));
    }
    page.push_str(OUTCOME_FOOT);
    check("outcome.md", &page);
}

const OUTCOME_HEAD: &str = "# Outcome

Generated from `crates/terms`; do not edit.

How a run ended, as one JSON document: on standard output with `--json`, or beside the command's own output with
`--status-fd N` or `--status-file FILE`. Fields marked optional are left out where they do not apply.

| field | type | meaning |
|---|---|---|
";

const OUTCOME_FOOT: &str = "
A verdict of `denied` is no guess from the command's output: denials come from the supervisor's own decisions. A command
may be refused something, carry on and succeed; its verdict is then `ok` and `denials` still lists what was refused.

When the run could not be started the document is a [fault](errors.md) instead.
";

/// The table lists exactly the fields of the document.
#[test]
fn the_table_of_fields_is_complete() {
    let mut found = Vec::new();
    for exit in [Exit::Code { code: 0 }, Exit::Signal { signal: 9, name: "SIGKILL".into() }] {
        paths("", &serde_json::to_value(full(exit)).unwrap(), &mut found);
    }
    found.sort();
    found.dedup();
    let mut listed: Vec<String> = FIELDS.iter().map(|(path, _, _)| (*path).to_owned()).collect();
    listed.sort();
    assert_eq!(listed, found);
}

fn paths(above: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, below) in map {
                let path = if above.is_empty() { key.clone() } else { format!("{above}.{key}") };
                found.push(path.clone());
                paths(&path, below, found);
            }
        }
        Value::Array(list) => list.iter().for_each(|item| paths(&format!("{above}[]"), item, found)),
        _ => {}
    }
}

/// An outcome with every field filled.
fn full(exit: Exit) -> Outcome {
    let stamp = PolicyStamp { digest: "0".into(), revision: 1, left_out: vec!["x".into()] };
    let enforcement = Enforcement { level: EnforcementLevel::Partial, missing: vec!["landlock.scope".into()] };
    let mut outcome = Outcome::new(RunId::from_random([0; 16]), stamp, enforcement);
    outcome.exit = Some(exit);
    outcome.error_kind = Some(ErrorKind::LimitExceeded);
    outcome.limit_kind = Some(LimitKind::MemoryMb);
    outcome.phase = Some(Phase::Execution);
    outcome.limit = Some(Limit::Megabytes(1.0));
    outcome.used = Some(Limit::Megabytes(1.0));
    outcome.message = Some(String::new());
    outcome.denials_dropped = 1;
    outcome.notes = vec![String::new()];
    outcome.events_dropped = 1;
    outcome.events_reason = Some(String::new());
    outcome.usage.processes_peak = Some(1);
    outcome.set_output(Vec::new(), Vec::new());
    outcome.output_lost = Some(String::new());
    outcome.sandbox = Some(String::new());
    outcome.denials.push(Denial {
        op: "exec".into(),
        target: "/bin/sh".into(),
        rule: "defaults.exec".into(),
        action: Action::Deny,
        count: 1,
        pid: 2,
        exe: "/bin/sh".into(),
        hint: Some(String::new()),
        quiet: true,
    });
    outcome
}
