//! The house as a test: which crate may use which, which outside library it may use and why, and the habits that a
//! compiler does not check. The table below is the only place where an edge or a library is allowed.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A crate, the crates of the house it may use, and the outside libraries it may use.
struct Room {
    name: &'static str,
    uses: &'static [&'static str],
    libraries: &'static [&'static str],
    test_libraries: &'static [&'static str],
}

/// Doors use the hall, the hall uses rooms, rooms use the ground, and nothing points up or sideways; but for doors: the command line
/// opens all of them, and the daemon is a client itself when it tells a collector.
const HOUSE: &[Room] = &[
    Room { name: "terms", uses: &[], libraries: &["base64", "serde", "utoipa"], test_libraries: &[] },
    Room {
        name: "policy",
        uses: &["terms"],
        libraries: &["serde", "serde_json", "serde_path_to_error", "sha2", "toml"],
        test_libraries: &["proptest"],
    },
    Room { name: "testkit", uses: &[], libraries: &["serde_json"], test_libraries: &[] },
    Room { name: "sys", uses: &[], libraries: &["libc"], test_libraries: &[] },
    Room {
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
    Room {
        name: "enclosure",
        uses: &["policy", "sys", "terms"],
        libraries: &["rustix", "serde_json", "sha2"],
        test_libraries: &[],
    },
    Room {
        name: "store",
        uses: &["terms"],
        libraries: &["rusqlite", "rustix", "serde", "serde_json", "sha2", "utoipa"],
        test_libraries: &["proptest"],
    },
    Room {
        name: "workspace",
        uses: &["sys", "terms"],
        libraries: &[
            "base64",
            "globset",
            "rustix",
            "serde",
            "serde_json",
            "sha1",
            "sha2",
            "similar",
            "tar",
            "unicode-normalization",
            "utoipa",
            "zstd",
        ],
        test_libraries: &["proptest"],
    },
    Room { name: "host", uses: &["sys", "terms"], libraries: &["rustix", "serde", "serde_json"], test_libraries: &[] },
    Room {
        name: "node",
        uses: &["egress", "enclosure", "host", "policy", "store", "sys", "terms", "workspace"],
        libraries: &["globset", "regex-automata", "rustix", "serde", "serde_json", "sha2", "toml", "utoipa"],
        test_libraries: &["proptest"],
    },
    Room {
        name: "server",
        uses: &["client", "node", "terms"],
        libraries: &[
            "axum",
            "base64",
            "bytes",
            "futures-util",
            "http",
            "http-body-util",
            "hyper",
            "hyper-util",
            "rustix",
            "serde",
            "serde_json",
            "serde_path_to_error",
            "sha2",
            "tokio",
            "tokio-rustls",
            "tower",
            "utoipa",
            "utoipa-axum",
        ],
        test_libraries: &[],
    },
    Room {
        name: "client",
        uses: &["terms"],
        libraries: &[
            "base64",
            "bytes",
            "http",
            "http-body-util",
            "hyper",
            "hyper-util",
            "rustix",
            "rustls-native-certs",
            "serde",
            "serde_json",
            "tokio",
            "tokio-rustls",
        ],
        test_libraries: &[],
    },
    Room {
        name: "bench",
        uses: &["node", "store", "sys", "terms", "workspace"],
        libraries: &["rustix", "serde", "serde_json"],
        test_libraries: &[],
    },
    Room {
        name: "cli",
        uses: &["bench", "client", "host", "node", "server", "terms"],
        libraries: &["clap", "clap_complete", "clap_mangen", "rustix", "serde", "serde_json"],
        test_libraries: &["base64", "serde_json"],
    },
];

/// Every outside library, with the reason it is here.
const LIBRARIES: &[(&str, &str)] = &[
    ("aho-corasick", "finds the spellings of a secret in an answer in one pass"),
    ("axum", "routes, extractors, server-sent events and WebSockets of the HTTP API"),
    ("base64", "reads Basic credentials, and spells secrets as servers tell them back"),
    ("bytes", "pieces of bodies that pass from one stream to another without a copy"),
    ("clap", "one tree of flags makes parsing, help, the man page and completions"),
    ("clap_complete", "completion scripts from that tree"),
    ("clap_mangen", "the man page from that tree"),
    ("futures-util", "streams of events and of bodies"),
    ("globset", "paths that are chosen in review by pattern, and names of build artefacts"),
    ("h2", "HTTP/2 towards the guest and towards servers, with its flow control"),
    ("http", "heads of HTTP/2, as h2 gives and takes them"),
    ("http-body-util", "bodies with an end that is known before they are read"),
    ("hyper", "HTTP/1.1 as a server, and as a client of it"),
    ("hyper-util", "the same on sockets of tokio, with time limits on heads"),
    ("libc", "numbers and structures of the kernel, for the one crate that calls it directly"),
    ("proptest", "properties of merging and planning over generated policies; tests only"),
    ("rcgen", "the certificate authority of a guest and its leaves"),
    (
        "regex-automata",
        "searches the bytes of files step by step, so that a search ends in time whatever the pattern is",
    ),
    ("rusqlite", "records and the journal in one file that survives a power failure"),
    ("rustix", "safe calls for code that may allocate: poll, pipes, terminals, openat2"),
    ("rustls-native-certs", "the authorities that the host trusts, wherever its system keeps them"),
    ("serde", "documents that leave the product, and policies that enter it, as types"),
    ("serde_json", "JSON: outcomes, faults, policies"),
    ("serde_path_to_error", "a mistake in a policy is told with the key it is at"),
    ("sha1", "names of blobs, which git wants to see in patches of binary files"),
    ("sha2", "digests of policies and of programs that rules name by digest"),
    ("similar", "differences between texts, by lines and by words"),
    ("tar", "workspaces as one file that other tools can look into"),
    ("tokio", "thousands of connections of a guest on one thread, each written as if it were alone"),
    ("tokio-rustls", "TLS without OpenSSL, towards the guest and towards servers"),
    ("toml", "policies and the configuration in TOML, and the permissions of a neighbour to import"),
    ("tower", "layers that stand before every route"),
    ("unicode-normalization", "names that other systems take for the same, and patterns that must not miss them"),
    ("utoipa", "the OpenAPI document from the types that routes take and give"),
    ("utoipa-axum", "a route and its description in one place, so that none lacks the other"),
    ("zeroize", "wipes the copies of secrets that were made to send them"),
    ("zstd", "that file, small"),
];

fn root() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap()
}

/// The packages of the workspace as cargo itself sees them.
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

/// The name a crate goes by in the house: `terms` for `cofferdam-terms`, `cli` for the binary.
fn house_name(package: &str) -> Option<&str> {
    match package {
        "cofferdam" => Some("cli"),
        other => other.strip_prefix("cofferdam-"),
    }
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[test]
fn the_house_is_as_drawn() {
    let packages = packages();
    let built: BTreeSet<&str> = packages.iter().filter_map(|p| house_name(text_of(&p["name"]))).collect();
    let drawn: BTreeSet<&str> = HOUSE.iter().map(|r| r.name).collect();
    assert_eq!(built, drawn, "every crate has a row in HOUSE, and every row a crate");
    for package in &packages {
        let name = house_name(text_of(&package["name"])).expect("a crate of the house");
        let room = HOUSE.iter().find(|r| r.name == name).unwrap();
        for dependency in package["dependencies"].as_array().unwrap() {
            let used = text_of(&dependency["name"]);
            let kind = dependency["kind"].as_str().unwrap_or("normal");
            let allowed = match (house_name(used), kind) {
                (Some(neighbour), "normal") => room.uses.contains(&neighbour),
                (None, "normal") => room.libraries.contains(&used),
                (None, "dev") => room.test_libraries.contains(&used),
                // What tests of several crates share; nothing that is shipped may use it.
                (Some("testkit"), "dev") => true,
                // What tests use must not draw an edge that the house does not have; build scripts there are none.
                _ => false,
            };
            assert!(allowed, "{name} uses {used} ({kind}), and HOUSE does not say so");
        }
    }
}

#[test]
fn nothing_in_the_table_is_unused() {
    let packages = packages();
    for room in HOUSE {
        let package = packages.iter().find(|p| house_name(text_of(&p["name"])) == Some(room.name)).unwrap();
        let used: BTreeSet<&str> =
            package["dependencies"].as_array().unwrap().iter().map(|d| text_of(&d["name"])).collect();
        for library in room.libraries.iter().chain(room.test_libraries) {
            assert!(used.contains(library), "{} no longer uses {library}", room.name);
        }
        for neighbour in room.uses {
            assert!(
                used.contains(format!("cofferdam-{neighbour}").as_str()),
                "{} no longer uses {neighbour}",
                room.name
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
    let outside: BTreeSet<&str> = named.filter(|name| !HOUSE.iter().any(|r| r.name == *name)).collect();
    let reasoned: BTreeSet<&str> = LIBRARIES.iter().map(|(name, _)| *name).collect();
    assert_eq!(outside, reasoned, "[workspace.dependencies] and LIBRARIES name the same");
    assert!(LIBRARIES.iter().all(|(_, reason)| reason.len() > 10));
    for room in HOUSE {
        let listed = room.libraries.iter().chain(room.test_libraries);
        listed.for_each(|l| assert!(reasoned.contains(l), "{} uses {l}, which has no reason", room.name));
    }
}

#[test]
fn unsafe_code_is_forbidden_everywhere_but_in_sys() {
    let workspace = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let lints = workspace.split("[workspace.lints.rust]\n").nth(1).expect("the section");
    assert!(lints.split("\n[").next().unwrap().lines().any(|l| l == "unsafe_code = \"forbid\""));
    for room in HOUSE.iter().filter(|r| r.name != "sys") {
        let manifest = fs::read_to_string(root().join("crates").join(room.name).join("Cargo.toml")).unwrap();
        assert!(manifest.contains("\n[lints]\nworkspace = true\n"), "{} must take the workspace's lints", room.name);
    }
    let sys = fs::read_to_string(root().join("crates/sys/Cargo.toml")).unwrap();
    assert!(sys.contains("undocumented_unsafe_blocks"), "sys must say why each block is sound");
}

/// The standard library asks for some calls as for ones that the C library may not have. A release is linked as one program from an
/// archive, and then they are null, whoever else calls them: a start once died of that in releases alone. In a program that is linked
/// piece by piece, such a name is there as soon as anything calls it, ours or a library's, and that is seen here.
#[test]
fn nothing_is_called_that_a_release_does_not_have() {
    // Those that this test's own program asks for, and some that it has no use for itself.
    let asked: BTreeSet<String> = symbols(&std::env::current_exe().unwrap()).missing;
    let known = ["copy_file_range", "gettid", "pidfd_getpid", "statx"].map(str::to_owned);
    let program = symbols(Path::new(env!("CARGO_BIN_EXE_cofferdam")));
    assert!(asked.contains("gettid") && program.missing.contains("gettid"), "they are found: {asked:?}");
    for name in asked.iter().chain(&known) {
        assert!(!program.there.contains(name), "something calls {name}, which is null in a release: ask the kernel");
    }
    assert!(program.there.contains("getpid"), "the control: what is called is there");
}

/// The names of a linked program: those that are there, and those that may be missing and are.
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
    // Tests kept in a file of their own are explained by the file they stand beside.
    let is_test = |f: &Path| f.to_string_lossy().ends_with("_test.rs");
    let in_src = |f: &Path| f.components().any(|c| c.as_os_str() == "src");
    let sources: Vec<_> = files.iter().filter(|f| in_src(f) && !is_test(f)).collect();
    assert!(sources.len() > 50, "the files are found");
    for file in sources {
        let text = fs::read_to_string(file).unwrap();
        assert!(text.starts_with("//! "), "{} opens with no //! comment", file.display());
    }
}

/// What belongs to the making of the product and not to the product. Each is written in two parts, so that this file
/// passes its own test.
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

/// Links between documents lead somewhere.
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

/// A promise names the tests that show it, and they exist.
#[test]
fn every_promise_has_its_test() {
    let page = fs::read_to_string(root().join("PROMISES.md")).unwrap();
    let sources: String =
        files_below(&root().join("crates"), &["rs"]).iter().map(|f| fs::read_to_string(f).unwrap()).collect();
    // Looked up by name: to search megabytes for each takes half a minute.
    let functions: BTreeSet<&str> = sources.split("fn ").filter_map(|rest| rest.split('(').next()).collect();
    let mut named = 0;
    for row in page.lines().filter(|l| l.starts_with("| ")) {
        let shown_by = row.trim_end_matches('|').rsplit('|').next().unwrap();
        let names = shown_by.split('`').skip(1).step_by(2);
        let tests = names.filter(|n| n.contains('_') && n.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'));
        for test in tests {
            named += 1;
            assert!(functions.contains(test), "PROMISES.md names {test}, which is no test");
        }
    }
    assert!(named > 50, "the tests are found: {named}");
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
