//! Changes that run on the reviewer's machine form a class of their own, and changes that can never land are marked.

use crate::fixture::*;
use api::{ChangeClass, ChangeFlag};

/// The class of a change of this path to the given content.
fn class_of(path: &str, before: Option<&str>, after: &str) -> ChangeClass {
    let w = StackFixture::new();
    if let Some(before) = before {
        write(&w.base(), path, before);
    }
    write(&w.up(), path, after);
    file(&w.diff_all(), path).change.class.clone()
}

fn runs(path: &str, before: Option<&str>, after: &str) -> bool {
    matches!(class_of(path, before, after), ChangeClass::RunsOnHost { .. })
}

// promise 13
#[test]
fn what_runs_on_the_reviewers_machine_is_told_even_when_it_is_new() {
    let paths = [
        ".gitmodules",
        ".gitattributes",
        "sub/.gitattributes",
        ".envrc",
        ".vscode/tasks.json",
        ".vscode/settings.json",
        "a/b/.vscode/launch.json",
        ".idea/workspace.xml",
        ".devcontainer/devcontainer.json",
        ".github/workflows/ci.yml",
        ".github/actions/x/action.yml",
        ".gitlab-ci.yml",
        ".circleci/config.yml",
        "Jenkinsfile",
        "azure-pipelines.yml",
        ".drone.yml",
        ".npmrc",
        "setup.py",
        "build.rs",
        ".cargo/config.toml",
        "conftest.py",
        "tests/conftest.py",
        "Rakefile",
        "Gemfile",
        "src/dune",
        "dune-workspace",
        "x.cabal",
        "cabal.project.local",
        "config.nims",
        "x.nimble",
        "deps.edn",
        "bb.edn",
        "Build.PL",
        "cpanfile",
        "conanfile.py",
        "Tupfile",
        "src/Tupfile.lua",
        "Cakefile",
        "Jakefile.js",
        "app.pro",
        "hook/build.dart",
        "deps/build.jl",
        "CMakeUserPresets.json",
        "angular.json",
        "libs/a/project.json",
        ".moon/tasks.yml",
        ".air.toml",
        "release.config.js",
        "jupyter_notebook_config.py",
        "docs/source/conf.py",
        ".lazy.lua",
        "Dockerfile",
        "Dockerfile.dev",
        "docker-compose.yml",
        "docker-compose.override.yaml",
        "compose.yaml",
        "Makefile",
        "makefile",
        "GNUmakefile",
        "rules.mk",
        "justfile",
        "CMakeLists.txt",
        "configure",
        "meson.build",
        "build.ninja",
        ".bashrc",
        "home/.zshrc",
        ".profile",
        ".mcp.json",
        ".cursor/rules/x.mdc",
        ".claude/settings.json",
        "CLAUDE.md",
        "AGENTS.md",
        ".codex/config.toml",
        ".gemini/settings.json",
        ".windsurfrules",
        ".aider.conf.yml",
        "lib/python/site-packages/x.pth",
        "sitecustomize.py",
        ".pre-commit-config.yaml",
        ".husky/pre-commit",
        "lefthook.yml",
        ".tool-versions",
        "mise.toml",
        ".mise.toml",
        "x.service",
        "x.timer",
        "app.desktop",
        ".exrc",
        ".dir-locals.el",
        ".nvimrc",
        "MAKEFILE",
        ".VSCode/Tasks.JSON",
        "Makefile.",
        ".ENVRC",
        "woodpecker/.woodpecker.yml",
        "webpack.config.js",
        "new\nline/Makefile",
        ".env\u{200b}rc",
        ".Rprofile",
        ".ghci",
        ".iex.exs",
        "binding.gyp",
        "ansible.cfg",
        "skaffold.yaml",
        ".pylintrc",
        "mypy.ini",
        "tools/bazel",
        ".hg/hgrc",
        "tools/hooks/pre-commit",
        "hooks/commit-msg",
        ".jj/repo/config.toml",
        "gradle/extra.gradle",
    ];
    for path in paths {
        assert!(runs(path, None, "x\n"), "{path} is new");
    }
    for path in ["src/main.rs", "README.md", "makefile_notes.txt", "makefile.py", "docs/agents/list.md", "a.c", "envrc"]
    {
        assert_eq!(class_of(path, None, "x\n"), ChangeClass::Ordinary, "control: {path}");
    }
}

const ELF: &[u8] = b"\x7fELF\x02\x01\x01\0\0";
const DIR_WHY: &str = "new hidden directory, which tools may obey";
const FILE_WHY: &str = "new hidden file at the top, which tools may obey";
const CODE_WHY: &str = "executable that is not text";

/// A change of a file: path, mode and content before (if it existed) and after, expected reason and flags.
type Case =
    (&'static str, Option<(u32, &'static [u8])>, (u32, &'static [u8]), Option<&'static str>, &'static [ChangeFlag]);

/// Names without a rule are judged by their kind: some are held back, others only marked.
#[test]
fn what_no_rule_knows_is_held_or_marked() {
    use ChangeFlag::{Binary, Executable, HiddenPath, Large, Script};
    let text: &[u8] = b"text\n";
    let script: &[u8] = b"#!/bin/sh\ntrue\n";
    let large: &[u8] = Box::leak(vec![b'x'; (1 << 20) + 1].into_boxed_slice());
    let cases: &[Case] = &[
        // Hidden directories: new ones are held at any depth, those of the base are marked.
        (".unheard/x", None, (0o644, text), Some(DIR_WHY), &[]),
        ("a/b/.unheard/c/x", None, (0o644, text), Some(DIR_WHY), &[]),
        (".inbase/x", None, (0o644, text), None, &[HiddenPath]),
        (".INBASE/x", None, (0o644, text), Some(DIR_WHY), &[ChangeFlag::Twin]),
        (".inbase/.new/x", None, (0o644, text), Some(DIR_WHY), &[]),
        (".was-a-file/x", None, (0o644, text), Some(DIR_WHY), &[]),
        ("\u{200b}.unseen/x", None, (0o644, text), Some(DIR_WHY), &[ChangeFlag::HiddenName]),
        (".../x", None, (0o644, text), Some(DIR_WHY), &[]),
        (".well-known/security.txt", None, (0o644, text), None, &[]),
        (".venv/lib/x.py", None, (0o644, text), None, &[]),
        ("un.hidden/x", None, (0o644, text), None, &[]),
        // Hidden files: new ones at the top are held.
        (".unheardof", None, (0o644, text), Some(FILE_WHY), &[]),
        (".changed", Some((0o644, b"old\n")), (0o644, text), None, &[HiddenPath]),
        ("sub/.unheardof", None, (0o644, text), None, &[HiddenPath]),
        (".gitignore", None, (0o644, text), None, &[]),
        (".editorconfig", None, (0o644, text), None, &[]),
        ("sub/.gitkeep", None, (0o644, text), None, &[]),
        // Executables: machine code and files too large to inspect are held; scripts are marked.
        ("prog", None, (0o755, ELF), Some(CODE_WHY), &[Binary, Executable]),
        ("prog-edited", Some((0o755, b"\x7fELF\0old")), (0o755, ELF), Some(CODE_WHY), &[Binary]),
        ("prog-chmod", Some((0o644, ELF)), (0o755, ELF), Some(CODE_WHY), &[Executable]),
        ("prog-closed", Some((0o755, ELF)), (0o700, ELF), None, &[]),
        ("library.so", None, (0o644, ELF), None, &[Binary]),
        ("self-extracting", None, (0o755, b"#!/bin/sh\nexit\n\0\0"), Some(CODE_WHY), &[Binary, Executable, Script]),
        ("large", None, (0o755, large), Some(CODE_WHY), &[Large, Executable]),
        ("picture.png", None, (0o755, b"\x89PNG\0"), None, &[Binary, Executable]),
        ("scripts/foo.sh", None, (0o755, script), None, &[Executable, Script]),
        ("scripts/bar.sh", None, (0o644, script), None, &[Script]),
        ("scripts/chmod.sh", Some((0o644, script)), (0o755, script), None, &[Executable]),
        ("scripts/edit.sh", Some((0o755, b"#!/bin/sh\n")), (0o755, script), None, &[]),
        ("scripts/other.sh", Some((0o755, b"#!/bin/bash\n")), (0o755, script), None, &[Script]),
        ("run.CMD", None, (0o644, text), None, &[Script]),
        ("old.bat", Some((0o644, b"old\n")), (0o644, text), None, &[]),
        ("plain", None, (0o644, text), None, &[]),
    ];
    let w = StackFixture::new();
    write(&w.base(), ".inbase/kept", "x");
    write(&w.base(), ".was-a-file", "x");
    for (path, before, after, ..) in cases {
        let sides = [before.map(|side| (w.base(), side)), Some((w.up(), *after))];
        for (dir, (mode, bytes)) in sides.into_iter().flatten() {
            write(&dir, path, bytes);
            chmod(&dir, path, mode);
        }
    }
    let diff = w.diff_all();
    for (path, _, _, why, flags) in cases {
        let change = &file(&diff, path).change;
        let held = match &change.class {
            ChangeClass::RunsOnHost { why } => Some(why.as_str()),
            _ => None,
        };
        assert_eq!((held, &change.flags[..]), (*why, *flags), "{path:?}");
    }
}

/// A directory is not the file that a rule names: removing `build` is no change of a build script.
#[test]
fn directories_count_only_where_what_is_in_them_does() {
    let w = StackFixture::new();
    for dir in ["build", "deps", ".husky"] {
        write(&w.base(), &format!("{dir}/x"), "x");
        strike(&w.up(), dir);
    }
    let diff = w.diff_all();
    let runs = |path: &str| matches!(file(&diff, path).change.class, ChangeClass::RunsOnHost { .. });
    assert_eq!((runs("build"), runs("deps"), runs(".husky"), runs(".husky/x")), (false, false, true, true));
}

/// Very deep paths with every component hidden take bounded time.
#[test]
fn deep_hidden_paths_are_told_soon() {
    let w = StackFixture::new();
    let deep = vec![".d"; 1000].join("/");
    write(&w.base(), &format!("{deep}/kept"), "x");
    (0..200).for_each(|n| write(&w.up(), &format!("{deep}/{n}"), "x"));
    let diff = w.diff_all();
    assert_eq!(diff.files.len(), 200);
    assert!(diff.files.iter().all(|file| file.change.flags == [ChangeFlag::HiddenPath]));
}

// promise 13
#[test]
fn some_files_count_only_when_what_runs_differs() {
    let package = r#"{"name": "x", "version": "1", "scripts": {"test": "true"}}"#;
    assert!(!runs("package.json", Some(package), &package.replace("\"1\"", "\"2\"")));
    assert!(runs("package.json", Some(package), &package.replace("true", "evil")));
    assert!(runs("package.json", Some(package), "not json"));
    assert!(runs("package.json", None, package));
    assert!(!runs("package.json", None, r#"{"name": "x"}"#));
    let cargo = "[package]\nname = \"x\"\nversion = \"1\"\n";
    assert!(!runs("Cargo.toml", Some(cargo), &cargo.replace("\"1\"", "\"2\"")));
    assert!(runs("Cargo.toml", Some(cargo), &format!("{cargo}build = \"evil.rs\"\n")));
    assert!(runs("Cargo.toml", Some(cargo), &format!("{cargo}\"bu\\u0069ld\" = \"evil.rs\"\n")));
    let python = "[build-system]\nrequires = [\"setuptools\"]\n[project]\nversion = \"1\"\n";
    assert!(!runs("pyproject.toml", Some(python), &python.replace("\"1\"", "\"2\"")));
    assert!(runs("pyproject.toml", Some(python), &python.replace("setuptools", "evil")));
    assert!(runs("pyproject.toml", Some(python), &format!("{python}[tool.x]\ny = 1\n")));
    let packages = "requests==2.0\n";
    assert!(!runs("requirements.txt", Some(packages), "requests==2.1\n"));
    assert!(runs("requirements.txt", Some(packages), "--index-url https://evil.example\nrequests==2.0\n"));
}

/// A section header followed by a comment, or one within a multi-line string, hides nothing.
// promise 13
#[test]
fn heads_of_sections_cannot_be_disguised() {
    let python = "[project]\nversion = \"1\"\n";
    let evil = "requires = []\nbuild-backend = \"evil\"\nbackend-path = [\".\"]\n";
    assert!(runs("pyproject.toml", Some(python), &format!("{python}[build-system] # a = b\n{evil}")));
    let text = "[tool.x]\ntext = \"\"\"\n[project]\n\"\"\"\nrun = \"true\"\n";
    assert!(runs("pyproject.toml", Some(text), &text.replace("true", "evil")));
    assert!(!runs("pyproject.toml", Some(python), &format!("{python}name = \"x\" # [build-system]\n")), "control");
}

// promise 13
#[test]
fn links_in_place_of_settings_count() {
    let w = StackFixture::new();
    for (path, target) in [(".vscode", "docs"), (".github", "docs"), ("github2/x", "y"), ("Makefile", "docs/x")] {
        link(&w.up(), path, target);
    }
    let diff = w.diff();
    let runs = |path: &str| matches!(file(&diff, path).change.class, ChangeClass::RunsOnHost { .. });
    assert_eq!((runs(".vscode"), runs(".github"), runs("Makefile")), (true, true, true));
    assert!(!runs("github2/x"), "control");
}

/// A base may keep its settings elsewhere, under names without a rule, and link to them.
// promise 13
#[test]
fn what_a_link_under_such_a_name_leads_to_counts() {
    let w = StackFixture::new();
    for (path, target) in [
        (".github", "ci"),
        ("Makefile", "build/rules"),
        (".claude/skills", "../skills"),
        ("docs", "texts"),
        ("out", "/x"),
    ] {
        link(&w.base(), path, target);
    }
    let changed = ["ci/workflows/x.yml", "build/rules", "skills/x.md"];
    let others = ["ci/README.md", "build/notes", "texts/x.md", "x"];
    for path in changed.iter().chain(&others) {
        write(&w.base(), path, "old\n");
        write(&w.up(), path, "new\n");
    }
    let diff = w.diff();
    let runs = |path: &str| matches!(file(&diff, path).change.class, ChangeClass::RunsOnHost { .. });
    for path in changed {
        assert!(runs(path), "{path}");
    }
    for path in others {
        assert!(!runs(path), "control: {path}");
    }
}

// promise 13
#[test]
fn moving_something_away_that_runs_counts() {
    let w = StackFixture::new();
    write(&w.base(), "Makefile", "all:\n\ttrue\n");
    strike(&w.up(), "Makefile");
    write(&w.up(), "notes", "all:\n\ttrue\n");
    let diff = w.diff();
    assert_eq!(summary(&diff), ["renamed Makefile -> notes"]);
    assert!(matches!(diff.files[0].change.class, ChangeClass::RunsOnHost { .. }));
}

// promise 13, 16
#[test]
fn parts_of_git_directories_never_land() {
    let w = StackFixture::new();
    let paths = [
        "sub/.GIT/hooks/pre-commit",
        ".Git/config",
        "x/.git ",
        "x/.git.",
        "x/git~1",
        "x/.g\u{200c}it",
        "x/.git::$INDEX_ALLOCATION",
    ];
    for path in paths {
        write(&w.up(), path, "x\n");
    }
    // A bare repository: git started in it would run its hooks and read its config.
    for path in ["bare/HEAD", "bare/config", "bare/hooks/post-checkout", "bare/objects/x", "bare/refs/x"] {
        write(&w.up(), path, "x\n");
    }
    // The same in two parts: git takes objects, config and hooks from where `commondir` says.
    for path in ["part/HEAD", "part/commondir", "part/config.worktree", "rest/objects/x", "rest/refs/x", "rest/config"]
    {
        write(&w.up(), path, "x\n");
    }
    write(&w.up(), "y/.gitkeep", "");
    write(&w.up(), "y/HEAD", "x\n");
    let diff = w.diff();
    for file in &diff.files {
        let ordinary = file.change.path.is_at_or_below(&rel("y"));
        assert_eq!(why_never(file).is_none(), ordinary, "{}", file.change.path);
    }
    assert_eq!(diff.files.len(), paths.len() + 5 + 6 + 2);
}

// promise 13
#[test]
fn a_repository_that_the_base_has_is_no_place_to_write_to() {
    let w = StackFixture::new();
    for path in ["bare/HEAD", "bare/objects/x", "bare/refs/x", "bare/config"] {
        write(&w.base(), path, "x\n");
    }
    write(&w.up(), "bare/config", "[core] fsmonitor = evil\n");
    write(&w.up(), "bare/hooks/x", "evil\n");
    let diff = w.diff();
    assert!(diff.files.len() == 2 && diff.files.iter().all(|file| why_never(file).is_some()), "{:?}", summary(&diff));
}

// promise 13
#[test]
fn what_git_keeps_inside_is_one_line() {
    let w = StackFixture::new();
    write(&w.base(), ".git/HEAD", "ref: refs/heads/main\n");
    write(&w.base(), ".git/index", "1");
    write(&w.up(), ".git/index", "2");
    write(&w.up(), ".git/objects/ab/cd", "object");
    write(&w.up(), "sub/.git/config", "new repository");
    write(&w.up(), "a", "a\n");
    for diff in [w.diff(), w.diff_all()] {
        assert_eq!(summary(&diff), ["added a"]);
        let held: Vec<_> = diff.withheld.iter().map(|h| (h.path.to_string(), h.files)).collect();
        assert_eq!(held, [(".git".to_owned(), 2), ("sub/.git".to_owned(), 1)]);
    }
}
