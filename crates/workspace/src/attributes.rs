//! Extended attributes of files in layers: the user's own, without those that overlayfs keeps for itself. Overlayfs
//! stores a guest's `user.overlay.x` as `user.overlay.overlay.x`; here it has the guest's name.

use api::Driver;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;

/// Names without a terminating zero, and values; sorted.
pub type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// Bound of the kernel on a list of names and on a value.
const LARGEST: usize = 65_536;

const OWN: &[u8] = b"user.overlay.";
const ESCAPED: &[u8] = b"user.overlay.overlay.";
const OPAQUE: &str = "user.overlay.opaque";

/// Attributes that overlayfs would obey and that our mounts never create: their presence means tampering.
const FORGED: [&[u8]; 4] =
    [b"user.overlay.redirect", b"user.overlay.metacopy", b"user.overlay.whiteout", b"user.overlay.upper"];

/// Attributes of a file in a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerAttributes {
    /// Opaque directory: hides the names that lower layers have in it.
    pub opaque: bool,
    pub own: Attributes,
}

/// Reads the attributes that are kept: `user.` and POSIX access lists. A forged overlayfs attribute is an error of
/// kind `InvalidData`.
pub fn read(file: impl AsFd, marks: Marks) -> io::Result<LayerAttributes> {
    let mut carried = LayerAttributes::default();
    for name in names(&file)? {
        let overlay = name.starts_with(OWN);
        if marks == Marks::Mean && overlay {
            if FORGED.contains(&&name[..]) {
                return Err(forged(&name));
            }
            if name == OPAQUE.as_bytes() {
                carried.opaque = match value(&file, &name)?.as_deref() {
                    Some(b"y") => true,
                    None => false,
                    Some(_) => return Err(forged(&name)),
                };
            }
            if !name.starts_with(ESCAPED) {
                continue;
            }
        }
        let kept = name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_");
        if let (true, Some(value)) = (kept, value(&file, &name)?) {
            let escaped = marks == Marks::Mean && overlay;
            let name = if escaped { [OWN, &name[ESCAPED.len()..]].concat() } else { name };
            carried.own.push((name, value));
        }
    }
    carried.own.sort();
    Ok(carried)
}

/// Sets the attributes that `read` returned.
pub fn write(file: impl AsFd, carried: &LayerAttributes, marks: Marks) -> io::Result<()> {
    if carried.opaque && marks == Marks::Mean {
        rustix::fs::fsetxattr(&file, OPAQUE, b"y", XattrFlags::empty())?;
    }
    for (name, value) in &carried.own {
        let escaped = marks == Marks::Mean && name.starts_with(OWN);
        let stored = if escaped { [ESCAPED, &name[OWN.len()..]].concat() } else { name.clone() };
        match rustix::fs::fsetxattr(&file, &stored[..], value, XattrFlags::empty()) {
            // An access list may name users that this file system or user namespace cannot represent.
            Err(Errno::OPNOTSUPP | Errno::INVAL) if name.starts_with(b"system.") => {}
            other => other?,
        }
    }
    Ok(())
}

/// Removes all `user.` attributes.
pub fn clear(file: impl AsFd) -> io::Result<()> {
    for name in names(&file)?.iter().filter(|name| name.starts_with(b"user.")) {
        match rustix::fs::fremovexattr(&file, &name[..]) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Origin of a tree, and if whiteouts and overlayfs attributes have a meaning in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// A layer: whiteouts and overlayfs attributes have their meaning.
    Mean,
    /// The whole tree of a copying workspace: ours, and whiteouts and overlayfs attributes are plain files and
    /// attributes.
    Plain,
    /// A base: not ours, and whiteouts and overlayfs attributes are plain files and attributes.
    Foreign,
}

impl Marks {
    /// Interpretation of whiteouts and overlayfs attributes in a layer of a driver.
    pub fn of(driver: Driver) -> Marks {
        match driver {
            Driver::Overlay => Marks::Mean,
            Driver::Reflink | Driver::Copy => Marks::Plain,
        }
    }

    /// True for a tree that the caller made, in which it may open files that a guest closed with chmod.
    pub fn is_ours(self) -> bool {
        self != Marks::Foreign
    }
}

fn names(file: impl AsFd) -> io::Result<Vec<Vec<u8>>> {
    let mut small = [0u8; 512];
    let list = match rustix::fs::flistxattr(&file, &mut small[..]) {
        Ok(length) => small[..length].to_vec(),
        Err(Errno::RANGE) => {
            let mut large = vec![0u8; LARGEST];
            let length = rustix::fs::flistxattr(&file, &mut large[..])?;
            large.truncate(length);
            large
        }
        Err(Errno::OPNOTSUPP) => Vec::new(),
        Err(e) => return Err(e.into()),
    };
    Ok(list.split(|b| *b == 0).filter(|n| !n.is_empty()).map(<[u8]>::to_vec).collect())
}

/// Reads one value; None if the attribute vanished meanwhile.
fn value(file: impl AsFd, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut buffer = vec![0u8; 256];
    loop {
        match rustix::fs::fgetxattr(&file, name, &mut buffer[..]) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(Some(buffer));
            }
            Err(Errno::RANGE) if buffer.len() < LARGEST => buffer = vec![0u8; LARGEST],
            Err(Errno::NODATA) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
    }
}

fn forged(name: &[u8]) -> io::Error {
    let text =
        format!("has the attribute {}, which cofferdam never sets: the layer was tampered with", name.escape_ascii());
    io::Error::new(io::ErrorKind::InvalidData, text)
}
