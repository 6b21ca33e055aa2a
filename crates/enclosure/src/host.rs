//! The real host, as the planner wants to see it. Looks, never changes anything.

use policy::{Found, Host, Kind, Link};
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

/// Symbolic links followed before a path counts as a loop, as the kernel does it.
const MOST_LINKS: usize = 40;
/// Entries of one directory that are looked at.
const MOST_ENTRIES: usize = 100_000;

pub struct LocalHost;

impl Host for LocalHost {
    fn look(&self, path: &Path) -> Option<Found> {
        let mut links = Vec::new();
        let real = follow(path, &mut links)?;
        let kind = fs::symlink_metadata(&real).ok()?.file_type();
        let kind = if kind.is_dir() {
            Kind::Dir
        } else if kind.is_file() {
            Kind::File
        } else {
            Kind::Other
        };
        Some(Found { real, kind, links })
    }

    fn list(&self, dir: &Path) -> Vec<OsString> {
        let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
        entries.flatten().take(MOST_ENTRIES).map(|e| e.file_name()).collect()
    }

    fn sha256(&self, file: &Path) -> Option<[u8; 32]> {
        let mut file = File::open(file).ok()?;
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

    fn loader(&self, file: &Path) -> Option<PathBuf> {
        find_loader(file)
    }
}

/// Follows a path one component at a time and notes every symbolic link on the way.
fn follow(path: &Path, links: &mut Vec<Link>) -> Option<PathBuf> {
    // Most paths hold no link at all; one call tells.
    let canonical = fs::canonicalize(path).ok()?;
    if canonical == path {
        return Some(canonical);
    }
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
                        links.push(Link { at: next, target });
                    }
                    Err(_) => at = next,
                }
            }
            _ => {}
        }
    }
    Some(at)
}

/// The dynamic loader an ELF program names (its PT_INTERP), as written in it.
pub fn find_loader(file: &Path) -> Option<PathBuf> {
    let file = File::open(file).ok()?;
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
