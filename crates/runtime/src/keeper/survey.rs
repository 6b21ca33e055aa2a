//! Greets many keepers at once, for listings. Each has its own deadline, and a bounded number is asked at a time on one thread, so that
//! silent keepers cost a listing about one deadline in all and not one each.

use super::client::{Connection, Keeper, NoAnswer};
use super::wire::{Frame, Hello, KeeperRequest};
use crate::Node;
use crate::keeper_dir::place::Card;
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use terms::Fault;

/// Bound on keepers asked at a time; each takes a descriptor.
pub const AT_A_TIME: usize = 64;
/// Retry interval for a connection while the listen backlog is full.
const PAUSE: Duration = Duration::from_millis(3);

/// A sandbox whose keeper is to be asked, with its state directory.
#[derive(Clone, Debug)]
pub struct SurveyedSandbox {
    pub state: PathBuf,
    pub sandbox: String,
}

impl SurveyedSandbox {
    pub fn new(state: &Path, sandbox: &str) -> SurveyedSandbox {
        SurveyedSandbox { state: state.to_owned(), sandbox: sandbox.to_owned() }
    }
}

/// Reply of a keeper.
#[derive(Debug)]
pub enum Reply {
    /// No keeper lives.
    Absent,
    /// The process on this card lives and did not answer before the deadline.
    Silent(Card),
    /// The keeper answered, and cannot be used.
    Refused(Fault),
    /// The greeting, and the answer to the request that followed it.
    Answered(Hello, Option<Frame>),
}

/// Greets all keepers and sends each the request `then`; replies are in the order of the subjects. `deadline` covers both.
pub fn survey(
    node: &Node,
    subjects: &[SurveyedSandbox],
    then: Option<&KeeperRequest>,
    deadline: Duration,
) -> Vec<Reply> {
    let mut replies: Vec<Reply> = subjects.iter().map(|_| Reply::Absent).collect();
    let mut waiting: VecDeque<usize> = (0..subjects.len()).collect();
    let mut asked: Vec<PendingReply> = Vec::new();
    loop {
        while asked.len() < AT_A_TIME
            && let Some(at) = waiting.pop_front()
        {
            asked.push(PendingReply { at, end: Instant::now() + deadline, stage: SurveyStage::Connecting });
        }
        if asked.is_empty() {
            return replies;
        }
        asked.retain_mut(|asked| match asked.step(node, &subjects[asked.at], then) {
            Some(reply) => {
                replies[asked.at] = reply;
                false
            }
            None => true,
        });
        if asked.len() == AT_A_TIME || waiting.is_empty() {
            wait(&asked);
        }
    }
}

/// A keeper that has not replied yet.
struct PendingReply {
    at: usize,
    end: Instant,
    stage: SurveyStage,
}

enum SurveyStage {
    Connecting,
    Greeting(Keeper),
    Asking(Keeper, Hello),
}

impl PendingReply {
    /// Advances without blocking; returns the reply once it is complete.
    fn step(&mut self, node: &Node, subject: &SurveyedSandbox, then: Option<&KeeperRequest>) -> Option<Reply> {
        // Taken before the connection is read: an answer that has arrived by then counts, however late this thread was scheduled.
        let is_late = Instant::now() >= self.end;
        match self.advance(node, subject, then) {
            Ok(Some(reply)) => Some(reply),
            Ok(None) if is_late => Some(match std::mem::replace(&mut self.stage, SurveyStage::Connecting) {
                SurveyStage::Greeting(keeper) | SurveyStage::Asking(keeper, _) => Reply::Silent(keeper.card),
                SurveyStage::Connecting => match Keeper::try_connect(node, &subject.state, &subject.sandbox) {
                    Connection::Full(card) => Reply::Silent(card),
                    Connection::Made(keeper) => Reply::Silent(keeper.card),
                    Connection::Absent => Reply::Absent,
                },
            }),
            Ok(None) => None,
            Err(NoAnswer::Refused(fault)) => Some(Reply::Refused(fault)),
            Err(NoAnswer::Gone(_) | NoAnswer::Silent(_)) => Some(Reply::Absent),
        }
    }

    fn advance(
        &mut self,
        node: &Node,
        subject: &SurveyedSandbox,
        then: Option<&KeeperRequest>,
    ) -> Result<Option<Reply>, NoAnswer> {
        loop {
            self.stage = match std::mem::replace(&mut self.stage, SurveyStage::Connecting) {
                SurveyStage::Connecting => match Keeper::try_connect(node, &subject.state, &subject.sandbox) {
                    Connection::Absent => return Ok(Some(Reply::Absent)),
                    Connection::Full(_) => return Ok(None),
                    Connection::Made(mut keeper) => {
                        keeper.put_frame(Frame::of(&KeeperRequest::Hello))?;
                        SurveyStage::Greeting(keeper)
                    }
                },
                SurveyStage::Greeting(mut keeper) => {
                    let Some(frame) = keeper.take_frame()? else {
                        self.stage = SurveyStage::Greeting(keeper);
                        return Ok(None);
                    };
                    let hello = keeper.greeted(&frame).map_err(NoAnswer::Refused)?;
                    let Some(then) = then else { return Ok(Some(Reply::Answered(hello, None))) };
                    keeper.put_frame(Frame::of(then))?;
                    SurveyStage::Asking(keeper, hello)
                }
                SurveyStage::Asking(mut keeper, hello) => match keeper.take_frame()? {
                    Some(frame) => return Ok(Some(Reply::Answered(hello, Some(frame)))),
                    None => {
                        self.stage = SurveyStage::Asking(keeper, hello);
                        return Ok(None);
                    }
                },
            };
        }
    }
}

/// Waits for input or for the first deadline.
fn wait(asked: &[PendingReply]) {
    let Some(mut end) = asked.iter().map(|asked| asked.end).min() else { return };
    let mut fds = Vec::with_capacity(asked.len());
    for asked in asked {
        match &asked.stage {
            SurveyStage::Connecting => end = end.min(Instant::now() + PAUSE),
            SurveyStage::Greeting(keeper) | SurveyStage::Asking(keeper, _) => {
                let flags = if keeper.sends() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                fds.push(PollFd::from_borrowed_fd(keeper.as_fd(), flags));
            }
        }
    }
    let left = sys::deadline::time_left(end);
    // The result does not matter: every keeper is checked again.
    let _ = poll(&mut fds, Some(&left));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keeper::wire::{self, ReadResult, WireConnection};
    use crate::keeper_dir::place::KeeperDir;
    use rustix::net::{SocketFlags, accept_with};
    use serde_json::json;
    use std::os::fd::OwnedFd;

    const LONG: Duration = Duration::from_secs(60);

    /// Sandboxes whose keeper is this process: it holds their sockets and answers when the test tells it to.
    struct Keepers {
        root: PathBuf,
        listeners: Vec<OwnedFd>,
        subjects: Vec<SurveyedSandbox>,
    }

    impl Keepers {
        fn new(count: usize) -> Keepers {
            let root = std::env::temp_dir().join(terms::id("survey", sys::random::id_bytes()));
            let subjects: Vec<SurveyedSandbox> =
                (0..count).map(|n| SurveyedSandbox::new(&root, &format!("sbx_{n}"))).collect();
            let listeners = subjects.iter().map(|subject| {
                let place = KeeperDir::of(&root, &subject.sandbox);
                place.make().unwrap();
                place.write_card(&Card::own()).unwrap();
                place.listen().unwrap()
            });
            Keepers { listeners: listeners.collect(), root, subjects }
        }

        /// Accepts the next connection of a keeper, once a request has arrived on it.
        fn asked(&self, at: usize) -> WireConnection {
            let patient = |fd: &OwnedFd| poll(&mut [PollFd::new(fd, PollFlags::IN)], None).unwrap();
            patient(&self.listeners[at]);
            let socket = accept_with(&self.listeners[at], SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).unwrap();
            patient(&socket);
            let mut line = WireConnection::new(socket);
            assert!(matches!(line.pull().unwrap(), ReadResult::Frame(_)));
            line
        }

        fn greet(&self, at: usize, line: &mut WireConnection) {
            let hello = json!({"protocol": wire::PROTOCOL, "version": "1", "sandbox": self.subjects[at].sandbox, "pid": 1,
                               "since_ms": 1, "running": at, "frozen": false, "stays": false});
            line.put(wire::value(&hello)).unwrap();
            line.push().unwrap();
        }

        /// Counts the keepers with a connection waiting to be accepted.
        fn connections(&self) -> usize {
            let is_asked = |fd: &&OwnedFd| {
                let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
                poll(&mut [PollFd::new(*fd, PollFlags::IN)], Some(&none)).unwrap() > 0
            };
            self.listeners.iter().filter(is_asked).count()
        }
    }

    impl Drop for Keepers {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.root);
        }
    }

    /// No keeper answers before all were asked: a sequential survey would block on the first.
    #[test]
    fn keepers_are_asked_beside_each_other() {
        let keepers = Keepers::new(5);
        std::thread::scope(|scope| {
            let replies = scope.spawn(|| survey(&Node::for_command(), &keepers.subjects, None, LONG));
            let mut lines: Vec<WireConnection> = (0..5).map(|at| keepers.asked(at)).collect();
            for (at, line) in lines.iter_mut().enumerate().rev() {
                keepers.greet(at, line);
            }
            for (at, reply) in replies.join().unwrap().iter().enumerate() {
                assert!(matches!(reply, Reply::Answered(hello, None) if hello.running == at), "{at}: {reply:?}");
            }
        });
    }

    #[test]
    fn a_silent_one_is_told_apart_from_one_that_is_absent() {
        let keepers = Keepers::new(3);
        let mut subjects = keepers.subjects.clone();
        subjects.push(SurveyedSandbox::new(&keepers.root, "sbx_none"));
        std::thread::scope(|scope| {
            // Zero deadline for the silent keeper alone: the others may be slow on a busy host.
            let alone = scope.spawn(|| survey(&Node::for_command(), &subjects[1..2], None, Duration::ZERO));
            assert!(matches!(alone.join().unwrap()[..], [Reply::Silent(ref card)] if card.pid == std::process::id()));
            let rest = [subjects[0].clone(), subjects[2].clone(), subjects[3].clone()];
            let replies = scope.spawn(move || survey(&Node::for_command(), &rest, Some(&KeeperRequest::Usage), LONG));
            for at in [0, 2] {
                let mut line = keepers.asked(at);
                keepers.greet(at, &mut line);
                poll(&mut [PollFd::new(&line, PollFlags::IN)], None).unwrap();
                assert!(matches!(line.pull().unwrap(), ReadResult::Frame(_)), "the second question");
                line.put(wire::value(&at)).unwrap();
                line.push().unwrap();
            }
            match &replies.join().unwrap()[..] {
                [Reply::Answered(_, Some(zero)), Reply::Answered(_, Some(two)), Reply::Absent] => {
                    assert_eq!(wire::read_answer::<usize>(zero).unwrap(), 0);
                    assert_eq!(wire::read_answer::<usize>(two).unwrap(), 2);
                }
                other => panic!("{other:?}"),
            }
        });
    }

    #[test]
    fn only_so_many_are_asked_at_a_time() {
        let keepers = Keepers::new(AT_A_TIME + 3);
        std::thread::scope(|scope| {
            let replies = scope.spawn(|| survey(&Node::for_command(), &keepers.subjects, None, LONG));
            let mut first = keepers.asked(0);
            let mut lines: Vec<(usize, WireConnection)> = (1..AT_A_TIME).map(|at| (at, keepers.asked(at))).collect();
            // All of these wait, and the last ones were not asked; each answer lets another be asked.
            assert_eq!(keepers.connections(), 0);
            keepers.greet(0, &mut first);
            lines.push((AT_A_TIME, keepers.asked(AT_A_TIME)));
            assert_eq!(keepers.connections(), 0);
            lines.iter_mut().for_each(|(at, line)| keepers.greet(*at, line));
            for at in AT_A_TIME + 1..AT_A_TIME + 3 {
                keepers.greet(at, &mut keepers.asked(at));
            }
            let replies = replies.join().unwrap();
            assert!(replies.iter().all(|reply| matches!(reply, Reply::Answered(..))), "{replies:?}");
        });
    }

    /// Abandoned connections stay in the backlog until they are accepted; with a full backlog the keeper still counts as silent.
    #[test]
    fn one_that_accepts_nobody_stays_silent() {
        let keepers = Keepers::new(1);
        let mut held = Vec::new();
        let node = Node::for_command();
        while let Connection::Made(keeper) = Keeper::try_connect(&node, &keepers.root, "sbx_0") {
            held.push(keeper);
        }
        assert!(held.len() > 8);
        assert!(matches!(
            survey(&Node::for_command(), &keepers.subjects, None, Duration::ZERO)[..],
            [Reply::Silent(_)]
        ));
    }
}
