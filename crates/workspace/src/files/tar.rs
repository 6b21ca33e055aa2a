//! Tar streams of directories, out of a workspace and into it.

use super::locate::{Last, settled};
use super::{Root, change, error, list};
pub use crate::archive::LeftOut;
use crate::archive::UnpackTarget;
use crate::{archive, walk};
use api::{FileKind, FilesUnpacked, Rel};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use terms::{ErrorKind, Fault, Phase};

/// Bounds on unpacking if the sandbox has no limit of its own.
const MOST_BYTES: u64 = 16 << 30;
const MOST_ENTRIES: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packed {
    pub entries: u64,
    /// Bytes of all files together.
    pub bytes: u64,
}

/// Packs the contents of a directory, with names relative to it, or a single file. The same tree gives the same bytes.
/// `told_left_out` gets the special files that are left out before the first byte; a special file as `path` itself is
/// refused.
pub fn pack(
    root: &Root,
    path: &Rel,
    out: &mut dyn Write,
    told_left_out: &mut dyn FnMut(LeftOut),
) -> Result<Packed, Fault> {
    let _owner = root.act_as_guest()?;
    let spot = root.find(path, Last::Followed)?;
    let meta = spot.meta().map_err(|e| error::fault(path, "look at it", &e))?;
    let packed = match (&spot.name, meta.map(|meta| meta.kind)) {
        (Some(name), Some(FileKind::File | FileKind::Symlink)) => {
            let packed = archive::pack(&spot.dir, Some(name), out, told_left_out);
            packed.map_err(|ended| pack_fault(&spot.path, &ended.error))?
        }
        (Some(_), Some(kind)) if kind != FileKind::Dir => {
            let hint = "FIFOs, sockets and devices stay in the sandbox";
            return Err(error::conflict(path, "not a file, directory or link", hint));
        }
        _ => {
            let (spot, dir) = list::directory(root, path)?;
            let packed = archive::pack(&dir, None, out, told_left_out);
            packed.map_err(|ended| pack_fault(&list::joined(&spot.path, &ended.at), &ended.error))?
        }
    };
    Ok(Packed { entries: packed.entries, bytes: packed.bytes })
}

/// Fault of packing. An unreadable file is an error, because a stream without it would look complete.
fn pack_fault(path: &Rel, error: &io::Error) -> Fault {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return walk::fault(path, error);
    }
    let message = format!("{}: cannot pack it: no permission to read it", error::shown(path));
    let fault = Fault::new(ErrorKind::PolicyDenied, message).phase(Phase::Execution);
    fault.hint("change its permission bits, or leave it out")
}

/// Unpacks into a directory, which is created if missing.
pub fn unpack(root: &Root, path: &Rel, from: &mut dyn Read) -> Result<FilesUnpacked, Fault> {
    unpack_onto(root, path, from, UnpackTarget::Workspace).map(|(made, _)| made)
}

/// Unpacks into a directory of the caller on the host. Special files are left out.
pub fn unpack_here(root: &Root, from: &mut dyn Read) -> Result<(FilesUnpacked, LeftOut), Fault> {
    unpack_onto(root, &Rel::top(), from, UnpackTarget::Host)
}

fn unpack_onto(
    root: &Root,
    path: &Rel,
    from: &mut dyn Read,
    onto: UnpackTarget,
) -> Result<(FilesUnpacked, LeftOut), Fault> {
    let _owner = root.act_as_guest()?;
    change::make_parents(root, path)?;
    let (spot, dir) = settled(root, path, "open it", false, |spot| spot.open_dir())?;
    let room = root.room();
    let room =
        archive::UnpackBounds { bytes: room.bytes.unwrap_or(MOST_BYTES), entries: room.files.unwrap_or(MOST_ENTRIES) };
    let may = |below: &Rel| root.check_rules(&below.parts().fold(spot.path.clone(), |path, part| path.join(part)));
    let made = archive::unpack(from, &dir, onto, room, &may)?;
    Ok((FilesUnpacked { entries: made.entries, bytes: made.bytes, stripped: made.stripped }, made.left_out))
}
