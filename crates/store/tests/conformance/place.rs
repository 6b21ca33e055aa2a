//! A place with one database, which can be opened by several handles.

use crate::model::{Database, Memory};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use store::backend::{Access, Backend, Durability, Transaction};
use store::{Sqlite, Store};
use terms::Fault;

/// The back ends under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackEnd {
    Sqlite,
    Memory,
}

/// An empty database and a state directory, removed at the end.
pub struct Place {
    pub back_end: BackEnd,
    pub dir: PathBuf,
    database: Arc<Database>,
}

pub const READ: Access = Access::Read;
pub const WRITE: Access = Access::Write(Durability::Synced);
pub const RELAXED: Access = Access::Write(Durability::Relaxed);

impl Place {
    pub fn new(back_end: BackEnd) -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("cofferdam-conformance-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Place { back_end, dir, database: Arc::default() }
    }

    /// Tells whether the database survives the process.
    pub fn persists(&self) -> bool {
        self.back_end != BackEnd::Memory
    }

    pub fn open(&self) -> Box<dyn Backend> {
        self.open_for(Duration::from_secs(10))
    }

    pub fn open_for(&self, busy_timeout: Duration) -> Box<dyn Backend> {
        match self.back_end {
            BackEnd::Sqlite => Box::new(Sqlite::open(&self.dir, busy_timeout).unwrap()),
            BackEnd::Memory => Box::new(Memory::open(&self.database, busy_timeout)),
        }
    }

    pub fn store(&self) -> Store {
        Store::with_backend(&self.dir, self.open())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Runs one transaction and commits it.
pub fn commit<T>(handle: &dyn Backend, access: Access, work: impl FnOnce(&dyn Transaction) -> Result<T, Fault>) -> T {
    let tx = handle.begin(access).unwrap();
    let answer = work(&*tx).unwrap();
    tx.commit().unwrap();
    answer
}
