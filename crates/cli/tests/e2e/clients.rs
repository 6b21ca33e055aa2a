//! Programs that people use, inside, over the network: none of them is told of a proxy, each reaches what a rule allows,
//! and none reaches it without the rule.

use crate::support::world::{PUBLIC, World};
use crate::support::{As, BOTH, Run};
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

const NET: &[&str] = &["--net", "good.test"];

/// A site that serves files over HTTP and HTTPS.
fn world(who: As) -> World {
    World::new(who)
        .host(PUBLIC, "good.test")
        .certificate(&["good.test"])
        .server("http", PUBLIC, 80)
        .server("https", PUBLIC, 443)
}

/// Runs shell text that prepares the site's files, in their directory.
fn publish(world: &World, text: &str) {
    let files = world.place.dir("world/files");
    let made = Command::new("sh").args(["-ec", text]).current_dir(&files).env("HOME", &files).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// The same with the rule, which works, and without, which does not.
fn with_and_without(world: &World, flags: &[&str], command: &[&str], says: &str) {
    let run = world.run(&[NET, flags].concat(), command);
    run.assert_ok();
    assert!(run.stdout().contains(says), "{}", run.story());
    let run = world.run(flags, command);
    assert!(run.code() != 0 && !run.stdout().contains(says), "{}", run.story());
}

/// The same where the requests are read on the way, and a request that the rule does not mean is refused.
fn inspected(world: &World, flags: &[&str], command: &[&str]) -> Run {
    let rule = json!({"action": "allow", "host": "good.test", "methods": ["GET", "HEAD"]});
    let policy = world.place.policy(json!({"version": 1, "extends": ["default"], "net": {"rules": [rule]}}));
    let run = world.run(&[&["-p", &policy][..], flags].concat(), command);
    run.assert_ok();
    run
}

#[test]
fn git_clones_over_https() {
    const CLONE: &str = "cd /tmp && git clone -q https://good.test/files/it.git && cat it/letter";
    for who in BOTH {
        let world = world(who);
        publish(
            &world,
            "git init -q work; cd work; echo 'dear reader' > letter; git add letter
             git -c user.name=a -c user.email=a@b commit -qm one; cd ..
             git clone -q --bare work it.git; git -C it.git update-server-info; chmod -R a+rX .",
        );
        let command = ["/bin/sh", "-c", CLONE];
        with_and_without(&world, &[], &command, "dear reader");
        assert!(inspected(&world, &[], &command).stdout().contains("dear reader"));
    }
}

#[test]
fn pip_takes_a_package_from_an_index() {
    const WHEEL: &str = "
import base64, hashlib, zipfile
files = {'tiny.py': 'word = \"tiny inside\"\\n', 'tiny-1.0.dist-info/METADATA': 'Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n',
  'tiny-1.0.dist-info/WHEEL': 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n'}
files['tiny-1.0.dist-info/RECORD'] = ''.join(f'{n},,\\n' for n in files) + 'tiny-1.0.dist-info/RECORD,,\\n'
with zipfile.ZipFile('simple/tiny/tiny-1.0-py3-none-any.whl', 'w') as wheel:
    for name, text in files.items(): wheel.writestr(name, text)
open('simple/tiny/index.html', 'w').write('<a href=\"tiny-1.0-py3-none-any.whl\">tiny-1.0-py3-none-any.whl</a>')
";
    const INSTALL: &str = "/usr/bin/python3 -m pip install -q --disable-pip-version-check --no-cache-dir --retries 0 \
         --index-url https://good.test/files/simple/ --target /tmp/t tiny && PYTHONPATH=/tmp/t /usr/bin/python3 -c 'import tiny; print(tiny.word)'";
    for who in BOTH {
        let world = world(who);
        fs::write(world.place.dir("world/files").join("wheel.py"), WHEEL).unwrap();
        publish(&world, "mkdir -p simple/tiny; /usr/bin/python3 wheel.py; chmod -R a+rX .");
        let trust = ["--env", "PIP_CERT=/etc/ssl/certs/ca-certificates.crt"];
        with_and_without(&world, &trust, &["/bin/sh", "-c", INSTALL], "tiny inside");
        assert!(inspected(&world, &[], &["/bin/sh", "-c", INSTALL]).stdout().contains("tiny inside"));
    }
}

#[test]
fn npm_takes_a_package_from_a_registry() {
    const INSTALL: &str = "cd /tmp && npm install --silent --no-audit --no-fund --fetch-retries=0 --cache /tmp/c \
         --registry https://good.test/files/npm/ tiny && node -e 'console.log(require(\"tiny\"))'";
    for who in BOTH {
        let world = world(who);
        publish(
            &world,
            r#"mkdir -p package npm; cd package
             echo '{"name":"tiny","version":"1.0.0","main":"i.js"}' > package.json; echo 'module.exports="tiny inside"' > i.js
             cd ..; tar czf tiny.tgz package; sum=$(openssl dgst -sha512 -binary tiny.tgz | base64 -w0)
             echo '{"name":"tiny","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"tiny","version":"1.0.0","main":"i.js",
             "dist":{"tarball":"https://good.test/files/tiny.tgz","integrity":"sha512-'$sum'"}}}}' > npm/tiny; chmod -R a+rX ."#,
        );
        let trust = ["--env", "NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt"];
        with_and_without(&world, &trust, &["/bin/sh", "-c", INSTALL], "tiny inside");
    }
}

#[test]
fn node_and_python_fetch() {
    const NODE: &str = "fetch(process.argv[1]).then(async r => console.log(r.status, await r.text()))";
    const PYTHON: &str =
        "import sys, urllib.request as u; r = u.urlopen(sys.argv[1]); print(r.status, r.read().decode())";
    const ASYNC: &str = "
import asyncio, sys
async def main():
    r, w = await asyncio.open_connection('good.test', 80)
    w.write(b'GET /a HTTP/1.1\\r\\nHost: good.test\\r\\nConnection: close\\r\\n\\r\\n')
    print((await r.read()).decode())
asyncio.run(main())
";
    for who in BOTH {
        let world = world(who);
        for (program, flag, text) in [("/usr/bin/node", "-e", NODE), ("/usr/bin/python3", "-c", PYTHON)] {
            with_and_without(&world, &[], &[program, flag, text, "http://good.test/a"], "200 GET /a");
            let said = inspected(&world, &[], &[program, flag, text, "https://good.test/b"]);
            assert!(said.stdout().contains("200 GET /b"), "{}", said.story());
        }
        with_and_without(&world, &[], &["/usr/bin/python3", "-c", ASYNC], "GET /a");
    }
}

/// A program made once, where every user can start it.
fn made(name: &str, source: &str, text: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("cofferdam-client-{}-{name}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(dir.join(source), text).unwrap();
    dir
}

static GO: LazyLock<PathBuf> = LazyLock::new(|| {
    const TEXT: &str = r#"package main
import ("fmt"; "io"; "net"; "os")
func main() {
	c, err := net.Dial("tcp", os.Args[1])
	if err != nil { fmt.Println(err); os.Exit(1) }
	fmt.Fprintf(c, "GET /go HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n")
	b, err := io.ReadAll(c)
	if err != nil || len(b) == 0 { fmt.Println("cut", err); os.Exit(1) }
	fmt.Println(string(b))
}
"#;
    let dir = made("go", "main.go", TEXT);
    let mut go = Command::new("go");
    go.args(["build", "-o", "client", "main.go"])
        .current_dir(&dir)
        .env("CGO_ENABLED", "0")
        .env("GOCACHE", dir.join("cache"));
    let built = go.env("HOME", &dir).env("GO111MODULE", "off").output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    fs::remove_dir_all(dir.join("cache")).unwrap();
    dir
});

#[test]
fn a_static_go_program_with_its_own_resolver() {
    for who in BOTH {
        let world = world(who);
        let client = world.place.project.join("client");
        fs::copy(GO.join("client"), &client).unwrap();
        with_and_without(&world, &[], &[client.to_str().unwrap(), "good.test:80"], "GET /go");
    }
    let _ = fs::remove_dir_all(&*GO);
}

#[test]
fn javas_http_client() {
    const TEXT: &str = r#"import java.net.URI; import java.net.http.*;
class Fetch { public static void main(String[] a) throws Exception {
  var answer = HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create(a[0])).build(), HttpResponse.BodyHandlers.ofString());
  System.out.println(answer.statusCode() + " " + answer.body()); } }
"#;
    for who in BOTH {
        let world = world(who);
        fs::write(world.place.project.join("Fetch.java"), TEXT).unwrap();
        with_and_without(&world, &[], &["/usr/bin/java", "Fetch.java", "http://good.test/java"], "200 GET /java");
    }
}

#[test]
fn psql_speaks_to_postgresql() {
    const BIN: &str = "$(ls -d /usr/lib/postgresql/*/bin | tail -1)";
    for who in BOTH {
        let data = format!("/tmp/cofferdam-pg-{}-{who:?}", std::process::id());
        let start = format!(
            "install -d -o postgres -m 700 {data}; bin={BIN}\n\
             as() {{ setpriv --reuid postgres --regid postgres --init-groups env -i PATH=/usr/bin:/bin LANG=C.UTF-8 \"$@\" > /dev/null; }}\n\
             as $bin/initdb -D {data} -A trust -U postgres\n\
             echo 'host all all all trust' >> {data}/pg_hba.conf\n\
             as $bin/pg_ctl -w -D {data} -l {data}/log -o \"-h {PUBLIC} -k {data} -c fsync=off\" start\n"
        );
        let stop = format!("as $bin/pg_ctl -m immediate -D {data} stop; rm -rf {data}\n");
        let world = World::new(who).host(PUBLIC, "good.test").before(&start).after(&stop);
        let ask = ["/usr/bin/psql", "-h", "good.test", "-U", "postgres", "-Atc", "select 6 * 7 || ' rows of nothing'"];
        with_and_without(&world, &[], &ask, "42 rows of nothing");
    }
}
