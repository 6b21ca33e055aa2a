//! The architecture as a test: allowed edges between crates, outside libraries with reasons, and conventions that a
//! compiler does not check. The table below is the only place where an edge or a library is allowed.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A crate, the crates of the workspace that it may use, and the outside libraries that it may use.
struct Crate {
    name: &'static str,
    uses: &'static [&'static str],
    libraries: &'static [&'static str],
    test_libraries: &'static [&'static str],
}

/// Front ends use the core, the core uses engines, engines use the foundation, and nothing points up or sideways. Among the front ends
/// the command line uses all, and the daemon uses `client` when it sends traces to a collector.
const CRATES: &[Crate] = &[
    Crate { name: "terms", uses: &[], libraries: &["base64", "data-encoding", "serde", "utoipa"], test_libraries: &[] },
    Crate {
        name: "policy",
        uses: &["terms"],
        libraries: &["ipnet", "serde", "serde_json", "serde_path_to_error", "sha2", "toml"],
        test_libraries: &["proptest"],
    },
    Crate {
        name: "api",
        uses: &["terms"],
        libraries: &["base64", "serde", "serde_json", "utoipa"],
        test_libraries: &[],
    },
    Crate { name: "testkit", uses: &[], libraries: &["serde_json"], test_libraries: &[] },
    Crate { name: "sys", uses: &[], libraries: &["libc", "rustix"], test_libraries: &["loom"] },
    Crate {
        name: "worker",
        uses: &["api", "sys", "terms"],
        libraries: &["base64", "crc32fast", "rustix", "serde", "serde_json"],
        test_libraries: &["proptest"],
    },
    Crate {
        name: "egress",
        uses: &["policy", "sys", "terms"],
        libraries: &[
            "aho-corasick",
            "base64",
            "bytes",
            "h2",
            "http",
            "rcgen",
            "rustix",
            "rustls-native-certs",
            "serde_json",
            "tokio",
            "tokio-rustls",
            "zeroize",
        ],
        test_libraries: &[],
    },
    Crate {
        name: "enclosure",
        uses: &["policy", "sys", "terms"],
        libraries: &["rustix", "serde_json", "sha2"],
        test_libraries: &[],
    },
    Crate {
        name: "store",
        uses: &["api", "terms"],
        libraries: &["rusqlite", "rustix", "serde", "serde_json", "sha2"],
        test_libraries: &["proptest"],
    },
    Crate {
        name: "workspace",
        uses: &["api", "sys", "terms"],
        libraries: &[
            "base64",
            "globset",
            "regex-automata",
            "rustix",
            "serde",
            "serde_json",
            "sha1",
            "sha2",
            "similar",
            "tar",
            "unicode-normalization",
            "zstd",
        ],
        test_libraries: &["proptest"],
    },
    Crate { name: "host", uses: &["sys", "terms"], libraries: &["rustix", "serde", "serde_json"], test_libraries: &[] },
    Crate {
        name: "state",
        uses: &["api", "enclosure", "host", "policy", "store", "sys", "terms", "workspace"],
        libraries: &["rustix", "serde", "serde_json", "toml"],
        test_libraries: &[],
    },
    Crate {
        name: "runtime",
        uses: &[
            "api",
            "egress",
            "enclosure",
            "host",
            "policy",
            "state",
            "store",
            "sys",
            "terms",
            "worker",
            "workspace",
        ],
        libraries: &["rustix", "serde", "serde_json"],
        test_libraries: &["proptest"],
    },
    Crate {
        name: "node",
        uses: &[
            "api",
            "egress",
            "enclosure",
            "host",
            "policy",
            "runtime",
            "state",
            "store",
            "sys",
            "terms",
            "worker",
            "workspace",
        ],
        libraries: &["rustix", "serde", "serde_json", "sha2"],
        test_libraries: &["proptest"],
    },
    Crate {
        name: "server",
        uses: &["api", "client", "node", "terms"],
        libraries: &[
            "axum",
            "base64",
            "bytes",
            "flate2",
            "futures-util",
            "hmac",
            "http",
            "http-body-util",
            "hyper",
            "hyper-util",
            "rustix",
            "rustls-webpki",
            "serde",
            "serde_json",
            "serde_path_to_error",
            "sha2",
            "tokio",
            "tokio-rustls",
            "tokio-util",
            "tower",
            "tracing",
            "tracing-subscriber",
            "utoipa",
            "utoipa-axum",
        ],
        test_libraries: &["url"],
    },
    Crate {
        name: "client",
        uses: &["api", "node", "terms"],
        libraries: &[
            "base64",
            "bytes",
            "http",
            "http-body-util",
            "hyper",
            "hyper-util",
            "rustix",
            "rustls-native-certs",
            "rustls-webpki",
            "serde",
            "serde_json",
            "tokio",
            "tokio-rustls",
        ],
        test_libraries: &[],
    },
    Crate {
        name: "bench",
        uses: &["api", "node", "store", "sys", "terms", "workspace"],
        libraries: &["rustix", "serde", "serde_json"],
        test_libraries: &[],
    },
    Crate {
        name: "cli",
        uses: &["api", "bench", "client", "host", "node", "server", "terms"],
        libraries: &[
            "clap",
            "clap_complete",
            "clap_mangen",
            "rustix",
            "rustyline",
            "serde",
            "serde_json",
            "unicode-width",
        ],
        test_libraries: &["base64", "serde_json"],
    },
];

/// Every outside library, with the reason for it.
const LIBRARIES: &[(&str, &str)] = &[
    ("aho-corasick", "finds the spellings of a secret in an answer in one pass"),
    ("axum", "routes, extractors, server-sent events and WebSockets of the HTTP API"),
    ("base64", "reads Basic credentials, and spells secrets as servers tell them back"),
    ("bytes", "pieces of bodies that pass from one stream to another without a copy"),
    ("clap", "one tree of flags makes parsing, help, the man page and completions"),
    ("clap_complete", "completion scripts from that tree"),
    ("clap_mangen", "the man page from that tree"),
    ("crc32fast", "checksums of frames at the speed of the memory, with the processor's own instructions"),
    ("data-encoding", "hexadecimal digits of digests, ids and attributes"),
    ("flate2", "compressed responses: gzip, which every client of HTTP reads"),
    ("futures-util", "streams of events and of bodies"),
    ("globset", "paths that are chosen in review by pattern, and names of build artefacts"),
    ("h2", "HTTP/2 towards the guest and towards servers, with its flow control"),
    ("hmac", "signatures of URLs that a daemon gives out; compared in constant time"),
    ("http", "heads of HTTP/2, as h2 gives and takes them"),
    ("http-body-util", "bodies with an end that is known before they are read"),
    ("hyper", "HTTP/1.1 and HTTP/2 as a server, and HTTP/1.1 as a client"),
    ("hyper-util", "the same on sockets of tokio, with time limits on heads"),
    ("ipnet", "prefixes of address ranges: masks, and which range holds which"),
    ("libc", "numbers and structures of the kernel, for the one crate that calls it directly"),
    ("loom", "every order in which two threads can see each other's writes to a ring; tests only"),
    ("proptest", "properties of merging and planning over generated policies; tests only"),
    ("rcgen", "the certificate authority of a guest and its leaves"),
    (
        "regex-automata",
        "searches the bytes of files step by step, so that a search ends in time whatever the pattern is",
    ),
    ("rusqlite", "records and the journal in one file that survives a power failure"),
    ("rustix", "safe calls for code that may allocate: poll, pipes, terminals, openat2"),
    ("rustls-native-certs", "the authorities that the host trusts, wherever its system keeps them"),
    ("rustls-webpki", "why a certificate is not trusted, as a value: the daemon's own may be one for signing others"),
    ("rustyline", "lines with history and several rows at a terminal, which an interpreter judges to be whole"),
    ("serde", "documents that leave the product, and policies that enter it, as types"),
    ("serde_json", "JSON: outcomes, faults, policies"),
    ("serde_path_to_error", "a mistake in a policy is told with the key it is at"),
    ("sha1", "names of blobs, which git wants to see in patches of binary files"),
    ("sha2", "digests of policies and of programs that rules name by digest"),
    ("similar", "differences between texts, by lines and by words"),
    ("tar", "workspaces as one file that other tools can look into"),
    ("tokio", "thousands of connections of a guest on one thread, each written as if it were alone"),
    ("tokio-rustls", "TLS without OpenSSL, towards the guest and towards servers"),
    ("tokio-util", "the token that cancels long-lived tasks of the daemon, and the tracker that waits for them"),
    ("toml", "policies and the configuration in TOML, and the permissions of a neighbour to import"),
    ("tower", "layers that stand before every route"),
    ("tracing", "log lines and spans of the daemon, with fields that keep their types"),
    ("tracing-subscriber", "the registry that holds open spans; the line format is our own"),
    ("unicode-normalization", "names that other systems take for the same, and patterns that must not miss them"),
    ("unicode-width", "cells of a character on a terminal, by the tables of Unicode"),
    ("url", "reads hosts of redirects as browsers do, to compare ours with; tests only"),
    ("utoipa", "the OpenAPI document from the types that routes take and give"),
    ("utoipa-axum", "a route and its description in one place, so that none lacks the other"),
    ("zeroize", "wipes the copies of secrets that were made to send them"),
    ("zstd", "that file, small"),
];

fn root() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap()
}

/// Packages of the workspace, from `cargo metadata`.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// The short name of a crate: `terms` for `cofferdam-terms`, `cli` for the binary.
fn crate_name(package: &str) -> Option<&str> {
    match package {
        "cofferdam" => Some("cli"),
        other => other.strip_prefix("cofferdam-"),
    }
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[test]
fn the_build_is_as_drawn() {
    let packages = packages();
    let built: BTreeSet<&str> = packages.iter().filter_map(|p| crate_name(text_of(&p["name"]))).collect();
    let drawn: BTreeSet<&str> = CRATES.iter().map(|r| r.name).collect();
    assert_eq!(built, drawn, "every crate has a row in CRATES, and every row a crate");
    for package in &packages {
        let name = crate_name(text_of(&package["name"])).expect("a crate of the workspace");
        let row = CRATES.iter().find(|r| r.name == name).unwrap();
        for dependency in package["dependencies"].as_array().unwrap() {
            let used = text_of(&dependency["name"]);
            let kind = dependency["kind"].as_str().unwrap_or("normal");
            let allowed = match (crate_name(used), kind) {
                (Some(neighbour), "normal") => row.uses.contains(&neighbour),
                (None, "normal") => row.libraries.contains(&used),
                (None, "dev") => row.test_libraries.contains(&used),
                // Shared test code; no shipped crate may use it.
                (Some("testkit"), "dev") => true,
                // Test dependencies must not add an edge that the table lacks; there are no build scripts.
                _ => false,
            };
            assert!(allowed, "{name} uses {used} ({kind}), and CRATES does not say so");
        }
    }
}

#[test]
fn nothing_in_the_table_is_unused() {
    let packages = packages();
    for row in CRATES {
        let package = packages.iter().find(|p| crate_name(text_of(&p["name"])) == Some(row.name)).unwrap();
        let used: BTreeSet<&str> =
            package["dependencies"].as_array().unwrap().iter().map(|d| text_of(&d["name"])).collect();
        for library in row.libraries.iter().chain(row.test_libraries) {
            assert!(used.contains(library), "{} no longer uses {library}", row.name);
        }
        for neighbour in row.uses {
            assert!(
                used.contains(format!("cofferdam-{neighbour}").as_str()),
                "{} no longer uses {neighbour}",
                row.name
            );
        }
    }
}

#[test]
fn every_library_has_a_reason() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let section = manifest.split("[workspace.dependencies]\n").nth(1).expect("the section");
    let section = section.split("\n[").next().unwrap();
    let named = section.lines().filter(|l| !l.starts_with('#')).filter_map(|l| Some(l.split_once('=')?.0.trim()));
    let outside: BTreeSet<&str> = named.filter(|name| !CRATES.iter().any(|r| r.name == *name)).collect();
    let reasoned: BTreeSet<&str> = LIBRARIES.iter().map(|(name, _)| *name).collect();
    assert_eq!(outside, reasoned, "[workspace.dependencies] and LIBRARIES name the same");
    assert!(LIBRARIES.iter().all(|(_, reason)| reason.len() > 10));
    for row in CRATES {
        let listed = row.libraries.iter().chain(row.test_libraries);
        listed.for_each(|l| assert!(reasoned.contains(l), "{} uses {l}, which has no reason", row.name));
    }
}

#[test]
fn unsafe_code_is_forbidden_everywhere_but_in_sys() {
    let workspace = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let lints = workspace.split("[workspace.lints.rust]\n").nth(1).expect("the section");
    assert!(lints.split("\n[").next().unwrap().lines().any(|l| l == "unsafe_code = \"forbid\""));
    for row in CRATES.iter().filter(|r| r.name != "sys") {
        let manifest = fs::read_to_string(root().join("crates").join(row.name).join("Cargo.toml")).unwrap();
        assert!(manifest.contains("\n[lints]\nworkspace = true\n"), "{} must take the workspace's lints", row.name);
    }
    let sys = fs::read_to_string(root().join("crates/sys/Cargo.toml")).unwrap();
    assert!(sys.contains("undocumented_unsafe_blocks"), "sys must say why each block is sound");
}

/// The standard library references some C functions weakly. A release is linked as one program from an archive, where
/// they are null for every caller; regression: a start crashed on that in releases only. In a program linked object by
/// object, such a name is defined as soon as any code calls it, ours or a library's, which this test detects.
#[test]
fn nothing_is_called_that_a_release_does_not_have() {
    // Weak symbols of this test's own program, and some that it does not use itself.
    let asked: BTreeSet<String> = symbols(&std::env::current_exe().unwrap()).missing;
    let known = ["copy_file_range", "gettid", "pidfd_getpid", "statx"].map(str::to_owned);
    let program = symbols(Path::new(env!("CARGO_BIN_EXE_cofferdam")));
    assert!(asked.contains("gettid") && program.missing.contains("gettid"), "they are found: {asked:?}");
    for name in asked.iter().chain(&known) {
        assert!(!program.there.contains(name), "something calls {name}, which is null in a release: ask the kernel");
    }
    assert!(program.there.contains("getpid"), "the control: what is called is there");
}

/// Symbols of a linked program: defined ones, and weak ones that are undefined.
struct Symbols {
    there: BTreeSet<String>,
    missing: BTreeSet<String>,
}

fn symbols(program: &Path) -> Symbols {
    let output = Command::new("nm").arg(program).output().expect("binutils are installed; see tools/test");
    assert!(output.status.success(), "nm: {}", String::from_utf8_lossy(&output.stderr));
    let mut found = Symbols { there: BTreeSet::new(), missing: BTreeSet::new() };
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["w" | "v", name] => found.missing.insert(name.to_owned()),
            [_, _, name] => found.there.insert(name.to_owned()),
            _ => false,
        };
    }
    found
}

#[test]
fn every_source_file_says_what_it_is_for() {
    let files = files_below(&root().join("crates"), &["rs"]);
    // Tests in a file of their own are described by the module that they belong to.
    let is_test = |f: &Path| f.to_string_lossy().ends_with("_test.rs");
    let in_src = |f: &Path| f.components().any(|c| c.as_os_str() == "src");
    let sources: Vec<_> = files.iter().filter(|f| in_src(f) && !is_test(f)).collect();
    assert!(sources.len() > 50, "the files are found");
    for file in sources {
        let text = fs::read_to_string(file).unwrap();
        assert!(text.starts_with("//! "), "{} opens with no //! comment", file.display());
    }
}

/// Largest sum of lines of one crate's modules that import each other in a ring.
const LARGEST_RING: usize = 1_500;

/// Modules use those below them. A ring of imports must be small enough to be read as one unit.
#[test]
fn modules_do_not_import_each_other_in_large_rings() {
    let mut crates = 0;
    for row in CRATES {
        let modules = modules_of(&root().join("crates").join(row.name).join("src"));
        crates += usize::from(modules.len() > 3);
        for name in modules.keys() {
            let ring: Vec<&String> = modules
                .keys()
                .filter(|other| reaches(&modules, name, other) && reaches(&modules, other, name))
                .collect();
            let lines: usize = ring.iter().map(|name| modules[*name].lines).sum();
            assert!(
                ring.len() == 1 || lines <= LARGEST_RING,
                "{}: {lines} lines import each other in a ring: {ring:?}",
                row.name
            );
        }
    }
    assert!(crates > 10, "the modules are found");
}

/// A top-level module with its submodules: lines, and the other top-level modules that it uses.
#[derive(Default)]
struct Module {
    lines: usize,
    uses: BTreeSet<String>,
}

fn modules_of(src: &Path) -> BTreeMap<String, Module> {
    let mut modules: BTreeMap<String, Module> = BTreeMap::new();
    for file in files_below(src, &["rs"]) {
        let path = file.strip_prefix(src).unwrap().with_extension("");
        let path: Vec<&str> = path.iter().map(|part| part.to_str().unwrap()).collect();
        if path == ["lib"] || path == ["main"] || path.last().unwrap().ends_with("_test") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]\nmod ").next().unwrap();
        let module = modules.entry(path[0].to_owned()).or_default();
        module.lines += text.lines().count();
        let code: String = text.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n");
        let depth = path.len();
        module.uses.extend(named_after(&code, "crate::"));
        // `super` of a top-level module is the crate itself.
        module.uses.extend(named_after(&code, &"super::".repeat(depth)));
    }
    let known: BTreeSet<String> = modules.keys().cloned().collect();
    for (name, module) in &mut modules {
        module.uses.retain(|used| used != name && known.contains(used));
    }
    modules
}

/// Names directly after a path: one, or a list in braces.
fn named_after(code: &str, path: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut named = BTreeSet::new();
    for (at, _) in code.match_indices(path) {
        // Part of a longer path.
        if code[..at].ends_with(|c: char| is_part(c) || c == ':') {
            continue;
        }
        let rest = &code[at + path.len()..];
        let Some(list) = rest.strip_prefix('{') else {
            named.insert(rest.split(|c| !is_part(c)).next().unwrap().to_owned());
            continue;
        };
        let (mut depth, mut begins) = (0, true);
        let mut name = String::new();
        for c in list.chars() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => begins = true,
                c if is_part(c) && begins => name.push(c),
                _ if !name.is_empty() => begins = false,
                _ => {}
            }
            if !begins || c == ',' {
                named.insert(std::mem::take(&mut name));
            }
        }
        named.insert(name);
    }
    named
}

/// Reachability of one module from another, directly or through others.
fn reaches(modules: &BTreeMap<String, Module>, from: &str, to: &str) -> bool {
    let (mut seen, mut waiting) = (BTreeSet::from([from]), vec![from]);
    while let Some(name) = waiting.pop() {
        if name == to {
            return true;
        }
        let uses = modules.get(name).into_iter().flat_map(|module| &module.uses);
        waiting.extend(uses.map(String::as_str).filter(|used| seen.insert(used)));
    }
    false
}

/// Phrases about the making of the product. Each is written in two parts, so that this file passes its own test.
const OUT_OF_PLACE: [(&str, &str); 8] = [
    ("issue", " #"),
    ("fix", "me"),
    ("// ", "todo"),
    ("todo", "!("),
    ("this", " session"),
    ("previous", " session"),
    ("next", " session"),
    ("language", " model wrote"),
];

#[test]
fn nothing_speaks_of_its_own_making() {
    let words: Vec<String> = OUT_OF_PLACE.iter().map(|(a, b)| format!("{a}{b}")).collect();
    let mut files = files_below(&root().join("crates"), &["rs", "toml", "json"]);
    files.extend(files_below(&root().join("docs"), &["md"]));
    let top = fs::read_dir(root()).unwrap().flatten().map(|e| e.path());
    files.extend(top.filter(|p| p.extension().is_some_and(|e| e == "md" || e == "toml")));
    for file in files {
        let text = fs::read_to_string(&file).unwrap().to_lowercase();
        for word in &words {
            assert!(!text.contains(word.as_str()), "{} says {word:?}", file.display());
        }
    }
}

/// Links between documents have existing targets.
#[test]
fn documents_link_to_what_is_there() {
    let mut files = files_below(&root().join("docs"), &["md"]);
    files.extend(
        fs::read_dir(root()).unwrap().flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "md")),
    );
    let mut links = 0;
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap();
            if target.is_empty() || target.contains("://") || target.contains(' ') {
                continue;
            }
            links += 1;
            assert!(file.parent().unwrap().join(target).exists(), "{} links to {link}", file.display());
        }
    }
    assert!(links > 20, "the links are found");
}

/// Type names that more than three files define, with the reason why each may.
const REPEATED_TYPE_NAMES: &[(&str, &str)] =
    &[("Inner", "the shared state behind a handle that is cheap to clone, private to the file of the handle")];

/// A type name that many files define says little about any of them. Associated types of a trait keep the trait's names, and
/// tests may choose freely.
#[test]
fn no_type_name_is_defined_in_many_files() {
    let mut files_of: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, code) in sources(&["testkit"]) {
        for defined in code.lines().filter_map(defined_type) {
            files_of.entry(defined.to_owned()).or_default().insert(name.clone());
        }
    }
    let repeated: BTreeSet<&str> =
        files_of.iter().filter(|(_, at)| at.len() > 3).map(|(name, _)| name.as_str()).collect();
    let allowed: BTreeSet<&str> = REPEATED_TYPE_NAMES.iter().map(|(name, _)| *name).collect();
    let first = repeated.difference(&allowed).next();
    assert!(
        first.is_none(),
        "rename some of these types, which more than three files define: {first:?} {:#?}",
        first.map(|name| &files_of[*name])
    );
    assert_eq!(repeated, allowed, "REPEATED_TYPE_NAMES lists names that are no longer repeated");
    assert!(REPEATED_TYPE_NAMES.iter().all(|(_, reason)| reason.len() > 20));
}

/// Source files of all crates but some, each by its path and without its tests.
fn sources(but: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for row in CRATES.iter().filter(|row| !but.contains(&row.name)) {
        for file in files_below(&root().join("crates").join(row.name).join("src"), &["rs"]) {
            let name = file.display().to_string();
            if name.ends_with("_test.rs") || name.contains("/tests/") {
                continue;
            }
            let text = fs::read_to_string(&file).unwrap();
            found.push((name, text.split("#[cfg(test)]\nmod ").next().unwrap().to_owned()));
        }
    }
    found
}

/// The name of a type that a line defines outside of an `impl` or function.
fn defined_type(line: &str) -> Option<&str> {
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.strip_prefix(' ')?,
        None => line,
    };
    let rest = ["struct ", "enum ", "trait ", "type "].iter().find_map(|kind| line.strip_prefix(kind))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

/// Openers that hide the subject of a message: the reader has to guess who or what is meant.
const HIDDEN_SUBJECTS: [&str; 6] = ["somebody ", "someone ", "nobody ", "whoever ", "what is ", "what was "];

/// Messages, hints and help name their subject.
#[test]
fn messages_name_their_subject() {
    let mut checked = 0;
    for (name, code) in sources(&["testkit", "bench"]) {
        for (number, line) in code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            for literal in line.split('"').skip(1).step_by(2).filter(|literal| literal.contains(' ')) {
                checked += 1;
                let lower = literal.to_lowercase();
                let hidden = HIDDEN_SUBJECTS.iter().find(|opener| lower.starts_with(*opener));
                assert!(hidden.is_none(), "{name}:{}: name the subject: {literal:?}", number + 1);
            }
        }
    }
    assert!(checked > 2000, "the literals are found: {checked}");
}

/// A word of the glossary and the public types that carry its name agree: the entry names each of them, so that a second thing
/// under one word is seen.
#[test]
fn the_glossary_names_the_types_of_its_words() {
    let page = fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let defined = public_types();
    let mut words = Vec::new();
    for line in page.lines() {
        let Some((word, entry)) = line.strip_prefix("**").and_then(|line| line.split_once("**: ")) else { continue };
        let name: String = word.split(' ').map(|part| part[..1].to_uppercase() + &part[1..]).collect();
        let types: BTreeSet<String> =
            defined.iter().filter(|path| path.ends_with(&format!("::{name}"))).cloned().collect();
        let named = entry.split_once(" Type").map_or("", |(_, types)| types).split('`').skip(1).step_by(2);
        let named: BTreeSet<String> = named.map(str::to_owned).collect();
        assert_eq!(named, types, "docs/glossary.md: types of the word {word:?}, named there and defined in the crates");
        words.push(word.to_owned());
    }
    assert!(words.len() > 50 && words.is_sorted(), "the words are found and sorted: {words:?}");
}

/// Public types of the crates that are shipped, each `crate::Name`.
fn public_types() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for package in fs::read_dir(root().join("crates")).unwrap().flatten() {
        let name = package.file_name().into_string().unwrap();
        if name == "testkit" {
            continue;
        }
        for file in files_below(&package.path().join("src"), &["rs"]) {
            for line in fs::read_to_string(file).unwrap().lines() {
                let mut words = line.split_whitespace();
                let kind = (words.next(), words.next());
                if matches!(kind, (Some("pub"), Some("struct" | "enum" | "trait" | "type"))) {
                    let defined =
                        words.next().unwrap_or_default().split(|c: char| !c.is_alphanumeric() && c != '_').next();
                    found.insert(format!("{name}::{}", defined.unwrap_or_default()));
                }
            }
        }
    }
    found
}

fn files_below(dir: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_below(&path, extensions));
        } else if path.extension().and_then(|e| e.to_str()).is_some_and(|e| extensions.contains(&e)) {
            found.push(path);
        }
    }
    found
}
