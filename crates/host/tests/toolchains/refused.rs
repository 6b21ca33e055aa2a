//! Variables, links, PATH entries and the workspace never widen a grant where they lead to credentials or to another
//! user's home.

use crate::home::{Home, granted};
use host::toolchains::{Toolchains, discover, sensitive};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn a_variable_that_names_the_home_widens_nothing() {
    let mut home = Home::new();
    for file in ["~/bin/tool", "~/git/repository", "~/lib/x", "~/versions/x", "~/shims/x", "~/.cargo/bin/cargo"] {
        home.make(file);
    }
    for name in
        ["PYENV_ROOT", "CARGO_HOME", "GOPATH", "PNPM_HOME", "JAVA_HOME", "VIRTUAL_ENV", "WORKON_HOME", "UV_TOOL_DIR"]
    {
        for value in ["~", "T/people", "/", "~/.ssh", "~/.local/share", "~/Documents"] {
            home.vars = vec![(name, home.at(value).into_os_string())];
            let found = home.find(&["~/bin", "~/.cargo/bin"], None);
            home.gives(&found, &["~/bin/tool", "~/.cargo/bin/cargo"]);
            home.hides(&found, &["~/git/repository", "~/lib/x", "~/versions/x", "~/shims/x"]);
        }
    }
}

#[test]
fn settings_come_only_without_secrets() {
    let home = Home::new();
    home.make("~/.cargo/bin/cargo");
    for (text, comes) in [
        ("[build]\njobs = 4\n[target.x86_64-unknown-linux-gnu]\nlinker = \"clang\"\n", true),
        ("[registries.work]\ntoken = \"abc\"\n", false),
        ("[http]\nproxy = \"http://a:b@host\"\n", false),
        ("[env]\nX = \"1\"\n", false),
        ("[source.x]\nregistry = \"https://h/6f1ed002ab5595859014ebf0951522d9\"\n", false),
    ] {
        home.make(&format!("~/.cargo/config.toml = {text}"));
        let found = home.find(&["~/.cargo/bin"], None);
        home.gives(&found, &["~/.cargo/bin/cargo"]);
        assert_eq!(granted(&found, &home.at("~/.cargo/config.toml")), comes, "{text}");
    }
}

// promise 4
#[test]
fn a_link_never_leads_to_credentials() {
    let home = Home::new();
    for file in [
        "~/.local/bin/good -> ~/fine/bin/good",
        "~/fine/bin/good",
        "~/fine/lib/x.so",
        "~/.local/bin/ssh-dir -> ~/.ssh",
        "~/.local/bin/home -> ~",
        "~/.local/bin/root -> /",
        "~/.local/bin/up -> ../..",
        "~/.local/bin/key -> ~/.ssh/id_ed25519",
        "~/.ssh/id_ed25519",
        "~/.local/bin/tool -> ~/.aws/bin/tool",
        "~/.aws/bin/tool",
        "~/.aws/lib/x",
        "~/.local/bin/doc -> ~/Documents/app/bin/tool",
        "~/Documents/app/bin/tool",
        "~/Documents/app/lib/x",
        "~/.local/bin/loop -> loop2",
        "~/.local/bin/loop2 -> loop",
        "~/.local/bin/token = #!~/.config/gh/bin/x\n",
        "~/.config/gh/bin/x",
        "~/.local/bin/sneaky -> ~/sneaky/bin/x",
        "~/sneaky -> ~/.gnupg",
        "~/.gnupg/bin/x",
        "~/fine/share -> ~/.kube",
        "~/.kube/x",
        "~/.pyenv/shims/python3",
        "~/.pyenv/versions/evil -> ~/.docker",
        "~/.docker/bin/x",
        "~/.docker/lib/x",
    ] {
        home.make(file);
    }
    fs::write(home.at("~/plain-secret"), "x").unwrap();
    home.make("~/.local/bin/not-a-program -> ~/plain-secret");
    for command in
        [None, Some("key"), Some("tool"), Some("sneaky"), Some("token"), Some("loop"), Some("up"), Some("home")]
    {
        let found = home.find(&["~/.local/bin", "~/.pyenv/shims"], command);
        home.gives(&found, &["~/.local/bin/good", "~/fine/lib/x.so", "~/.pyenv/shims/python3"]);
        home.hides(&found, &["~/.ssh/id_ed25519", "~/.aws/lib/x", "~/Documents/app/lib/x", "~/plain-secret"]);
        home.hides(&found, &["~/.config/gh/bin/x", "~/.gnupg/bin/x", "~/sneaky/bin/x", "~/.kube/x", "~/.docker/lib/x"]);
        home.hides(&found, &["~/fine/share/x"]);
    }
}

#[test]
fn path_entries_that_are_credentials_are_refused_and_noted() {
    let home = Home::new();
    home.make("~/.aws/bin/x");
    home.make("~/.deno/bin/deno");
    for entry in [
        "~/.ssh",
        "~/.aws/bin",
        "~/Documents",
        "~/.config",
        "~/.local",
        "~/.local/share",
        "~/.cargo",
        "~",
        "/",
        "T/people",
    ] {
        let found = home.find(&[entry, "~/.deno/bin"], None);
        home.gives(&found, &["~/.deno/bin/deno"]);
        assert_eq!(found.grants.len(), 1, "{entry}: {found:#?}");
        if entry != "~/.cargo" {
            assert!(found.skipped.iter().any(|skip| skip.path == home.at(entry)), "{entry} is noted: {found:#?}");
        }
    }
}

#[test]
fn the_workspace_widens_nothing() {
    let home = Home::new();
    for file in [
        "W/node_modules/.bin/tool -> ~/private/bin/tool",
        "W/bin/x -> ~/.ssh",
        "W/bin/y -> ~/private/bin/tool",
        "~/private/bin/tool",
        "~/private/lib/x",
        "W/evil/bin/python -> ~/private/bin/tool",
        "W/evil/pyvenv.cfg = home = ~/private/bin\n",
        "W/evil2/bin/python",
        "W/evil2/pyvenv.cfg = home = ~/.ssh\n",
        "W/evil3/bin/python = #!~/private/bin/tool\n",
        "W/.venv/bin/python -> python3",
        "W/.venv/bin/python3 -> ~/.local/share/uv/python/cpython-3.12/bin/python3.12",
        "W/.venv/pyvenv.cfg = home = ~/.local/share/uv/python/cpython-3.12/bin\n",
        "~/.local/share/uv/python/cpython-3.12/bin/python3.12",
        "~/bin -> W/bin",
        "W/rustup/toolchains/x -> ~/private",
        "~/.rustup -> W/rustup",
        "~/.cargo/bin/cargo",
    ] {
        home.make(file);
    }
    let all = ["W/node_modules/.bin", "W/bin", "W/evil/bin", "W/evil2/bin", "W/evil3/bin", "~/bin", "~/.cargo/bin"];
    for command in [None, Some("tool"), Some("x"), Some("y"), Some("python"), Some("evil/bin/python"), Some("./bin/y")]
    {
        let found = home.find(&all, command);
        home.hides(&found, &["~/private/bin/tool", "~/private/lib/x"]);
        home.gives(&found, &["~/.cargo/bin/cargo"]);
    }
    // The control: an environment in the workspace whose Python a known manager installed starts.
    for (path, command) in
        [(&["W/.venv/bin"][..], None), (&[], Some(".venv/bin/python")), (&[], Some("./.venv/bin/python3"))]
    {
        let found = home.find(path, command);
        home.gives(&found, &["~/.local/share/uv/python/cpython-3.12/bin/python3.12"]);
        home.hides(&found, &["~/private/lib/x"]);
    }
}

#[test]
fn at_home_the_current_directory_is_no_workspace() {
    let mut home = Home::new();
    home.make("~/.deno/bin/deno");
    for cwd in [home.home.clone(), home.top.clone(), PathBuf::from("/")] {
        home.cwd = cwd.clone();
        let found = discover(&home.path(&["~/.deno/bin"]), &home.home, &cwd, None, &|_| None);
        home.gives(&found, &["~/.deno/bin/deno"]);
        assert_eq!(found.grants.len(), 1, "{found:#?}");
    }
}

#[test]
fn another_users_home_is_never_granted_whole() {
    let found = |entry: &str| discover(OsStr::new(entry), Path::new("/home/u"), Path::new("/srv/w/x"), None, &|_| None);
    for entry in [
        "/home/other",
        "/root",
        "/home",
        "/var",
        "/tmp",
        "/run",
        "/proc",
        "/sys",
        "/dev",
        "/proc/self",
        "/dev/shm",
        "/var/lib",
        "/run/user/0",
    ] {
        assert_eq!(found(entry).grants, [], "{entry}");
    }
    for path in ["/home/other/.ssh", "/home/other", "/root/.aws", "/home/other/.cargo"] {
        assert!(sensitive(Path::new(path), Path::new("/home/u")).is_some(), "{path}");
    }
    assert_eq!(sensitive(Path::new("/home/other/tools/bin"), Path::new("/home/u")), None);
}

#[test]
fn system_directories_need_no_grant() {
    let home = Home::new();
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/x/bin:/nix/store/x/bin:/lib64:/etc/x";
    assert_eq!(home.find_in(OsStr::new(path), Some("sh")), Toolchains::default());
}
