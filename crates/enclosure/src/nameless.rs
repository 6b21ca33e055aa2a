//! Unlinked files: those that a guest keeps open or mapped after unlink(2), and those made with `O_TMPFILE`. They take
//! space in the workspace like any other file, and no walk over its directories finds them. This module scans the
//! descriptor tables and mappings of the guest's processes in /proc. Read-only, in steps of bounded time.
//!
//! Coverage and gaps of the scan are in `docs/decisions/0048-unlinked-files-in-disk-limits.md`.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, StatxFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;
use sys::process;

/// Steps of one scan, each of which visits one descriptor, thread, process or part of a list of mappings. A larger
/// guest is counted by what the scan found up to here.
const MOST_STEPS: u64 = 4_000_000;
/// Passes over the process list, repeated while processes end during a pass.
const MOST_PASSES: u32 = 3;
/// Bytes kept of one line of /proc/PID/maps; the path of the workspace is among the first.
const LONGEST_LINE: usize = 16 * 1024;
/// Descriptors or lines of mappings that one step handles.
const ENTRIES_PER_STEP: usize = 32;
/// Bytes read at most of a list of children, mounts or descriptor details.
const LONGEST_LIST: u64 = 1 << 20;
const PAGE: u64 = 4096;
const DELETED: &[u8] = b" (deleted)";

/// Unlinked files by inode number, with their bytes. All are in the guest's upper layer, so the number alone identifies
/// a file.
pub type UnlinkedFiles = BTreeMap<u64, u64>;

/// Finds the unlinked files that the processes of one guest hold in its workspace.
pub struct UnlinkedFileFinder {
    /// `/proc/PID` of the guest's first process, held open: a reused pid cannot take its place.
    first: OwnedFd,
    /// Paths of the workspace and the home, as the kernel writes them in links and, escaped, in lists of mappings.
    trees: Vec<Vec<u8>>,
    trees_in_lists: Vec<Vec<u8>>,
    scan: Option<Scan>,
    /// Result of the last scan, for the size of a file that had a descriptor then and may only be mapped now.
    last: UnlinkedFiles,
}

impl UnlinkedFileFinder {
    /// Opens the first process. `None` where it is gone or cannot be read.
    pub fn of(first: i32, trees: &[&Path]) -> Option<UnlinkedFileFinder> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let first = rustix::fs::open(format!("/proc/{first}"), flags, Mode::empty()).ok()?;
        let trees: Vec<Vec<u8>> = trees.iter().map(|tree| tree.as_os_str().as_bytes().to_vec()).collect();
        // /proc/PID/maps escapes newlines in a path and no other byte.
        let escaped = |&b: &u8| if b == b'\n' { b"\\012".to_vec() } else { vec![b] };
        Some(UnlinkedFileFinder {
            first,
            trees_in_lists: trees.iter().map(|tree| tree.iter().flat_map(escaped).collect()).collect(),
            trees,
            scan: None,
            last: UnlinkedFiles::new(),
        })
    }

    /// Continues a scan, or begins one; returns the files once it is complete.
    pub fn scan(&mut self, until: Instant) -> Option<UnlinkedFiles> {
        let mut scan = self.scan.take().unwrap_or_else(|| Scan::begin(&self.first));
        while scan.steps < MOST_STEPS {
            let Some(step) = scan.waiting.pop() else {
                if !scan.begin_again(&self.first) {
                    break;
                }
                continue;
            };
            scan.steps += 1;
            self.run_step(step, &mut scan);
            if Instant::now() >= until {
                self.scan = Some(scan);
                return None;
            }
        }
        self.last = scan.finish(&self.last);
        Some(self.last.clone())
    }

    fn run_step(&self, step: SearchStep, scan: &mut Scan) {
        match step {
            SearchStep::Process(pid) => self.process(pid, scan),
            SearchStep::Threads(threads) => self.next_thread(threads, scan),
            SearchStep::Table(tid) => {
                scan.waiting.extend(DescriptorTable::open(tid, &self.trees).map(SearchStep::Descriptors))
            }
            SearchStep::Descriptors(table) => self.next_descriptor(table, scan),
            SearchStep::Mappings(mappings) => self.next_mappings(mappings, scan),
        }
    }

    fn process(&self, pid: i32, scan: &mut Scan) {
        let Ok(dir) = open_dir(&format!("/proc/{pid}/task")) else {
            scan.process_ended = true;
            return;
        };
        let is_new = scan.seen.insert(pid);
        if is_new {
            self.add_program(pid, scan);
        }
        scan.waiting.push(SearchStep::Threads(Threads { pid, dir, tables: Vec::new(), mapped: !is_new, is_new }));
    }

    /// Adds the program of a process: an unlinked executable keeps its blocks while it runs.
    fn add_program(&self, pid: i32, scan: &mut Scan) {
        if let Some((inode, bytes)) = stat(rustix::fs::CWD, &format!("/proc/{pid}/exe"))
            && self.is_ours(rustix::fs::CWD, &format!("/proc/{pid}/exe"))
        {
            scan.found.insert(inode, bytes);
        }
    }

    /// Visits one thread: threads may have descriptor tables of their own, and the main thread may be gone while others
    /// live.
    fn next_thread(&self, mut threads: Threads, scan: &mut Scan) {
        let Some(tid) = next_number(&mut threads.dir) else {
            scan.process_ended |= threads.is_new && threads.tables.is_empty();
            return;
        };
        let list = read(format!("/proc/{}/task/{tid}/children", threads.pid)).unwrap_or_default();
        scan.waiting.extend(numbers(&list).map(SearchStep::Process));
        if !threads.mapped
            && let Some(lines) = mappings_of(tid)
        {
            threads.mapped = true;
            scan.waiting.push(SearchStep::Mappings(Mappings { tid, lines }));
        }
        let is_known = |known: &i32| process::share_descriptors(*known, tid);
        if threads.is_new && !threads.tables.iter().any(is_known) {
            scan.waiting.push(SearchStep::Table(tid));
            // Comparing every table with every other would cost more than it saves.
            if threads.tables.is_empty() {
                threads.tables.push(tid);
            }
        }
        scan.waiting.push(SearchStep::Threads(threads));
    }

    fn next_descriptor(&self, mut table: DescriptorTable, scan: &mut Scan) {
        for _ in 0..ENTRIES_PER_STEP {
            let Some(number) = next_number(&mut table.dir) else { return };
            let found = match &table.mounts {
                None => self.followed(&table.dir, number),
                Some(mounts) => copied(table.tid, number, mounts),
            };
            scan.found.extend(found);
        }
        scan.waiting.push(SearchStep::Descriptors(table));
    }

    /// Returns inode and bytes of a descriptor's file, if that is an unlinked file of the workspace.
    fn followed(&self, table: &Dir, number: i32) -> Option<(u64, u64)> {
        let (at, name) = (table.fd().ok()?, number.to_string());
        stat(at, &name).filter(|_| self.is_ours(at, &name))
    }

    fn next_mappings(&self, mut mappings: Mappings, scan: &mut Scan) {
        for _ in 0..ENTRIES_PER_STEP {
            let Some(line) = next_line(&mut mappings.lines) else { return };
            let Some(mapping) = Mapping::of(&line, &self.trees_in_lists) else { continue };
            let link = format!("/proc/{}/map_files/{}", mappings.tid, mapping.range);
            match statx(rustix::fs::CWD, &link) {
                Some(found) if found.links == 0 => drop(scan.found.insert(found.inode, found.bytes)),
                Some(_) => {}
                // Following map_files needs CAP_CHECKPOINT_RESTORE; without it the mapped range is known and the file's
                // size is not.
                None => {
                    let ends = scan.mapped.entry(mapping.inode).or_default();
                    *ends = (*ends).max(mapping.end_bytes);
                }
            }
        }
        scan.waiting.push(SearchStep::Mappings(mappings));
    }

    /// True for an unlinked file that was created in the workspace: the kernel still has its directory. A path too long
    /// for readlink(2) can only be there, because the guest can create no such path elsewhere.
    fn is_ours(&self, at: impl AsFd, name: &str) -> bool {
        match rustix::fs::readlinkat(at, name, Vec::new()) {
            Ok(path) => is_below_any(path.as_bytes(), &self.trees),
            Err(e) => e == rustix::io::Errno::NAMETOOLONG,
        }
    }
}

/// A scan in progress.
struct Scan {
    waiting: Vec<SearchStep>,
    found: UnlinkedFiles,
    /// Files known only from mappings, with the highest mapped offset.
    mapped: BTreeMap<u64, u64>,
    seen: BTreeSet<i32>,
    /// A process ended between listing and visiting: another process may hold its files now.
    process_ended: bool,
    passes: u32,
    steps: u64,
}

enum SearchStep {
    Process(i32),
    Threads(Threads),
    /// Opened only in its own step: a guest may have more tables than the supervisor may have descriptors.
    Table(i32),
    Descriptors(DescriptorTable),
    Mappings(Mappings),
}

struct Threads {
    pid: i32,
    dir: Dir,
    /// Threads whose descriptor tables are visited.
    tables: Vec<i32>,
    /// The mappings, which all threads share, were visited.
    mapped: bool,
    /// False in a later pass for processes that were seen before.
    is_new: bool,
}

/// A descriptor table.
struct DescriptorTable {
    tid: i32,
    dir: Dir,
    /// Mounts of the workspace, where links cannot be followed: their descriptors are copied to be examined.
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
            found: UnlinkedFiles::new(),
            mapped: BTreeMap::new(),
            seen: BTreeSet::new(),
            process_ended: true,
            passes: 0,
            steps: 0,
        };
        scan.begin_again(first);
        scan
    }

    /// Begins another pass over the processes, where that may find more.
    fn begin_again(&mut self, first: &OwnedFd) -> bool {
        if !std::mem::take(&mut self.process_ended) || self.passes >= MOST_PASSES {
            return false;
        }
        self.passes += 1;
        // The first process is the supervisor's, with one thread and no file of the guest open.
        self.waiting.extend(children_of_first(first).into_iter().map(SearchStep::Process));
        true
    }

    /// Adds files that are only mapped: with the size from when they last had a descriptor, and at least the mapped
    /// range.
    fn finish(mut self, last: &UnlinkedFiles) -> UnlinkedFiles {
        for (inode, end_bytes) in self.mapped {
            let known = last.get(&inode).copied().unwrap_or(0);
            self.found.entry(inode).or_insert(known.max(end_bytes));
        }
        self.found
    }
}

impl DescriptorTable {
    fn open(tid: i32, trees: &[Vec<u8>]) -> Option<DescriptorTable> {
        if let Ok(dir) = open_dir(&format!("/proc/{tid}/fd")) {
            return Some(DescriptorTable { tid, dir, mounts: None });
        }
        // A non-dumpable process shows `fd` to root alone. The owner of its user namespace may still copy descriptors
        // (pidfd_getfd).
        let dir = open_dir(&format!("/proc/{tid}/fdinfo")).ok()?;
        Some(DescriptorTable { tid, dir, mounts: Some(mounts_below(tid, trees)) })
    }
}

/// Returns inode and bytes of a workspace descriptor's unlinked file, by a copy of the descriptor. Descriptors on other
/// mounts are not copied, because closing the last copy of a socket can take long.
fn copied(tid: i32, number: i32, mounts: &BTreeSet<u64>) -> Option<(u64, u64)> {
    let told = read(format!("/proc/{tid}/fdinfo/{number}"))?;
    let mount = told.split(|&b| b == b'\n').find_map(|line| number_in(line.strip_prefix(b"mnt_id:")?))?;
    let copy = mounts.contains(&mount).then(|| process::copy_descriptor(tid, number))??;
    let found = rustix::fs::fstat(&copy).ok()?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    (found.st_nlink == 0).then_some((found.st_ino, if is_file { found.st_blocks as u64 * 512 } else { 0 }))
}

/// Lists the mounts of a process at these paths or below them.
fn mounts_below(tid: i32, trees: &[Vec<u8>]) -> BTreeSet<u64> {
    let list = read(format!("/proc/{tid}/mountinfo")).unwrap_or_default();
    let at = list.split(|&b| b == b'\n').filter_map(|line| {
        let mut words = line.split(|&b| b == b' ');
        Some((number_in(words.next()?)?, unescaped(words.nth(3)?)))
    });
    at.filter(|(_, at)| trees.contains(at) || is_below_any(at, trees)).map(|(mount, _)| mount).collect()
}

/// Decodes a path of mountinfo, in which blanks, backslashes and the like are octal escapes.
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

fn is_below_any(path: &[u8], trees: &[Vec<u8>]) -> bool {
    trees.iter().any(|tree| is_below(path, tree))
}

/// A line of /proc/PID/maps about an unlinked file of the workspace.
struct Mapping {
    /// Address range, as `map_files` names it.
    range: String,
    inode: u64,
    end_bytes: u64,
}

impl Mapping {
    fn of(line: &[u8], trees: &[Vec<u8>]) -> Option<Mapping> {
        let line = line.strip_suffix(DELETED)?;
        let mut words = line.splitn(6, |&b| b == b' ');
        let mut word = || std::str::from_utf8(words.next()?).ok();
        let (range, _, offset, _, inode) = (word()?, word()?, word()?, word()?, word()?);
        if !is_below_any(words.next()?.trim_ascii_start(), trees) {
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

/// Returns the metadata of a magic link's target, without a round trip to a file server (AT_STATX_DONT_SYNC).
fn statx(at: impl AsFd, name: &str) -> Option<Stat> {
    let wanted = StatxFlags::NLINK | StatxFlags::INO | StatxFlags::BLOCKS | StatxFlags::TYPE;
    let found = rustix::fs::statx(at, name, AtFlags::STATX_DONT_SYNC, wanted).ok()?;
    let is_file = FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile;
    let bytes = if is_file { found.stx_blocks * 512 } else { 0 };
    Some(Stat { inode: found.stx_ino, links: found.stx_nlink, bytes })
}

/// Returns inode and bytes of a link's target, if it is unlinked.
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

/// Lists the children of the guest's first process, by their pids on the host.
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

/// Opens the mappings of a thread's process; `None` where the process is gone and the list empty.
fn mappings_of(tid: i32) -> Option<BufReader<File>> {
    let mut lines = BufReader::with_capacity(32 * 1024, File::open(format!("/proc/{tid}/maps")).ok()?);
    let lists_some = lines.fill_buf().is_ok_and(|read| !read.is_empty());
    lists_some.then_some(lines)
}

/// Returns the next line. An overlong line keeps its beginning and, for the ` (deleted)` mark, its end.
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

/// Parses numbers between blanks. A number that is cut off at the end of a long list is at worst the pid of another
/// process.
fn numbers(list: &[u8]) -> impl Iterator<Item = i32> {
    list.split(u8::is_ascii_whitespace).filter_map(|word| std::str::from_utf8(word).ok()?.parse().ok())
}

fn number_in(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}
