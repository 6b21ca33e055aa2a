//! A guest's network: the broker at its doors, joined to the supervisor on one side and to the caller's file of events on
//! the other.

use crate::Caller;
use crate::secrets::Secrets;
use egress::authority_of_guest::Authority;
use egress::broker::{Broker, Setup};
use egress::event::{Event, Op, Stage};
use enclosure::{NetPlan, NetReport, Network};
use policy::{Proto, Resolved};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use terms::{Action, ErrorKind, Fault, Phase};

/// What a policy makes of a guest's network; nothing when it gives none.
#[derive(Default)]
pub(crate) struct Planned {
    plan: Option<NetPlan>,
    /// Signs for hosts whose requests are read; the plan has its certificate.
    authority: Option<Arc<Authority>>,
    pub(crate) secrets: Secrets,
}

/// Makes the plan; `secrets` say where values come from.
pub(crate) fn plan(resolved: &Resolved, secrets: &[String], caller: &Caller) -> Result<Planned, Fault> {
    let named: BTreeSet<&str> = resolved.policy().secrets.iter().map(|s| s.rule.name.as_str()).collect();
    let secrets = Secrets::find(&named, secrets, caller)?;
    if resolved.needs_network().is_none() {
        return Ok(Planned::default());
    }
    let loopback = resolved.loopback_places(sys::doors::MOST_LOOPBACK).map_err(unsupported)?;
    let echoes = match resolved.sends_echoes() {
        Some(rule) => may_echo(rule)?,
        None => false,
    };
    let authority = match resolved.inspects_anything() {
        true => Some(Arc::new(Authority::new()?)),
        false => None,
    };
    let pem = authority.as_ref().map(|a| a.certificate_pem().to_owned());
    Ok(Planned { plan: Some(NetPlan { loopback, echoes, authority: pem }), authority, secrets })
}

impl Planned {
    /// Whether programs inside must be told whom to trust.
    pub(crate) fn inspects(&self) -> bool {
        self.authority.is_some()
    }

    /// What the guest's setup needs of it, and what the broker does.
    pub(crate) fn divide(self, policy: &Resolved, max_net_bytes: Option<u64>) -> (Option<NetPlan>, Option<Wanted>) {
        let Planned { plan, authority, secrets } = self;
        let wanted = plan.is_some().then(|| Wanted {
            policy: policy.clone().on_host(sys::net::own_addresses()),
            secrets,
            authority,
            max_net_bytes,
        });
        (plan, wanted)
    }
}

/// Whether the host lets us send echo requests for the guest; a refusal where it does not.
fn may_echo(rule: &str) -> Result<bool, Fault> {
    match egress::broker::may_echo() {
        Ok(()) => Ok(true),
        Err(error) => {
            let group = rustix::process::getegid().as_raw();
            let message = format!("{rule}: echo requests cannot be sent from this host by this user: {error}");
            let hint = format!(
                r#"as root: sysctl -w net.ipv4.ping_group_range="{group} {group}", or a range with this group"#
            );
            Err(Fault::new(ErrorKind::UnsupportedPolicy, message).hint(hint).phase(Phase::Planning))
        }
    }
}

pub(crate) fn unsupported(refusal: policy::Refusal) -> Fault {
    let fault = Fault::new(ErrorKind::UnsupportedPolicy, refusal.message).phase(Phase::Planning);
    refusal.hint.into_iter().fold(fault, Fault::hint)
}

/// What the broker is started with, once the doors are there.
pub(crate) struct Wanted {
    policy: Resolved,
    pub(crate) secrets: Secrets,
    authority: Option<Arc<Authority>>,
    max_net_bytes: Option<u64>,
}

/// The broker of one run.
pub(crate) struct Brokered {
    wanted: Option<Wanted>,
    broker: Option<Broker>,
    events: Option<EventFile>,
    /// As it was at the end.
    used: u64,
    over: bool,
}

impl Brokered {
    pub(crate) fn new(wanted: Wanted, events: Option<EventFile>) -> Brokered {
        Brokered { wanted: Some(wanted), broker: None, events, used: 0, over: false }
    }

    fn sift(&mut self, (events, dropped): (Vec<Event>, u64)) -> Vec<NetReport> {
        if let Some(file) = &mut self.events {
            events.iter().for_each(|event| file.put(event));
            file.lost(dropped);
        }
        events.iter().filter_map(report).collect()
    }
}

impl Network for Brokered {
    fn open(&mut self, doors: sys::net::Doors) -> Result<(), Fault> {
        let Some(Wanted { policy, secrets, authority, max_net_bytes }) = self.wanted.take() else { return Ok(()) };
        let secrets = secrets.read()?;
        self.broker = Some(Broker::start(Setup { doors, policy, secrets, authority, max_net_bytes })?);
        Ok(())
    }

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.broker.as_ref().map(Broker::wake)
    }

    fn happened(&mut self) -> Vec<NetReport> {
        let taken = self.broker.as_mut().map(Broker::events).unwrap_or_default();
        self.sift(taken)
    }

    fn used(&self) -> u64 {
        self.broker.as_ref().map_or(self.used, Broker::net_bytes)
    }

    fn over_limit(&self) -> bool {
        self.broker.as_ref().map_or(self.over, Broker::over_limit)
    }

    fn close(&mut self) -> Vec<NetReport> {
        let Some(broker) = self.broker.take() else { return Vec::new() };
        (self.used, self.over) = (broker.net_bytes(), broker.over_limit());
        let last = broker.stop();
        self.sift(last)
    }
}

impl Drop for Brokered {
    fn drop(&mut self) {
        self.close();
    }
}

/// What the outcome shall say of an event: refusals, and what was let through with a warning, once.
fn report(event: &Event) -> Option<NetReport> {
    let warned = event.action == Action::Warn && matches!(event.stage, Stage::Opened | Stage::Failed);
    let told = warned || event.stage == Stage::Refused;
    let action = match (event.stage, event.action) {
        // A rule may have let it go on to where something else stopped it.
        (Stage::Refused, Action::Allow | Action::Warn) => Action::Deny,
        (_, action) => action,
    };
    let hint = match (&event.hint, &event.reason) {
        _ if action == Action::Warn => None,
        (Some(hint), Some(reason)) => Some(format!("{reason}; {hint}")),
        (hint, reason) => hint.clone().or_else(|| reason.clone()),
    };
    told.then(|| NetReport { op: event.op.name(), target: target(event), rule: event.rule.clone(), action, hint })
}

/// `host:port`, `icmp:host`, or a URL without its query, in which there may be secrets.
fn target(event: &Event) -> String {
    if let (Proto::Icmp, Some(address)) = (event.proto, event.address) {
        return format!("icmp:{}", event.name.clone().unwrap_or_else(|| address.ip().to_string()));
    }
    let port = event.address.map(|a| a.port());
    let place = match (&event.name, event.address) {
        (Some(name), _) => name.clone(),
        (None, Some(address)) if address.is_ipv6() => format!("[{}]", address.ip()),
        (None, Some(address)) => address.ip().to_string(),
        (None, None) => "?".into(),
    };
    let place = match (event.op, port) {
        (Op::Resolve, _) | (_, None) => place,
        (_, Some(port)) => format!("{place}:{port}"),
    };
    match (event.op, &event.method, &event.path) {
        (Op::Request, Some(method), Some(path)) => format!("{method} {place}{}", without_query(path)),
        _ => place,
    }
}

fn without_query(path: &str) -> &str {
    path.split(['?', '#']).next().unwrap_or(path)
}

/// The longest line; a pipe that says it is writable takes this much without making us wait.
const LONGEST_LINE: usize = 4096;
/// The longest text from outside in a line.
const LONGEST_TEXT: usize = 512;

/// Where the caller wants all network events, one JSON object a line. A reader that does not read makes nobody wait: what
/// has no room is counted, and the count is told when there is room again.
pub struct EventFile {
    file: File,
    lost: u64,
}

/// One event as it is written.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    op: &'static str,
    stage: &'static str,
    action: &'static str,
    rule: &'a str,
    revision: u64,
    proto: &'static str,
    name: Option<&'a str>,
    address: Option<String>,
    port: Option<u16>,
    method: Option<&'a str>,
    path: Option<&'a str>,
    bytes_in: u64,
    bytes_out: u64,
    reason: Option<&'a str>,
}

impl EventFile {
    pub fn new(file: File) -> EventFile {
        EventFile { file, lost: 0 }
    }

    fn put(&mut self, event: &Event) {
        let line = Line {
            time: timestamp(SystemTime::now()),
            op: event.op.name(),
            stage: stage(event.stage),
            action: event.action.name(),
            rule: &event.rule,
            revision: event.revision,
            proto: event.proto.name(),
            name: event.name.as_deref().map(shortened),
            address: event.address.map(|a| a.ip().to_string()),
            port: event.address.map(|a| a.port()).filter(|_| event.proto != Proto::Icmp),
            method: event.method.as_deref().map(shortened),
            path: event.path.as_deref().map(without_query).map(shortened),
            bytes_in: event.bytes_in,
            bytes_out: event.bytes_out,
            reason: event.reason.as_deref().map(shortened),
        };
        self.tell_lost();
        self.write(&line);
    }

    fn lost(&mut self, count: u64) {
        self.lost += count;
        self.tell_lost();
    }

    fn tell_lost(&mut self) {
        let count = std::mem::take(&mut self.lost);
        if count > 0 {
            let line = serde_json::json!({"time": timestamp(SystemTime::now()), "op": "net.lost", "count": count});
            if !self.write(&line) {
                self.lost = count;
            }
        }
    }

    /// Whether it was written; what was not is counted.
    fn write(&mut self, line: &impl Serialize) -> bool {
        let text = serde_json::to_string(line).map(|text| text + "\n").unwrap_or_default();
        let written = text.len() <= LONGEST_LINE && self.has_room() && self.file.write_all(text.as_bytes()).is_ok();
        self.lost += u64::from(!written);
        written
    }

    fn has_room(&self) -> bool {
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(self.file.as_fd(), rustix::event::PollFlags::OUT)];
        rustix::event::poll(&mut fds, Some(&now)) == Ok(1)
    }
}

fn stage(stage: Stage) -> &'static str {
    match stage {
        Stage::Opened => "opened",
        Stage::Refused => "refused",
        Stage::Failed => "failed",
        Stage::Closed => "closed",
    }
}

fn shortened(text: &str) -> &str {
    let mut end = text.len().min(LONGEST_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// As RFC 3339 has it, in UTC, with milliseconds.
fn timestamp(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Years that begin with March have their leap day at the end; 400 of them have 146097 days.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second, milli) = (seconds / 3600, seconds / 60 % 60, seconds % 60, since.subsec_millis());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

#[cfg(test)]
mod test {
    use super::*;
    use std::io::Read;

    fn event(op: Op, stage: Stage, action: Action) -> Event {
        Event {
            op,
            stage,
            action,
            rule: "p:net.rules[0]".into(),
            revision: 1,
            proto: policy::Proto::Tcp,
            name: Some("example.org".into()),
            address: Some("192.0.2.1:443".parse().unwrap()),
            method: None,
            path: None,
            bytes_in: 0,
            bytes_out: 0,
            reason: None,
            hint: Some("allow it".into()),
        }
    }

    #[test]
    fn refusals_and_warnings_are_told_once() {
        let told = |stage, action| report(&event(Op::Connect, stage, action)).map(|r| (r.action, r.target));
        let place = "example.org:443".to_owned();
        assert_eq!(told(Stage::Refused, Action::Deny), Some((Action::Deny, place.clone())));
        assert_eq!(told(Stage::Refused, Action::Ask), Some((Action::Ask, place.clone())));
        assert_eq!(told(Stage::Refused, Action::Allow), Some((Action::Deny, place.clone())));
        assert_eq!(told(Stage::Opened, Action::Warn), Some((Action::Warn, place)));
        for (stage, action) in [
            (Stage::Closed, Action::Warn),
            (Stage::Opened, Action::Allow),
            (Stage::Closed, Action::Allow),
            (Stage::Failed, Action::Allow),
        ] {
            assert_eq!(told(stage, action), None, "{stage:?} {action:?}");
        }
    }

    #[test]
    fn a_target_has_no_query() {
        let request = Event {
            method: Some("GET".into()),
            path: Some("/a/b?token=x".into()),
            ..event(Op::Request, Stage::Refused, Action::Deny)
        };
        assert_eq!(target(&request), "GET example.org:443/a/b");
        assert_eq!(target(&event(Op::Resolve, Stage::Refused, Action::Deny)), "example.org");
        let bare = Event { name: None, ..event(Op::Connect, Stage::Refused, Action::Deny) };
        assert_eq!(target(&bare), "192.0.2.1:443");
    }

    #[test]
    fn times_are_written_as_everybody_reads_them() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (4_102_444_800, "2100-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn a_reader_that_does_not_read_makes_nobody_wait() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut file = EventFile::new(File::from(std::os::fd::OwnedFd::from(writer)));
        let one = Event { path: Some("x".repeat(10_000)), ..event(Op::Request, Stage::Opened, Action::Allow) };
        (0..1000).for_each(|_| file.put(&one));
        assert!(file.lost > 0);
        let mut buffer = vec![0; 1 << 20];
        let first = reader.read(&mut buffer).unwrap();
        let lines = buffer[..first].split(|b| *b == b'\n').filter(|l| !l.is_empty());
        for line in lines {
            let line: serde_json::Value = serde_json::from_slice(line).unwrap();
            assert_eq!((&line["op"], &line["port"]), (&"net.request".into(), &443.into()));
        }
        file.put(&one);
        assert_eq!(file.lost, 0);
        drop(file);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert!(rest.contains(r#""op":"net.lost""#), "{rest}");
    }
}
