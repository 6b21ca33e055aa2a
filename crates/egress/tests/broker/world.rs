//! Fixture of a broker test: rules, servers, resolver, and the broker between them and the guest.

use crate::approvals::Questions;
use egress::approval::Approvals;
use egress::broker::{Broker, Resolvers, RunContext, Setup, Tuning, Upstream};
use egress::dns::{self, Rcode, RecordType};
use egress::event::{Event, EventStage, Op};
use policy::{Context, Format, Resolved};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use sys::arena::Arena;
use sys::op::Op as Step;
use sys::spawn::{self, Message, SetupSteps, Spawned};
use sys::{host, netfilter, netlink, syn_capture};

pub const ROLE: &str = "BROKER_ROLE";
pub const CASE: &str = "BROKER_CASE";
/// Address at which the guest sends commands to the fixture. From a special range, so that no other rule covers it.
pub const CONTROL: &str = "203.0.113.9:9";
pub const RESOLVER: &str = "9.9.9.9:53";
/// Address of most servers.
pub const SERVER: &str = "93.184.216.34";

#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    pub guest: fn(),
    pub stage: fn(&mut World),
    pub check: fn(&Seen),
    pub ignored: bool,
}

impl Case {
    pub const fn new(name: &'static str, guest: fn(), stage: fn(&mut World), check: fn(&Seen)) -> Case {
        Case { name, guest, stage, check, ignored: false }
    }
}

/// Observations from outside the guest.
pub struct Seen {
    pub events: Vec<Event>,
    pub questions: Vec<String>,
    pub net_bytes: u64,
    pub over_limit: bool,
}

impl Seen {
    /// Returns the events with that operation and stage, without those of the control connection.
    pub fn all(&self, op: Op, stage: EventStage) -> Vec<&Event> {
        let control: SocketAddr = CONTROL.parse().unwrap();
        self.events.iter().filter(|e| e.op == op && e.stage == stage && e.address != Some(control)).collect()
    }

    #[track_caller]
    pub fn one(&self, op: Op, stage: EventStage) -> &Event {
        let all = self.all(op, stage);
        assert_eq!(all.len(), 1, "{:#?}", self.events);
        all[0]
    }
}

type Serve = Box<dyn FnOnce() + Send>;
type Answers = BTreeMap<(String, RecordType), Vec<Vec<IpAddr>>>;

pub struct World {
    case: Case,
    pub rules: String,
    pub default: &'static str,
    /// Rules that `replace` puts in force.
    pub later: String,
    pub max_net_bytes: Option<u64>,
    pub hosts: &'static str,
    pub truncate: bool,
    pub silent_resolver: bool,
    pub udp_idle: Duration,
    /// Drops all events but refusals and failures, for tests that measure memory.
    pub forgetful: bool,
    /// Time limit for a person's answer; `None` if there is no person to ask.
    pub patience: Option<Duration>,
    answers: Answers,
    questions: Arc<Mutex<Vec<String>>>,
    servers: Vec<Serve>,
}

/// Runs one test in a network namespace of its own.
pub fn start(case: &str) -> bool {
    let arena = Arena::new();
    let routes = Step::Netlink { family: netlink::ROUTE, batch: arena.list(&netlink::routes(true)), what: "routes" };
    let ports =
        Step::WriteFile { at: c"/proc/sys/net/ipv4/ip_unprivileged_port_start".into(), bytes: arena.list(b"0") };
    // IPv4 permits binding to addresses of local routes by default; IPv6 needs this setting.
    let nonlocal = Step::WriteFile { at: c"/proc/sys/net/ipv6/ip_nonlocal_bind".into(), bytes: arena.list(b"1") };
    let (uid, gid) = host::ids();
    let identity = Step::Identity { uid, gid, drop_groups: host::is_privileged() };
    let steps = vec![routes, Step::AwaitSupervisor, ports, nonlocal, identity, Step::Ready];
    let (_, child, _) = born(spawn::NEW_USER | spawn::NEW_NET, "world", case, &steps);
    let (report, _) = child.receive().unwrap().expect("the world ends with a report");
    report.message == Message::Ended && report.status == 0
}

/// Runs this binary in another role, and returns its first report.
fn born(spaces: u64, role: &str, case: &str, steps: &[Step]) -> (spawn::Report, Spawned, spawn::Handles) {
    let me = std::env::current_exe().unwrap().into_os_string().into_encoded_bytes();
    let mut env: Vec<Vec<u8>> = vec![format!("{ROLE}={role}").into(), format!("{CASE}={case}").into()];
    env.extend(std::env::var("RUST_BACKTRACE").map(|v| format!("RUST_BACKTRACE={v}").into_bytes()));
    let mut command = spawn::Command::new(&Arena::new(), &me, std::slice::from_ref(&me), &env, [0, 1, 2]);
    command.own_pids = spaces & spawn::NEW_PID != 0;
    let (child, _) = spawn::spawn(spaces, None, None, SetupSteps::without_helper(steps), command).unwrap();
    let (uid, gid) = host::ids();
    host::write_id_maps(child.pid, (uid, uid), (gid, gid), !host::is_privileged()).unwrap();
    child.control_socket().release().unwrap();
    let (report, handles) = child.receive().unwrap().expect("a first report");
    assert_eq!(report.message, Message::Ready, "{report:?}: {}", steps[report.step as usize]);
    (report, child, handles)
}

impl World {
    pub fn new(case: Case) -> World {
        let mut world = World {
            case,
            rules: String::new(),
            default: "deny",
            later: String::new(),
            max_net_bytes: None,
            hosts: "",
            truncate: false,
            silent_resolver: false,
            udp_idle: Duration::from_secs(60),
            forgetful: false,
            patience: None,
            answers: BTreeMap::new(),
            questions: Arc::default(),
            servers: Vec::new(),
        };
        (case.stage)(&mut world);
        world
    }

    /// Adds a name with its addresses. A second call for the same name gives the response to the second query, and so
    /// on.
    pub fn name(&mut self, name: &str, addresses: &[&str]) {
        let addresses: Vec<IpAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
        for kind in [RecordType::A, RecordType::Aaaa] {
            let of_kind = addresses.iter().copied().filter(|a| a.is_ipv4() == (kind == RecordType::A)).collect();
            self.answers.entry((name.to_owned(), kind)).or_default().push(of_kind);
        }
    }

    /// Starts a server with a thread for each connection.
    pub fn serve(&mut self, at: &str, each: fn(TcpStream)) {
        let listener = TcpListener::bind(at).unwrap_or_else(|e| panic!("{at}: {e}"));
        self.servers.push(Box::new(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                stream.set_nodelay(true).unwrap();
                std::thread::spawn(move || each(stream));
            }
        }));
    }

    pub fn serve_datagrams(&mut self, at: &str, answer: fn(&[u8]) -> Vec<u8>) {
        let socket = UdpSocket::bind(at).unwrap();
        self.servers.push(Box::new(move || {
            let mut buffer = vec![0; 65536];
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&answer(&buffer[..len]), from);
            }
        }));
    }

    /// Runs other work in a thread.
    pub fn beside(&mut self, work: impl FnOnce() + Send + 'static) {
        self.servers.push(Box::new(work));
    }

    pub fn run(mut self) {
        let (ask, asked) = channel();
        self.control(ask);
        self.resolver();
        let (arena, ipv6) = (Arena::new(), true);
        let (uid, gid) = host::ids();
        let steps = vec![
            Step::Netlink { family: netlink::ROUTE, batch: arena.list(&netlink::routes(ipv6)), what: "routes" },
            Step::Netlink {
                family: netlink::NETFILTER,
                batch: arena.list(&netfilter::rules(ipv6, &[])),
                what: "rules",
            },
            Step::OpenDoors {
                ipv6,
                loopback: arena.list(&[]),
                filters: [false, true].map(|v6| arena.list(&syn_capture::filter(v6, &[]))),
            },
            Step::AwaitSupervisor,
            Step::Identity { uid, gid, drop_groups: false },
            Step::NoNewPrivileges,
            Step::DropCapabilities,
            Step::Ready,
        ];
        let spaces = spawn::NEW_USER | spawn::NEW_NET | spawn::NEW_PID;
        let (_, guest, handles) = born(spaces, "guest", self.case.name, &steps);
        // Short only where no resolver answers: elsewhere a busy machine may need the time.
        let timeout = if self.silent_resolver { Duration::from_millis(500) } else { Duration::from_secs(20) };
        let resolvers = Resolvers { servers: vec![RESOLVER.parse().unwrap()], timeout, attempts: 2 };
        let tuning = Tuning {
            upstream: Upstream::given(resolvers, self.hosts),
            connect_timeout: Duration::from_millis(700),
            udp_idle: self.udp_idle,
            inspect: egress::inspect::InspectorSettings::default(),
        };
        let asks = self.patience.map(Questions::new);
        let mut run_context = RunContext::default();
        run_context.approvals = asks.clone().map(|asks| asks as Arc<dyn Approvals>);
        let setup = Setup {
            run_context,
            doors: handles.doors.expect("doors"),
            policy: policy(&self.rules, self.default),
            revision: 1,
            secrets: Vec::new(),
            authority: None,
            max_net_bytes: self.max_net_bytes,
        };
        let broker = Broker::start_with(setup, tuning).unwrap();
        self.servers.drain(..).for_each(|server| drop(std::thread::spawn(server)));
        self.attend(guest, (broker, asks), &asked);
    }

    fn attend(
        &self,
        guest: Spawned,
        (mut broker, asks): (Broker, Option<Arc<Questions>>),
        asked: &Receiver<(String, Sender<String>)>,
    ) {
        let mut events = Vec::new();
        let begun = Instant::now();
        let status = loop {
            assert!(begun.elapsed() < Duration::from_secs(300), "the guest hangs");
            let mut fds = [
                PollFd::from_borrowed_fd(guest.control().as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(broker.wake(), PollFlags::IN),
            ];
            let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 5_000_000 }));
            let ended = !fds[0].revents().is_empty();
            for (word, answer) in asked.try_iter() {
                let _ = answer.send(self.obey(&word, &broker, asks.as_deref()));
            }
            if ended {
                let (report, _) = guest.receive().unwrap().expect("a last report");
                break report.status;
            }
            let (more, dropped) = broker.events();
            assert_eq!(dropped, 0);
            events.extend(
                more.into_iter()
                    .filter(|e| !self.forgetful || matches!(e.stage, EventStage::Refused | EventStage::Failed)),
            );
        };
        let (net_bytes, over_limit) = (broker.net_bytes(), broker.is_over_limit());
        events.extend(broker.stop().0);
        let questions = self.questions.lock().unwrap().clone();
        if status != 0 {
            eprintln!("{:#?}", &events[events.len().saturating_sub(20)..]);
        }
        assert_eq!(status, 0, "the guest must succeed");
        (self.case.check)(&Seen { events, questions, net_bytes, over_limit });
    }

    fn obey(&self, word: &str, broker: &Broker, asks: Option<&Questions>) -> String {
        match word {
            "questions" => {
                let open = asks.expect("a person").open();
                open.join(",")
            }
            "allow once" | "allow run" | "deny once" => {
                let asks = asks.expect("a person");
                asks.answer_first(word.starts_with("allow"), word.ends_with("run")).expect("a question")
            }
            "replace" => broker.replace(policy(&self.later, self.default)).to_string(),
            "memory" => {
                let status = std::fs::read_to_string("/proc/self/status").unwrap();
                let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
                line.split_whitespace().nth(1).unwrap().to_owned()
            }
            other => panic!("{other}"),
        }
    }

    fn control(&mut self, ask: Sender<(String, Sender<String>)>) {
        let listener = TcpListener::bind(CONTROL).unwrap();
        self.beside(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut word = String::new();
                BufReader::new(&stream).read_line(&mut word).unwrap();
                let (answer, answered) = channel();
                ask.send((word.trim().to_owned(), answer)).unwrap();
                stream.write_all(answered.recv().unwrap().as_bytes()).unwrap();
            }
        });
    }

    fn resolver(&mut self) {
        let (socket, listener) = (UdpSocket::bind(RESOLVER).unwrap(), TcpListener::bind(RESOLVER).unwrap());
        let table = Arc::new(Mutex::new(self.answers.clone()));
        let (questions, truncate, silent) = (self.questions.clone(), self.truncate, self.silent_resolver);
        let again = table.clone();
        self.beside(move || {
            let mut buffer = vec![0; 65536];
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                let question = dns::parse_query(&buffer[..len]).unwrap();
                questions.lock().unwrap().push(question.name.clone());
                if silent {
                    continue;
                }
                let (rcode, addresses) = found(&again, &question, truncate);
                let mut reply = dns::udp_reply(&question, rcode, &addresses, 0);
                if truncate {
                    reply[2] |= 2;
                }
                socket.send_to(&reply, from).unwrap();
            }
        });
        self.beside(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut len = [0; 2];
                stream.read_exact(&mut len).unwrap();
                let mut message = vec![0; u16::from_be_bytes(len).into()];
                stream.read_exact(&mut message).unwrap();
                let question = dns::parse_query(&message).unwrap();
                let (rcode, addresses) = found(&table, &question, false);
                let reply = dns::tcp_reply(&question, rcode, &addresses, 0);
                stream.write_all(&(reply.len() as u16).to_be_bytes()).unwrap();
                stream.write_all(&reply).unwrap();
            }
        });
    }
}

/// Returns the next response of the table; the last one repeats.
fn found(table: &Mutex<Answers>, question: &dns::Query, peek: bool) -> (Rcode, Vec<IpAddr>) {
    let mut table = table.lock().unwrap();
    match table.get_mut(&(question.name.clone(), question.record_type)) {
        None => (Rcode::NxDomain, Vec::new()),
        Some(list) if list.len() > 1 && !peek => (Rcode::NoError, list.remove(0)),
        Some(list) => (Rcode::NoError, list[0].clone()),
    }
}

pub fn policy(rules: &str, default: &str) -> Resolved {
    let control = r#"{"action":"allow","cidr":"203.0.113.9/32"}"#;
    let rules = if rules.is_empty() { control.to_owned() } else { format!("{rules},{control}") };
    let json = format!(r#"{{"version":1,"defaults":{{"net":"{default}"}},"net":{{"rules":[{rules}]}}}}"#);
    let document = policy::parse(&json, Format::Json, "").unwrap_or_else(|e| panic!("{e}"));
    let ctx = Context { home: "/home/u".into(), workspace: "/w".into(), toolchains: Vec::new() };
    policy::resolve(&policy::effective(&[document]).unwrap(), &ctx).unwrap()
}

pub fn echo(mut stream: TcpStream) {
    let _ = std::io::copy(&mut stream.try_clone().unwrap(), &mut stream);
}

pub fn greet(mut stream: TcpStream) {
    let _ = stream.write_all(b"220 hello\r\n");
    echo(stream);
}

/// Answers each request with its request line and host.
pub fn http(mut stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if line == "\r\n" {
                break;
            }
            head.push(line.trim().to_owned());
        }
        let field = |name: &str| head.iter().find_map(|l| l.strip_prefix(name)).unwrap_or("").to_owned();
        let len: usize = field("Content-Length: ").parse().unwrap_or(0);
        let mut body = vec![0; len];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        if !field("Upgrade: ").is_empty() {
            let reply = "HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
            stream.write_all(reply.as_bytes()).unwrap();
            let _ = stream.write_all(reader.buffer());
            return echo(stream);
        }
        let text = format!("{}|{}|{}", head[0], field("Host: "), String::from_utf8_lossy(&body));
        let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len());
        if stream.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}
