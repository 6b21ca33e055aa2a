//! The systemd units: accepted by systemd itself, with the settings that keepers and enclosures need.

use crate::support::unique;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

/// `systemd-analyze verify` with the binary where the unit looks for it.
fn verify(name: &str, text: &str) -> (bool, String) {
    let dir = std::env::temp_dir().join(format!("cofferdam-unit-{}-{}", std::process::id(), unique()));
    fs::create_dir_all(&dir).unwrap();
    let unit = dir.join(name);
    fs::write(&unit, text.replace("/usr/local/bin/cofferdam", env!("CARGO_BIN_EXE_cofferdam"))).unwrap();
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit).output();
    let output = output.expect("systemd-analyze is installed; see tools/test");
    fs::remove_dir_all(&dir).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // Complaints about units of the host do not count, nor about a key that this systemd is too old for and ignores.
    let ours = said.lines().filter(|line| line.contains(name) || line.contains("cofferdam"));
    let ours = ours.filter(|line| !line.contains("'DelegateSubgroup'")).collect::<Vec<_>>().join("\n");
    (output.status.success() && ours.is_empty(), said)
}

#[test]
fn systemd_takes_the_units() {
    for name in ["cofferdam.service", "cofferdam-user.service"] {
        let text = fs::read_to_string(packaging().join(name)).unwrap();
        let (good, said) = verify(name, &text);
        assert!(good, "{name}: {said}");
        for line in
            ["Type=notify", "KillMode=process", "Delegate=yes", "DelegateSubgroup=cofferdam-self", "Restart=on-failure"]
        {
            assert!(text.lines().any(|l| l == line), "{name} has {line}");
        }
        // The control: a unit with a mistake is reported.
        let (good, _) = verify(name, &text.replace("KillMode=process", "KilMode=process"));
        assert!(!good, "a mistake is seen");
    }
}
