//! A disk that records its requests, and disks as they could have been when the power failed.
//!
//! `qemu-storage-daemon` exports an image as a file and logs each request (`blklogwrites`, in the format of the
//! kernel's dm-log-writes); a loop device over that file carries the file system. Writes before a flush are on the disk
//! after it; of later ones any part may be.

use crate::support::dice::Dice;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SECTOR: u64 = 512;
const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const IMAGE: u64 = 128 << 20;
const LOG: u64 = 1 << 30;

pub struct Recorder {
    root: PathBuf,
    pub kind: &'static str,
    daemon: Child,
    device: String,
}

/// A logged request, and the position of its data in the log.
#[derive(Clone, Copy, Debug)]
struct Entry {
    sector: u64,
    sectors: u64,
    flags: u64,
    at: u64,
}

impl Entry {
    fn read(log: &File, at: u64) -> Option<Entry> {
        let mut head = [0u8; 24];
        log.read_exact_at(&mut head, at).ok()?;
        let field = |n: usize| u64::from_le_bytes(head[8 * n..8 * n + 8].try_into().unwrap());
        let entry = Entry { sector: field(0), sectors: field(1), flags: field(2), at: at + SECTOR };
        (entry.sectors > 0 || entry.flags > 0).then_some(entry)
    }

    fn end(&self) -> u64 {
        self.at + if self.flags & DISCARD == 0 { self.sectors * SECTOR } else { 0 }
    }
}

pub fn run(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

impl Recorder {
    /// An empty file system below `root`, mounted at `root/disk`.
    pub fn start(root: &Path, kind: &'static str) -> Recorder {
        let path = |name: &str| root.join(name).to_str().unwrap().to_owned();
        fs::create_dir_all(root.join("disk")).unwrap();
        File::create(path("image")).unwrap().set_len(IMAGE).unwrap();
        match kind {
            "btrfs" => run("mkfs.btrfs", &["-q", "--mixed", &path("image")]),
            _ => run("mkfs.ext4", &["-q", "-m", "0", &path("image")]),
        };
        run("cp", &["--sparse=always", &path("image"), &path("before")]);
        File::create(path("log")).unwrap().set_len(LOG).unwrap();
        File::create(path("export")).unwrap();
        let daemon = Command::new("qemu-storage-daemon")
            .arg("--blockdev")
            .arg(format!("driver=file,node-name=data,filename={}", path("image")))
            .arg("--blockdev")
            .arg(format!("driver=file,node-name=notes,filename={}", path("log")))
            .args(["--blockdev", "driver=blklogwrites,node-name=noted,file=data,log=notes,log-sector-size=512"])
            .arg("--export")
            .arg(format!("type=fuse,id=shown,node-name=noted,mountpoint={},writable=on", path("export")))
            .stdin(Stdio::null())
            .spawn()
            .expect("qemu-storage-daemon is installed");
        let until = Instant::now() + Duration::from_secs(180);
        while fs::metadata(path("export")).map_or(0, |meta| meta.len()) != IMAGE {
            assert!(Instant::now() < until, "the image is shown as a file");
            std::thread::sleep(Duration::from_millis(10));
        }
        let device = run("losetup", &["--find", "--show", &path("export")]);
        let recorder = Recorder { root: root.to_owned(), kind, daemon, device };
        run("mount", &["-o", "noatime", &recorder.device, &path("disk")]);
        recorder
    }

    /// Number of requests so far, after those in flight have completed.
    pub fn count(&self) -> usize {
        let log = File::open(self.root.join("log")).unwrap();
        let all = || {
            let next = |last: &Entry| Entry::read(&log, last.end());
            std::iter::successors(Entry::read(&log, SECTOR), next).count()
        };
        let mut before = all();
        loop {
            std::thread::sleep(Duration::from_millis(15));
            match all() {
                now if now == before => return now,
                now => before = now,
            }
        }
    }

    /// Stops the recording and keeps the first `most` requests, so that the unmount is not part of it.
    pub fn end(mut self, most: usize) -> Recorded {
        self.let_go();
        let log = File::open(self.root.join("log")).unwrap();
        let mut head = [0u8; 28];
        log.read_exact_at(&mut head, 0).unwrap();
        assert_eq!(u64::from_le_bytes(head[..8].try_into().unwrap()), MAGIC, "a log of writes");
        assert_eq!(u64::from(u32::from_le_bytes(head[24..28].try_into().unwrap())), SECTOR);
        let next = |last: &Entry| Entry::read(&log, last.end());
        let entries = std::iter::successors(Entry::read(&log, SECTOR), next).take(most).collect();
        Recorded { root: self.root.clone(), kind: self.kind, log, entries }
    }

    fn let_go(&mut self) {
        let quietly = |program: &str, words: &[&str]| drop(Command::new(program).args(words).output());
        quietly("umount", &[self.root.join("disk").to_str().unwrap()]);
        quietly("losetup", &["--detach", &self.device]);
        quietly("kill", &["-TERM", &self.daemon.id().to_string()]);
        let _ = self.daemon.wait();
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if matches!(self.daemon.try_wait(), Ok(None)) {
            self.let_go();
        }
    }
}

/// The complete log of requests to a disk.
pub struct Recorded {
    root: PathBuf,
    kind: &'static str,
    log: File,
    entries: Vec<Entry>,
}

/// A moment at which the power fails: everything before a flush is on the disk, and a random part of what follows it.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Number of requests that are certainly on the disk.
    pub sure: usize,
    /// Seed for the later requests; `None` drops them all.
    pub seed: Option<u64>,
}

impl Recorded {
    /// Number of requests on the disk after each flush, from request `from` on.
    pub fn flushes(&self, from: usize) -> Vec<usize> {
        let flushed = |n: &usize| self.entries[*n].flags & FLUSH != 0;
        (from..self.entries.len()).filter(flushed).map(|n| n + 1).collect()
    }

    /// Rebuilds the disk of that moment and mounts it in the old place. A file system that cannot be repaired fails the
    /// test.
    pub fn failed_at(&self, moment: Moment) -> Disk {
        let path = |name: &str| self.root.join(name).to_str().unwrap().to_owned();
        run("cp", &["--sparse=always", &path("before"), &path("after")]);
        let image = File::options().write(true).open(path("after")).unwrap();
        let (sure, rest) = self.entries.split_at(moment.sure);
        sure.iter().for_each(|entry| self.apply(entry, &image));
        let mut dice = moment.seed.map(|seed| Dice::of(seed, moment.sure));
        for entry in rest.iter().take_while(|entry| entry.flags & FLUSH == 0) {
            let lands = entry.flags & FUA != 0 || dice.as_mut().is_some_and(|dice| dice.roll(2) == 0);
            if lands {
                self.apply(entry, &image);
            }
        }
        if self.kind == "ext4" {
            let fsck = Command::new("fsck.ext4").args(["-p", &path("after")]).output().unwrap();
            let report = String::from_utf8_lossy(&fsck.stdout).into_owned();
            assert!(matches!(fsck.status.code(), Some(0 | 1)), "{moment:?}: {report}");
        }
        run("mount", &["-o", "loop,noatime", &path("after"), &path("disk")]);
        Disk { at: path("disk"), image: path("after") }
    }

    fn apply(&self, entry: &Entry, image: &File) {
        if entry.flags & DISCARD != 0 {
            return;
        }
        let mut bytes = vec![0u8; (entry.sectors * SECTOR) as usize];
        self.log.read_exact_at(&mut bytes, entry.at).unwrap();
        image.write_all_at(&bytes, entry.sector * SECTOR).unwrap();
    }
}

/// A mounted disk, unmounted on drop.
pub struct Disk {
    at: String,
    image: String,
}

impl Drop for Disk {
    /// Waits until the mount is released: a guest's own mounts disappear a moment after the guest, and the next disk
    /// uses the same file.
    fn drop(&mut self) {
        let until = Instant::now() + Duration::from_secs(180);
        let is_done = || {
            let _ = Command::new("umount").arg(&self.at).output();
            let mounted =
                Command::new("mountpoint").args(["-q", &self.at]).status().is_ok_and(|status| status.success());
            let loops = Command::new("losetup").args(["--associated", &self.image]).output();
            !mounted && loops.is_ok_and(|output| output.stdout.is_empty())
        };
        while !is_done() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
