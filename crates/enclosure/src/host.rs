//! The real host as the planner's `Host`. Read-only.

use policy::{Host, HostFileType, ResolvedPath, Symlink};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use sha2::{Digest, Sha256};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

/// Symbolic links followed before a path counts as a loop, as in the kernel.
const MOST_LINKS: usize = 40;
/// Entries of one directory that are read at most.
pub const MOST_ENTRIES: usize = 100_000;

/// A cache of lookups: planning asks for the same paths several times, and one run must see one state of the host.
#[derive(Default)]
pub struct LocalHost {
    seen: RefCell<HashMap<PathBuf, Option<ResolvedPath>>>,
}

impl Host for LocalHost {
    fn look(&self, path: &Path) -> Option<ResolvedPath> {
        if let Some(found) = self.seen.borrow().get(path) {
            return found.clone();
        }
        let found = look_at(path);
        self.seen.borrow_mut().insert(path.to_path_buf(), found.clone());
        found
    }

    fn list(&self, dir: &Path) -> Result<Vec<OsString>, String> {
        let mut names = Vec::new();
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(e) => return unlisted(&e, || fs::symlink_metadata(dir).ok().map(|meta| meta.uid())),
        };
        for entry in entries {
            names.push(entry.map_err(|e| e.to_string())?.file_name());
            if names.len() > MOST_ENTRIES {
                return Err(too_many());
            }
        }
        Ok(names)
    }

    fn hidden(&self, path: &Path) -> Option<(PathBuf, String)> {
        let error = fs::metadata(path).err()?;
        let real = follow(path, &mut Vec::new())?;
        // The nearest visible ancestor is the one that denies access.
        let shut = || real.ancestors().find_map(|above| fs::symlink_metadata(above).ok()).map(|meta| meta.uid());
        let why = unlisted::<()>(&error, shut).err()?;
        Some((real, why))
    }

    fn sha256(&self, file: &Path) -> Option<[u8; 32]> {
        digest_of(File::open(file).ok()?)
    }

    fn loader(&self, file: &Path) -> Option<PathBuf> {
        find_loader(file)
    }
}

/// Treats an unreadable directory as empty where the guest is kept out as well: the path does not exist, or another
/// user's directory denies access. The guest could open its own user's directory, so failing to list that is an error.
pub fn unlisted<T: Default>(error: &io::Error, owner: impl Fn() -> Option<u32>) -> Result<T, String> {
    use rustix::io::Errno;
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(T::default()),
        Some(Errno::ACCESS | Errno::PERM) if owner().is_some_and(|uid| uid != own_uid()) => Ok(T::default()),
        None if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        _ => Err(error.to_string()),
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The error for a directory with more than `MOST_ENTRIES` names.
pub fn too_many() -> String {
    format!("it has more than {MOST_ENTRIES} names")
}

/// Returns the SHA-256 of a file's bytes.
pub fn digest_of(mut file: File) -> Option<[u8; 32]> {
    let mut hash = Sha256::new();
    let mut chunk = vec![0; 1 << 16];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Some(hash.finalize().into()),
            Ok(n) => hash.update(&chunk[..n]),
            Err(_) => return None,
        }
    }
}

fn look_at(path: &Path) -> Option<ResolvedPath> {
    if let Some(kind) = straight(path) {
        return Some(ResolvedPath { real: path.to_path_buf(), kind, links: Vec::new() });
    }
    let mut links = Vec::new();
    let real = follow(path, &mut links)?;
    let kind = kind_of(rustix::fs::FileType::from_raw_mode(rustix::fs::lstat(&real).ok()?.st_mode));
    Some(ResolvedPath { real, kind, links })
}

/// Returns the kind of file at a path without symbolic links, as most are: one openat2, whatever its depth.
fn straight(path: &Path) -> Option<HostFileType> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let fd = rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).ok()?;
    let mode = rustix::fs::fstat(&fd).ok()?.st_mode;
    let normal =
        path.is_absolute() && path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
    normal.then(|| kind_of(rustix::fs::FileType::from_raw_mode(mode)))
}

fn kind_of(kind: rustix::fs::FileType) -> HostFileType {
    match kind {
        rustix::fs::FileType::Directory => HostFileType::Dir,
        rustix::fs::FileType::RegularFile => HostFileType::File,
        rustix::fs::FileType::Socket => HostFileType::Socket,
        _ => HostFileType::Other,
    }
}

/// Resolves a path one component at a time and records every symbolic link on the way.
fn follow(path: &Path, links: &mut Vec<Symlink>) -> Option<PathBuf> {
    let mut rest: Vec<OsString> = path.components().rev().map(|c| c.as_os_str().to_owned()).collect();
    let mut at = PathBuf::from("/");
    while let Some(name) = rest.pop() {
        match Path::new(&name).components().next() {
            Some(Component::RootDir) => at = PathBuf::from("/"),
            Some(Component::ParentDir) => {
                at.pop();
            }
            Some(Component::Normal(_)) => {
                let next = at.join(&name);
                match fs::read_link(&next) {
                    Ok(target) => {
                        if links.len() >= MOST_LINKS {
                            return None;
                        }
                        rest.extend(target.components().rev().map(|c| c.as_os_str().to_owned()));
                        links.push(Symlink { at: next, target });
                    }
                    Err(_) => at = next,
                }
            }
            _ => {}
        }
    }
    Some(at)
}

/// Returns the dynamic loader that an ELF program names (PT_INTERP), as written in it.
pub fn find_loader(file: &Path) -> Option<PathBuf> {
    loader_of(&File::open(file).ok()?)
}

/// Returns the dynamic loader of an open ELF program.
pub fn loader_of(file: &File) -> Option<PathBuf> {
    let mut head = [0u8; 64];
    file.read_exact_at(&mut head, 0).ok()?;
    let is_elf64 = head.starts_with(b"\x7fELF\x02\x01");
    if !is_elf64 {
        return None;
    }
    let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let table = u64::from_le_bytes(head[32..40].try_into().ok()?);
    let (size, count) = (u64::from(half(54)), u64::from(half(56)));
    if size < 56 {
        return None;
    }
    for i in 0..count.min(256) {
        let mut entry = [0u8; 56];
        file.read_exact_at(&mut entry, table.checked_add(i * size)?).ok()?;
        const INTERPRETER: u32 = 3;
        if u32::from_le_bytes(entry[0..4].try_into().ok()?) != INTERPRETER {
            continue;
        }
        let offset = u64::from_le_bytes(entry[8..16].try_into().ok()?);
        let len = u64::from_le_bytes(entry[32..40].try_into().ok()?).min(4096) as usize;
        let mut name = vec![0; len];
        file.read_exact_at(&mut name, offset).ok()?;
        name.truncate(name.iter().position(|b| *b == 0)?);
        return Some(PathBuf::from(std::ffi::OsStr::from_bytes(&name)));
    }
    None
}
