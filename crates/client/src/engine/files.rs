//! Files of a sandbox: list, read, write, change, search, watch.

use super::remote::{Pages, Remote};
use super::{Engine, SandboxPath};
use crate::transport::{Request, RequestBody, StreamControl};
use api::{FileEntry, FileEvent, FileListing, FileMoved, FilesRemoved, FilesUnpacked, PathText, Rel, SearchResult};
use node::Node;
use node::files::Interest;
use node::files::change;
use node::files::search;
use node::files::tar::{self, LeftOut};
use node::files::watch;
use node::files::{self, FileAccess, Root, list, read, write};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase};

impl Engine {
    /// Returns a path relative to the top of the workspace.
    pub fn rel(&self, place: &SandboxPath) -> Result<Rel, Fault> {
        match self {
            Engine::Local(node, caller) => Ok(open(node, place, FileAccess::Reading, caller)?.1),
            Engine::Remote(remote) => remote.rel(place),
        }
    }

    /// Lists a directory. Also counts the directories in it that may not be opened.
    pub fn files_list(&self, place: &SandboxPath, depth: usize) -> Result<(Vec<FileEntry>, u64), Fault> {
        match self {
            Engine::Local(node, caller) => {
                let (root, path) = open(node, place, FileAccess::Reading, caller)?;
                all_pages(depth, None, |ask| list::list(&root, &path, ask))
            }
            Engine::Remote(remote) => all_pages(depth, Some(Pages::default()), |ask| remote.files_page(place, ask)),
        }
    }

    pub fn files_stat(&self, place: &SandboxPath, follow: bool) -> Result<FileEntry, Fault> {
        match self {
            Engine::Local(node, caller) => {
                let (root, path) = open(node, place, FileAccess::Reading, caller)?;
                list::stat(&root, &path, follow)
            }
            Engine::Remote(remote) => {
                let request = at(Request::get(&["v1", "sandboxes", &place.sandbox, "files", "stat"]), place);
                remote.client.document(request.query("follow", if follow { "true" } else { "false" }))
            }
        }
    }

    /// Writes the content of a file to `out` as it is read.
    pub fn files_read(&self, place: &SandboxPath, out: &mut dyn Write) -> Result<(), Fault> {
        match self {
            Engine::Local(node, caller) => {
                let (root, path) = open(node, place, FileAccess::Reading, caller)?;
                let mut reading = read::open(&root, &path)?;
                while let Some(piece) = reading.piece()? {
                    out.write_all(&piece).map_err(|e| write_failed(&e))?;
                }
                Ok(())
            }
            Engine::Remote(remote) => {
                let request = at(Request::get(&["v1", "sandboxes", &place.sandbox, "files", "content"]), place);
                remote.client.bytes(request, out).map(drop)
            }
        }
    }

    pub fn files_write(
        &self,
        place: &SandboxPath,
        mode: Option<u32>,
        mut from: Box<dyn Read + Send>,
    ) -> Result<FileEntry, Fault> {
        match self {
            Engine::Local(node, caller) => {
                let (root, path) = open(node, place, FileAccess::Writing, caller)?;
                let sandbox = root.sandbox().unwrap_or_default().to_owned();
                let made = write::write(
                    root,
                    &path,
                    write::WriteOptions { mode, ..write::WriteOptions::default() },
                    &mut from,
                )?;
                let body = json!({ "path": &made.path, "entries": 1, "bytes": made.size });
                files::note(node, caller, &sandbox, "files.write", body)?;
                Ok(made)
            }
            Engine::Remote(remote) => {
                let request = at(Request::put(&["v1", "sandboxes", &place.sandbox, "files", "content"]), place);
                let request = request.query_if("mode", mode.map(|mode| format!("{mode:o}")));
                remote.client.document(request.body(RequestBody::Stream(from, "application/octet-stream")))
            }
        }
    }

    /// Writes a directory or a file as a tar stream. Returns the FIFOs, sockets and devices that were left out.
    pub fn files_pack(&self, place: &SandboxPath, out: &mut dyn Write) -> Result<LeftOut, Fault> {
        match self {
            Engine::Local(node, caller) => {
                let (root, path) = open(node, place, FileAccess::Reading, caller)?;
                let mut left_out = LeftOut::default();
                tar::pack(&root, &path, out, &mut |found| left_out = found)?;
                Ok(left_out)
            }
            Engine::Remote(remote) => {
                let request = at(Request::get(&["v1", "sandboxes", &place.sandbox, "files", "archive"]), place);
                let headers = remote.client.bytes(request, out)?;
                let told = headers.get("cofferdam-left-out").map(|told| serde_json::from_slice(told.as_bytes()));
                told.unwrap_or_else(|| Ok(LeftOut::default())).map_err(|e| {
                    let message = format!("the daemon's header cofferdam-left-out cannot be read: {e}");
                    Fault::new(ErrorKind::ProviderFailed, message).phase(Phase::Delivery)
                })
            }
        }
    }

    pub fn files_unpack(&self, place: &SandboxPath, mut from: Box<dyn Read + Send>) -> Result<FilesUnpacked, Fault> {
        match self {
            Engine::Local(node, caller) => {
                let (root, path) = open(node, place, FileAccess::Writing, caller)?;
                let made = tar::unpack(&root, &path, &mut from)?;
                // Reads the padding at the end, or the packer would get a broken pipe.
                let _ = std::io::copy(&mut from, &mut std::io::sink());
                let body = json!({ "path": path, "entries": made.entries, "bytes": made.bytes });
                note(node, &root, caller, "files.unpack", body)?;
                Ok(made)
            }
            Engine::Remote(remote) => {
                let request = at(Request::put(&["v1", "sandboxes", &place.sandbox, "files", "archive"]), place);
                remote.client.document(request.body(RequestBody::Stream(from, "application/x-tar")))
            }
        }
    }

    pub fn files_mkdir(&self, place: &SandboxPath, parents: bool) -> Result<FileEntry, Fault> {
        match self {
            Engine::Local(node, caller) => {
                let (root, path) = open(node, place, FileAccess::Writing, caller)?;
                let made = change::mkdir(&root, &path, parents, None)?;
                note(node, &root, caller, "files.mkdir", json!({ "path": &made.path }))?;
                Ok(made)
            }
            Engine::Remote(remote) => {
                remote.change(place, "mkdir", &json!({ "path": named(place), "parents": parents }))
            }
        }
    }

    pub fn files_rename(&self, place: &SandboxPath, to: &[u8], replace: bool) -> Result<FileMoved, Fault> {
        match self {
            Engine::Local(node, caller) => {
                let (root, from) = open(node, place, FileAccess::Writing, caller)?;
                let to = root.path(to)?;
                let moved = change::rename(&root, &from, &to, replace)?;
                note(node, &root, caller, "files.rename", json!({ "from": from, "to": to }))?;
                Ok(moved)
            }
            Engine::Remote(remote) => {
                let body = json!({ "from": named(place), "to": PathText::of(to), "replace": replace });
                remote.change(place, "rename", &body)
            }
        }
    }

    pub fn files_remove(&self, place: &SandboxPath, recursive: bool) -> Result<FilesRemoved, Fault> {
        match self {
            Engine::Local(node, caller) => {
                let (root, path) = open(node, place, FileAccess::Writing, caller)?;
                let removed = change::remove(&root, &path, recursive)?;
                let body = json!({ "path": path, "files": removed.files, "dirs": removed.dirs });
                note(node, &root, caller, "files.remove", body)?;
                Ok(removed)
            }
            Engine::Remote(remote) => {
                remote.change(place, "remove", &json!({ "path": named(place), "recursive": recursive }))
            }
        }
    }

    pub fn files_search(&self, place: &SandboxPath, ask: &search::SearchOptions) -> Result<SearchResult, Fault> {
        match self {
            Engine::Local(node, caller) => {
                let (root, path) = open(node, place, FileAccess::Reading, caller)?;
                search::search(&root, &path, ask)
            }
            Engine::Remote(remote) => remote.search(place, ask),
        }
    }

    /// Reports changes until `each` returns false; a fault when the directory is gone.
    pub fn files_watch(
        &self,
        place: &SandboxPath,
        recursive: bool,
        each: &mut dyn FnMut(&FileEvent) -> bool,
    ) -> Result<(), Fault> {
        let gone = || {
            Fault::new(ErrorKind::NotFound, "the directory is gone or has another name").hint("watch what is above it")
        };
        match self {
            Engine::Local(node, caller) => {
                let (root, path) = open(node, place, FileAccess::Reading, caller)?;
                let mut watch = watch::watch(root, &path, recursive, Interest::default())?;
                while !watch.is_over() {
                    watch.wait(Duration::from_secs(1));
                    for event in watch.take()? {
                        if !each(&event) {
                            return Ok(());
                        }
                    }
                }
                Err(gone())
            }
            Engine::Remote(remote) => match remote.watch(place, recursive, each)? {
                true => Ok(()),
                false => Err(gone()),
            },
        }
    }
}

/// Lists page by page; `pages` bounds what a daemon can send.
fn all_pages(
    depth: usize,
    mut pages: Option<Pages>,
    page: impl Fn(&list::ListOptions) -> Result<FileListing, Fault>,
) -> Result<(Vec<FileEntry>, u64), Fault> {
    let mut ask = list::ListOptions { depth, limit: list::LARGEST_PAGE, after: None };
    let (mut all, mut shut) = (Vec::new(), 0u64);
    loop {
        let FileListing { entries, next, shut: unopened, .. } = page(&ask)?;
        shut = shut.saturating_add(unopened);
        all.extend(entries);
        if next.is_none() {
            return Ok((all, shut));
        }
        if let Some(pages) = &mut pages {
            pages.advance(ask.after.as_ref(), next.as_ref())?;
        }
        ask.after = next;
    }
}

/// Opens a place of a sandbox of this host.
fn open(node: &Node, place: &SandboxPath, purpose: FileAccess, caller: &node::Caller) -> Result<(Root, Rel), Fault> {
    let root = files::open(node, caller, &place.sandbox, purpose, &place.path)?;
    let path = root.path(&place.path)?;
    Ok((root, path))
}

/// Writes a change to the journal.
fn note(node: &Node, root: &Root, caller: &node::Caller, verb: &str, body: Value) -> Result<(), Fault> {
    files::note(node, caller, root.sandbox().unwrap_or_default(), verb, body)
}

fn write_failed(error: &std::io::Error) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("-: {error}")).phase(Phase::Delivery);
    fault.hint("name a file or directory that you can use")
}

fn at(request: Request, place: &SandboxPath) -> Request {
    request.query("path", &place.path)
}

fn named(place: &SandboxPath) -> PathText {
    PathText::of(&place.path)
}

impl Remote {
    fn rel(&self, place: &SandboxPath) -> Result<Rel, Fault> {
        let refuse = || {
            let shown = String::from_utf8_lossy(&place.path).into_owned();
            let fault = Fault::invalid(format!("path {shown:?}: not in the workspace"));
            fault.hint("give it relative to the workspace's top, without `..`").phase(Phase::Admission)
        };
        if !place.path.starts_with(b"/") {
            return Rel::parse(&place.path).ok_or_else(refuse);
        }
        use std::os::unix::ffi::OsStrExt;
        let base = self.inspect(Some(&place.sandbox))?.sandbox.base;
        let whole = std::path::Path::new(std::ffi::OsStr::from_bytes(&place.path));
        let inside = whole.strip_prefix(node::directory::WORKSPACE);
        let below = whole.strip_prefix(&base).or(inside).map_err(|_| refuse())?;
        Rel::parse(below.as_os_str().as_bytes()).ok_or_else(refuse)
    }

    fn change<T: serde::de::DeserializeOwned>(
        &self,
        place: &SandboxPath,
        verb: &str,
        body: &Value,
    ) -> Result<T, Fault> {
        self.post(&["v1", "sandboxes", &place.sandbox, "files", verb], body)
    }

    fn files_page(&self, place: &SandboxPath, ask: &list::ListOptions) -> Result<FileListing, Fault> {
        let request = at(Request::get(&["v1", "sandboxes", &place.sandbox, "files", "list"]), place);
        let request = request.query("depth", ask.depth.to_string()).query("limit", ask.limit.to_string());
        self.client.document(request.query_if("after", ask.after.as_ref()))
    }

    fn search(&self, place: &SandboxPath, ask: &search::SearchOptions) -> Result<SearchResult, Fault> {
        let mut request = at(Request::get(&["v1", "sandboxes", &place.sandbox, "files", "search"]), place);
        for glob in &ask.globs {
            request = request.query("glob", glob);
        }
        let yes = |flag: bool| flag.then_some("true");
        let request = request.query_if("content", ask.content.as_ref()).query_if("fixed", yes(ask.fixed));
        let request = request.query_if("ignore_case", yes(ask.ignore_case));
        self.client.document(request.query("limit", ask.limit.to_string()))
    }

    /// Watches until `each` returns false (true), or until the directory is gone (false).
    fn watch(
        &self,
        place: &SandboxPath,
        recursive: bool,
        each: &mut dyn FnMut(&FileEvent) -> bool,
    ) -> Result<bool, Fault> {
        let request = at(Request::get(&["v1", "sandboxes", &place.sandbox, "files", "watch"]), place);
        let request = request.query("recursive", if recursive { "true" } else { "false" });
        self.client.events(request, &mut |event| {
            let unreadable = |e| {
                let message = format!("watch: the event {:?} cannot be read: {e}", event.name);
                Fault::new(ErrorKind::ProviderFailed, message).phase(Phase::Delivery)
            };
            match event.name.as_str() {
                "change" => {
                    let event: FileEvent = serde_json::from_str(&event.data).map_err(unreadable)?;
                    Ok(if each(&event) { StreamControl::Continue } else { StreamControl::Stop })
                }
                "lost" => Err(serde_json::from_str(&event.data).unwrap_or_else(unreadable)),
                "closing" => {
                    let fault =
                        Fault::new(ErrorKind::Unavailable, "the daemon closes the watch").phase(Phase::Delivery);
                    Err(fault.hint("watch again when it is back"))
                }
                _ => Ok(StreamControl::Continue),
            }
        })
    }
}
