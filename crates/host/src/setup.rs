//! Set-up by root, once, so that an ordinary user's runs can have limits that need control groups. Makes and removes
//! directories under /sys/fs/cgroup only; persists nothing, but says how.

use std::path::Path;
use std::process::Command;
use sys::cgroup::{self, HierarchyKind, Layout};
use terms::{ErrorKind, Fault, Phase};

#[derive(Clone, Debug)]
pub struct SetupRequest {
    /// An account's name, or a uid.
    pub user: String,
    pub undo: bool,
}

#[derive(Clone, Debug)]
pub struct SetupReport {
    pub uid: u32,
    /// A line for each directory that was set up.
    pub done: Vec<String>,
    /// Notes for the user: how long it lasts, how to make it last.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Account {
    name: String,
    uid: u32,
    gid: u32,
}

pub fn setup(ask: &SetupRequest) -> Result<SetupReport, Fault> {
    if sys::host::ids().0 != 0 {
        return Err(refuse("only root can delegate control groups")
            .hint(format!("run as root: sudo cofferdam setup --user {}", quoted(&ask.user))));
    }
    let account = find_account(&ask.user)?;
    if account.uid == 0 {
        return Err(refuse("root needs no delegation: all limits work for root already")
            .hint("name the user who runs cofferdam"));
    }
    let layout = Layout::detect(Path::new("/"));
    if layout.kind == HierarchyKind::None {
        return Err(Fault::new(ErrorKind::UnsupportedHost, "no cgroup filesystem is mounted")
            .hint("mount -t cgroup2 cgroup2 /sys/fs/cgroup")
            .phase(Phase::Admission));
    }
    if ask.undo { undelegate_groups(&layout, &account) } else { delegate_groups(&layout, &account, has_systemd()) }
}

fn delegate_groups(layout: &Layout, account: &Account, systemd: bool) -> Result<SetupReport, Fault> {
    if layout.kind == HierarchyKind::V2 && systemd {
        // On a v2 host systemd owns the whole tree and expects to be the only manager near its root; it also has
        // delegation of its own, which survives a reboot and starts the user's processes in the right group.
        let notes = vec![
            format!(
                "nothing was changed: systemd owns the groups of this host and delegates them itself, also to {}",
                account.name
            ),
            "at once, for one command: systemd-run --user --scope -p Delegate=yes cofferdam run …".into(),
            format!(
                "for good: write the lines below to /etc/systemd/system/user@{}.service.d/delegate.conf, then run \
                 `systemctl daemon-reload` and let the user log in again\n{DELEGATE}",
                account.uid
            ),
        ];
        return Ok(SetupReport { uid: account.uid, done: Vec::new(), notes });
    }
    let done = cgroup::delegate(layout, account.uid, account.gid).map_err(|e| failed("delegate", &e))?;
    let mut notes = vec!["it lasts until the next boot".to_owned(), persistence_note(account, systemd)];
    notes.push(format!("to take it back: cofferdam setup --user {} --undo", quoted(&account.name)));
    Ok(SetupReport { uid: account.uid, done, notes })
}

fn undelegate_groups(layout: &Layout, account: &Account) -> Result<SetupReport, Fault> {
    let mut done = cgroup::undelegate(layout, account.uid).map_err(|e| failed("take back", &e))?;
    if done.is_empty() {
        done.push(format!("uid {} had none", account.uid));
    }
    Ok(SetupReport { uid: account.uid, done, notes: Vec::new() })
}

const DELEGATE: &str = "[Service]\nDelegate=cpu cpuset memory pids";

fn persistence_note(account: &Account, systemd: bool) -> String {
    let command = format!("cofferdam setup --user {}", quoted(&account.name));
    if !systemd {
        return format!(
            "to repeat it after every boot, run `{command}` from your init's start-up script (e.g. /etc/rc.local)"
        );
    }
    format!(
        "to have it after every boot, write the lines below to /etc/systemd/system/cofferdam-setup@{uid}.service and run \
         `systemctl enable cofferdam-setup@{uid}`\n\
         [Unit]\nDescription=Control groups for the enclosures of uid {uid}\n\
         [Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/usr/local/bin/{command}\n\
         [Install]\nWantedBy=multi-user.target",
        uid = account.uid
    )
}

fn has_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// Finds an account in /etc/passwd first, then by the system's other account databases.
fn find_account(user: &str) -> Result<Account, Fault> {
    let unusable = user.is_empty() || user.starts_with('-') || user.contains([':', '\n', '\0']);
    if unusable {
        return Err(refuse(format!("{user:?} is not a valid account name")));
    }
    let file = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    if let Some(account) = in_passwd(&file, user).or_else(|| in_passwd(&getent(user), user)) {
        return Ok(account);
    }
    // A uid without an account is still a user to the kernel; its gid is assumed to be the same.
    match user.parse::<u32>() {
        Ok(uid) if uid != u32::MAX => Ok(Account { name: user.to_owned(), uid, gid: uid }),
        _ => Err(Fault::new(ErrorKind::NotFound, format!("there is no user {user:?}"))
            .hint("give an account's name or a uid; `getent passwd` lists them")
            .phase(Phase::Admission)),
    }
}

fn in_passwd(text: &str, user: &str) -> Option<Account> {
    let accounts = text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, ..] = fields[..] else { return None };
        Some(Account { name: name.to_owned(), uid: uid.parse().ok()?, gid: gid.parse().ok()? })
    });
    let accounts: Vec<Account> = accounts.collect();
    let named = accounts.iter().find(|a| a.name == user);
    named.or_else(|| accounts.iter().find(|a| a.uid.to_string() == user)).cloned()
}

/// Looks an account up in directory services; empty where the tool is absent.
fn getent(user: &str) -> String {
    let output = Command::new("/usr/bin/getent").args(["passwd", "--", user]).output();
    output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default()
}

fn refuse(message: impl Into<String>) -> Fault {
    Fault::invalid(message).phase(Phase::Admission)
}

fn failed(what: &str, error: &std::io::Error) -> Fault {
    let fault = Fault::new(ErrorKind::UnsupportedHost, format!("cannot {what} control groups: {error}"))
        .phase(Phase::Application);
    match error.kind() {
        std::io::ErrorKind::ResourceBusy => fault.hint("the user still runs something there; end it first"),
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            fault.hint("this root is not the host's: run it on the host, not in a container")
        }
        _ => fault,
    }
}

fn quoted(word: &str) -> String {
    let plain = !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "._-@".contains(c));
    if plain { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_by_name_and_by_number() {
        let text = "root:x:0:0::/root:/bin/sh\nann:x:1001:100::/home/ann:/bin/sh\n1002:x:7:7::/:/x\nbroken\nbob:x:1002:55::/:/x\n";
        let found = |user: &str| in_passwd(text, user).map(|a| (a.uid, a.gid));
        assert_eq!(found("ann"), Some((1001, 100)));
        assert_eq!(found("1001"), Some((1001, 100)));
        assert_eq!(found("1002"), Some((7, 7)), "a name goes before a number");
        assert_eq!(found("broken"), None);
        assert_eq!(found("nobody-here"), None);
    }

    #[test]
    fn odd_names_are_refused_before_anything_is_asked() {
        for user in ["", "-rf", "a:b", "a\nb"] {
            assert_eq!(find_account(user).unwrap_err().error_kind, ErrorKind::InvalidRequest, "{user:?}");
        }
        assert_eq!(find_account("no-such-user-here").unwrap_err().error_kind, ErrorKind::NotFound);
        assert_eq!(find_account("4294967295").unwrap_err().error_kind, ErrorKind::NotFound);
        assert_eq!(find_account("3999999").map(|a| (a.uid, a.gid)), Ok((3_999_999, 3_999_999)));
    }

    #[test]
    fn what_is_printed_for_a_shell_is_quoted_for_it() {
        assert_eq!(quoted("ann"), "ann");
        assert_eq!(quoted("a b'c"), "'a b'\\''c'");
    }
}
