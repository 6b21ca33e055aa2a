//! PATH leads to toolchains and to nothing else. Homes are made of real files and symlinks, and every
//! row of the credential table is planted in each of them.

mod home;
mod managers;
mod refused;

use crate::home::{Home, granted};
use crate::managers::{MANAGERS, full_home};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use host::toolchains::{SENSITIVE, discover};

#[test]
fn a_command_in_a_pipx_environment_brings_its_python() {
    let home = Home::new();
    for file in [
        "~/.local/bin/black -> ~/.local/share/pipx/venvs/black/bin/black",
        "~/.local/share/pipx/venvs/black/bin/black = #!~/.local/share/pipx/venvs/black/bin/python",
        "~/.local/share/pipx/venvs/black/bin/python -> ~/pythons/3.12/bin/python3.12",
        "~/.local/share/pipx/venvs/black/pyvenv.cfg = home = ~/pythons/3.12/bin\n",
        "~/pythons/3.12/bin/python3.12",
        "~/pythons/3.12/lib/python3.12/os.py",
        "~/pythons/diary",
    ] {
        home.make(file);
    }
    let found = home.find(&["~/.local/bin"], None);
    home.gives(&found, &["~/.local/bin/black", "~/.local/share/pipx/venvs/black/bin/python"]);
    home.gives(&found, &["~/pythons/3.12/bin/python3.12", "~/pythons/3.12/lib/python3.12/os.py"]);
    home.hides(&found, &["~/pythons/diary"]);
}

#[test]
fn links_and_scripts_of_a_bin_directory_are_followed() {
    let home = Home::new();
    for file in [
        "~/.local/bin/nvim -> ../../nvim-0.11/bin/nvim",
        "~/nvim-0.11/bin/nvim",
        "~/nvim-0.11/share/nvim/runtime.vim",
        "~/.local/bin/claude -> ~/.local/share/claude/versions/2.0",
        "~/.local/share/claude/versions/2.0",
        "~/.local/bin/agent -> ~/.local/share/agent/versions/1/agent",
        "~/.local/share/agent/versions/1/agent",
        "~/.local/share/agent/data",
        "~/.local/bin/idea -> ~/opt/idea/bin/idea.sh",
        "~/opt/idea/bin/idea.sh",
        "~/opt/idea/jbr/lib/x.so",
        "~/opt/other/x",
        "~/.local/bin/chained -> ~/apps/current/bin/tool",
        "~/apps/current -> v2",
        "~/apps/v2/bin/tool",
        "~/apps/v2/lib/x.so",
        "~/apps/v1/bin/tool",
        "~/.local/bin/single -> ~/src/other/run.sh",
        "~/src/other/run.sh",
        "~/src/other/code",
        "~/.local/bin/script = #!~/venvs/a/bin/python -u\n",
        "~/venvs/a/bin/python -> /usr/bin/python3",
        "~/venvs/a/pyvenv.cfg = home = /usr/bin\n",
        "~/venvs/a/lib/x.py",
        "~/venvs/b/lib/x.py",
        "~/.local/bin/long = #!/bin/sh\n'''exec' \"~/venvs/with space/bin/python\" \"$0\" \"$@\"\n",
        "~/venvs/with space/bin/python -> /usr/bin/python3",
        "~/venvs/with space/pyvenv.cfg = home = /usr/bin\n",
        "~/.local/bin/js -> ~/work/node_modules/x/cli.js",
        "~/work/node_modules/x/cli.js",
        "~/work/node_modules/y/y.js",
        "~/work/index.js",
    ] {
        home.make(file);
    }
    let found = home.find(&["~/.local/bin"], None);
    home.gives(&found, &["~/nvim-0.11/bin/nvim", "~/nvim-0.11/share/nvim/runtime.vim"]);
    home.gives(&found, &["~/.local/share/claude/versions/2.0", "~/.local/share/agent/versions/1/agent"]);
    home.gives(&found, &["~/opt/idea/jbr/lib/x.so", "~/src/other/run.sh"]);
    home.gives(&found, &["~/apps/current/bin", "~/apps/v2/bin/tool", "~/apps/v2/lib/x.so"]);
    home.gives(&found, &["~/venvs/a/lib/x.py", "~/venvs/with space/bin/python"]);
    home.gives(&found, &["~/work/node_modules/y/y.js"]);
    home.hides(&found, &["~/.local/share/agent/data", "~/opt/other/x", "~/apps/v1/bin/tool", "~/src/other/code"]);
    home.hides(&found, &["~/venvs/b/lib/x.py", "~/work/index.js"]);
}

#[test]
fn the_command_itself_is_followed_precisely() {
    let home = Home::new();
    for number in 0..600 {
        home.make(&format!("~/.local/bin/a{number} = #!/bin/sh\n"));
    }
    for file in [
        "~/.local/bin/zz = #!/usr/bin/env -S tool --flag\n",
        "~/tools/bin/tool -> ~/far/away/bin/tool",
        "~/far/away/bin/tool",
        "~/far/away/lib/x.so",
        "~/elsewhere/run",
        "~/elsewhere/data",
    ] {
        home.make(file);
    }
    let path = ["~/.local/bin", "~/tools/bin"];
    home.gives(&home.find(&path, Some("zz")), &["~/far/away/lib/x.so"]);
    let command = home.at("~/elsewhere/run");
    let found = home.find(&path, command.to_str());
    home.gives(&found, &["~/elsewhere/run"]);
    home.hides(&found, &["~/elsewhere/data"]);
    let found = home.find(&path, Some("../../elsewhere/run"));
    home.gives(&found, &["~/elsewhere/run"]);
    home.hides(&home.find(&path, None), &["~/elsewhere/run"]);
    home.hides(&home.find(&path, Some("no-such-command")), &["~/elsewhere/run"]);
}

#[test]
fn environments_bring_their_base() {
    let home = Home::new();
    for file in [
        "~/envs/web/bin/python -> ~/.pyenv/versions/3.12/bin/python3.12",
        "~/envs/web/lib/x.py",
        "~/envs/web/pyvenv.cfg = home = ~/.pyenv/versions/3.12/bin\ninclude-system-site-packages = false\n",
        "~/.pyenv/versions/3.12/bin/python3.12",
        "~/envs/api/bin/python",
        "~/envs/api/lib/x.py",
        "~/envs/api/pip.conf",
        "~/envs/api/pyvenv.cfg = home = /usr/bin\n",
    ] {
        home.make(file);
    }
    let found = home.find(&["~/envs/web/bin"], None);
    home.gives(&found, &["~/envs/web/pyvenv.cfg", "~/envs/web/lib/x.py", "~/.pyenv/versions/3.12/bin/python3.12"]);
    home.hides(&found, &["~/envs/api/lib/x.py"]);
    let found = home.find(&["~/envs/api/bin"], None);
    home.gives(&found, &["~/envs/api/bin/python", "~/envs/api/lib/x.py", "~/envs/api/pyvenv.cfg"]);
    home.hides(&found, &["~/envs/api/pip.conf"]);
}

#[test]
fn linked_installations_of_a_manager_are_followed() {
    let home = Home::new();
    for file in [
        "~/.rustup/toolchains/stable/bin/rustc",
        "~/.rustup/toolchains/dev -> ~/src/rust/build/stage1",
        "~/src/rust/build/stage1/bin/rustc",
        "~/src/rust/build/stage1/lib/librustc.so",
        "~/src/rust/README",
        "~/.cargo/bin/cargo",
        "~/.jenv/shims/java",
        "~/.jenv/versions/21 -> ~/jdks/21",
        "~/jdks/21/bin/java",
        "~/jdks/21/lib/modules",
        "~/jdks/21/conf/security",
        "~/jdks/17/bin/java",
    ] {
        home.make(file);
    }
    let found = home.find(&["~/.cargo/bin", "~/.jenv/shims"], None);
    home.gives(&found, &["~/src/rust/build/stage1/bin/rustc", "~/src/rust/build/stage1/lib/librustc.so"]);
    home.gives(&found, &["~/jdks/21/bin/java", "~/jdks/21/lib/modules", "~/jdks/21/conf/security"]);
    home.hides(&found, &["~/src/rust/README", "~/jdks/17/bin/java"]);
}

#[test]
fn nix_profile_is_granted_by_its_name() {
    let home = Home::new();
    for file in [
        "T/nix/store/abc-profile/bin/hello",
        "~/.local/state/nix/profiles/profile-1-link -> T/nix/store/abc-profile",
        "~/.local/state/nix/profiles/profile -> profile-1-link",
        "~/.nix-profile -> ~/.local/state/nix/profiles/profile",
        "~/.local/state/other",
    ] {
        home.make(file);
    }
    let found = home.find(&["~/.nix-profile/bin"], None);
    home.gives(
        &found,
        &["~/.nix-profile/bin/hello", "T/nix/store/abc-profile/bin/hello", "~/.local/state/nix/profiles/profile"],
    );
    home.hides(&found, &["~/.local/state/other"]);
}

#[test]
fn fnm_multishell_links_work() {
    let home = Home::new();
    for file in [
        "~/.local/share/fnm/node-versions/v20/installation/bin/node",
        "~/.local/share/fnm/node-versions/v20/installation/lib/node_modules/npm/x.js",
        "~/.local/state/fnm_multishells/7_1 -> ~/.local/share/fnm/node-versions/v20/installation",
        "~/.local/state/fnm_multishells/other",
    ] {
        home.make(file);
    }
    let found = home.find(&["~/.local/state/fnm_multishells/7_1/bin"], Some("node"));
    home.gives(&found, &["~/.local/share/fnm/node-versions/v20/installation/bin/node"]);
    home.gives(
        &found,
        &["~/.local/state/fnm_multishells/7_1/bin/node", "~/.local/state/fnm_multishells/7_1/lib/node_modules"],
    );
    home.hides(&found, &["~/.local/state/fnm_multishells/other"]);
}

#[test]
fn a_root_behind_a_symlink_is_granted_under_both_names() {
    let home = Home::new();
    home.make("T/disk/pyenv/shims/python3");
    home.make("T/disk/pyenv/versions/3.12/bin/python3");
    home.make("T/disk/other");
    home.make("~/.pyenv -> T/disk/pyenv");
    let found = home.find(&["~/.pyenv/shims"], None);
    home.gives(&found, &["~/.pyenv/versions/3.12/bin/python3", "T/disk/pyenv/versions/3.12/bin/python3"]);
    home.hides(&found, &["T/disk/other"]);
}

#[test]
fn a_home_behind_a_symlink_hides_the_same() {
    let mut home = Home::new();
    home.make("~/.cargo/bin/cargo");
    home.make("~/.rustup/toolchains/stable/bin/rustc");
    let real = home.home.clone();
    home.make("T/link -> ~");
    symlink(&real, home.top.join("home-link")).unwrap();
    home.home = home.top.join("home-link");
    let found = home.find(&["~/.cargo/bin"], None);
    home.gives(&found, &["~/.cargo/bin/cargo", "~/.rustup/toolchains/stable/bin/rustc"]);
    for (place, _) in SENSITIVE {
        let secret = real.join(place.replace('*', "x"));
        assert!(!granted(&found, &secret), "{}", secret.display());
    }
}

#[test]
fn variables_name_roots_and_are_passed_on() {
    let home = Home::new()
        .var("PYENV_ROOT", "T/disk/py")
        .var("RUSTUP_HOME", "T/disk/rustup")
        .var("PYENV_VERSION", "3.12.1")
        .var("JAVA_HOME", "~/jdks/21")
        .var("NVM_DIR", "~/.nvm")
        .var("GOPATH", "https://user:password@example.org/")
        .var("GITHUB_TOKEN", "abc");
    for file in [
        "T/disk/py/shims/python3",
        "T/disk/py/versions/3/bin/python3",
        "T/disk/rustup/toolchains/x/bin/rustc",
        "T/disk/secret",
        "~/.cargo/bin/cargo",
        "~/jdks/21/bin/java",
        "~/jdks/21/lib/modules",
    ] {
        home.make(file);
    }
    let found = home.find(&["T/disk/py/shims", "~/.cargo/bin"], None);
    home.gives(
        &found,
        &["T/disk/py/versions/3/bin/python3", "T/disk/rustup/toolchains/x/bin/rustc", "~/jdks/21/lib/modules"],
    );
    home.hides(&found, &["T/disk/secret"]);
    assert_eq!(found.env, ["JAVA_HOME", "PYENV_ROOT", "PYENV_VERSION", "RUSTUP_HOME"]);
}

#[test]
fn odd_paths() {
    let home = Home::new();
    home.make("~/.deno/bin/deno");
    let deno = home.at("~/.deno/bin").into_os_string();
    let with = |odd: &[u8]| {
        let mut path = OsString::from(OsStr::from_bytes(odd));
        path.push(":");
        path.push(&deno);
        path
    };
    let long = b"/".iter().chain(b"x".iter().cycle().take(5000)).copied().collect::<Vec<u8>>();
    let deep = b"/x".repeat(1000);
    for odd in [
        &b""[..],
        b":::",
        b".",
        b"..",
        b"./node_modules/.bin",
        b"bin",
        b"~/.ssh",
        b"/does/not/exist",
        b"/usr/../proc/self",
        b"/mnt/c/Windows/System32",
        b"/tmp/\xff\xfe/bin",
        b"/\0/x",
        b"//",
        b"/.",
        &long,
        &deep,
    ] {
        let found = home.find_in(&with(odd), Some("deno"));
        home.gives(&found, &["~/.deno/bin/deno"]);
        assert_eq!(found.grants.len(), 1, "{:?}: {found:#?}", OsStr::from_bytes(odd));
    }
    assert_eq!(home.find_in(OsStr::new(""), None).grants, []);
}

#[test]
fn names_that_are_not_utf8_are_granted_as_they_are() {
    let home = Home::new();
    let dir = home.home.join(OsStr::from_bytes(b"t\xff\xfe")).join("bin");
    fs::create_dir_all(&dir).unwrap();
    let found = home.find_in(dir.as_os_str(), None);
    assert_eq!(found.grants.len(), 1);
    assert_eq!(found.grants[0].path, dir);
}

#[test]
fn duplicates_and_slashes_make_one_grant() {
    let home = Home::new();
    home.make("~/.deno/bin/deno");
    let base = home.at("~/.deno").display().to_string();
    let path = format!("{base}/bin:{base}/bin/:{base}//bin:{base}/./bin:{base}/bin/../bin:{base}/bin");
    let found = home.find_in(OsStr::new(&path), None);
    home.gives(&found, &["~/.deno/bin/deno"]);
    assert_eq!(found.grants.len(), 1, "{found:#?}");
}

#[test]
fn ten_thousand_entries_are_bounded() {
    let home = Home::new();
    home.make("~/.deno/bin/deno");
    let mut path = home.at("~/.deno/bin").into_os_string();
    for number in 0..10_000 {
        path.push(format!(":{}/many/{number}/bin", home.home.display()));
        if number < 500 {
            home.make(&format!("~/many/{number}/bin/x"));
        }
    }
    let start = Instant::now();
    let found = home.find_in(&path, Some("x"));
    assert!(start.elapsed() < Duration::from_secs(180), "{:?}", start.elapsed());
    home.gives(&found, &["~/.deno/bin/deno"]);
    assert!(found.grants.len() <= 64 && !found.skipped.is_empty(), "{} grants", found.grants.len());
}

#[test]
fn a_pipe_in_a_bin_directory_does_not_block() {
    let home = Home::new();
    home.make("~/bin/tool");
    let made = std::process::Command::new("mkfifo").arg(home.at("~/bin/pipe")).arg(home.at("~/bin/.pipe")).status();
    assert!(made.unwrap().success());
    home.make("~/bin/pyvenv -> pipe");
    home.gives(&home.find(&["~/bin"], Some("pipe")), &["~/bin/tool"]);
}

/// `cargo test --release -p cofferdam-node --test toolchains -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn cost() {
    let usual = Home::new();
    for file in [
        "~/.cargo/bin/cargo",
        "~/.cargo/registry/index/x",
        "~/.rustup/toolchains/stable/bin/cargo",
        "~/.nvm/versions/node/v20/bin/node",
        "~/.nvm/versions/node/v22/bin/node",
        "~/.pyenv/shims/python3 = #!/usr/bin/env bash",
        "~/.pyenv/versions/3.11.7/bin/python3",
        "~/.pyenv/versions/3.12.1/bin/python3",
        "~/.local/share/uv/python/cpython-3.12/bin/python3.12",
    ] {
        usual.make(file);
    }
    for n in 0..20 {
        let venv = format!("~/.local/share/pipx/venvs/t{n}");
        usual.make(&format!("{venv}/bin/t{n}"));
        usual.make(&format!("{venv}/bin/python -> ~/.pyenv/versions/3.12.1/bin/python3"));
        usual.make(&format!("~/.local/bin/t{n} -> {venv}/bin/t{n}"));
        usual.make(&format!("~/.local/bin/s{n} = #!/usr/bin/python3\n"));
    }
    let system = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let own = ["~/.local/bin", "~/.cargo/bin", "~/.nvm/versions/node/v20/bin", "~/.pyenv/shims"];
    let ten: Vec<&str> = own.into_iter().chain(system).collect();
    let full = full_home();
    let all: Vec<&str> = MANAGERS.iter().flat_map(|case| case.path).copied().chain(system).collect();
    for (name, home, path) in [
        ("6 system entries", &usual, &system[..]),
        ("cargo, nvm, pyenv and 6 system entries", &usual, &ten[1..]),
        ("the same and ~/.local/bin with 20 pipx links, 20 scripts", &usual, &ten[..]),
        ("every manager, a credential in each", &full, &all[..]),
    ] {
        let path = home.path(path);
        let command = Some(OsStr::new("python3"));
        let run = || discover(&path, &home.home, &home.cwd, command, &|name| std::env::var_os(name));
        let mut times: Vec<Duration> = (0..2000)
            .map(|_| {
                let start = Instant::now();
                std::hint::black_box(run());
                start.elapsed()
            })
            .collect();
        times.sort();
        let grants = run().grants.len();
        println!("{name}: p50 {:?}, p99 {:?}, {grants} grants", times[1000], times[1980]);
    }
}
