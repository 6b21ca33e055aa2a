//! A live enclosure, end to end, as root and as an ordinary user. Without a role the binary copies itself to where
//! every user can read it, and starts one supervisor for each case and user, which is this binary again.

mod commands;
mod fixture;
mod inside;
mod limits;
mod stand;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

const CASE: &str = "RESIDENCE_CASE";
const PLACE: &str = "RESIDENCE_PLACE";
const USER: u32 = 1500;

type Case = (&'static str, fn());

fn cases() -> impl Iterator<Item = Case> {
    [commands::CASES, inside::CASES, limits::CASES, stand::CASES].into_iter().flatten().copied()
}

fn main() -> ExitCode {
    if let Ok(name) = std::env::var(CASE) {
        match cases().find(|(case, _)| *case == name) {
            Some((_, case)) => case(),
            None => fixture::role(&name),
        }
        return ExitCode::SUCCESS;
    }
    let only = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let ground = PathBuf::from(format!("/srv/cofferdam-residence-{}", std::process::id()));
    std::fs::create_dir_all(&ground).expect("tests run as root");
    let binary = ground.join("supervisor");
    std::fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    std::fs::set_permissions(&binary, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut failed = Vec::new();
    for (name, _) in cases().filter(|(name, _)| only.as_ref().is_none_or(|only| name.contains(only.as_str()))) {
        for user in [0, USER] {
            let began = std::time::Instant::now();
            let output = supervise(&ground, &binary, name, user);
            let ok = output.status.success();
            println!("{name} as {user}: {} in {:?}", if ok { "ok" } else { "FAILED" }, began.elapsed());
            print!("{}", String::from_utf8_lossy(&output.stdout));
            if !ok {
                print!("{}", String::from_utf8_lossy(&output.stderr));
                failed.push(name);
            }
        }
    }
    let _ = std::fs::remove_dir_all(&ground);
    println!("{} failed: {failed:?}", failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn supervise(ground: &Path, binary: &Path, name: &str, user: u32) -> std::process::Output {
    let place = ground.join(format!("{name}-{user}"));
    std::fs::create_dir(&place).unwrap();
    std::os::unix::fs::chown(&place, Some(user), Some(user)).unwrap();
    let mut command = Command::new("setpriv");
    if user == 0 {
        command = Command::new(binary);
    } else {
        command.args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".into()]).arg(binary);
    }
    command
        .current_dir(&place)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env(CASE, name)
        .env(PLACE, &place);
    command.stdin(Stdio::null()).output().unwrap()
}
