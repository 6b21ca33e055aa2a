//! What would run on a reviewer's machine is a class of its own, and what can never land is told apart.

use crate::world::*;
use workspace::Class;

/// The class of a path that was added with this content.
fn class_of(path: &str, before: Option<&str>, after: &str) -> Class {
    let w = World::new();
    if let Some(before) = before {
        write(&w.base(), path, before);
    }
    write(&w.up(), path, after);
    file(&w.diff_all(), path).change.class.clone()
}

fn runs(path: &str, before: Option<&str>, after: &str) -> bool {
    matches!(class_of(path, before, after), Class::RunsOnHost { .. })
}

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
    for path in
        ["src/main.rs", "README.md", "makefile_notes.txt", "docs/agents/list.md", "a.c", "envrc", "package-lock.json"]
    {
        assert_eq!(class_of(path, None, "x\n"), Class::Ordinary, "control: {path}");
    }
}

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

/// The head of a section with a word behind it, or one inside a text of several lines, hides nothing.
#[test]
fn heads_of_sections_cannot_be_disguised() {
    let python = "[project]\nversion = \"1\"\n";
    let evil = "requires = []\nbuild-backend = \"evil\"\nbackend-path = [\".\"]\n";
    assert!(runs("pyproject.toml", Some(python), &format!("{python}[build-system] # a = b\n{evil}")));
    let text = "[tool.x]\ntext = \"\"\"\n[project]\n\"\"\"\nrun = \"true\"\n";
    assert!(runs("pyproject.toml", Some(text), &text.replace("true", "evil")));
    assert!(!runs("pyproject.toml", Some(python), &format!("{python}name = \"x\" # [build-system]\n")), "control");
}

#[test]
fn links_in_place_of_settings_count() {
    let w = World::new();
    for (path, target) in [(".vscode", "docs"), (".github", "docs"), (".github2/x", "y"), ("Makefile", "docs/x")] {
        link(&w.up(), path, target);
    }
    let diff = w.diff();
    let runs = |path: &str| matches!(file(&diff, path).change.class, Class::RunsOnHost { .. });
    assert_eq!((runs(".vscode"), runs(".github"), runs("Makefile")), (true, true, true));
    assert!(!runs(".github2/x"), "control");
}

/// A base may keep its settings elsewhere, under names that say nothing.
#[test]
fn what_a_link_under_such_a_name_leads_to_counts() {
    let w = World::new();
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
    let runs = |path: &str| matches!(file(&diff, path).change.class, Class::RunsOnHost { .. });
    for path in changed {
        assert!(runs(path), "{path}");
    }
    for path in others {
        assert!(!runs(path), "control: {path}");
    }
}

#[test]
fn moving_something_away_that_runs_counts() {
    let w = World::new();
    write(&w.base(), "Makefile", "all:\n\ttrue\n");
    strike(&w.up(), "Makefile");
    write(&w.up(), "notes", "all:\n\ttrue\n");
    let diff = w.diff();
    assert_eq!(told(&diff), ["renamed Makefile -> notes"]);
    assert!(matches!(diff.files[0].change.class, Class::RunsOnHost { .. }));
}

#[test]
fn parts_of_git_directories_never_land() {
    let w = World::new();
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
    // A repository without a working tree: git would run its hooks and read its config when started in it.
    for path in ["bare/HEAD", "bare/config", "bare/hooks/post-checkout", "bare/objects/x", "bare/refs/x"] {
        write(&w.up(), path, "x\n");
    }
    // The same in two parts: git finds objects, settings and hooks where `commondir` says.
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

#[test]
fn a_repository_that_the_base_has_is_no_place_to_write_to() {
    let w = World::new();
    for path in ["bare/HEAD", "bare/objects/x", "bare/refs/x", "bare/config"] {
        write(&w.base(), path, "x\n");
    }
    write(&w.up(), "bare/config", "[core] fsmonitor = evil\n");
    write(&w.up(), "bare/hooks/x", "evil\n");
    let diff = w.diff();
    assert!(diff.files.len() == 2 && diff.files.iter().all(|file| why_never(file).is_some()), "{:?}", told(&diff));
}

#[test]
fn what_git_keeps_inside_is_one_line() {
    let w = World::new();
    write(&w.base(), ".git/HEAD", "ref: refs/heads/main\n");
    write(&w.base(), ".git/index", "1");
    write(&w.up(), ".git/index", "2");
    write(&w.up(), ".git/objects/ab/cd", "object");
    write(&w.up(), "sub/.git/config", "new repository");
    write(&w.up(), "a", "a\n");
    for diff in [w.diff(), w.diff_all()] {
        assert_eq!(told(&diff), ["added a"]);
        let held: Vec<_> = diff.withheld.iter().map(|h| (h.path.to_string(), h.files)).collect();
        assert_eq!(held, [(".git".to_owned(), 2), ("sub/.git".to_owned(), 1)]);
    }
}
