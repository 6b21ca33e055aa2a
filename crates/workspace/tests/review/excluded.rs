//! Artefacts and ignored files do not clutter a review, and no change can hide behind them.

use crate::fixture::*;
use api::Diff;

fn held(diff: &Diff) -> Vec<String> {
    diff.withheld.iter().map(|h| format!("{} ({} files)", h.path, h.files)).collect()
}

// promise 13
#[test]
fn artefacts_are_withheld_and_counted() {
    let w = StackFixture::new();
    write(&w.base(), "Cargo.toml", "[package]\n");
    for path in [
        "target/debug/x",
        "target/y",
        "web/node_modules/p/package.json",
        "web/node_modules/p/Makefile",
        "__pycache__/a.pyc",
    ] {
        write(&w.up(), path, vec![b'x'; 5000]);
    }
    write(&w.up(), "other/target/z", "not beside a Cargo.toml\n");
    write(&w.up(), "build/out", "not ignored by anybody\n");
    write(&w.up(), "src/lib.rs", "code\n");
    let diff = w.diff();
    assert_eq!(summary(&diff), ["added build/out", "added other/target/z", "added src/lib.rs"]);
    assert_eq!(held(&diff), ["__pycache__ (1 files)", "target (2 files)", "web/node_modules (2 files)"]);
    assert!(diff.withheld.iter().all(|h| h.bytes >= 4096), "{:?}", diff.withheld);
    let all = w.diff_all();
    assert_eq!((all.files.len(), all.withheld.len()), (8, 0));
    assert_ne!(all.digest, diff.digest);
}

// promise 13
#[test]
fn the_bases_own_rules_count() {
    let w = StackFixture::new();
    write(&w.base(), ".gitignore", "*.log\n/build/\n!keep.log\n");
    write(&w.base(), "sub/.gitignore", "local\n");
    write(&w.base(), ".git/info/exclude", "private\n");
    write(&w.base(), "tracked.log", "1\n");
    for path in ["a.log", "build/x/y", "sub/local", "private", "keep.log", "local", "sub/build", "tracked.log"] {
        write(&w.up(), path, "2\n");
    }
    let diff = w.diff();
    assert_eq!(summary(&diff), ["added keep.log", "added local", "added sub/build", "modified tracked.log"]);
    assert_eq!(held(&diff), ["a.log (1 files)", "build (1 files)", "private (1 files)", "sub/local (1 files)"]);
}

// promise 13
#[test]
fn rules_that_the_guest_wrote_hide_nothing() {
    let w = StackFixture::new();
    write(&w.base(), ".gitignore", "*.log\n");
    write(&w.up(), ".gitignore", "*\n");
    write(&w.up(), "evil.sh", "x\n");
    write(&w.up(), "deep/.gitignore", "*\n");
    write(&w.up(), "deep/evil.sh", "x\n");
    write(&w.up(), "x.log", "control\n");
    let diff = w.diff();
    assert_eq!(summary(&diff), ["modified .gitignore", "added deep/.gitignore", "added deep/evil.sh", "added evil.sh"]);
    assert_eq!(held(&diff), ["x.log (1 files)"]);
}

// promise 13
#[test]
fn what_runs_on_the_reviewers_machine_is_shown_though_it_is_ignored() {
    let w = StackFixture::new();
    write(&w.base(), ".gitignore", ".envrc\n.vscode/\nlocal/\n");
    for path in [".envrc", ".vscode/tasks.json", "local/deep/Makefile", "local/deep/plain"] {
        write(&w.up(), path, "x\n");
    }
    let diff = w.diff();
    assert_eq!(summary(&diff), ["added .envrc", "added .vscode/tasks.json", "added local/deep/Makefile"]);
    assert_eq!(held(&diff), ["local (1 files)"]);
}

/// A tool's environment holds thousands of files, all below a name with a rule.
#[test]
fn environments_of_tools_are_withheld_where_the_base_ignores_them() {
    let w = StackFixture::new();
    write(&w.base(), ".gitignore", ".pixi/\n.vitepress/cache\n");
    for path in [".pixi/envs/x", ".vitepress/cache/x", ".vitepress/config.ts", ".conan2/x"] {
        write(&w.up(), path, "x\n");
    }
    let diff = w.diff();
    assert_eq!(
        summary(&diff),
        ["added .conan2/x", "added .vitepress/config.ts"],
        "control: what is not ignored is shown"
    );
    assert_eq!(held(&diff), [".pixi (1 files)", ".vitepress/cache (1 files)"]);
}

#[test]
fn artefacts_that_the_base_has_are_withheld_only_where_it_ignores_them() {
    let w = StackFixture::new();
    write(&w.base(), ".gitignore", "/target\n");
    write(&w.base(), "Cargo.toml", "");
    write(&w.base(), "target/debug/x", "1");
    write(&w.base(), "sub/Cargo.toml", "");
    write(&w.base(), "sub/target/kept-in-git", "1");
    write(&w.up(), "target/debug/x", "2");
    write(&w.up(), "sub/target/kept-in-git", "2");
    let diff = w.diff();
    assert_eq!(
        (summary(&diff), held(&diff)),
        (vec!["modified sub/target/kept-in-git".into()], vec!["target (1 files)".into()])
    );
}

#[test]
fn many_ignored_files_are_one_line() {
    let w = StackFixture::new();
    write(&w.base(), ".gitignore", "*.log\n");
    (0..50).for_each(|n| write(&w.up(), &format!("logs/{n}.log"), "x"));
    assert_eq!(held(&w.diff()), ["logs (50 files)"]);
}

#[test]
fn what_is_withheld_can_be_pruned_and_nothing_else_goes() {
    let w = StackFixture::new();
    write(&w.base(), ".gitignore", "*.log\nlocal/\n/target\n");
    write(&w.base(), "Cargo.toml", "");
    write(&w.base(), "target/old", "1");
    for path in [
        "target/old",
        "target/new",
        "a.log",
        "local/x",
        "local/Makefile",
        "local/node_modules/p/y",
        "src/main.rs",
        ".git/index",
    ] {
        write(&w.up(), path, "2\n");
    }
    let before = w.diff();
    let removed = workspace::diff::prune(&w.stack(), &Default::default()).unwrap();
    assert_eq!(removed.files, 5);
    let after = w.diff();
    assert_eq!((&after.digest, summary(&after)), (&before.digest, summary(&before)), "what is reviewed stays");
    assert_eq!(summary(&after), ["added local/Makefile", "added src/main.rs"]);
    assert_eq!(held(&after), [".git (1 files)"]);
    assert!(w.base().join("target/old").exists());
}
