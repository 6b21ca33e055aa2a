//! Files without a name: those that a guest keeps open or mapped after they were unlinked, and those made with `O_TMPFILE`. They
//! take space in the workspace like any other, and no walk over its directories finds them. The kernel says who holds them: this
//! module goes through the descriptor tables and mappings of the guest's processes. It only looks, in parts that end in time.
//!
//! What is found this way, and what is not, is in `docs/decisions/0048-files-without-a-name.md`.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, StatxFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;
use sys::process;

/// Steps of one scan, of which each looks at one descriptor, thread, process or piece of a list of mappings. A guest that has more
/// is counted by what was seen until then.
const MOST_STEPS: u64 = 4_000_000;
/// How often processes are listed again because some of them ended while they were looked at.
const MOST_PASSES: u32 = 3;
/// Bytes of one line about a mapping that are kept; the path of the workspace is among the first.
const LONGEST_LINE: usize = 16 * 1024;
/// Descriptors that are looked at, or lines about mappings that are read, in one step.
const ENTRIES_PER_STEP: usize = 32;
/// The longest list of children, mounts or figures that is read.
const LONGEST_LIST: u64 = 1 << 20;
const PAGE: u64 = 4096;
const DELETED: &[u8] = b" (deleted)";

/// Files without a name by their inode, with the bytes that each takes. All are in the one layer that the guest writes to, so that
/// the number alone says which file it is.
pub type NamelessFiles = BTreeMap<u64, u64>;

/// Finds the files without a name that the processes of one guest hold in its workspace.
pub struct Nameless {
    /// Directory in `/proc` of the guest's first process, which no later process can take over.
    first: OwnedFd,
    /// Path of the workspace, as the kernel writes it in links and in lists of mappings.
    workspace: Vec<u8>,
    workspace_in_lists: Vec<u8>,
    scan: Option<Scan>,
    /// The last scan: what a file took that had a descriptor then and may only be mapped now.
    last: NamelessFiles,
}

impl Nameless {
    /// `None` where the first process is gone or cannot be looked at.
    pub fn of(first: i32, workspace: &Path) -> Option<Nameless> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let first = rustix::fs::open(format!("/proc/{first}"), flags, Mode::empty()).ok()?;
        let workspace = workspace.as_os_str().as_bytes().to_vec();
        // Of all that a path may hold, lists of mappings escape the end of a line and nothing else.
        let escaped = workspace.iter().flat_map(|&b| if b == b'\n' { b"\\012".to_vec() } else { vec![b] });
        Some(Nameless {
            first,
            workspace_in_lists: escaped.collect(),
            workspace,
            scan: None,
            last: NamelessFiles::new(),
        })
    }

    /// Goes on with a scan, or begins one; what it found once it is complete.
    pub fn scan(&mut self, until: Instant) -> Option<NamelessFiles> {
        let mut scan = self.scan.take().unwrap_or_else(|| Scan::begin(&self.first));
        while scan.steps < MOST_STEPS {
            let Some(step) = scan.waiting.pop() else {
                if !scan.begin_again(&self.first) {
                    break;
                }
                continue;
            };
            scan.steps += 1;
            self.take(step, &mut scan);
            if Instant::now() >= until {
                self.scan = Some(scan);
                return None;
            }
        }
        self.last = scan.finish(&self.last);
        Some(self.last.clone())
    }

    fn take(&self, step: Step, scan: &mut Scan) {
        match step {
            Step::Process(pid) => self.process(pid, scan),
            Step::Threads(threads) => self.next_thread(threads, scan),
            Step::Table(tid) => scan.waiting.extend(Table::open(tid, &self.workspace).map(Step::Descriptors)),
            Step::Descriptors(table) => self.next_descriptor(table, scan),
            Step::Mappings(mappings) => self.next_mappings(mappings, scan),
        }
    }

    fn process(&self, pid: i32, scan: &mut Scan) {
        let Ok(dir) = open_dir(&format!("/proc/{pid}/task")) else {
            scan.moved = true;
            return;
        };
        let look = scan.seen.insert(pid);
        if look {
            self.look_at_program(pid, scan);
        }
        scan.waiting.push(Step::Threads(Threads { pid, dir, tables: Vec::new(), mapped: !look, look }));
    }

    /// A program stays a file for as long as it runs.
    fn look_at_program(&self, pid: i32, scan: &mut Scan) {
        if let Some((inode, bytes)) = stat(rustix::fs::CWD, &format!("/proc/{pid}/exe"))
            && self.is_ours(rustix::fs::CWD, &format!("/proc/{pid}/exe"))
        {
            scan.found.insert(inode, bytes);
        }
    }

    /// Threads can have tables of descriptors of their own; and the first may be gone while others live.
    fn next_thread(&self, mut threads: Threads, scan: &mut Scan) {
        let Some(tid) = next_number(&mut threads.dir) else {
            scan.moved |= threads.look && threads.tables.is_empty();
            return;
        };
        let list = read(format!("/proc/{}/task/{tid}/children", threads.pid)).unwrap_or_default();
        scan.waiting.extend(numbers(&list).map(Step::Process));
        if !threads.mapped
            && let Some(lines) = mappings_of(tid)
        {
            threads.mapped = true;
            scan.waiting.push(Step::Mappings(Mappings { tid, lines }));
        }
        let is_known = |known: &i32| process::share_descriptors(*known, tid);
        if threads.look && !threads.tables.iter().any(is_known) {
            scan.waiting.push(Step::Table(tid));
            // With many tables there is nothing to gain from comparing each with all.
            if threads.tables.is_empty() {
                threads.tables.push(tid);
            }
        }
        scan.waiting.push(Step::Threads(threads));
    }

    fn next_descriptor(&self, mut table: Table, scan: &mut Scan) {
        for _ in 0..ENTRIES_PER_STEP {
            let Some(number) = next_number(&mut table.dir) else { return };
            let found = match &table.mounts {
                None => self.followed(&table.dir, number),
                Some(mounts) => copied(table.tid, number, mounts),
            };
            scan.found.extend(found);
        }
        scan.waiting.push(Step::Descriptors(table));
    }

    /// What a descriptor leads to, if that is a file of the workspace without a name.
    fn followed(&self, table: &Dir, number: i32) -> Option<(u64, u64)> {
        let (at, name) = (table.fd().ok()?, number.to_string());
        stat(at, &name).filter(|_| self.is_ours(at, &name))
    }

    fn next_mappings(&self, mut mappings: Mappings, scan: &mut Scan) {
        for _ in 0..ENTRIES_PER_STEP {
            let Some(line) = next_line(&mut mappings.lines) else { return };
            let Some(mapping) = Mapping::of(&line, &self.workspace_in_lists) else { continue };
            let link = format!("/proc/{}/map_files/{}", mappings.tid, mapping.range);
            match statx(rustix::fs::CWD, &link) {
                Some(found) if found.links == 0 => drop(scan.found.insert(found.inode, found.bytes)),
                Some(_) => {}
                // Only root may follow these links; others learn what is mapped, and not how large the file is.
                None => {
                    let ends = scan.mapped.entry(mapping.inode).or_default();
                    *ends = (*ends).max(mapping.end_bytes);
                }
            }
        }
        scan.waiting.push(Step::Mappings(mappings));
    }

    /// Whether a file without a name was made in the workspace: the kernel still knows in which directory. A path that is too long
    /// to be told can be in no other place, because nowhere else can the guest make one.
    fn is_ours(&self, at: impl AsFd, name: &str) -> bool {
        match rustix::fs::readlinkat(at, name, Vec::new()) {
            Ok(path) => is_below(path.as_bytes(), &self.workspace),
            Err(e) => e == rustix::io::Errno::NAMETOOLONG,
        }
    }
}

/// One scan under way.
struct Scan {
    waiting: Vec<Step>,
    found: NamelessFiles,
    /// Files of which only mappings are known, with the highest offset that is mapped.
    mapped: BTreeMap<u64, u64>,
    seen: BTreeSet<i32>,
    /// A process ended between being listed and being looked at: what it held may be another's now.
    moved: bool,
    passes: u32,
    steps: u64,
}

enum Step {
    Process(i32),
    Threads(Threads),
    /// Opened when its turn comes: a guest may have more tables than we may have descriptors.
    Table(i32),
    Descriptors(Table),
    Mappings(Mappings),
}

struct Threads {
    pid: i32,
    dir: Dir,
    /// Threads whose tables of descriptors are looked at.
    tables: Vec<i32>,
    /// The mappings, which all threads share, were looked at.
    mapped: bool,
    /// In a later pass only processes that were not seen before are looked at.
    look: bool,
}

/// One table of descriptors.
struct Table {
    tid: i32,
    dir: Dir,
    /// Where links cannot be followed: the mounts of the workspace, whose descriptors are copied to be looked at.
    mounts: Option<BTreeSet<u64>>,
}

struct Mappings {
    tid: i32,
    lines: BufReader<File>,
}

impl Scan {
    fn begin(first: &OwnedFd) -> Scan {
        let mut scan = Scan {
            waiting: Vec::new(),
            found: NamelessFiles::new(),
            mapped: BTreeMap::new(),
            seen: BTreeSet::new(),
            moved: true,
            passes: 0,
            steps: 0,
        };
        scan.begin_again(first);
        scan
    }

    /// Lists all processes once more, where that may show more than was seen.
    fn begin_again(&mut self, first: &OwnedFd) -> bool {
        if !std::mem::take(&mut self.moved) || self.passes >= MOST_PASSES {
            return false;
        }
        self.passes += 1;
        // The first process is ours, with one thread and nothing of the guest's open.
        self.waiting.extend(children_of_first(first).into_iter().map(Step::Process));
        true
    }

    /// A file that is only mapped takes as much as when it still had a descriptor, and at least what is mapped of it.
    fn finish(mut self, last: &NamelessFiles) -> NamelessFiles {
        for (inode, end_bytes) in self.mapped {
            let known = last.get(&inode).copied().unwrap_or(0);
            self.found.entry(inode).or_insert(known.max(end_bytes));
        }
        self.found
    }
}

impl Table {
    fn open(tid: i32, workspace: &[u8]) -> Option<Table> {
        if let Ok(dir) = open_dir(&format!("/proc/{tid}/fd")) {
            return Some(Table { tid, dir, mounts: None });
        }
        // A process that may not be dumped shows its descriptors to root alone. Whoever made its user namespace may still copy them.
        let dir = open_dir(&format!("/proc/{tid}/fdinfo")).ok()?;
        Some(Table { tid, dir, mounts: Some(mounts_below(tid, workspace)) })
    }
}

/// What a descriptor of the workspace leads to, if that has no name. Others are left alone: to close the last copy of a socket can
/// take long.
fn copied(tid: i32, number: i32, mounts: &BTreeSet<u64>) -> Option<(u64, u64)> {
    let told = read(format!("/proc/{tid}/fdinfo/{number}"))?;
    let mount = told.split(|&b| b == b'\n').find_map(|line| number_in(line.strip_prefix(b"mnt_id:")?))?;
    let copy = mounts.contains(&mount).then(|| process::copy_descriptor(tid, number))??;
    let found = rustix::fs::fstat(&copy).ok()?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    (found.st_nlink == 0).then_some((found.st_ino, if is_file { found.st_blocks as u64 * 512 } else { 0 }))
}

/// Mounts of a process at this path or below it.
fn mounts_below(tid: i32, workspace: &[u8]) -> BTreeSet<u64> {
    let list = read(format!("/proc/{tid}/mountinfo")).unwrap_or_default();
    let at = list.split(|&b| b == b'\n').filter_map(|line| {
        let mut words = line.split(|&b| b == b' ');
        Some((number_in(words.next()?)?, unescaped(words.nth(3)?)))
    });
    at.filter(|(_, at)| at == workspace || is_below(at, workspace)).map(|(mount, _)| mount).collect()
}

/// A path as lists of mounts have it: blanks, backslashes and the like as octal numbers.
fn unescaped(mut rest: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    while let Some((&first, others)) = rest.split_first() {
        let octal = others.get(..3).filter(|_| first == b'\\').and_then(|code| std::str::from_utf8(code).ok());
        let code = octal.and_then(|code| u8::from_str_radix(code, 8).ok());
        plain.push(code.unwrap_or(first));
        rest = if code.is_some() { &others[3..] } else { others };
    }
    plain
}

/// A line of a list of mappings that is about a file of the workspace without a name.
struct Mapping {
    /// Addresses, as `map_files` names them.
    range: String,
    inode: u64,
    end_bytes: u64,
}

impl Mapping {
    fn of(line: &[u8], workspace: &[u8]) -> Option<Mapping> {
        let line = line.strip_suffix(DELETED)?;
        let mut words = line.splitn(6, |&b| b == b' ');
        let mut word = || std::str::from_utf8(words.next()?).ok();
        let (range, _, offset, _, inode) = (word()?, word()?, word()?, word()?, word()?);
        if !is_below(words.next()?.trim_ascii_start(), workspace) {
            return None;
        }
        let (from, to) = range.split_once('-')?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (from, to, offset) = (hex(from)?, hex(to)?, hex(offset)?);
        let end_bytes = offset.saturating_add(to.saturating_sub(from)).next_multiple_of(PAGE);
        Some(Mapping { range: format!("{from:x}-{to:x}"), inode: inode.parse().ok()?, end_bytes })
    }
}

struct Stat {
    inode: u64,
    links: u32,
    bytes: u64,
}

/// What a link of the kernel's leads to, without asking a server for it.
fn statx(at: impl AsFd, name: &str) -> Option<Stat> {
    let wanted = StatxFlags::NLINK | StatxFlags::INO | StatxFlags::BLOCKS | StatxFlags::TYPE;
    let found = rustix::fs::statx(at, name, AtFlags::STATX_DONT_SYNC, wanted).ok()?;
    let is_file = FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile;
    let bytes = if is_file { found.stx_blocks * 512 } else { 0 };
    Some(Stat { inode: found.stx_ino, links: found.stx_nlink, bytes })
}

/// The inode and the bytes of what it leads to, if that has no name.
fn stat(at: impl AsFd, name: &str) -> Option<(u64, u64)> {
    statx(at, name).filter(|found| found.links == 0).map(|found| (found.inode, found.bytes))
}

fn is_below(path: &[u8], dir: &[u8]) -> bool {
    dir == b"/" || path.strip_prefix(dir).is_some_and(|rest| rest.starts_with(b"/"))
}

fn open_dir(path: &str) -> rustix::io::Result<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Dir::new(rustix::fs::open(path, flags, Mode::empty())?)
}

fn next_number(dir: &mut Dir) -> Option<i32> {
    dir.by_ref().map_while(Result::ok).find_map(|entry| entry.file_name().to_str().ok()?.parse().ok())
}

/// Children of the guest's first process, by their numbers outside.
fn children_of_first(first: &OwnedFd) -> Vec<i32> {
    let task = rustix::fs::openat(first, "task", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let Some(mut threads) = task.ok().and_then(|task| Dir::new(task).ok()) else { return Vec::new() };
    let mut children = Vec::new();
    while let Some(tid) = next_number(&mut threads) {
        let name = format!("task/{tid}/children");
        let file = rustix::fs::openat(first, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let list = file.ok().and_then(|file| read_all(File::from(file)));
        children.extend(numbers(&list.unwrap_or_default()));
    }
    children
}

/// The mappings of a thread's process; none where it is gone, and lists nothing.
fn mappings_of(tid: i32) -> Option<BufReader<File>> {
    let mut lines = BufReader::with_capacity(32 * 1024, File::open(format!("/proc/{tid}/maps")).ok()?);
    let lists_some = lines.fill_buf().is_ok_and(|read| !read.is_empty());
    lists_some.then_some(lines)
}

/// The next line. Of one that is too long the beginning and, for what is said there, the end.
fn next_line(lines: &mut BufReader<File>) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    loop {
        let read = lines.fill_buf().ok().filter(|read| !read.is_empty())?;
        let (part, ends) = match read.iter().position(|&b| b == b'\n') {
            Some(at) => (&read[..at], true),
            None => (read, false),
        };
        let taken = part.len() + usize::from(ends);
        line.extend_from_slice(part);
        lines.consume(taken);
        if line.len() > LONGEST_LINE {
            let cut = line.len() - DELETED.len();
            line.drain(LONGEST_LINE - DELETED.len()..cut);
        }
        if ends {
            return Some(line);
        }
    }
}

fn read(path: String) -> Option<Vec<u8>> {
    read_all(File::open(path).ok()?)
}

fn read_all(file: File) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    file.take(LONGEST_LIST).read_to_end(&mut text).ok()?;
    Some(text)
}

/// Numbers between blanks. One that was cut off at the end of a long list is another's number at worst.
fn numbers(list: &[u8]) -> impl Iterator<Item = i32> {
    list.split(u8::is_ascii_whitespace).filter_map(|word| std::str::from_utf8(word).ok()?.parse().ok())
}

fn number_in(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}
