//! Choice of the driver of a workspace: overlay if overlayfs can be mounted over the base with its layers in the state
//! directory, else a reflink copy if the file system shares extents, else a plain copy if the tree is small. Mounts no
//! file system.

use crate::attributes::Marks;
use crate::dir::Dir;
use crate::walk::{self, At, Visitor};
use api::{Driver, FileKind, Rel};
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use terms::{ErrorKind, Fault, LimitKind, Phase};

/// Size up to which a tree is copied without an explicit request.
pub const MOST_BYTES: u64 = 1 << 30;
pub const MOST_FILES: u64 = 50_000;

/// File systems that cannot hold an upper layer, by magic number: they lack extended attributes or whiteouts.
const NO_CHANGES: [(u64, &str); 11] = [
    (0x794c_7630, "overlayfs"),
    (0x6969, "NFS"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9p"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0xf15f, "eCryptfs"),
    (0x8584_58f6, "ramfs"),
    (0x4d44, "FAT"),
    (0x2011_bab0, "exFAT"),
    (0x7366_746e, "NTFS"),
];

/// File systems that cannot be a lower layer: they compare names by rules of their own.
const NO_BASE: [(u64, &str); 5] =
    [(0x4d44, "FAT"), (0x2011_bab0, "exFAT"), (0x7366_746e, "NTFS"), (0xff53_4d42, "CIFS"), (0xf15f, "eCryptfs")];

/// Returns the driver for a workspace over `base` with its layers in `layers`: the wanted one, or the best.
pub fn choose(base: &Dir, layers: &Dir, wanted: Option<Driver>) -> Result<Driver, Fault> {
    let unfit = |driver: &str, why: &str| {
        let fault = Fault::new(ErrorKind::UnsupportedHost, format!("the driver {driver} cannot be used here: {why}"));
        fault
            .hint("leave the driver out to get the best available, or set COFFERDAM_STATE to another file system")
            .phase(Phase::Admission)
    };
    match wanted {
        Some(Driver::Overlay) => overlay(base, layers).map(|()| Driver::Overlay).map_err(|why| unfit("overlay", &why)),
        Some(Driver::Reflink) => match can_reflink(base, layers) {
            true => Ok(Driver::Reflink),
            false => Err(unfit("reflink", "the directory and the state directory cannot share blocks (reflink)")),
        },
        Some(Driver::Copy) => Ok(Driver::Copy),
        None => match overlay(base, layers) {
            Ok(()) => Ok(Driver::Overlay),
            Err(_) if can_reflink(base, layers) => Ok(Driver::Reflink),
            Err(why) => check_small(base, &why).map(|()| Driver::Copy),
        },
    }
}

/// Checks that overlayfs can be mounted, or returns the reason against it.
fn overlay(base: &Dir, layers: &Dir) -> Result<(), String> {
    let named = |list: &[(u64, &'static str)], dir: &Dir| {
        let magic = rustix::fs::fstatfs(dir).map_or(0, |found| found.f_type as u64 & 0xffff_ffff);
        list.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name)
    };
    if let Some(name) = named(&NO_CHANGES, layers) {
        return Err(format!("the state directory is on {name}, which does not support layers"));
    }
    if let Some(name) = named(&NO_BASE, base) {
        return Err(format!("the directory is on {name}, which overlayfs cannot use as a base"));
    }
    match rustix::fs::fsetxattr(layers, "user.cofferdam", b"1", XattrFlags::empty()) {
        Ok(()) => Ok(()),
        Err(e) => Err(format!("the state directory's file system has no user attributes: {e}")),
    }
}

/// Number of names of the base that are searched for a file to try FICLONE with.
const LOOKED_AT: usize = 64;

/// True if a file next to the layers can share extents with one of the base: tried with FICLONE into an unnamed file
/// (O_TMPFILE).
fn can_reflink(base: &Dir, layers: &Dir) -> bool {
    let unnamed =
        || layers.open_at(&Rel::top(), OFlags::RDWR | OFlags::TMPFILE, Mode::from_raw_mode(0o600)).map(File::from);
    let names = base.names().unwrap_or_default();
    let is_file =
        |name: &&Vec<u8>| base.meta_of(name).ok().flatten().is_some_and(|m| m.kind == FileKind::File && m.size > 0);
    let from = match names.iter().take(LOOKED_AT).find(is_file) {
        Some(name) => base.file(&Rel::top().join(name)),
        None => own_file(base, layers, unnamed),
    };
    let (Ok(from), Ok(to)) = (from, unnamed()) else { return false };
    rustix::fs::ioctl_ficlone(&to, &from).is_ok()
}

/// Creates a file of our own in place of one of the base, if both directories are on one file system.
fn own_file(base: &Dir, layers: &Dir, unnamed: impl Fn() -> io::Result<File>) -> io::Result<File> {
    let of = |dir: &Dir| dir.meta(&Rel::top()).map(|meta| meta.map(|m| m.dev));
    if of(base)? != of(layers)? {
        return Err(Errno::XDEV.into());
    }
    let file = unnamed()?;
    io::Write::write_all(&mut &file, b"x")?;
    Ok(file)
}

struct Count {
    files: u64,
    bytes: u64,
}

impl Visitor for Count {
    fn enter(&mut self, _at: &At<'_>) -> io::Result<()> {
        Ok(())
    }

    fn leaf(&mut self, at: &At<'_>) -> io::Result<()> {
        self.files += 1;
        self.bytes += at.meta.space.min(at.meta.size);
        match self.files > MOST_FILES || self.bytes > MOST_BYTES {
            true => Err(io::ErrorKind::QuotaExceeded.into()),
            false => Ok(()),
        }
    }

    fn leave(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn shut(&mut self, _at: &At<'_>) -> io::Result<()> {
        Ok(())
    }
}

fn check_small(base: &Dir, why: &str) -> Result<(), Fault> {
    match walk::walk(&[base], Marks::Foreign, Count { files: 0, bytes: 0 }) {
        Ok(_) => Ok(()),
        Err(fault) if fault.error_kind == ErrorKind::LimitExceeded => {
            let message = format!("{why}; and the directory is too large to be copied by default");
            let fault =
                Fault::new(ErrorKind::UnsupportedHost, message).limit(LimitKind::DiskMb).phase(Phase::Admission);
            Err(fault.hint("set COFFERDAM_STATE to another file system, or request a copy with --driver copy"))
        }
        Err(fault) => Err(fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn what_is_wanted_and_works_is_given() {
        let scratch = Scratch::new();
        let (base, layers) = (scratch.mkdir("base"), scratch.mkdir("layers"));
        assert_eq!(choose(&base, &layers, None).unwrap(), Driver::Overlay);
        assert_eq!(choose(&base, &layers, Some(Driver::Copy)).unwrap(), Driver::Copy);
        assert_eq!(choose(&base, &layers, Some(Driver::Overlay)).unwrap(), Driver::Overlay);
        if let Err(fault) = choose(&base, &layers, Some(Driver::Reflink)) {
            assert_eq!(fault.error_kind, ErrorKind::UnsupportedHost);
        }
    }

    #[test]
    fn where_no_layer_can_be_a_small_tree_is_copied_and_a_large_one_is_not() {
        let scratch = Scratch::new();
        let base = scratch.mkdir("base");
        scratch.file("base/a", b"1");
        // File system without `user.` attributes.
        let proc = Dir::open(std::path::Path::new("/proc")).unwrap();
        assert_eq!(choose(&base, &proc, None).unwrap(), Driver::Copy);
        let large = File::create(scratch.path.join("base/large")).unwrap();
        large.set_len(MOST_BYTES + 1).unwrap();
        assert_eq!(choose(&base, &proc, None).unwrap(), Driver::Copy, "holes take no space");
        drop(large);
        rustix::fs::fallocate(
            File::options().write(true).open(scratch.path.join("base/large")).unwrap(),
            rustix::fs::FallocateFlags::empty(),
            0,
            MOST_BYTES + 1,
        )
        .unwrap();
        let fault = choose(&base, &proc, None).unwrap_err();
        assert!(fault.hint.as_deref().is_some_and(|h| h.contains("--driver copy")), "{fault:?}");
        assert_eq!(choose(&base, &proc, Some(Driver::Copy)).unwrap(), Driver::Copy);
    }
}
