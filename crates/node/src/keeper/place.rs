//! Where a keeper is found: a directory below the state directory with its card, its socket and what its runs have said.
//!
//! ```text
//!  <state>/keepers/<sandbox>/keeper.json   which process it is
//!                            sock          where it is asked
//!                            services.json how its services stand
//!                            events.jsonl  what happened on its network, and more such files, see `parts`
//!                            runs/<run>/   what each run has said, see `spool`
//! ```

use super::services::ServiceNow;
use crate::events::EventFile;
use crate::lifecycle::live;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const CARD: &str = "keeper.json";
const SOCKET: &str = "sock";
const SERVICES: &str = "services.json";
/// A card is a line.
const LONGEST_CARD: u64 = 4096;
/// One line for each service.
const LONGEST_SERVICES: u64 = 256 << 10;
/// Connections that wait to be taken.
const BACKLOG: i32 = 64;

/// Which process keeps a sandbox: only number, start time and boot together mean the same process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    pub pid: u32,
    pub pid_start: u64,
    pub boot: String,
    pub version: String,
    pub since_ms: u64,
    /// Why what it kept fell, where it saw it fall.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fell: Option<String>,
}

impl Card {
    pub fn own() -> Card {
        let pid = std::process::id();
        Card {
            pid,
            pid_start: live::own_start(),
            boot: live::boot(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            since_ms: crate::fresh::now_ms(),
            fell: None,
        }
    }

    /// A handle on the process, if it is still that process.
    pub fn handle(&self) -> Option<OwnedFd> {
        if self.boot != live::boot() {
            return None;
        }
        let held = pidfd_open(Pid::from_raw(i32::try_from(self.pid).ok()?)?, PidfdFlags::empty()).ok()?;
        // Looked at once it is held: the number cannot have changed hands since.
        let same = live::start_of(self.pid) == Some(self.pid_start);
        (same && !sys::process::has_ended(held.as_fd())).then_some(held)
    }
}

/// The directory of one sandbox's keeper.
#[derive(Clone, Debug)]
pub struct Place {
    pub dir: PathBuf,
}

impl Place {
    pub fn of(state: &Path, sandbox: &str) -> Place {
        Place { dir: state.join("keepers").join(sandbox) }
    }

    pub fn make(&self) -> io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(self.dir.join("runs"))
    }

    /// Where a run's output is.
    pub fn run(&self, run: &str) -> PathBuf {
        self.dir.join("runs").join(run)
    }

    /// The card that was left here last, whether its process lives or not.
    pub fn card(&self) -> Option<Card> {
        serde_json::from_slice(&read_own(&self.dir.join(CARD), LONGEST_CARD).ok()?).ok()
    }

    /// Whether the process on the card lives; whether it answers is another matter.
    pub fn has_keeper(&self) -> bool {
        self.card().and_then(|card| card.handle()).is_some()
    }

    /// Whether a keeper's place is gone, or another's. What cannot be told now is taken for its own.
    pub fn is_lost(&self, pid: u32) -> bool {
        match std::fs::symlink_metadata(self.dir.join(CARD)) {
            Ok(_) => self.card().is_some_and(|card| card.pid != pid),
            Err(e) => e.kind() == io::ErrorKind::NotFound,
        }
    }

    pub fn write_card(&self, card: &Card) -> io::Result<()> {
        self.replace(CARD, &serde_json::to_vec(card)?)
    }

    /// Puts a file in the place of what is there; what lies in the way is not written through.
    fn replace(&self, name: &str, text: &[u8]) -> io::Result<()> {
        let new = self.dir.join(format!("{name}.new"));
        let _ = std::fs::remove_file(&new);
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        io::Write::write_all(&mut file, text)?;
        std::fs::rename(new, self.dir.join(name))
    }

    /// How its services stood when that was last written.
    pub fn services(&self) -> Vec<ServiceNow> {
        let text = read_own(&self.dir.join(SERVICES), LONGEST_SERVICES).ok();
        text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    pub fn write_services(&self, all: &[ServiceNow]) -> io::Result<()> {
        self.replace(SERVICES, &serde_json::to_vec(all)?)
    }

    /// Where what happens on its network is written down, behind what was written before.
    pub fn open_events(&self, max: u64) -> io::Result<EventFile> {
        EventFile::in_parts(&self.dir, max)
    }

    /// All that keepers left of a sandbox that is gone.
    pub fn remove(&self) {
        let (Some(above), Some(name)) = (self.dir.parent(), self.dir.file_name()) else { return };
        let _collected_later =
            workspace::Dir::open(above).and_then(|above| workspace::remove::tree(&above, name.as_encoded_bytes()));
    }

    /// Sandboxes that have or had a keeper.
    pub fn all(state: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(state.join("keepers")).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// The keeper leaves in order: nobody finds it any more.
    pub fn clear(&self) {
        let _ = std::fs::remove_file(self.dir.join(SOCKET));
        let _ = std::fs::remove_file(self.dir.join(CARD));
    }

    /// Listens, in the place of whoever listened here before. The caller holds the sandbox.
    pub fn listen(&self) -> io::Result<OwnedFd> {
        let _ = std::fs::remove_file(self.dir.join(SOCKET));
        let socket = socket()?;
        let (_dir, address) = self.address()?;
        // The directory is closed to others already; the mode is for those who look at the socket alone.
        rustix::net::bind(&socket, &address)?;
        rustix::fs::chmodat(CWD, self.dir.join(SOCKET), Mode::from_raw_mode(0o600), rustix::fs::AtFlags::empty())?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(socket)
    }

    /// A connection that does not block; `WouldBlock` where too many wait already.
    pub fn connect(&self, card: &Card) -> io::Result<OwnedFd> {
        let socket = socket()?;
        let (_dir, address) = self.address()?;
        rustix::net::connect(&socket, &address)?;
        // Whoever listens is the process that the card names, and no other that something here leads to.
        let peer = rustix::net::sockopt::socket_peercred(&socket)?;
        match u32::try_from(peer.pid.as_raw_nonzero().get()) == Ok(card.pid) {
            true => Ok(socket),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "somebody else listens there")),
        }
    }

    /// A socket's name has room for 107 bytes, and a state directory may be anywhere: it is named by a handle on its directory.
    fn address(&self) -> io::Result<(OwnedFd, SocketAddrUnix)> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&self.dir, flags, Mode::empty())?;
        let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd()))?;
        Ok((dir, address))
    }
}

/// Opens a file of a keeper's own. A link, a pipe or a device in its place is none: nothing is read elsewhere, and nobody waits for it.
pub(super) fn open_own(path: &Path, options: &mut std::fs::OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options.mode(0o600).custom_flags(flags.bits() as i32).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "it is no regular file")),
    }
}

/// All of it, unless it is longer than such a file ever is.
fn read_own(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    open_own(path, std::fs::OpenOptions::new().read(true))?.take(most + 1).read_to_end(&mut text)?;
    match text.len() as u64 > most {
        true => Err(io::ErrorKind::InvalidData.into()),
        false => Ok(text),
    }
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Whatever lies in the place of a keeper's files: nothing is read or written elsewhere, and nobody waits for ever.
    #[test]
    fn only_files_of_its_own_are_read_and_written() {
        let root = std::env::temp_dir().join(terms::id("place", crate::fresh::random()));
        let (place, other) = (Place::of(&root, "sbx_1"), root.join("other"));
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
        // What is written does not go through a link that waits for it.
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
