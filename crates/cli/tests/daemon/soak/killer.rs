//! Kills processes, restarts the daemon, and checks that acknowledged results are still true.

use super::{Body, Daemon, Dice, Soak, kill, truth};
use crate::support::family::{children, first_of};
use crate::support::left::soon;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

pub struct Killer<'a> {
    soak: &'a Soak,
    dice: Dice,
    pub daemon: Option<Daemon>,
    /// Every keeper seen so far; names of control groups contain their pids.
    pub keepers: BTreeSet<u32>,
    restarts: usize,
}

/// A live keeper: its process and its sandbox.
struct LiveKeeper {
    pid: u32,
    sandbox: String,
}

impl<'a> Killer<'a> {
    pub fn new(soak: &'a Soak, dice: Dice) -> Killer<'a> {
        Killer { soak, dice, daemon: Some(soak.daemon()), keepers: BTreeSet::new(), restarts: 0 }
    }

    pub fn one(&mut self) {
        std::thread::sleep(Duration::from_millis(200 + self.dice.roll(800) as u64));
        let kept = self.kept();
        let one = (!kept.is_empty()).then(|| &kept[self.dice.roll(kept.len())]);
        // Each kind once, then at random.
        let missing = |what: &str| !self.soak.record.lock().unwrap().killed.contains_key(what);
        let next = [("first", 5), ("shepherd", 6), ("keeper", 4)].into_iter().find(|(what, _)| missing(what));
        let roll = self.dice.roll(8);
        let roll = next.filter(|_| roll > 2).map_or(roll, |(_, sort)| sort);
        match (roll, one) {
            (0..=2, _) | (_, None) => self.daemon(),
            (3, Some(one)) => self.keeper_alone(one),
            (4, Some(one)) => self.end("keeper", Some(one.pid)),
            (5, Some(one)) => self.end("first", first_of(one.pid)),
            (_, Some(_)) => {
                let mut shepherds = kept.iter().filter_map(|one| children(first_of(one.pid)?).pop());
                self.end("shepherd", shepherds.next_back());
            }
        }
    }

    fn end(&self, what: &'static str, pid: Option<u32>) {
        let Some(pid) = pid else { return };
        kill(pid);
        *self.soak.record.lock().unwrap().killed.entry(what).or_default() += 1;
    }

    fn daemon(&mut self) {
        self.end("daemon", self.daemon.as_ref().map(|daemon| daemon.child.id()));
        self.daemon = None;
        self.daemon = Some(self.soak.daemon());
        self.restarts += 1;
        if self.restarts.is_multiple_of(3) {
            let _guard = self.soak.quiesce.write().unwrap();
            truth::after_a_restart(self.soak);
        }
    }

    /// While clients are paused, checks that a killed keeper's runs are reported as lost, with the reason.
    fn keeper_alone(&self, one: &LiveKeeper) {
        let _guard = self.soak.quiesce.write().unwrap();
        let get = |path: &str| self.soak.send("GET", path, None, &Body::None).flatten().map(|answer| answer.json());
        let runs = |path: &str| -> Vec<String> {
            let list = get(path).unwrap_or_default();
            list["runs"].as_array().into_iter().flatten().map(|run| run["run"].as_str().unwrap().to_owned()).collect()
        };
        let at = format!("/v1/sandboxes/{}", one.sandbox);
        let going = runs(&format!("{at}/runs?running=true"));
        let pid = one.pid;
        self.end("keeper", Some(pid));
        let card = self.soak.place.state().join("keepers").join(&one.sandbox).join("keeper.json");
        // A keeper that was about to exit has removed its card.
        let was_there = fs::read_to_string(card).is_ok_and(|text| text.contains(&format!("\"pid\":{pid},")));
        soon(|| is_gone(pid));
        // The standing changes only when the last process of its tree is gone, too.
        let is_told = || {
            let after = get(&at).unwrap_or_default();
            after["standing"] == "lost" && after["lost"].as_str().is_some_and(|why| why.contains(&pid.to_string()))
        };
        if was_there && !going.is_empty() && !soon(is_told) {
            let after = get(&at).unwrap_or_default();
            self.soak
                .report_violation(format!("keeper {pid} of {} was killed with {going:?} in it: {after}", one.sandbox));
        }
        for run in going {
            let run = get(&format!("/v1/runs/{run}?wait=5s")).unwrap_or_default();
            let (verdict, why) = (&run["outcome"]["verdict"], &run["outcome"]["message"]);
            let lost = *verdict == "lost" && run["outcome"]["exit"].is_null() && why.is_string();
            if run["running"] != false || (*verdict == "lost") != lost {
                self.soak.report_violation(format!("after keeper {pid} was killed: {run}"));
            }
        }
    }

    fn kept(&mut self) -> Vec<LiveKeeper> {
        let found = kept(self.soak);
        self.keepers.extend(found.iter().map(|kept| kept.pid));
        found
    }
}

fn kept(soak: &Soak) -> Vec<LiveKeeper> {
    let mut found = Vec::new();
    for entry in fs::read_dir(soak.place.state().join("keepers")).into_iter().flatten().flatten() {
        let card = fs::read_to_string(entry.path().join("keeper.json")).unwrap_or_default();
        let card: Value = serde_json::from_str(&card).unwrap_or_default();
        let sandbox = entry.file_name().into_string().unwrap();
        let pid = card["pid"].as_u64().unwrap_or_default() as u32;
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if line.contains(&sandbox) {
            found.push(LiveKeeper { pid, sandbox });
        }
    }
    found
}

/// Gone, or a zombie that its parent has not reaped.
fn is_gone(pid: u32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')),
        Err(_) => true,
    }
}
