//! Files of a sandbox: looked at, changed, and copied in and out.

use super::Engine;
use super::there::{Parts, There};
use crate::files::place::Place;
use client::{Ask, Content, Heard};
use node::files::Interest;
use node::files::change::{self, Moved, Removed};
use node::files::search::{self, Found};
use node::files::tar::{self, LeftOut, Unpacked};
use node::files::watch::{self, Event};
use node::files::{self, Entry, Purpose, Rel, Root, Target, list, read, write};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase};

/// Whatever comes into a sandbox.
pub type Entering = Box<dyn Read + Send>;
/// Whatever takes what comes out of one.
pub type Leaving<'a> = &'a mut dyn Write;

impl Engine {
    /// A place's path as it is called from the workspace's top.
    pub fn rel(&self, place: &Place) -> Result<Rel, Fault> {
        match self {
            Engine::Here(caller) => Ok(opened(place, Purpose::Reading, caller)?.1),
            Engine::There(there) => there.rel(place),
        }
    }

    /// What is in a directory, and how many directories in it may not be looked into.
    pub fn files_list(&self, place: &Place, depth: usize) -> Result<(Vec<Entry>, u64), Fault> {
        let mut ask = list::Ask { depth, limit: list::LARGEST_PAGE, after: None };
        let root = match self {
            Engine::Here(caller) => Some(opened(place, Purpose::Reading, caller)?),
            Engine::There(_) => None,
        };
        let (mut all, mut shut, mut parts) = (Vec::new(), 0u64, Parts::default());
        loop {
            let page = match (&root, self) {
                (Some((root, path)), _) => list::list(root, path, &ask)?,
                (None, Engine::There(there)) => there.listed(place, &ask)?,
                (None, Engine::Here(_)) => return Err(Fault::internal("files of nobody")),
            };
            shut = shut.saturating_add(page.shut);
            all.extend(page.entries);
            if page.next.is_none() {
                return Ok((all, shut));
            }
            if root.is_none() {
                parts.go_on(ask.after.as_ref(), page.next.as_ref())?;
            }
            ask.after = page.next;
        }
    }

    pub fn files_stat(&self, place: &Place, follow: bool) -> Result<Entry, Fault> {
        match self {
            Engine::Here(caller) => {
                let (root, path) = opened(place, Purpose::Reading, caller)?;
                list::stat(&root, &path, follow)
            }
            Engine::There(there) => {
                let ask = at(Ask::get(&["v1", "sandboxes", &place.sandbox, "files", "stat"]), place);
                there.client.document(ask.query("follow", if follow { "true" } else { "false" }))
            }
        }
    }

    /// A file's bytes, as they are read.
    pub fn files_read(&self, place: &Place, out: Leaving<'_>) -> Result<(), Fault> {
        match self {
            Engine::Here(caller) => {
                let (root, path) = opened(place, Purpose::Reading, caller)?;
                let mut reading = read::open(&root, &path)?;
                while let Some(piece) = reading.piece()? {
                    out.write_all(&piece).map_err(|e| unwritten(&e))?;
                }
                Ok(())
            }
            Engine::There(there) => {
                let ask = at(Ask::get(&["v1", "sandboxes", &place.sandbox, "files", "content"]), place);
                there.client.bytes(ask, out).map(drop)
            }
        }
    }

    pub fn files_write(&self, place: &Place, mode: Option<u32>, mut from: Entering) -> Result<Entry, Fault> {
        match self {
            Engine::Here(caller) => {
                let (root, path) = opened(place, Purpose::Writing, caller)?;
                let sandbox = root.sandbox().unwrap_or_default().to_owned();
                let made = write::write(root, &path, write::Ask { mode, ..write::Ask::default() }, &mut from)?;
                let body = json!({ "path": &made.path, "entries": 1, "bytes": made.size });
                files::note(caller, &sandbox, "files.write", body)?;
                Ok(made)
            }
            Engine::There(there) => {
                let ask = at(Ask::put(&["v1", "sandboxes", &place.sandbox, "files", "content"]), place);
                let ask = ask.query_if("mode", mode.map(|mode| format!("{mode:o}")));
                there.client.document(ask.content(Content::Stream(from, "application/octet-stream")))
            }
        }
    }

    /// A directory or a file as a tar stream; which FIFOs, sockets and devices were left out.
    pub fn files_pack(&self, place: &Place, out: Leaving<'_>) -> Result<LeftOut, Fault> {
        match self {
            Engine::Here(caller) => {
                let (root, path) = opened(place, Purpose::Reading, caller)?;
                let mut left_out = LeftOut::default();
                tar::pack(&root, &path, out, &mut |found| left_out = found)?;
                Ok(left_out)
            }
            Engine::There(there) => {
                let ask = at(Ask::get(&["v1", "sandboxes", &place.sandbox, "files", "archive"]), place);
                let headers = there.client.bytes(ask, out)?;
                let told = headers.get("cofferdam-left-out").map(|told| serde_json::from_slice(told.as_bytes()));
                told.unwrap_or_else(|| Ok(LeftOut::default())).map_err(|e| {
                    let message = format!("the daemon's header cofferdam-left-out cannot be read: {e}");
                    Fault::new(ErrorKind::ProviderFailed, message).phase(Phase::Delivery)
                })
            }
        }
    }

    pub fn files_unpack(&self, place: &Place, mut from: Entering) -> Result<Unpacked, Fault> {
        match self {
            Engine::Here(caller) => {
                let (root, path) = opened(place, Purpose::Writing, caller)?;
                let made = tar::unpack(&root, &path, &mut from)?;
                // Reads the padding at the end, or the packer would get a broken pipe.
                let _ = std::io::copy(&mut from, &mut std::io::sink());
                let body = json!({ "path": path, "entries": made.entries, "bytes": made.bytes });
                note(&root, caller, "files.unpack", body)?;
                Ok(made)
            }
            Engine::There(there) => {
                let ask = at(Ask::put(&["v1", "sandboxes", &place.sandbox, "files", "archive"]), place);
                there.client.document(ask.content(Content::Stream(from, "application/x-tar")))
            }
        }
    }

    pub fn files_mkdir(&self, place: &Place, parents: bool) -> Result<Entry, Fault> {
        match self {
            Engine::Here(caller) => {
                let (root, path) = opened(place, Purpose::Writing, caller)?;
                let made = change::mkdir(&root, &path, parents, None)?;
                note(&root, caller, "files.mkdir", json!({ "path": &made.path }))?;
                Ok(made)
            }
            Engine::There(there) => there.change(place, "mkdir", &json!({ "path": named(place), "parents": parents })),
        }
    }

    pub fn files_rename(&self, place: &Place, to: &[u8], replace: bool) -> Result<Moved, Fault> {
        match self {
            Engine::Here(caller) => {
                let (root, from) = opened(place, Purpose::Writing, caller)?;
                let to = root.path(to)?;
                let moved = change::rename(&root, &from, &to, replace)?;
                note(&root, caller, "files.rename", json!({ "from": from, "to": to }))?;
                Ok(moved)
            }
            Engine::There(there) => {
                let body = json!({ "from": named(place), "to": Target::of(to), "replace": replace });
                there.change(place, "rename", &body)
            }
        }
    }

    pub fn files_remove(&self, place: &Place, recursive: bool) -> Result<Removed, Fault> {
        match self {
            Engine::Here(caller) => {
                let (root, path) = opened(place, Purpose::Writing, caller)?;
                let removed = change::remove(&root, &path, recursive)?;
                let body = json!({ "path": path, "files": removed.files, "dirs": removed.dirs });
                note(&root, caller, "files.remove", body)?;
                Ok(removed)
            }
            Engine::There(there) => {
                there.change(place, "remove", &json!({ "path": named(place), "recursive": recursive }))
            }
        }
    }

    pub fn files_search(&self, place: &Place, ask: &search::Ask) -> Result<Found, Fault> {
        match self {
            Engine::Here(caller) => {
                let (root, path) = opened(place, Purpose::Reading, caller)?;
                search::search(&root, &path, ask)
            }
            Engine::There(there) => there.search(place, ask),
        }
    }

    /// Tells of changes until `each` wants no more; a fault when the directory is gone.
    pub fn files_watch(
        &self,
        place: &Place,
        recursive: bool,
        each: &mut dyn FnMut(&Event) -> bool,
    ) -> Result<(), Fault> {
        let gone = || {
            Fault::new(ErrorKind::NotFound, "the directory is gone or has another name").hint("watch what is above it")
        };
        match self {
            Engine::Here(caller) => {
                let (root, path) = opened(place, Purpose::Reading, caller)?;
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
            Engine::There(there) => match there.watch(place, recursive, each)? {
                true => Ok(()),
                false => Err(gone()),
            },
        }
    }
}

/// The place that a verb is about, opened here.
fn opened(place: &Place, purpose: Purpose, caller: &node::Caller) -> Result<(Root, Rel), Fault> {
    let root = files::open(&place.sandbox, purpose, caller)?;
    let path = root.path(&place.path)?;
    Ok((root, path))
}

/// Writes down who changed what.
fn note(root: &Root, caller: &node::Caller, verb: &str, body: Value) -> Result<(), Fault> {
    files::note(caller, root.sandbox().unwrap_or_default(), verb, body)
}

fn unwritten(error: &std::io::Error) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("-: {error}")).phase(Phase::Delivery);
    fault.hint("name a file or directory that you can use")
}

fn at(ask: Ask, place: &Place) -> Ask {
    ask.query("path", &place.path)
}

fn named(place: &Place) -> Target {
    Target::of(&place.path)
}

impl There {
    fn rel(&self, place: &Place) -> Result<Rel, Fault> {
        let refuse = || {
            let shown = String::from_utf8_lossy(&place.path).into_owned();
            let fault = Fault::invalid(format!("path {shown:?}: it is not in the workspace"));
            fault.hint("give it relative to the workspace's top, without `..`").phase(Phase::Admission)
        };
        if !place.path.starts_with(b"/") {
            return Rel::parse(&place.path).ok_or_else(refuse);
        }
        use std::os::unix::ffi::OsStrExt;
        let base = self.inspect(Some(&place.sandbox))?.sandbox.base;
        let whole = std::path::Path::new(std::ffi::OsStr::from_bytes(&place.path));
        let below = whole.strip_prefix(&base).map_err(|_| refuse())?;
        Rel::parse(below.as_os_str().as_bytes()).ok_or_else(refuse)
    }

    fn change<T: serde::de::DeserializeOwned>(&self, place: &Place, verb: &str, body: &Value) -> Result<T, Fault> {
        self.post(&["v1", "sandboxes", &place.sandbox, "files", verb], body)
    }

    fn listed(&self, place: &Place, ask: &list::Ask) -> Result<list::Listing, Fault> {
        let request = at(Ask::get(&["v1", "sandboxes", &place.sandbox, "files", "list"]), place);
        let request = request.query("depth", ask.depth.to_string()).query("limit", ask.limit.to_string());
        self.client.document(request.query_if("after", ask.after.as_ref()))
    }

    fn search(&self, place: &Place, ask: &search::Ask) -> Result<Found, Fault> {
        let mut request = at(Ask::get(&["v1", "sandboxes", &place.sandbox, "files", "search"]), place);
        for glob in &ask.globs {
            request = request.query("glob", glob);
        }
        let yes = |flag: bool| flag.then_some("true");
        let request = request.query_if("content", ask.content.as_ref()).query_if("fixed", yes(ask.fixed));
        let request = request.query_if("ignore_case", yes(ask.ignore_case));
        self.client.document(request.query("limit", ask.limit.to_string()))
    }

    /// False when there is nothing to be watched any more.
    fn watch(&self, place: &Place, recursive: bool, each: &mut dyn FnMut(&Event) -> bool) -> Result<bool, Fault> {
        let ask = at(Ask::get(&["v1", "sandboxes", &place.sandbox, "files", "watch"]), place);
        let ask = ask.query("recursive", if recursive { "true" } else { "false" });
        self.client.events(ask, &mut |event| {
            let unread = |e| Fault::new(ErrorKind::ProviderFailed, format!("an event cannot be read: {e}"));
            match event.name.as_str() {
                "change" => {
                    let event: Event = serde_json::from_str(&event.data).map_err(unread)?;
                    Ok(if each(&event) { Heard::More } else { Heard::Enough })
                }
                "lost" => Err(serde_json::from_str(&event.data).unwrap_or_else(unread)),
                "closing" => {
                    let fault =
                        Fault::new(ErrorKind::Unavailable, "the daemon closes the watch").phase(Phase::Delivery);
                    Err(fault.hint("watch again when it is back"))
                }
                _ => Ok(Heard::More),
            }
        })
    }
}
