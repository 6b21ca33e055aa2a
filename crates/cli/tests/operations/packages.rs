//! The packages of a release: unpacked as their users would, checked against their sums, and run.

use crate::support::{As, Place, binary};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn call(command: &mut Command) -> Output {
    let output = command.output().expect("the program is installed; see tools/test");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn package(out: &Path) -> Output {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/package");
    call(Command::new(tool).args(["--fast", "--binary"]).arg(binary()).arg("--out").arg(out))
}

fn checks(out: &Path) -> bool {
    let command = &mut Command::new("sha256sum");
    command.args(["--check", "--status", "SHA256SUMS"]).current_dir(out).status().unwrap().success()
}

// promise 26
#[test]
fn packages_hold_a_binary_that_runs_with_its_manual_and_units() {
    let place = Place::new(As::Root);
    let out = place.root.join("packages");
    let printed = String::from_utf8(package(&out).stdout).unwrap();
    let files: Vec<&Path> = printed.lines().map(Path::new).collect();
    let [archive, deb, _sums] = files[..] else { panic!("three files: {printed}") };
    assert!(checks(&out));

    let (unpacked, installed) = (place.root.join("unpacked"), place.root.join("installed"));
    fs::create_dir(&unpacked).unwrap();
    call(Command::new("tar").args(["--strip-components=1", "-xzf"]).arg(archive).arg("-C").arg(&unpacked));
    call(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(&installed));
    for (prefix, unit) in
        [(unpacked.clone(), "/usr/local/bin/cofferdam"), (installed.join("usr"), "/usr/bin/cofferdam")]
    {
        let program = prefix.join("bin/cofferdam");
        assert_eq!(fs::read(&program).unwrap(), fs::read(binary()).unwrap(), "{}", program.display());
        let version = String::from_utf8(call(Command::new(&program).arg("--version")).stdout).unwrap();
        assert!(
            version.starts_with("cofferdam ")
                && archive.to_str().unwrap().contains(version.trim()[10..].split(' ').next().unwrap())
        );
        let page = call(Command::new("gzip").args(["-dc"]).arg(prefix.join("share/man/man1/cofferdam.1.gz")));
        assert!(String::from_utf8_lossy(&page.stdout).contains(".TH cofferdam"));
        call(Command::new("bash").arg("-n").arg(prefix.join("share/bash-completion/completions/cofferdam")));
        for kind in ["system", "user"] {
            let text = fs::read_to_string(prefix.join("lib/systemd").join(kind).join("cofferdam.service")).unwrap();
            assert!(text.contains(&format!("ExecStart={unit} serve")), "{kind}: {text}");
        }
    }
    // The same binary gives the same bytes; a changed file does not pass the check.
    let again = place.root.join("again");
    package(&again);
    let name = archive.file_name().unwrap();
    assert_eq!(fs::read(archive).unwrap(), fs::read(again.join(name)).unwrap());
    fs::write(again.join(name), "changed").unwrap();
    assert!(!checks(&again));
}

#[test]
fn a_binary_that_is_none_is_refused() {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/package");
    let output = Command::new(tool).args(["--binary", "/bin/true"]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("/bin/true --version names no version"));
}
