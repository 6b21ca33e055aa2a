//! The permissions a file rule can grant: landlock's list, one bit each, as a small set.

use std::fmt;

/// A permission. The discriminant is landlock's own bit number, so the kernel crate needs no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Perm {
    Execute = 0,
    WriteFile = 1,
    ReadFile = 2,
    ReadDir = 3,
    RemoveDir = 4,
    RemoveFile = 5,
    MakeChar = 6,
    MakeDir = 7,
    MakeReg = 8,
    MakeSock = 9,
    MakeFifo = 10,
    MakeBlock = 11,
    MakeSym = 12,
    Refer = 13,
    Truncate = 14,
    IoctlDev = 15,
}

impl Perm {
    pub const ALL: [Perm; 16] = [
        Perm::Execute,
        Perm::WriteFile,
        Perm::ReadFile,
        Perm::ReadDir,
        Perm::RemoveDir,
        Perm::RemoveFile,
        Perm::MakeChar,
        Perm::MakeDir,
        Perm::MakeReg,
        Perm::MakeSock,
        Perm::MakeFifo,
        Perm::MakeBlock,
        Perm::MakeSym,
        Perm::Refer,
        Perm::Truncate,
        Perm::IoctlDev,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Perm::Execute => "execute",
            Perm::WriteFile => "write_file",
            Perm::ReadFile => "read_file",
            Perm::ReadDir => "read_dir",
            Perm::RemoveDir => "remove_dir",
            Perm::RemoveFile => "remove_file",
            Perm::MakeChar => "make_char",
            Perm::MakeDir => "make_dir",
            Perm::MakeReg => "make_reg",
            Perm::MakeSock => "make_sock",
            Perm::MakeFifo => "make_fifo",
            Perm::MakeBlock => "make_block",
            Perm::MakeSym => "make_sym",
            Perm::Refer => "refer",
            Perm::Truncate => "truncate",
            Perm::IoctlDev => "ioctl_dev",
        }
    }
}

/// A set of permissions.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Perms(u16);

impl Perms {
    pub const NONE: Perms = Perms(0);
    pub const ALL: Perms = Perms(0xffff);
    /// Reading files and listing directories.
    pub const READ: Perms = Perms::of(&[Perm::ReadFile, Perm::ReadDir]);
    /// Changes of a tree, short of making device nodes.
    pub const WRITE: Perms = Perms::of(&[
        Perm::WriteFile,
        Perm::RemoveDir,
        Perm::RemoveFile,
        Perm::MakeDir,
        Perm::MakeReg,
        Perm::MakeSock,
        Perm::MakeFifo,
        Perm::MakeSym,
        Perm::Refer,
        Perm::Truncate,
    ]);
    /// Permissions that a read-only mount takes away, all at once.
    pub const CHANGES: Perms = Perms::of(&[
        Perm::WriteFile,
        Perm::RemoveDir,
        Perm::RemoveFile,
        Perm::MakeChar,
        Perm::MakeDir,
        Perm::MakeReg,
        Perm::MakeSock,
        Perm::MakeFifo,
        Perm::MakeBlock,
        Perm::MakeSym,
        Perm::Refer,
        Perm::Truncate,
    ]);

    pub const fn of(list: &[Perm]) -> Perms {
        let mut bits = 0;
        let mut i = 0;
        while i < list.len() {
            bits |= 1 << list[i] as u8;
            i += 1;
        }
        Perms(bits)
    }

    /// The set as landlock's access mask.
    pub fn bits(self) -> u64 {
        u64::from(self.0)
    }

    pub fn contains(self, perm: Perm) -> bool {
        self.0 & (1 << perm as u8) != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn union(self, other: Perms) -> Perms {
        Perms(self.0 | other.0)
    }

    pub fn minus(self, other: Perms) -> Perms {
        Perms(self.0 & !other.0)
    }

    pub fn and(self, other: Perms) -> Perms {
        Perms(self.0 & other.0)
    }

    pub fn iter(self) -> impl Iterator<Item = Perm> {
        Perm::ALL.into_iter().filter(move |p| self.contains(*p))
    }
}

impl fmt::Debug for Perms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(Perm::name)).finish()
    }
}

/// Order of names in documents: reading first, changing after.
const ORDER: [Perm; 16] = [
    Perm::ReadFile,
    Perm::ReadDir,
    Perm::Execute,
    Perm::WriteFile,
    Perm::Truncate,
    Perm::MakeDir,
    Perm::MakeReg,
    Perm::MakeSym,
    Perm::MakeSock,
    Perm::MakeFifo,
    Perm::MakeChar,
    Perm::MakeBlock,
    Perm::RemoveFile,
    Perm::RemoveDir,
    Perm::Refer,
    Perm::IoctlDev,
];

/// Names that stand for several permissions.
const GROUPS: [(&str, Perms); 2] = [
    (
        "make_*",
        Perms::of(&[
            Perm::MakeChar,
            Perm::MakeDir,
            Perm::MakeReg,
            Perm::MakeSock,
            Perm::MakeFifo,
            Perm::MakeBlock,
            Perm::MakeSym,
        ]),
    ),
    ("remove_*", Perms::of(&[Perm::RemoveDir, Perm::RemoveFile])),
];

impl Perms {
    /// Permissions that apply to files; the others apply to directories.
    pub const FILE: Perms =
        Perms::of(&[Perm::Execute, Perm::WriteFile, Perm::ReadFile, Perm::Truncate, Perm::IoctlDev]);
    /// Permissions of an ordinary user: making device nodes needs a capability that no guest has.
    pub const ORDINARY: Perms = Perms::ALL.minus_const(Perms::of(&[Perm::MakeChar, Perm::MakeBlock]));
    /// Permissions that a person can be asked for: those that open a file or a directory. The supervisor cannot do the
    /// rest on a guest's behalf without a race.
    pub const ASKABLE: Perms =
        Perms::of(&[Perm::ReadFile, Perm::ReadDir, Perm::WriteFile, Perm::Truncate, Perm::MakeReg]);
    /// Permissions that create a name in a directory.
    pub const MAKING: Perms = GROUPS[0].1.union_const(Perms::of(&[Perm::Refer]));

    /// Returns the permission or group of this name.
    pub fn named(name: &str) -> Option<Perms> {
        let group = GROUPS.iter().find(|(group, _)| *group == name).map(|(_, perms)| *perms);
        group.or_else(|| Perm::ALL.into_iter().find(|p| p.name() == name).map(|p| Perms::of(&[p])))
    }

    /// Returns the shortest list of names, with groups where they are complete.
    pub fn names(self) -> Vec<&'static str> {
        let mut left = self;
        let mut out = Vec::new();
        for perm in ORDER {
            if !left.contains(perm) {
                continue;
            }
            let whole = GROUPS.iter().find(|(_, g)| g.contains(perm) && left.and(*g) == *g);
            let (name, taken) = whole.copied().unwrap_or((perm.name(), Perms::of(&[perm])));
            out.push(name);
            left = left.minus(taken);
        }
        out
    }

    /// Returns every name that a document may use.
    pub fn known_names() -> impl Iterator<Item = &'static str> {
        ORDER.into_iter().map(Perm::name).chain(GROUPS.iter().map(|(name, _)| *name))
    }

    const fn minus_const(self, other: Perms) -> Perms {
        Perms(self.0 & !other.0)
    }

    pub(crate) const fn union_const(self, other: Perms) -> Perms {
        Perms(self.0 | other.0)
    }
}

impl PartialOrd for Perms {
    fn partial_cmp(&self, other: &Perms) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Perms {
    fn cmp(&self, other: &Perms) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn names_read_back() {
        for bits in 0..=u16::MAX {
            let perms = Perms(bits);
            let back = perms.names().into_iter().filter_map(Perms::named).fold(Perms::NONE, Perms::union);
            assert_eq!(back, perms);
        }
    }

    #[test]
    fn groups_are_used_when_whole() {
        assert_eq!(Perms::CHANGES.names(), ["write_file", "truncate", "make_*", "remove_*", "refer"]);
        assert_eq!(Perms::READ.names(), ["read_file", "read_dir"]);
        assert_eq!(Perms::named("read"), None);
    }
}
