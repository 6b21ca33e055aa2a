//! Total of all layers in one state directory, over all runs: `limits.total_disk` and `limits.total_files` of the configuration. Every
//! start measures all layers and is refused where the total is reached; every run writes its own usage to a file beside its layer about
//! once a second, and reads those of the others. So concurrent runs exceed a total by no more than they write between two readings.

use crate::Caller;
use crate::config::Config;
use api::{DiskUsage, Driver, Rel};
use enclosure::TotalExceeded;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use terms::{ErrorKind, Fault, LimitKind, Phase, Retry};
use workspace::disk_usage;
use workspace::{Dir, Layers};

/// File beside a layer with the usage of its run, as two numbers of a fixed width.
const LIVE: &[u8] = b"live";
const WIDTH: usize = 20;
/// Shortest interval between readings of the other layers' usage.
const READ_EVERY: Duration = Duration::from_millis(500);
/// Inverse of the share of time that reading may take.
const SHARE: u32 = 20;

/// Configured totals; `None` is unbounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    pub disk_bytes: Option<u64>,
    pub files: Option<u64>,
}

impl Total {
    /// Reads the caller's configuration.
    pub fn of(caller: &Caller) -> Result<Total, Fault> {
        Ok(Config::load(None, &[], caller)?.total())
    }

    fn is_set(&self) -> bool {
        self.disk_bytes.is_some() || self.files.is_some()
    }

    /// Returns the total that is exceeded; usage exactly at it is not.
    fn passed_by(&self, (bytes, files): (u64, u64)) -> Option<TotalExceeded> {
        let over = |kind, used: u64, most: Option<u64>| {
            most.filter(|most| used > *most).map(|most| TotalExceeded { kind, used, most })
        };
        over(LimitKind::TotalDiskMb, bytes, self.disk_bytes).or_else(|| over(LimitKind::TotalFiles, files, self.files))
    }
}

/// Refuses a start where the total is reached; otherwise returns the account that watches it, where a total is set.
pub fn admit(layers: &Layers, path: &Path, caller: &Caller) -> Result<Option<Account>, Fault> {
    admit_more(layers, path, caller, (1, 1))
}

/// Same as `admit` before a directory is copied.
pub fn admit_copy(layers: &Layers, path: &Path, caller: &Caller, copied: (&Dir, Driver)) -> Result<(), Fault> {
    let (base, driver) = copied;
    if driver == Driver::Overlay || !Total::of(caller)?.is_set() {
        return Ok(());
    }
    let DiskUsage { bytes, files, .. } = disk_usage::tree(base);
    admit_more(layers, path, caller, (bytes, files)).map(drop)
}

fn admit_more(layers: &Layers, path: &Path, caller: &Caller, more: (u64, u64)) -> Result<Option<Account>, Fault> {
    let total = Total::of(caller)?;
    if !total.is_set() {
        return Ok(None);
    }
    let account = Account::open(total, layers).map_err(|e| crate::directory::unusable(path, &e.to_string()))?;
    let (bytes, files) = account.sum();
    match total.passed_by((bytes + more.0, files + more.1)) {
        None => Ok(Some(account)),
        Some(crowd) => Err(full(path, (bytes, files), &crowd)),
    }
}

/// Returns the bytes and files that may still be written; `None` where unbounded.
pub fn left(layers: &Layers, path: &Path, caller: &Caller) -> Result<(Option<u64>, Option<u64>), Fault> {
    let Some(account) = admit(layers, path, caller)? else { return Ok((None, None)) };
    let ((bytes, files), total) = (account.sum(), account.total);
    let rest = |most: Option<u64>, used: u64| most.map(|most| most.saturating_sub(used));
    Ok((rest(total.disk_bytes, bytes), rest(total.files, files)))
}

fn full(path: &Path, (bytes, files): (u64, u64), crowd: &TotalExceeded) -> Fault {
    let what = match crowd.kind {
        LimitKind::TotalFiles => format!("have {files} files; the limit is {} (limits.total_files)", crowd.most),
        _ => format!("take {} MiB; the limit is {} (limits.total_disk)", bytes >> 20, crowd.most >> 20),
    };
    let message = format!("{}: all layers together {what}", path.display());
    let fault = Fault::new(ErrorKind::LimitExceeded, message).limit(crowd.kind).phase(Phase::Admission);
    fault.retry(Retry::Later).hint("free some space with `cofferdam gc` or `cofferdam rm`, or run with --read-only")
}

/// Usage of all layers, for checking the total during a run.
#[derive(Debug)]
pub struct Account {
    total: Total,
    layers: Layers,
    /// Usage of each layer when the account was opened.
    measured: BTreeMap<String, (u64, u64)>,
    opened: SystemTime,
    own: Option<String>,
    others: (u64, u64),
    next_read: Option<Instant>,
    written: Option<(u64, u64)>,
}

impl Account {
    fn open(total: Total, layers: &Layers) -> std::io::Result<Account> {
        let layers = Layers { dir: layers.dir.try_clone()? };
        let mut measured = BTreeMap::new();
        for id in names(&layers)? {
            let DiskUsage { bytes, files, .. } = disk_usage::layer(&layers, &id);
            measured.insert(id, (bytes, files));
        }
        let opened = SystemTime::now();
        Ok(Account { total, layers, measured, opened, own: None, others: (0, 0), next_read: None, written: None })
    }

    /// Returns the account of the run that writes to this layer.
    pub fn of_layer(&self, id: &str) -> std::io::Result<Account> {
        let layers = Layers { dir: self.layers.dir.try_clone()? };
        let (measured, own) = (self.measured.clone(), Some(id.to_owned()));
        Ok(Account { total: self.total, layers, measured, own, opened: self.opened, ..*self })
    }

    fn sum(&self) -> (u64, u64) {
        self.measured.values().fold((0, 0), |(bytes, files), more| (bytes + more.0, files + more.1))
    }

    /// Returns the exceeded total, where this layer's part of the sum is `used`.
    pub fn passed_by(&mut self, used: (u64, u64)) -> Option<TotalExceeded> {
        let began = Instant::now();
        if self.next_read.is_none_or(|at| began >= at) {
            self.write_usage(used);
            self.others = self.read_others();
            self.next_read = Some(began + READ_EVERY.max(began.elapsed() * SHARE));
        }
        self.total.passed_by((used.0 + self.others.0, used.1 + self.others.1))
    }

    /// Writes this layer's usage to its file. On failure, others count the usage that they measured.
    fn write_usage(&mut self, used: (u64, u64)) {
        let Some(own) = self.own.as_deref().filter(|_| self.written != Some(used)) else { return };
        let at = Rel::top().join(own.as_bytes()).join(LIVE);
        let flags = OFlags::WRONLY | OFlags::CREATE;
        let Ok(file) = self.layers.dir.open_at(&at, flags, Mode::from_raw_mode(0o600)) else { return };
        let text = format!("{:WIDTH$}{:WIDTH$}", used.0, used.1);
        if File::from(file).write_all_at(text.as_bytes(), 0).is_ok() {
            self.written = Some(used);
        }
    }

    /// Sums the usage of all other layers, as far as it is known without walking them.
    fn read_others(&self) -> (u64, u64) {
        let others = names(&self.layers).unwrap_or_default().into_iter().filter(|id| Some(id) != self.own.as_ref());
        others.fold((0, 0), |(bytes, files), id| {
            let more = self.read_usage(&id).or_else(|| self.measured.get(&id).copied()).unwrap_or_default();
            (bytes + more.0, files + more.1)
        })
    }

    /// Reads the usage that a layer's run wrote since the account was opened.
    fn read_usage(&self, id: &str) -> Option<(u64, u64)> {
        let file = self.layers.dir.file(&Rel::top().join(id.as_bytes()).join(LIVE)).ok()?;
        if file.metadata().ok()?.modified().ok()? < self.opened {
            return None;
        }
        let mut text = String::new();
        file.take(2 * WIDTH as u64).read_to_string(&mut text).ok()?;
        let (bytes, files) = text.split_at_checked(WIDTH)?;
        Some((bytes.trim().parse().ok()?, files.trim().parse().ok()?))
    }
}

fn names(layers: &Layers) -> std::io::Result<Vec<String>> {
    let names = layers.dir.names()?.into_iter().filter_map(|name| String::from_utf8(name).ok());
    Ok(names.filter(|name| name.starts_with("lay_")).collect())
}
