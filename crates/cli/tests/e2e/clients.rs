//! Unmodified network clients without a proxy setting: each reaches a host that a rule allows, works under a rule that
//! inspects requests, and fails with a reported denial without a rule.

use crate::support::world::{PUBLIC, World};
use crate::support::{As, Run, binary, either, to_the_end};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

const NAME: &str = "files.test";

/// Creates a wheel, an npm package and a git repository in the directory that the test server serves.
const FILES: &str = r#"
import base64, hashlib, io, json, os, subprocess, sys, tarfile, zipfile
os.chdir(sys.argv[1])
for at in ("simple/tiny", "npm", "git"):
    os.makedirs(at)
open("hello", "w").write("hello from outside\n")

with zipfile.ZipFile("simple/tiny/tiny-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("tiny.py", "print('tiny runs')\n")
    wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
    wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    names = ["tiny.py", *("tiny-1.0.dist-info/" + n for n in ("METADATA", "WHEEL", "RECORD"))]
    wheel.writestr("tiny-1.0.dist-info/RECORD", "".join(n + ",,\n" for n in names))

tiny = {"name": "tiny", "version": "1.0.0", "main": "index.js"}
with tarfile.open("npm/tiny-1.0.0.tgz", "w:gz") as package:
    for name, text in (("package.json", json.dumps(tiny)), ("index.js", "console.log('tiny runs')")):
        entry = tarfile.TarInfo("package/" + name)
        entry.size = len(text)
        package.addfile(entry, io.BytesIO(text.encode()))
crate = io.BytesIO()
with tarfile.open(fileobj=crate, mode="w:gz") as package:
    for name, text in (("Cargo.toml", '[package]\nname = "tiny"\nversion = "1.0.0"\n'), ("src/lib.rs", "")):
        entry = tarfile.TarInfo("tiny-1.0.0/" + name)
        entry.size = len(text)
        package.addfile(entry, io.BytesIO(text.encode()))
for at in ("index/ti/ny", "crates"):
    os.makedirs(at)
open("crates/tiny-1.0.0.crate", "wb").write(crate.getvalue())
open("index/config.json", "w").write(json.dumps({"dl": "https://files.test/crates/{crate}-{version}.crate"}))
line = {"name": "tiny", "vers": "1.0.0", "deps": [], "features": {}, "yanked": False}
open("index/ti/ny/tiny", "w").write(json.dumps({**line, "cksum": hashlib.sha256(crate.getvalue()).hexdigest()}) + "\n")

at, module = "go/tiny.test/tiny/@v", "module tiny.test/tiny\n"
os.makedirs(at)
open(at + "/list", "w").write("v1.0.0\n")
open(at + "/v1.0.0.info", "w").write(json.dumps({"Version": "v1.0.0", "Time": "2026-01-01T00:00:00Z"}))
open(at + "/v1.0.0.mod", "w").write(module)
with zipfile.ZipFile(at + "/v1.0.0.zip", "w") as package:
    package.writestr("tiny.test/tiny@v1.0.0/go.mod", module)
    package.writestr("tiny.test/tiny@v1.0.0/tiny.go", "package tiny\n")

digest = base64.b64encode(hashlib.sha512(open("npm/tiny-1.0.0.tgz", "rb").read()).digest()).decode()
tiny["dist"] = {"tarball": "https://files.test/npm/tiny-1.0.0.tgz", "integrity": "sha512-" + digest}
open("npm/tiny", "w").write(json.dumps({"name": "tiny", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": tiny}}))

git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"]
subprocess.run([*git, "init", "-q", "work"], check=True)
open("work/file", "w").write("from the repository\n")
subprocess.run([*git, "-C", "work", "add", "."], check=True)
subprocess.run([*git, "-C", "work", "commit", "-q", "-m", "one"], check=True)
subprocess.run([*git, "clone", "-q", "--bare", "work", "git/tiny.git"], check=True)
"#;

/// Variables by which a caller names a certificate authority. Under request inspection cofferdam sets the same ones for
/// the guest, so those runs get none of these.
const TRUST: [&str; 6] =
    ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "NODE_EXTRA_CA_CERTS"];

fn world(who: As) -> World {
    World::new(who)
        .own_etc()
        .host(PUBLIC, "files.test other.test")
        .certificate(&[NAME])
        .server("files", PUBLIC, 443)
        .server("http", PUBLIC, 80)
}

/// A network whose server offers the packages and the repository.
fn stocked(who: As) -> World {
    let world = world(who);
    let made = Command::new("/usr/bin/python3")
        .args(["-c", FILES])
        .arg(world.place.dir("world/files"))
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .output()
        .unwrap();
    assert!(made.status.success(), "files: {}", String::from_utf8_lossy(&made.stderr));
    world
}

/// A policy under which requests to `files.test` are inspected.
fn reading(world: &World) -> String {
    let rule = json!({"action": "allow", "host": NAME, "methods": ["GET", "POST"]});
    world.place.policy(json!({"version": 1, "extends": ["default"], "net": {"rules": [rule]}}))
}

/// The client fails, and the missing rule is the recorded reason.
#[track_caller]
fn refused(world: &World, command: &[&str]) {
    let run = world.run(&["--net", "other.test"], command);
    assert_ne!(run.code(), 0, "{}", run.story());
    run.assert_denied("net.resolve", NAME);
}

#[track_caller]
fn says(run: &Run, what: &str) {
    run.assert_ok();
    assert!(run.stdout().contains(what), "must say {what:?}: {}", run.story());
    assert!(!run.denials().iter().any(|(op, _)| op.starts_with("net.")), "{}", run.story());
}

/// Runs one command under a rule for the name, without one, and under request inspection.
#[track_caller]
fn works(world: &World, command: &[&str], what: &str) {
    let trust = TRUST.map(|name| format!("{name}={}/ca.pem", world.place.project.display()));
    let trust = trust.iter().flat_map(|variable| ["--env", variable]);
    let flags: Vec<&str> = ["--net", NAME].into_iter().chain(trust).collect();
    says(&world.run(&flags, command), what);
    refused(world, command);
    is_read(world, command, what);
}

/// The client works under request inspection, and the journal shows its requests.
#[track_caller]
fn is_read(world: &World, command: &[&str], what: &str) {
    let journal = world.file();
    let run = world.run(&["-p", &reading(world), "--events", journal.to_str().unwrap()], command);
    says(&run, what);
    let journal = fs::read_to_string(&journal).unwrap();
    let mut lines = journal.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert!(lines.any(|l| l["op"] == "net.request" && l["name"] == NAME), "{journal}\n{}", run.story());
}

fn sh(text: &str) -> [&str; 3] {
    ["/bin/sh", "-c", text]
}

/// A copy, in the test's project, of a program that is built once for all tests.
fn copied(world: &World, program: &Path) -> String {
    let copy = world.place.project.join(program.file_name().unwrap());
    crate::support::copy_program(program, &copy);
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    copy.to_string_lossy().into_owned()
}

/// A directory that survives from one test run to the next.
fn kept(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&path).unwrap();
    path
}

// promise 7
#[test]
fn curl_gets() {
    for who in either() {
        let world = stocked(who);
        works(&world, &["curl", "-sS", "-m", "20", "https://files.test/hello"], "hello from outside");
        works(&world, &["curl", "-sS", "-m", "20", "http://files.test/plain"], "GET /plain host=files.test");
    }
}

// promise 7
#[test]
fn git_clones() {
    const CLONE: &str = "git clone -q https://files.test/git/tiny.git /tmp/tiny && cat /tmp/tiny/file";
    for who in either() {
        works(&stocked(who), &sh(CLONE), "from the repository");
    }
}

// promise 7
#[test]
fn pip_installs() {
    const INSTALL: &str = "/usr/bin/python3 -m pip --disable-pip-version-check -q install --no-cache-dir --retries 0 \
         --index-url https://files.test/simple/ --target /tmp/t tiny && PYTHONPATH=/tmp/t /usr/bin/python3 -m tiny";
    for who in either() {
        works(&stocked(who), &sh(INSTALL), "tiny runs");
    }
}

// promise 7
#[test]
fn npm_installs() {
    const INSTALL: &str = "mkdir /tmp/t && cd /tmp/t && npm install --silent --no-audit --no-fund --fetch-retries 0 --cache /tmp/c \
         --registry https://files.test/npm/ tiny && node -e 'require(\"tiny\")'";
    for who in either() {
        works(&stocked(who), &sh(INSTALL), "tiny runs");
    }
}

/// Package managers as they are called, with caches and settings in the home: each installs, keeps what it fetched in the
/// sandbox, and installs again from that.
#[test]
fn packages_install_into_a_home_of_the_sandboxs_own() {
    const NPM: &str = "npm install --silent --no-audit --no-fund --fetch-retries 0 --registry https://files.test/npm/ tiny && \
         node -e 'require(\"tiny\")' && rm -r node_modules && npm ci --silent --offline --no-audit --no-fund && \
         node -e 'require(\"tiny\")' && test -d ~/.npm/_cacache";
    const PIP: &str = "/usr/bin/python3 -m pip --disable-pip-version-check -q install --retries 0 \
         --index-url https://files.test/simple/ --target t tiny && PYTHONPATH=t /usr/bin/python3 -m tiny && \
         /usr/bin/python3 -m pip -q config --user set global.timeout 9 && cat ~/.config/pip/pip.conf";
    for who in either() {
        let world = stocked(who);
        let trust = TRUST.map(|name| format!("{name}={}/ca.pem", world.place.project.display()));
        let trust = trust.iter().flat_map(|variable| ["--env", variable]);
        let flags: Vec<&str> = ["-p", "package-install", "--net", NAME].into_iter().chain(trust).collect();
        says(&world.run(&flags, &sh(NPM)), "tiny runs");
        says(&world.run(&flags, &sh(PIP)), "tiny runs");
        assert!(!world.place.home.join(".npm").exists() && !world.place.home.join(".config").exists());
    }
}

/// What a sandbox fetched is there for those made from its template: they ask the registry for nothing, and what one of them makes of its
/// cache stays its own.
#[test]
fn packages_of_a_prepared_sandbox_are_not_fetched_again() {
    const CI: &str = "npm ci --silent --no-audit --no-fund --fetch-retries 0 && node -e 'require(\"tiny\")'";
    for who in either() {
        let world = stocked(who);
        let place = &world.place;
        let requests = || fs::read_to_string(place.root.join("world/requests")).unwrap_or_default().lines().count();
        let verb = |args: &[&str]| {
            let done = place.cofferdam(args).output().unwrap();
            assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        };
        let trust = format!("NODE_EXTRA_CA_CERTS={}/ca.pem", place.project.display());
        let inside = |sandbox: &str, script: &str| {
            says(&world.run(&["--sandbox", sandbox, "--env", &trust], &sh(script)), "tiny runs");
        };
        place.file("home/project/.npmrc", "registry=https://files.test/npm/\n");
        place.file("home/project/package.json", json!({"name": "own", "dependencies": {"tiny": "1.0.0"}}).to_string());
        verb(&["create", "--name", "ready", "-p", "package-install", "--net", NAME]);
        inside(
            "ready",
            &format!("npm install --silent --no-audit --no-fund --fetch-retries 0 && {CI} && rm -r node_modules"),
        );
        let fetched = requests();
        assert!(fetched > 0);
        verb(&["template", "create", "packages", "--from", "ready"]);
        for name in ["second", "third"] {
            verb(&["create", "--name", name, "--template", "packages"]);
        }
        inside("second", &format!("{CI} && echo poison | tee $(find ~/.npm/_cacache/content-v2 -type f) > /dev/null"));
        inside("third", CI);
        says(&world.run(&["--template", "packages", "--rm", "--env", &trust], &sh(CI)), "tiny runs");
        assert_eq!(requests(), fetched, "{who:?}: nothing was fetched again");
        // The control: a sandbox that was not prepared has nothing.
        verb(&["create", "--name", "plain", "-p", "package-install", "--net", NAME]);
        inside("plain", &format!("npm install --silent --no-audit --no-fund --fetch-retries 0 && {CI}"));
        assert!(requests() > fetched);
    }
}

/// Cargo fetches from a registry into its cache in the home. The toolchain is that of the tests, which root may read.
#[test]
fn cargo_fetches_into_a_home_of_the_sandboxs_own() {
    let Some(tools) = option_env!("CARGO").and_then(|cargo| Path::new(cargo).parent()?.parent()) else { return };
    let world = stocked(As::Root);
    let place = &world.place;
    place.file("home/project/Cargo.toml", "[package]\nname = \"own\"\nversion = \"0.1.0\"\n[dependencies]\ntiny = { version = \"1\", registry = \"local\" }\n");
    place.file("home/project/src/lib.rs", "");
    place.file("home/project/.cargo/config.toml", "[registries.local]\nindex = \"sparse+https://files.test/index/\"\n");
    // A cache of the host is the base of what is added.
    let cached = place.file("home/.cargo/registry/cache/older.crate", "of the host");
    let path = format!("PATH={}/bin:/usr/bin:/bin", tools.display());
    let trust = format!("CARGO_HTTP_CAINFO={}/ca.pem", place.project.display());
    let (read, net) = (tools.to_str().unwrap(), ["--net", NAME]);
    let flags =
        ["-p", "package-install", "--read", read, "--read", "~/.cargo/registry", "--env", &path, "--env", &trust];
    let fetch = "cargo fetch -q && cargo fetch -q --offline && ls ~/.cargo/registry/cache/*";
    let run = world.run(&[&flags[..], &net].concat(), &sh(fetch));
    says(&run, "tiny-1.0.0.crate");
    says(&run, "older.crate");
    assert_eq!(fs::read_dir(cached.parent().unwrap()).unwrap().count(), 1, "the host's cache is as it was");
    // The control: without a rule for the registry nothing is fetched.
    assert_ne!(world.run(&flags, &sh(fetch)).code(), 0);
}

/// pnpm from the registry, without what it depends on: it is released as one file.
fn pnpm() -> PathBuf {
    let dir = kept("pnpm-9.15.9");
    let program = dir.join("node_modules/pnpm/bin/pnpm.cjs");
    if !program.exists() {
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save", "--prefix"])
            .arg(&dir);
        let got = npm.arg("pnpm@9.15.9").output().unwrap();
        assert!(got.status.success(), "npm: {}", String::from_utf8_lossy(&got.stderr));
    }
    program
}

/// pnpm and go install again from what they fetched: go from the home, pnpm from a store beside the project, because no link leads from the
/// home into a workspace. That store is withheld from review. Programs of the tests are for root.
#[test]
fn pnpm_and_go_install_again_from_what_they_fetched() {
    let program = pnpm();
    let program = program.display();
    let read = program.to_string().replace("/bin/pnpm.cjs", "");
    let pnpm = format!(
        "p() {{ node {program} \"$@\"; }}; p add --silent --fetch-retries 0 --registry https://files.test/npm/ tiny && node -e 'require(\"tiny\")' && \
         rm -r node_modules && p install --silent --offline --frozen-lockfile && node -e 'require(\"tiny\")'"
    );
    const GO: &str = "export GOPROXY=https://files.test/go GOSUMDB=off GOTOOLCHAIN=local; \
         /usr/bin/go mod download tiny.test/tiny@v1.0.0 && GOPROXY=off /usr/bin/go mod download tiny.test/tiny@v1.0.0 && \
         ls ~/go/pkg/mod/tiny.test";
    let world = stocked(As::Root);
    let trust = TRUST.map(|name| format!("{name}={}/ca.pem", world.place.project.display()));
    let trust = trust.iter().flat_map(|variable| ["--env", variable]);
    let flags: Vec<&str> = ["-p", "package-install", "--read", &read].into_iter().chain(trust).collect();
    let net = ["--net", NAME];
    let mut sandbox = String::new();
    for (script, said) in [(pnpm.as_str(), "tiny runs\ntiny runs"), (GO, "tiny@v1.0.0")] {
        let run = world.run(&[&flags[..], &net].concat(), &sh(script));
        // pnpm also tries where a link may lead, and is refused there.
        assert!(run.code() == 0 && run.stdout().contains(said), "{}", run.story());
        assert_ne!(world.run(&flags, &sh(script)).code(), 0, "the control");
        sandbox = [sandbox, run.text("/sandbox")].into_iter().find(|id| !id.is_empty()).unwrap_or_default();
    }
    let diff = world.place.cofferdam(["diff", "--json", &sandbox]).output().unwrap();
    let diff: Value = serde_json::from_slice(&diff.stdout).unwrap();
    assert!(diff["withheld"].to_string().contains(".pnpm-store"), "{diff}");
    assert!(!diff["files"].to_string().contains(".pnpm-store"), "{diff}");
    assert!(!world.place.home.join("go").exists() && !world.place.home.join(".local").exists());
}

/// The `requests` library from the registry, with its own certificate bundle, downloaded as the user who runs the
/// tests.
fn requests() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let dir = kept("requests-2.32.3");
        if !dir.join("requests").exists() {
            let mut pip = Command::new("/usr/bin/python3");
            pip.args(["-m", "pip", "-q", "install", "--only-binary", ":all:", "--target"]).arg(&dir);
            let got = pip.arg("requests==2.32.3").output().unwrap();
            assert!(got.status.success(), "pip: {}", String::from_utf8_lossy(&got.stderr));
        }
        dir
    })
}

// promise 7
#[test]
fn python_requests() {
    const GET: &str = "import sys; sys.path.insert(0, sys.argv[1]); import requests
session = requests.Session()
for _ in range(2):
    print(session.get('https://files.test/hello', timeout=20).text)";
    for who in either() {
        let world = stocked(who);
        let library = world.place.project.join("library");
        assert!(Command::new("cp").arg("-r").args([requests(), &library]).status().unwrap().success());
        works(&world, &["/usr/bin/python3", "-c", GET, library.to_str().unwrap()], "hello from outside");
    }
}

// promise 7
#[test]
fn node_fetch() {
    const FETCH: &str = "fetch('https://files.test/hello').then(r => r.text()).then(t => process.stdout.write(t))";
    for who in either() {
        works(&stocked(who), &["node", "-e", FETCH], "hello from outside");
    }
}

/// A Go program: name resolution, sockets and TLS without any system library.
fn go_program() -> &'static Path {
    const SOURCE: &str = r#"
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

func get(at string) error {
	client := http.Client{Timeout: 20 * time.Second}
	answer, err := client.Get(at)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(os.Stdout, answer.Body)
	return err
}

func main() {
	done := make(chan error)
	for _, at := range os.Args[1:] {
		go func(at string) { done <- get(at) }(at)
	}
	for range os.Args[1:] {
		if err := <-done; err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
"#;
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let dir = kept("go");
        fs::write(dir.join("get.go"), SOURCE).unwrap();
        let mut go = Command::new("/usr/bin/go");
        go.args(["build", "-o", "get", "get.go"]).current_dir(&dir).env("CGO_ENABLED", "0");
        let made = go.env("GOCACHE", dir.join("cache")).env("GOFLAGS", "-mod=mod").output().unwrap();
        assert!(made.status.success(), "go: {}", String::from_utf8_lossy(&made.stderr));
        dir.join("get")
    })
}

// promise 7
#[test]
fn go_without_a_libc() {
    for who in either() {
        let world = stocked(who);
        let get = copied(&world, go_program());
        works(&world, &[&get, "https://files.test/hello"], "hello from outside");
        // Thirty non-blocking connections on one poll.
        let many = ["http://files.test/plain"; 30];
        let run = world.run(&["--net", NAME], &[&[get.as_str()], &many[..]].concat());
        says(&run, "GET /plain host=files.test");
        assert_eq!(run.stdout().lines().count(), many.len(), "{}", run.story());
    }
}

// promise 7
#[test]
fn java_http_client() {
    const SOURCE: &str = r#"
import java.net.URI;
import java.net.http.*;

class Get {
    public static void main(String[] args) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(args[0])).build();
        System.out.print(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body());
    }
}
"#;
    // Setup of the trust store as the guide gives it.
    const TRUSTING: &str =
        "cp /etc/ssl/certs/java/cacerts /tmp/trust &&
keytool -importcert -noprompt -file /.cofferdam/ca.pem -keystore /tmp/trust -storepass changeit &&
export JAVA_TOOL_OPTIONS='-Djavax.net.ssl.trustStore=/tmp/trust -Djavax.net.ssl.trustStorePassword=changeit' && exec java Get.java https://files.test/hello";
    for who in either() {
        let world = stocked(who);
        world.place.file("home/project/Get.java", SOURCE);
        let plain = ["java", "Get.java", "http://files.test/plain"];
        says(&world.run(&["--net", NAME], &plain), "GET /plain host=files.test");
        refused(&world, &plain);
        is_read(&world, &sh(TRUSTING), "hello from outside");
    }
}

/// Starts a PostgreSQL server at the public address for one run, under Debian's account for it; it ends with the
/// network.
fn with_postgres(world: World) -> World {
    let dir = world.place.root.join("world").display().to_string();
    let program = "$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)";
    let user = "setpriv --pdeathsig INT --reuid postgres --regid postgres --clear-groups --";
    world.before(&format!(
        "mkdir {dir}/db; cp {dir}/leaf.pem {dir}/leaf.key {dir}/db; chmod 600 {dir}/db/leaf.key; chown -R postgres: {dir}/db\n\
         cd {dir}/db\n\
         {user} {program}/initdb -D data -U guest -A trust --no-sync >log 2>&1 || {{ cat log >&2; exit 1; }}\n\
         echo 'host all all 0.0.0.0/0 trust' > data/pg_hba.conf\n\
         {user} {program}/postgres -D data -c listen_addresses={PUBLIC} -c unix_socket_directories= -c fsync=off \
         -c ssl=on -c ssl_cert_file={dir}/db/leaf.pem -c ssl_key_file={dir}/db/leaf.key >>log 2>&1 </dev/null &\n\
         for _ in $(seq 300); do {program}/pg_isready -q -h {PUBLIC} && break; sleep 0.1; done\n\
         {program}/pg_isready -q -h {PUBLIC} || {{ cat log >&2; exit 1; }}\n\
         cd - > /dev/null",
    ))
}

// promise 7
#[test]
fn psql_plain_and_in_tls() {
    const ASK: &str = "select 6*7 as answer, ssl from pg_stat_ssl where pid = pg_backend_pid()";
    const ALL_WAYS: &str = "for mode in disable require 'verify-full sslrootcert=ca.pem'; do \
         psql -XAtq \"host=files.test user=guest dbname=postgres connect_timeout=20 sslmode=$mode\" -c \"$1\" || exit; done";
    for who in either() {
        let world = world(who);
        let ask = ["/bin/sh", "-c", ALL_WAYS, "sh", ASK];
        refused(&world, &ask);
        let run = with_postgres(world).run(&["--net", "files.test:5432"], &ask);
        says(&run, "42|f\n42|t\n42|t\n");
    }
}

/// A static C program with a DNS query and a connect of its own; no libc resolver or library is involved.
fn static_program() -> &'static Path {
    const SOURCE: &str = r#"
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static struct sockaddr_in at(const char *address, int port) {
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, address, &place.sin_addr);
    return place;
}

/* The last four bytes of an answer with one address are that address. */
static int resolve(char *name, struct in_addr *found) {
    char line[256], server[64] = "";
    unsigned char message[600] = {0x12, 0x34, 1, 0, 0, 1};
    FILE *file = fopen("/etc/resolv.conf", "r");
    while (file && fgets(line, sizeof line, file) && sscanf(line, "nameserver %63s", server) != 1);
    int len = 12;
    for (char *part = strtok(name, "."); part; part = strtok(NULL, ".")) {
        message[len++] = strlen(part);
        memcpy(message + len, part, strlen(part));
        len += strlen(part);
    }
    message[len + 2] = message[len + 4] = 1;
    struct sockaddr_in place = at(server, 53);
    struct timeval patience = {.tv_sec = 20};
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    sendto(s, message, len + 5, 0, (void *)&place, sizeof place);
    int got = recv(s, message, sizeof message, 0);
    if (got < 28 || message[0] != 0x12 || message[1] != 0x34 || (message[3] & 15) || !message[7]) return -1;
    memcpy(found, message + got - 4, 4);
    return 0;
}

int main(void) {
    const char *request = "GET /raw HTTP/1.0\r\nHost: files.test\r\n\r\n";
    char name[] = "files.test", answer[1000];
    struct sockaddr_in place = at("0.0.0.0", 80);
    if (resolve(name, &place.sin_addr)) return 3;
    int s = socket(AF_INET, SOCK_STREAM, 0), got;
    if (connect(s, (void *)&place, sizeof place)) return 4;
    if (send(s, request, strlen(request), 0) < 0) return 5;
    while ((got = recv(s, answer, sizeof answer, 0)) > 0) write(1, answer, got);
    return got ? 6 : 0;
}
"#;
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let dir = kept("static");
        fs::write(dir.join("raw.c"), SOURCE).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-static", "-O1", "-o", "raw", "raw.c"]).current_dir(&dir).stdin(Stdio::null());
        let made = cc.output().unwrap();
        assert!(made.status.success(), "cc: {}", String::from_utf8_lossy(&made.stderr));
        dir.join("raw")
    })
}

// promise 7
#[test]
fn a_static_program_with_sockets_of_its_own() {
    for who in either() {
        let world = world(who);
        let raw = copied(&world, static_program());
        says(&world.run(&["--net", NAME], &[&raw]), "GET /raw host=files.test");
        refused(&world, &[&raw]);
        is_read(&world, &[&raw], "GET /raw host=files.test");
    }
}

/// A network with addresses that answer, refuse, never answer, or have no route.
fn rough(who: As) -> World {
    const SIX: &str = "2a0b:5::5";
    World::new(who)
        .before(&format!("echo 1 > /proc/sys/net/ipv6/ip_nonlocal_bind\nip -6 route add local {SIX} dev lo\nip route add unreachable 5.5.6.0/24"))
        .host(PUBLIC, "good.test both.test half.test mute.test")
        .host(SIX, "six.test both.test")
        // No route leads to this address.
        .host("2a0b:6::6", "half.test")
        .host("5.5.6.6", "hole.test")
        .server("http", PUBLIC, 80)
        .server("greet", PUBLIC, 7000)
        .server("shut", PUBLIC, 7001)
        .server("mute", PUBLIC, 7002)
        .server("http", SIX, 81)
        .server("http", PUBLIC, 81)
        .server("greet", SIX, 7006)
        .server("greet", SIX, 7002)
        .server("http", SIX, 82)
}

const ALL: [&str; 2] = ["--net", "**.test"];

// promise 7
#[test]
fn connections_are_made_without_blocking() {
    const EPOLL: &str = "
import asyncio, errno, select, socket, os
s = socket.socket()
s.setblocking(False)
assert s.connect_ex((socket.gethostbyname('good.test'), 7000)) in (0, errno.EINPROGRESS)
poll = select.epoll()
poll.register(s, select.EPOLLOUT | select.EPOLLET)
assert poll.poll(10) == [(s.fileno(), select.EPOLLOUT)]
assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
poll.modify(s, select.EPOLLIN)
assert poll.poll(10) and s.recv(100) == b'220 hello\\n'
assert s.getpeername() == ('5.5.5.5', 7000)

async def one(i):
    reader, writer = await asyncio.open_connection('good.test', 80)
    writer.write(b'GET /%d HTTP/1.1\\r\\nHost: good.test\\r\\nConnection: close\\r\\n\\r\\n' % i)
    got = await reader.read()
    writer.close()
    assert b'GET /%d host=good.test' % i in got, got
async def all():
    await asyncio.gather(*map(one, range(100)))
asyncio.run(all())
";
    for who in either() {
        rough(who).python(&ALL, EPOLL).assert_ok();
    }
}

// promise 7
#[test]
fn programs_that_know_two_protocols_find_the_one_that_works() {
    const RACE: &str = "
import asyncio, socket
# One address family has no route out of this host, so its addresses are not returned.
assert {a[4][0] for a in socket.getaddrinfo('half.test', 80, type=socket.SOCK_STREAM)} == {'5.5.5.5'}
# Both families have a route, and only one has a server: IPv4 is tried first, by the order of the addresses.
found = [a[4][0] for a in socket.getaddrinfo('both.test', 80, type=socket.SOCK_STREAM)]
assert found == ['5.5.5.5', '2a0b:5::5'], found
def talk(name, port, want):
    s = socket.create_connection((name, port), 10)
    assert s.getpeername()[0] == want, s.getpeername()
    s.sendall(b'GET / HTTP/1.1\\r\\nHost: %s\\r\\nConnection: close\\r\\n\\r\\n' % name.encode())
    got = b''
    while part := s.recv(1000): got += part
    assert b'host=' + name.encode() in got, got
talk('half.test', 80, '5.5.5.5')
talk('both.test', 80, '5.5.5.5')
talk('six.test', 81, '2a0b:5::5')
# The first address refuses or stays silent, and the client falls back to the second.
assert socket.create_connection(('both.test', 7006), 10).getpeername()[0] == '2a0b:5::5'
async def race():
    for name, port in (('half.test', 7000), ('both.test', 7000), ('both.test', 7006), ('both.test', 7002)):
        reader, writer = await asyncio.open_connection(name, port, happy_eyeballs_delay=0.05)
        assert await reader.readline() == b'220 hello\\n'
        writer.close()
asyncio.run(race())
";
    for who in either() {
        let world = rough(who);
        world.python(&ALL, RACE).assert_ok();
        let get = copied(&world, go_program());
        // Port 82 of both.test answers only on the second address.
        let all = ["http://half.test/", "http://both.test/", "http://six.test:81/", "http://both.test:82/"];
        world.run(&ALL, &[&[get.as_str()], &all[..]].concat()).assert_ok();
        world.run(&ALL, &[&["curl", "-sS", "-m", "10"], &all[..]].concat()).assert_ok();
        let fetch = "(async () => { for (const at of process.argv.slice(1)) await (await fetch(at)).text() })()";
        world.run(&ALL, &[&["node", "-e", fetch], &all[..]].concat()).assert_ok();
    }
}

// promise 7
#[test]
fn either_side_may_close_its_half_first() {
    const HALVES: &str = "
import socket
s = socket.create_connection(('good.test', 7000), 10)
s.sendall(b'x' * 100000)
s.shutdown(socket.SHUT_WR)
got = b''
while part := s.recv(65536): got += part
assert got == b'220 hello\\n' + b'x' * 100000 + b'bye\\n', len(got)

s = socket.create_connection(('good.test', 7001), 10)
assert s.recv(100) == b'no more\\n' and s.recv(100) == b''
for _ in range(10): s.sendall(b'y' * 10000)
s.close()
";
    for who in either() {
        let world = rough(who);
        world.sh(&ALL, &format!("/usr/bin/python3 -c \"{HALVES}\" && sleep 0.3")).assert_ok();
        let received = fs::read_to_string(world.place.root.join("world/heard")).unwrap();
        assert_eq!(received, "100000\n");
    }
}

/// Data that a program sent before it exited is still delivered, as without an enclosure. A server that reads too late
/// sees a reset connection, never a truncated stream that looks complete.
// promise 7
#[test]
fn last_words_arrive_whole_or_not_at_all() {
    const SERVE: &str = r#"
import socket, sys, time
server = socket.create_server(("5.5.5.5", 7010))
stream, _ = server.accept()
time.sleep(float(sys.argv[1]))
heard = 0
try:
    while got := stream.recv(65536): heard += len(got)
    print(heard)
except ConnectionResetError:
    print("reset")
"#;
    const SAY: &str = r#"
import os, socket, sys
stream = socket.create_connection(("good.test", 7010), 10)
stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4000000)
stream.sendall(b"a word and\n" + b"y" * (int(sys.argv[1]) - 11))
os._exit(0)
"#;
    const TALK: &str = "/usr/bin/python3 -c \"$1\" \"$2\" & \
         until ss -ltn | grep -q :7010; do sleep 0.02; done; \"$3\" run --net good.test -- /usr/bin/python3 -c \"$4\" \"$5\"; wait";
    for who in either() {
        let world = rough(who);
        let cofferdam = binary().to_str().unwrap();
        for (waits, bytes, received) in [("0", "100", "100"), ("0.3", "6000000", "6000000"), ("2", "6000000", "reset")]
        {
            let talk = ["-c", TALK, "sh", SERVE, waits, cofferdam, SAY, bytes];
            let output = to_the_end(&mut world.command("sh", &talk), b"");
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), received, "{bytes} as {who:?}: {output:?}");
        }
    }
}

/// Connects to each address in every way programs use, with a timeout in seconds, and prints how each attempt ended.
const CALLS: &str = r#"
import asyncio, errno, select, socket, sys
wait = float(sys.argv[1])
def new(at): return socket.socket(socket.AF_INET6 if ":" in at[0] else socket.AF_INET)
def blocking(at):
    with new(at) as s:
        # A timeout in the kernel, so that the call itself blocks.
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, int(wait).to_bytes(8, sys.byteorder) + bytes(8))
        s.connect(at)
def bounded(at):
    with new(at) as s:
        s.settimeout(wait)
        s.connect(at)
def polled(at):
    with new(at) as s:
        s.setblocking(False)
        code = s.connect_ex(at)
        if code == errno.EINPROGRESS:
            poll = select.poll()
            poll.register(s, select.POLLOUT)
            if not poll.poll(wait * 1000): raise TimeoutError
            code = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code: raise OSError(code, "")
        s.getpeername()
def looped(at):
    async def one():
        _, writer = await asyncio.wait_for(asyncio.open_connection(*at), wait)
        writer.close()
    asyncio.run(one())
for place in sys.argv[2:]:
    host, port = place.rsplit(",", 1)
    for way in (blocking, bounded, polled, looped):
        try:
            way((host, int(port)))
            ended = "made"
        except (TimeoutError, asyncio.TimeoutError): ended = "no answer"
        except OSError as e: ended = "no answer" if e.errno == errno.EINPROGRESS else errno.errorcode[e.errno]
        print(place, way.__name__, ended, flush=True)
"#;

/// Connects inside succeed where they succeed outside, and fail with the same error.
// promise 7
#[test]
fn connections_end_inside_as_they_end_outside() {
    const MADE: [&str; 3] = ["5.5.5.5,80", "2a0b:5::5,81", "127.0.0.1,7100"];
    const FAILING: [(&str, &str); 7] = [
        ("5.5.5.5,9", "ECONNREFUSED"),
        ("2a0b:5::5,9", "ECONNREFUSED"),
        ("127.0.0.1,7101", "ECONNREFUSED"),
        ("5.5.6.6,80", "EHOSTUNREACH"),
        ("2a0b:7::7,80", "EHOSTUNREACH"),
        ("5.5.9.9,80", "ENETUNREACH"),
        ("2a0b:9::9,80", "ENETUNREACH"),
    ];
    const RULES: [&str; 8] =
        ["--net", "5.5.0.0/16", "--net", "2a0b::/16", "--net", "127.0.0.1:7100", "--net", "127.0.0.1:7101"];
    let places: Vec<&str> = MADE.into_iter().chain(FAILING.map(|(place, _)| place)).collect();
    for who in either() {
        let world = rough(who).before("ip -6 route add unreachable 2a0b:7::/32").server("greet", "127.0.0.1", 7100);
        let command = [&["/usr/bin/python3", "-c", CALLS, "9"][..], &places].concat();
        let outside = to_the_end(&mut world.command(command[0], &command[1..]), b"");
        let outside = String::from_utf8_lossy(&outside.stdout).into_owned();
        let journal = world.file();
        let run = world.run(&[&RULES[..], &["--events", journal.to_str().unwrap()]].concat(), &command);
        run.assert_ok();
        assert_eq!(run.stdout(), outside, "as {who:?}: {}", run.story());
        for (place, ended) in MADE.map(|place| (place, "made")).into_iter().chain(FAILING) {
            let all = outside.lines().filter(|line| *line.rsplit_once(' ').unwrap().1 == *ended);
            assert_eq!(all.filter(|line| line.starts_with(&format!("{place} "))).count(), 4, "{place}: {outside}");
        }
        // Such failures are no denials; the journal records the reason.
        assert_eq!(run.outcome["denials"], json!([]), "{}", run.story());
        let journal = fs::read_to_string(&journal).unwrap();
        for reason in ["the server refused the connection", "the server cannot be reached"] {
            assert!(journal.contains(reason), "{journal}");
        }
    }
}

/// A connect to a silent server lasts as long as the client's own timeout.
// promise 7
#[test]
fn a_server_that_does_not_answer_is_waited_for() {
    for who in either() {
        let world = rough(who);
        let journal = world.file();
        let flags = ["--net", "5.5.5.5:7002", "--net", "5.5.5.5:7000", "--events", journal.to_str().unwrap()];
        let call =
            |wait: &str| world.run(&flags, &["/usr/bin/python3", "-c", CALLS, wait, "5.5.5.5,7002", "5.5.5.5,7000"]);
        for wait in ["1", "3"] {
            let run = call(wait);
            run.assert_ok();
            let methods = ["blocking", "bounded", "polled", "looped"];
            let lines = |place, end| methods.map(|way| format!("{place} {way} {end}\n")).concat();
            let both = lines("5.5.5.5,7002", "no answer") + &lines("5.5.5.5,7000", "made");
            assert_eq!(run.stdout(), both, "as {who:?}: {}", run.story());
        }
        assert!(fs::read_to_string(&journal).unwrap().contains("the server does not answer"));
    }
}

/// A connection without a rule is refused before any packet leaves the host, and recorded as a denial.
// promise 7
#[test]
fn a_refused_connection_is_refused_as_by_a_server() {
    for who in either() {
        let world = rough(who);
        let run = world.run(
            &["--net", "5.5.5.5:80"],
            &["/usr/bin/python3", "-c", CALLS, "9", "5.5.5.5,80", "5.5.5.5,7000", "2a0b:5::5,81"],
        );
        run.assert_ok();
        for (place, ended) in
            [("5.5.5.5,80", "made"), ("5.5.5.5,7000", "ECONNREFUSED"), ("2a0b:5::5,81", "ECONNREFUSED")]
        {
            let all =
                run.stdout().lines().filter(|l| l.starts_with(&format!("{place} ")) && l.ends_with(ended)).count();
            assert_eq!(all, 4, "as {who:?}: {}", run.story());
        }
        run.assert_denied("net.connect", "5.5.5.5:7000");
        run.assert_denied("net.connect", "[2a0b:5::5]:81");
    }
}

/// TCP fast open, a source port of the client's choice, and a source port that is reused at once.
// promise 7
#[test]
fn connections_of_rarer_kinds_are_made() {
    const RARE: &str = "
import socket
AT = ('5.5.5.5', 7000)
for _ in range(3):
    s = socket.socket()
    assert s.sendto(b'\\1early', socket.MSG_FASTOPEN, AT) == 6
    got = b''
    while b'early' not in got: got += s.recv(100)
    s.close()
s = socket.socket()
s.setsockopt(socket.IPPROTO_TCP, 30, 1)  # TCP_FASTOPEN_CONNECT: fast open deferred to the first write
s.connect(AT)
s.sendall(b'late')
assert s.recv(100)
for i in range(50):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.settimeout(10)
    s.bind(('', 5555))
    s.connect(AT)
    assert s.recv(100) == b'220 hello\\n'
    # Closed by a reset, so that the same address pair can be reused at once.
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
    s.close()
print('all made')
";
    for who in either() {
        let run = rough(who).python(&["--net", "5.5.5.5:7000"], RARE);
        assert_eq!(run.assert_ok().stdout(), "all made\n", "{}", run.story());
    }
}

// promise 7
#[test]
fn ping_is_answered() {
    for who in either() {
        let open = "echo '0 2147483647' > /proc/sys/net/ipv4/ping_group_range";
        let world = rough(who).before(open);
        for (name, other) in [("good.test", "six.test"), ("six.test", "good.test")] {
            let ping = ["/usr/bin/ping", "-n", "-c", "2", "-i", "0.2", "-W", "10", name];
            let run = world.run(&["--net", &format!("icmp:{name}")], &ping);
            says(&run, "2 received");
            let run = world.run(&["--net", &format!("icmp:{other}")], &ping);
            assert_ne!(run.code(), 0, "{}", run.story());
            run.assert_denied("net.resolve", name);
        }
        // Control: an address without a host does not answer.
        let hole = ["/usr/bin/ping", "-n", "-c", "1", "-W", "1", "5.5.6.6"];
        let run = world.run(&["--net", "icmp:5.5.0.0/16"], &hole);
        assert!(run.code() != 0 && run.stdout().contains(" 0 received"), "{}", run.story());
    }
}
