//! Layout of a keeper's directory below the state directory.
//!
//! ```text
//!  <state>/keepers/<sandbox>/keeper.json   card: the keeper's process
//!                            sock          socket for requests
//!                            services.json states of its services
//!                            events.jsonl  network events, in several files; see `parts`
//!                            runs/<run>/   output of each run; see `spool`
//! ```

use crate::events::EventFile;
use crate::owned_file::read_own;
use api::ServiceStatus;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const CARD: &str = "keeper.json";
const SOCKET: &str = "sock";
const SERVICES: &str = "services.json";
/// Size bound of a card, which is one line.
const LONGEST_CARD: u64 = 4096;
/// Size bound of the services file, which has one line for each service.
const LONGEST_SERVICES: u64 = 256 << 10;
/// Listen backlog.
const BACKLOG: i32 = 64;

/// Identity of a keeper process: only pid, start time and boot id together identify it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    pub pid: u32,
    pub pid_start: u64,
    pub boot: String,
    pub version: String,
    pub since_ms: u64,
    /// Reason of a failure that the keeper saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fell: Option<String>,
}

impl Card {
    pub fn own() -> Card {
        let pid = std::process::id();
        Card {
            pid,
            pid_start: state::process::own_start(),
            boot: state::process::boot(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            since_ms: terms::clock::now_ms(),
            fell: None,
        }
    }

    /// Returns a pidfd of the process, if it still is that process.
    pub fn handle(&self) -> Option<OwnedFd> {
        if self.boot != state::process::boot() {
            return None;
        }
        let held = pidfd_open(Pid::from_raw(i32::try_from(self.pid).ok()?)?, PidfdFlags::empty()).ok()?;
        // Checked while the pidfd is held: the pid cannot have been reused since.
        let same = state::process::start_of(self.pid) == Some(self.pid_start);
        (same && !sys::process::has_ended(held.as_fd())).then_some(held)
    }
}

/// The directory of one sandbox's keeper.
#[derive(Clone, Debug)]
pub struct KeeperDir {
    pub dir: PathBuf,
}

impl KeeperDir {
    pub fn of(state: &Path, sandbox: &str) -> KeeperDir {
        KeeperDir { dir: state.join("keepers").join(sandbox) }
    }

    pub fn make(&self) -> io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(self.dir.join("runs"))
    }

    /// Spool directory of a run.
    pub fn run(&self, run: &str) -> PathBuf {
        self.dir.join("runs").join(run)
    }

    /// Reads the card, whether its process lives or not.
    pub fn card(&self) -> Option<Card> {
        serde_json::from_slice(&read_own(&self.dir.join(CARD), LONGEST_CARD).ok()?).ok()
    }

    /// Returns whether the process on the card lives; it may still be silent.
    pub fn has_keeper(&self) -> bool {
        self.card().and_then(|card| card.handle()).is_some()
    }

    /// Returns whether the directory is gone or belongs to another keeper. On a read error it counts as present.
    pub fn is_lost(&self, pid: u32) -> bool {
        match std::fs::symlink_metadata(self.dir.join(CARD)) {
            Ok(_) => self.card().is_some_and(|card| card.pid != pid),
            Err(e) => e.kind() == io::ErrorKind::NotFound,
        }
    }

    pub fn write_card(&self, card: &Card) -> io::Result<()> {
        self.replace(CARD, &serde_json::to_vec(card)?)
    }

    /// Replaces a file by rename; a link or file planted at the temporary name is removed first, not written through.
    fn replace(&self, name: &str, text: &[u8]) -> io::Result<()> {
        let new = self.dir.join(format!("{name}.new"));
        let _ = std::fs::remove_file(&new);
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        io::Write::write_all(&mut file, text)?;
        std::fs::rename(new, self.dir.join(name))
    }

    /// States of the services, as last written.
    pub fn services(&self) -> Vec<ServiceStatus> {
        let text = read_own(&self.dir.join(SERVICES), LONGEST_SERVICES).ok();
        text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    pub fn write_services(&self, all: &[ServiceStatus]) -> io::Result<()> {
        self.replace(SERVICES, &serde_json::to_vec(all)?)
    }

    /// Opens the network event log for append.
    pub fn open_events(&self, max: u64) -> io::Result<EventFile> {
        EventFile::in_parts(&self.dir, max)
    }

    /// Removes the directory of a deleted sandbox.
    pub fn remove(&self) {
        let (Some(above), Some(name)) = (self.dir.parent(), self.dir.file_name()) else { return };
        // On failure the collector removes it later.
        let _ = workspace::Dir::open(above).and_then(|above| workspace::remove::tree(&above, name.as_encoded_bytes()));
    }

    /// Lists the sandboxes that have or had a keeper.
    pub fn all(state: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(state.join("keepers")).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Removes socket and card at an orderly exit, so that no client finds the keeper.
    pub fn clear(&self) {
        let _ = std::fs::remove_file(self.dir.join(SOCKET));
        let _ = std::fs::remove_file(self.dir.join(CARD));
    }

    /// Listens on the socket, replacing that of an earlier keeper. The caller holds the sandbox's lock.
    pub fn listen(&self) -> io::Result<OwnedFd> {
        let _ = std::fs::remove_file(self.dir.join(SOCKET));
        let socket = socket()?;
        let (_dir, address) = self.address()?;
        // The directory has mode 0700 already; the socket's own mode is a second barrier.
        rustix::net::bind(&socket, &address)?;
        rustix::fs::chmodat(CWD, self.dir.join(SOCKET), Mode::from_raw_mode(0o600), rustix::fs::AtFlags::empty())?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(socket)
    }

    /// Connects without blocking; `WouldBlock` where the backlog is full.
    pub fn connect(&self, card: &Card) -> io::Result<OwnedFd> {
        let socket = socket()?;
        let (_dir, address) = self.address()?;
        rustix::net::connect(&socket, &address)?;
        // The listener must be the process that the card names, and not one that a planted link leads to.
        let peer = rustix::net::sockopt::socket_peercred(&socket)?;
        match u32::try_from(peer.pid.as_raw_nonzero().get()) == Ok(card.pid) {
            true => Ok(socket),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "another process listens there")),
        }
    }

    /// Builds the socket address over `/proc/self/fd`, because a socket path is limited to 107 bytes and a state directory may be anywhere.
    fn address(&self) -> io::Result<(OwnedFd, SocketAddrUnix)> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&self.dir, flags, Mode::empty())?;
        let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd()))?;
        Ok((dir, address))
    }
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::symlink;

    /// Planted links, pipes and devices in place of a keeper's files are neither read nor written through, and never block.
    // promise 25
    #[test]
    fn only_files_of_its_own_are_read_and_written() {
        let root = std::env::temp_dir().join(terms::id("place", sys::random::id_bytes()));
        let (place, other) = (KeeperDir::of(&root, "sbx_1"), root.join("other"));
        place.make().unwrap();
        place.write_card(&Card::own()).unwrap();
        let text = std::fs::read(place.dir.join(CARD)).unwrap();
        assert!(place.card().is_some(), "the control");
        std::fs::write(&other, &text).unwrap();
        let fifo = root.join("fifo");
        rustix::fs::mkfifoat(CWD, &fifo, Mode::from_raw_mode(0o600)).unwrap();
        let put = |name: &str, how: &str| {
            let path = place.dir.join(name);
            let _ = std::fs::remove_file(&path);
            match how {
                "link" => symlink(&other, &path).unwrap(),
                "device" => symlink("/dev/zero", &path).unwrap(),
                "pipe" => std::fs::rename(&fifo, &path).unwrap(),
                "huge" => File::create(&path).and_then(|file| file.set_len(1 << 40)).unwrap(),
                "cut" => std::fs::write(&path, &text[..text.len() / 2]).unwrap(),
                _ => std::fs::write(&path, b"\xff\0[[[").unwrap(),
            }
            path
        };
        for how in ["link", "device", "huge", "cut", "garbage", "pipe"] {
            let path = put(CARD, how);
            assert!(place.card().is_none(), "{how}");
            if how == "pipe" {
                std::fs::rename(&path, &fifo).unwrap();
            }
        }
        for how in ["link", "device", "huge", "cut", "garbage"] {
            put(SERVICES, how);
            assert_eq!(place.services(), Vec::new(), "{how}");
            let path = put("events.jsonl", how);
            assert_eq!(place.open_events(9).is_err(), ["link", "device"].contains(&how), "{how}");
            let _ = std::fs::remove_file(path);
        }
        // Writes do not go through a link planted in advance.
        for name in [CARD, SERVICES] {
            put(&format!("{name}.new"), "link");
            put(name, "link");
        }
        place.write_card(&Card::own()).unwrap();
        place.write_services(&[]).unwrap();
        assert!(place.card().is_some() && place.services().is_empty());
        assert_eq!(std::fs::read(&other).unwrap(), text);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
