//! What all layers of one state directory may take together, whoever runs: `limits.total_disk` and `limits.total_files` of the
//! configuration. Who begins something measures all of it and is refused where there is no room; who runs says every now and then,
//! beside its layer, how much it takes, and hears what others say. So runs at once pass a total by no more than what they write
//! between two looks, which are about a second apart.

use crate::Caller;
use crate::config::Config;
use crate::lifecycle::measure::{self, Size};
use enclosure::Crowd;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use terms::{ErrorKind, Fault, LimitKind, Phase, Retry};
use workspace::{Dir, Driver, Layers, Rel};

/// Beside a layer: what its run takes, as two numbers of a fixed width.
const LIVE: &[u8] = b"live";
const WIDTH: usize = 20;
/// Others are heard this often at most.
const HEAR_EVERY: Duration = Duration::from_millis(500);
/// Of the time that passes, this share at most goes into hearing.
const SHARE: u32 = 20;

/// What was set; none is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    pub disk_bytes: Option<u64>,
    pub files: Option<u64>,
}

impl Total {
    /// What the caller's configuration says.
    pub fn of(caller: &Caller) -> Result<Total, Fault> {
        Ok(Config::load(None, &[], caller)?.total())
    }

    fn is_set(&self) -> bool {
        self.disk_bytes.is_some() || self.files.is_some()
    }

    /// What is taken beyond it; exactly as much as allowed is not.
    fn passed_by(&self, (bytes, files): (u64, u64)) -> Option<Crowd> {
        let over = |kind, used: u64, most: Option<u64>| {
            most.filter(|most| used > *most).map(|most| Crowd { kind, used, most })
        };
        over(LimitKind::TotalDiskMb, bytes, self.disk_bytes).or_else(|| over(LimitKind::TotalFiles, files, self.files))
    }
}

/// Refuses where there is no room for anything more; else who looks after the total from now on, where there is one.
pub fn admit(layers: &Layers, path: &Path, caller: &Caller) -> Result<Option<Account>, Fault> {
    admit_more(layers, path, caller, (1, 1))
}

/// The same for one who is about to copy a directory.
pub fn admit_copy(layers: &Layers, path: &Path, caller: &Caller, copied: (&Dir, Driver)) -> Result<(), Fault> {
    let (base, driver) = copied;
    if driver == Driver::Overlay || !Total::of(caller)?.is_set() {
        return Ok(());
    }
    let Size { bytes, files, .. } = measure::tree(base);
    admit_more(layers, path, caller, (bytes, files)).map(drop)
}

fn admit_more(layers: &Layers, path: &Path, caller: &Caller, more: (u64, u64)) -> Result<Option<Account>, Fault> {
    let total = Total::of(caller)?;
    if !total.is_set() {
        return Ok(None);
    }
    let account = Account::open(total, layers).map_err(|e| crate::state::unusable(path, &e.to_string()))?;
    let (bytes, files) = account.sum();
    match total.passed_by((bytes + more.0, files + more.1)) {
        None => Ok(Some(account)),
        Some(crowd) => Err(full(path, (bytes, files), &crowd)),
    }
}

/// What may still be written; none where nothing is bound.
pub fn left(layers: &Layers, path: &Path, caller: &Caller) -> Result<(Option<u64>, Option<u64>), Fault> {
    let Some(account) = admit(layers, path, caller)? else { return Ok((None, None)) };
    let ((bytes, files), total) = (account.sum(), account.total);
    let rest = |most: Option<u64>, used: u64| most.map(|most| most.saturating_sub(used));
    Ok((rest(total.disk_bytes, bytes), rest(total.files, files)))
}

fn full(path: &Path, (bytes, files): (u64, u64), crowd: &Crowd) -> Fault {
    let what = match crowd.kind {
        LimitKind::TotalFiles => format!("hold {files} files, and may hold {} (limits.total_files)", crowd.most),
        _ => format!("take {} MiB, and may take {} (limits.total_disk)", bytes >> 20, crowd.most >> 20),
    };
    let message = format!("{}: all layers together {what}: there is no room for more", path.display());
    let fault = Fault::new(ErrorKind::LimitExceeded, message).limit(crowd.kind).phase(Phase::Admission);
    fault.retry(Retry::Later).hint("free some space with `cofferdam gc` or `cofferdam rm`, or run with --read-only")
}

/// What is known of all layers but one's own.
#[derive(Debug)]
pub struct Account {
    total: Total,
    layers: Layers,
    /// Measured when it was opened.
    measured: BTreeMap<String, (u64, u64)>,
    opened: SystemTime,
    own: Option<String>,
    others: (u64, u64),
    hear_at: Option<Instant>,
    told: Option<(u64, u64)>,
}

impl Account {
    fn open(total: Total, layers: &Layers) -> std::io::Result<Account> {
        let layers = Layers { dir: layers.dir.try_clone()? };
        let mut measured = BTreeMap::new();
        for id in names(&layers)? {
            let Size { bytes, files, .. } = measure::layer(&layers, &id);
            measured.insert(id, (bytes, files));
        }
        let opened = SystemTime::now();
        Ok(Account { total, layers, measured, opened, own: None, others: (0, 0), hear_at: None, told: None })
    }

    /// The same for the one who works on this layer.
    pub fn of_layer(&self, id: &str) -> std::io::Result<Account> {
        let layers = Layers { dir: self.layers.dir.try_clone()? };
        let (measured, own) = (self.measured.clone(), Some(id.to_owned()));
        Ok(Account { total: self.total, layers, measured, own, opened: self.opened, ..*self })
    }

    fn sum(&self) -> (u64, u64) {
        self.measured.values().fold((0, 0), |(bytes, files), more| (bytes + more.0, files + more.1))
    }

    /// What all take together, where that is too much and one's own part of it is `used`.
    pub fn passed_by(&mut self, used: (u64, u64)) -> Option<Crowd> {
        let began = Instant::now();
        if self.hear_at.is_none_or(|at| began >= at) {
            self.tell(used);
            self.others = self.hear();
            self.hear_at = Some(began + HEAR_EVERY.max(began.elapsed() * SHARE));
        }
        self.total.passed_by((used.0 + self.others.0, used.1 + self.others.1))
    }

    /// Says beside the layer what it takes. Who cannot is taken for what was measured of it.
    fn tell(&mut self, used: (u64, u64)) {
        let Some(own) = self.own.as_deref().filter(|_| self.told != Some(used)) else { return };
        let at = Rel::top().join(own.as_bytes()).join(LIVE);
        let flags = OFlags::WRONLY | OFlags::CREATE;
        let Ok(file) = self.layers.dir.open_at(&at, flags, Mode::from_raw_mode(0o600)) else { return };
        let text = format!("{:WIDTH$}{:WIDTH$}", used.0, used.1);
        if File::from(file).write_all_at(text.as_bytes(), 0).is_ok() {
            self.told = Some(used);
        }
    }

    /// What all others take, as far as it can be told without walking.
    fn hear(&self) -> (u64, u64) {
        let others = names(&self.layers).unwrap_or_default().into_iter().filter(|id| Some(id) != self.own.as_ref());
        others.fold((0, 0), |(bytes, files), id| {
            let more = self.said(&id).or_else(|| self.measured.get(&id).copied()).unwrap_or_default();
            (bytes + more.0, files + more.1)
        })
    }

    /// What was said of a layer since we measured it.
    fn said(&self, id: &str) -> Option<(u64, u64)> {
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
