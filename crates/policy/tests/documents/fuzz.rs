//! A fuzzer without external tools: the kept corpus, mutated from a seed. The number of inputs is fixed;
//! `COFFERDAM_FULL=1` tries a hundred times as many. A failure prints the seed and the input; add the input to the
//! corpus as a file, and `corpus_never_panics` keeps testing it.

use policy::{Context, Document, Format, PolicyError, effective, import, parse, resolve};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use testkit::sample::{self, Random, mutate};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    PolicyJson,
    PolicyToml,
    Srt,
    Codex,
}

/// Fragments that random bytes would never produce.
const WORDS: [&str; 44] = [
    "\"version\": 1",
    "version = 1",
    "\"fs\"",
    "\"rules\"",
    "\"action\"",
    "\"allow\"",
    "\"deny\"",
    "\"path\"",
    "\"perms\"",
    "\"make_*\"",
    "\"read_file\"",
    "$WORKSPACE",
    "$TOOLCHAINS/",
    "~/",
    "/**/",
    "[a-z]",
    "[!",
    "]",
    "..",
    "//",
    "\\u0000",
    "\\ud800",
    "\"host\"",
    "*.",
    "**.",
    "0x7f.1",
    "::ffff:1.2.3.4",
    "10.0.0.0/8",
    "1-65535",
    "\"max_memory_mb\"",
    "1e308",
    "-0.0",
    "9007199254740992",
    "[[fs.rules]]",
    "[env.set]",
    "inf",
    "1979-05-27",
    "'''",
    "\"\"\"",
    "é",
    "\u{200b}",
    ":root",
    "allowedDomains",
    "[permissions.",
];

fn context() -> Context {
    Context { home: "/home/u".into(), workspace: "/w".into(), toolchains: vec!["/t".into(), "/u".into()] }
}

/// Checks the invariants of any input; returns whether it was accepted.
fn check(target: Target, text: &str) -> bool {
    let result = match target {
        Target::PolicyJson => parse(text, Format::Json, "f"),
        Target::PolicyToml => parse(text, Format::Toml, "f"),
        Target::Srt => import::srt(text, "f").map(|i| i.document),
        Target::Codex => import::codex(text, "f", None).map(|i| i.document),
    };
    let _ = import::detect(text);
    match result {
        Ok(document) => {
            check_document(&document);
            true
        }
        Err(error) => {
            check_error(&error, text);
            false
        }
    }
}

fn check_document(document: &Document) {
    let json = document.to_json();
    assert_eq!(parse(&json, Format::Json, "f").as_ref(), Ok(document), "{json}");
    let toml = document.to_toml();
    assert_eq!(parse(&toml, Format::Toml, "f").as_ref(), Ok(document), "{toml}");
    if let Ok(policy) = effective(std::slice::from_ref(document))
        && let Ok(resolved) = resolve(&policy, &context())
    {
        let _ = policy::explain_fs(&resolved, Path::new("/w/a")).to_json();
        let _ = policy::explain_net(&resolved, &policy::NetRequest::tcp("a.example.org", 443)).to_text();
        assert!(policy::diff(&policy, &policy).is_empty());
    }
}

fn check_error(error: &PolicyError, text: &str) {
    assert!(!error.message.is_empty());
    assert!(error.line >= 1 && error.column >= 1, "{error} has no place");
    assert!(error.line <= text.split('\n').count() + 1, "{error} is past the end");
}

/// Runs one input; a panic names the seed and the input.
fn run(target: Target, text: &str, seed: u64) -> bool {
    match catch_unwind(AssertUnwindSafe(|| check(target, text))) {
        Ok(accepted) => accepted,
        Err(_) => panic!("{target:?} failed; COFFERDAM_TEST_SEED={seed}\ninput: {text:?}"),
    }
}

fn corpus() -> Vec<(Target, PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut out = Vec::new();
    for dir in ["policy", "srt", "codex"] {
        let entries = std::fs::read_dir(root.join(dir)).expect("the corpus is kept");
        for path in entries.filter_map(|e| e.ok().map(|e| e.path())) {
            let text = String::from_utf8_lossy(&std::fs::read(&path).expect("readable")).into_owned();
            let target = match (dir, path.extension().is_some_and(|e| e == "toml")) {
                ("srt", _) => Target::Srt,
                ("codex", _) => Target::Codex,
                (_, true) => Target::PolicyToml,
                (_, false) => Target::PolicyJson,
            };
            out.push((target, path, text));
        }
    }
    out.sort_by(|a, b| a.1.cmp(&b.1));
    out
}

#[test]
fn corpus_never_panics() {
    let corpus = corpus();
    for (_, path, text) in &corpus {
        for target in [Target::PolicyJson, Target::PolicyToml, Target::Srt, Target::Codex] {
            if catch_unwind(AssertUnwindSafe(|| check(target, text))).is_err() {
                panic!("{} as {target:?}", path.display());
            }
        }
    }
    println!("{} files of the corpus", corpus.len());
}

/// Inputs per target in one run of the tests.
const INPUTS: u64 = 8_000;

fn fuzz(targets: &[Target]) {
    let seed = sample::seed();
    let mut random = Random(seed);
    let mut pool: Vec<(Target, String)> =
        corpus().into_iter().filter(|c| targets.contains(&c.0)).map(|c| (c.0, c.2)).collect();
    let mut accepted = 0u64;
    let inputs = sample::times(INPUTS, 100 * INPUTS);
    for _ in 0..inputs {
        let (target, text) = pool[random.below(pool.len())].clone();
        let other = pool[random.below(pool.len())].1.clone();
        let words: Vec<&[u8]> = WORDS.iter().map(|word| word.as_bytes()).collect();
        let bytes = mutate(text.as_bytes(), other.as_bytes(), &words, &mut random);
        let input = String::from_utf8_lossy(&bytes).into_owned();
        if run(target, &input, seed) {
            accepted += 1;
            // Accepted inputs lead further than refused ones.
            if pool.len() < 500 && input.len() < 8000 {
                pool.push((target, input));
            }
        }
    }
    println!("{targets:?}: {inputs} inputs, {accepted} accepted, seed {seed}");
    assert!(accepted > 0, "nothing was accepted: the corpus has rotted");
}

// promise 10
#[test]
fn fuzz_policy() {
    fuzz(&[Target::PolicyJson, Target::PolicyToml]);
}

// promise 10
#[test]
fn fuzz_srt() {
    fuzz(&[Target::Srt]);
}

// promise 10
#[test]
fn fuzz_codex() {
    fuzz(&[Target::Codex]);
}
