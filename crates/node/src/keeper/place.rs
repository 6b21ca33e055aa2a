//! Where a keeper is found: a directory below the state directory with its card, its socket and what its runs have said.
//!
//! ```text
//!  <state>/keepers/<sandbox>/keeper.json   which process it is
//!                            sock          where it is asked
//!                            services.json how its services stand
//!                            events.jsonl  what happened on its network, where that is wanted
//!                            runs/<run>/   what each run has said, see `spool`
//! ```

use super::services::ServiceNow;
use crate::events::EventFile;
use crate::lifecycle::live;
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
const EVENTS: &str = "events.jsonl";
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
            pid_start: live::start_of(pid).unwrap_or_default(),
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
        let path = self.dir.join(CARD);
        if std::fs::metadata(&path).ok()?.len() > LONGEST_CARD {
            return None;
        }
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }

    /// Whether a keeper's place is gone, or another's. What cannot be told now is taken for its own.
    pub fn is_lost(&self, pid: u32) -> bool {
        match std::fs::symlink_metadata(self.dir.join(CARD)) {
            Ok(_) => self.card().is_some_and(|card| card.pid != pid),
            Err(e) => e.kind() == io::ErrorKind::NotFound,
        }
    }

    pub fn write_card(&self, card: &Card) -> io::Result<()> {
        let new = self.dir.join("keeper.json.new");
        let text = serde_json::to_vec(card)?;
        let _ = std::fs::remove_file(&new);
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        io::Write::write_all(&mut file, &text)?;
        std::fs::rename(new, self.dir.join(CARD))
    }

    /// How its services stood when that was last written.
    pub fn services(&self) -> Vec<ServiceNow> {
        let path = self.dir.join(SERVICES);
        let fits = std::fs::metadata(&path).is_ok_and(|meta| meta.len() <= LONGEST_SERVICES);
        let text = fits.then(|| std::fs::read(path).ok()).flatten();
        text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    pub fn write_services(&self, all: &[ServiceNow]) -> io::Result<()> {
        let new = self.dir.join("services.json.new");
        std::fs::write(&new, serde_json::to_vec(all)?)?;
        std::fs::rename(new, self.dir.join(SERVICES))
    }

    /// Where what happens on its network is written down, behind what was written before.
    pub fn open_events(&self, max: u64) -> io::Result<EventFile> {
        let file = std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(self.events())?;
        EventFile::behind(file, max)
    }

    pub fn events(&self) -> PathBuf {
        self.dir.join(EVENTS)
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
    pub fn connect(&self) -> io::Result<OwnedFd> {
        let socket = socket()?;
        let (_dir, address) = self.address()?;
        rustix::net::connect(&socket, &address)?;
        Ok(socket)
    }

    /// A socket's name has room for 107 bytes, and a state directory may be anywhere: it is named by a handle on its directory.
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
