//! A directory for one test, perhaps on a small file system of its own; gone at its end.
#![allow(dead_code)]

use api::JournalStep;
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use store::{Entry, IdShape, Kind, Record, Store};
use terms::Fault;

pub struct Scratch {
    pub dir: PathBuf,
    mounted: bool,
}

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("cofferdam-store-{}-{n}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        Scratch { dir, mounted: false }
    }

    /// On a file system of so many kilobytes. Tests run as root.
    pub fn small(kilobytes: u32) -> Scratch {
        let mut scratch = Scratch::new();
        let image = scratch.dir.with_extension("image");
        let run = |program: &str, args: &[&str]| {
            let output = Command::new(program).args(args).output().unwrap();
            assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        };
        fs::File::create(&image).unwrap().set_len(u64::from(kilobytes) << 10).unwrap();
        let (image_name, dir) = (image.to_str().unwrap(), scratch.dir.to_str().unwrap());
        run("mkfs.ext4", &["-q", "-m", "0", "-O", "^has_journal", image_name]);
        run("mount", &["-o", "loop", image_name, dir]);
        fs::remove_file(&image).unwrap();
        scratch.mounted = true;
        scratch
    }

    pub fn remount(&self, how: &str) {
        let done = Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(&self.dir).status().unwrap();
        assert!(done.success());
    }

    pub fn store(&self) -> Store {
        Store::open(&self.dir).unwrap()
    }

    pub fn open(&self) -> Result<Store, Fault> {
        Store::open(&self.dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.mounted {
            let _ = Command::new("umount").arg(&self.dir).status();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Thing {
    pub text: String,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub scope: Option<String>,
    #[serde(default)]
    pub layers: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ended_ms: Option<u64>,
}

const KINDS: &[Kind] = &[
    Kind { name: "ruled", version: 1, id: IdShape::Prefix("rul_"), about: "a thing with ids of one shape" },
    Kind { name: "only", version: 1, id: IdShape::One("last"), about: "a thing that there is one of" },
    Kind { name: "thing", version: 1, id: IdShape::Prefix(""), about: "a thing" },
];

impl Record for Thing {
    const KIND: &'static Kind = Kind::find(KINDS, "thing");

    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn scope(&self) -> Option<&str> {
        self.scope.as_deref()
    }
}

/// A record of a kind with a prefix.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ruled {}

impl Record for Ruled {
    const KIND: &'static Kind = Kind::find(KINDS, "ruled");
}

/// A record of a kind with one id.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Only {}

impl Record for Only {
    const KIND: &'static Kind = Kind::find(KINDS, "only");
}

pub fn thing(text: &str) -> Thing {
    Thing { text: text.into(), name: None, scope: None, layers: Vec::new(), ended_ms: None }
}

pub fn note(store: &Store, n: u64) -> u64 {
    store.write(|tx| tx.note(&entry(n))).unwrap()
}

/// The same without waiting for the disk.
pub fn note_soon(store: &Store, n: u64) -> u64 {
    store.write_soon(|tx| tx.note(&entry(n))).unwrap()
}

fn entry(n: u64) -> Entry<'static> {
    let body = serde_json::json!({ "n": n });
    let step = if n.is_multiple_of(2) { JournalStep::Done } else { JournalStep::Intent };
    Entry { at_ms: n, verb: "create", step, subject: "sbx_1", actor: "tester", body }
}
