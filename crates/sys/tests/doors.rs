//! A guest's doors, end to end, as root and as an ordinary user: a namespace with the real batches and sockets, a guest
//! in it that connects to many addresses, and a supervisor outside that replies with those addresses as the source.
//!
//! The binary plays three roles: without a role it copies itself to where every user can read it and starts one
//! supervisor for each case and user; a supervisor clones a guest, which is this binary again.

use std::io::{ErrorKind, Read, Write};
use std::net::*;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;
use sys::arena::Arena;
use sys::doors::{OWN_V4, OWN_V6};
use sys::net::{Door, Doors};
use sys::op::Op;
use sys::spawn::{self, Message, SetupSteps, Spawned};
use sys::syn_capture::{self, Packet, Unreachable};
use sys::{host, net, netfilter, netlink};

const ROLE: &str = "DOORS_ROLE";
const CASE: &str = "DOORS_CASE";
const USER: &str = "1500";

/// A case: its name, the guest's function, and the setup of its namespace.
type Case = (&'static str, fn(), Setup);

#[derive(Clone, Copy, PartialEq)]
enum Setup {
    Doors,
    /// Only loopback, as guests without network rules have it.
    Plain,
    /// A batch after the privileges are gone.
    TooLate,
    WithoutV6,
    /// With doors on the guest's own loopback.
    Loopback,
}

/// The maximum of addresses, the last of another family.
fn named_places() -> Vec<SocketAddr> {
    let many = (1..sys::doors::MOST_LOOPBACK as u16).map(|n| SocketAddr::from((Ipv4Addr::LOCALHOST, 5000 + n)));
    many.chain([SocketAddr::from((Ipv6Addr::LOCALHOST, 80))]).collect()
}

const CASES: &[Case] = &[
    ("connections_anywhere_arrive", connections_anywhere_arrive, Setup::Doors),
    ("connections_are_never_to_oneself", connections_are_never_to_oneself, Setup::Doors),
    ("loopback_is_the_guests_own", loopback_is_the_guests_own, Setup::Doors),
    ("the_guests_own_port_is_not_in_the_way", the_guests_own_port_is_not_in_the_way, Setup::Doors),
    ("every_port_is_free_to_listen_on", every_port_is_free_to_listen_on, Setup::Doors),
    ("sources_of_the_guests_choice_work", sources_of_the_guests_choice_work, Setup::Doors),
    ("much_data_passes_both_ways", much_data_passes_both_ways, Setup::Doors),
    ("datagrams_go_both_ways", datagrams_go_both_ways, Setup::Doors),
    ("names_have_a_door_of_their_own", names_have_a_door_of_their_own, Setup::Doors),
    ("refused_datagrams_are_told", refused_datagrams_are_told, Setup::Doors),
    ("large_datagrams_pass", large_datagrams_pass, Setup::Doors),
    ("groups_and_broadcasts_stay_inside", groups_and_broadcasts_stay_inside, Setup::Doors),
    ("echo_requests_are_not_answered", echo_requests_are_not_answered, Setup::Doors),
    ("connections_come_when_they_are_let_in", connections_come_when_they_are_let_in, Setup::Doors),
    ("refusals_are_told_as_outside", refusals_are_told_as_outside, Setup::Doors),
    ("named_places_refuse_as_outside", named_places_refuse_as_outside, Setup::Loopback),
    ("named_places_on_loopback_lead_outside", named_places_on_loopback_lead_outside, Setup::Loopback),
    ("nothing_reaches_the_host", nothing_reaches_the_host, Setup::Doors),
    ("the_guest_cannot_undo_it", the_guest_cannot_undo_it, Setup::Doors),
    ("without_ipv6", without_ipv6, Setup::WithoutV6),
    ("guests_without_doors_have_none", guests_without_doors_have_none, Setup::Plain),
    ("a_batch_that_fails_is_told", || {}, Setup::TooLate),
];

fn main() -> ExitCode {
    let case = std::env::var(CASE).unwrap_or_default();
    let find = || CASES.iter().find(|(name, ..)| *name == case).expect("a case of ours");
    match std::env::var(ROLE).as_deref() {
        Ok("guest") => find().1(),
        Ok("supervisor") => supervise(find()),
        _ => return run_all(),
    }
    ExitCode::SUCCESS
}

// ---------------------------------------------------------------------------------------------------- the runner

fn run_all() -> ExitCode {
    if std::env::args().any(|arg| arg == "--list" || arg == "--ignored") {
        return ExitCode::SUCCESS;
    }
    let filter: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let place = Place::new();
    let users: &[Option<&str>] = if host::is_privileged() { &[None, Some(USER)] } else { &[None] };
    let mut failed = 0;
    for (name, ..) in CASES.iter().filter(|(name, ..)| filter.is_empty() || filter.iter().any(|f| name.contains(f))) {
        for user in users {
            let mut command = match user {
                None => Command::new(&place.binary),
                Some(id) => {
                    let mut c = Command::new("setpriv");
                    c.args(["--reuid", id, "--regid", id, "--clear-groups", "--"]).arg(&place.binary);
                    c
                }
            };
            command.env(ROLE, "supervisor").env(CASE, name).current_dir("/");
            let good = command.status().expect("the supervisor must start").success();
            println!("test {name} as {} ... {}", user.unwrap_or("self"), if good { "ok" } else { "FAILED" });
            failed += u32::from(!good);
        }
    }
    println!("\ntest result: {failed} failed\n");
    ExitCode::from(u8::from(failed > 0))
}

/// A copy of this binary that every user can execute.
struct Place {
    dir: PathBuf,
    binary: PathBuf,
}

impl Place {
    fn new() -> Place {
        let base = if host::is_privileged() { PathBuf::from("/srv") } else { std::env::temp_dir() };
        let dir = base.join(format!("cofferdam-doors-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let binary = dir.join("doors");
        std::fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
        std::fs::set_permissions(&binary, std::fs::Permissions::from_mode(0o755)).unwrap();
        Place { dir, binary }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

// ------------------------------------------------------------------------------------------------ the supervisor

fn supervise((name, _, setup): &Case) {
    // A listener of the host that no guest may reach.
    let trap = TcpListener::bind("0.0.0.0:0").unwrap();
    trap.set_nonblocking(true).unwrap();
    let env = [format!("{ROLE}=guest"), format!("{CASE}={name}"), format!("TRAP={}", port(&trap))];
    let arena = Arena::new();
    let ops = steps(&arena, *setup);
    let me = std::env::current_exe().unwrap();
    let me = me.as_os_str().as_encoded_bytes();
    let command = spawn::Command::new(&arena, me, &[me], &env.each_ref().map(|text| text.as_bytes()), [0, 1, 2]);
    let spaces = spawn::NEW_USER | spawn::NEW_NET | spawn::NEW_PID;
    let (guest, _) = spawn::spawn(spaces, None, None, SetupSteps::without_helper(&ops), command).unwrap();
    let (uid, gid) = host::ids();
    host::write_id_maps(guest.pid, (uid, uid), (gid, gid), !host::is_privileged()).unwrap();
    guest.control_socket().release().unwrap();
    let (first, handles) = guest.receive().unwrap().expect("a first report");
    if *setup == Setup::TooLate {
        let failed = &ops[first.step as usize];
        assert_eq!((first.message, failed.name(), first.errno), (Message::StepFailed, "netlink", libc::EPERM));
        return;
    }
    assert_eq!(first.message, Message::Ready, "{first:?}: {}", ops[first.step as usize]);
    assert_eq!(handles.doors.is_some(), *setup != Setup::Plain);
    assert!(handles.listener.is_none() && handles.places.scratch.is_none() && handles.terminal.is_none());
    let status = serve(&guest, handles.doors.as_ref());
    assert_eq!(status, 0, "the guest must succeed");
    assert_eq!(trap.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "nobody may reach the host");
}

fn port(listener: &TcpListener) -> u16 {
    listener.local_addr().unwrap().port()
}

fn steps(arena: &Arena, setup: Setup) -> Vec<Op> {
    let ipv6 = setup != Setup::WithoutV6;
    let loopback = if setup == Setup::Loopback { named_places() } else { Vec::new() };
    let routes = || Op::Netlink { family: netlink::ROUTE, batch: arena.list(&netlink::routes(ipv6)), what: "routes" };
    let rules = Op::Netlink {
        family: netlink::NETFILTER,
        batch: arena.list(&netfilter::rules(ipv6, &loopback)),
        what: "rules",
    };
    let mut ops = match setup {
        Setup::Plain | Setup::TooLate => vec![Op::Loopback],
        _ => {
            let filters = [false, true].map(|ipv6| arena.list(&syn_capture::filter(ipv6, &loopback)));
            vec![routes(), rules, Op::OpenDoors { ipv6, loopback: arena.list(&loopback), filters }]
        }
    };
    let (uid, gid) = host::ids();
    ops.push(Op::AwaitSupervisor);
    // So that the guest may send echo requests at all, with which it shows whether they are answered.
    let range = format!("{gid} {gid}").into_bytes();
    ops.push(Op::WriteFile { at: c"/proc/sys/net/ipv4/ping_group_range".into(), bytes: arena.list(&range) });
    ops.push(Op::Identity { uid, gid, drop_groups: host::is_privileged() });
    ops.extend([Op::NoNewPrivileges, Op::DropCapabilities]);
    if setup == Setup::TooLate {
        ops.push(routes());
    }
    ops.push(Op::Ready);
    ops
}

/// Serves the doors until the guest ends; returns its wait status.
fn serve(guest: &Spawned, doors: Option<&Doors>) -> i32 {
    let loopback: Vec<&OwnedFd> = doors.map(|d| d.loopback.iter().collect()).unwrap_or_default();
    let doors: Vec<&Door> = doors.map(|d| [Some(&d.v4), d.v6.as_ref()]).into_iter().flatten().flatten().collect();
    loop {
        let sockets = doors.iter().flat_map(|d| [&d.captured, &d.tcp, &d.dns, &d.udp]).chain(loopback.iter().copied());
        let mut wanted: Vec<libc::pollfd> = std::iter::once(guest.control())
            .chain(sockets)
            .map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 })
            .collect();
        // SAFETY: a list with its true length.
        assert!(unsafe { libc::poll(wanted.as_mut_ptr(), wanted.len() as _, 20_000) } > 0, "the guest hangs");
        doors.iter().for_each(|door| listen(door));
        for tcp in doors.iter().map(|d| &d.tcp).chain(loopback.iter().copied()) {
            while let Some(arrival) = net::accept_from(tcp).unwrap() {
                let stream = TcpStream::from(arrival.socket);
                std::thread::spawn(move || greet_and_echo(stream, arrival.original, arrival.peer));
            }
        }
        for door in &doors {
            answer(&door.dns, door, "dns");
            answer(&door.udp, door, "udp");
        }
        if wanted[0].revents != 0 {
            let (report, _) = guest.receive().unwrap().expect("the guest's first process ends with a report");
            assert_eq!(report.message, Message::Ended);
            return report.status;
        }
    }
}

/// Ports whose connections are refused.
const REFUSED: u16 = 6001;
const NO_NETWORK: u16 = 6002;
const NO_HOST: u16 = 6003;
const FORBIDDEN: u16 = 6004;
const SILENT: u16 = 6005;
/// Admitted at the second SYN.
const LATE: u16 = 6006;
/// A named port on the guest's loopback.
const REFUSED_INSIDE: u16 = 5063;

fn listen(door: &Door) {
    static LATE_ONES: std::sync::Mutex<Vec<SocketAddr>> = std::sync::Mutex::new(Vec::new());
    let mut buffer = vec![0; 65536];
    while let Some(packet) = syn_capture::next_packet(&door.captured, &mut buffer).unwrap() {
        let Packet::Syn(call) = packet else { continue };
        match call.original.port() {
            REFUSED | REFUSED_INSIDE => syn_capture::refuse(&door.out, &call).unwrap(),
            NO_NETWORK => syn_capture::unreachable(&door.out, &call, Unreachable::Network).unwrap(),
            NO_HOST => syn_capture::unreachable(&door.out, &call, Unreachable::Host).unwrap(),
            FORBIDDEN => syn_capture::unreachable(&door.out, &call, Unreachable::Forbidden).unwrap(),
            SILENT => {}
            LATE if !LATE_ONES.lock().unwrap().contains(&call.peer) => LATE_ONES.lock().unwrap().push(call.peer),
            _ => syn_capture::admit(&door.again, &call).unwrap(),
        }
    }
}

fn greet_and_echo(mut stream: TcpStream, original: SocketAddr, peer: SocketAddr) {
    stream.set_nonblocking(false).unwrap();
    let _ = writeln!(stream, "{original} {peer}");
    let _ = std::io::copy(&mut stream.try_clone().unwrap(), &mut stream);
}

fn answer(socket: &OwnedFd, door: &Door, name: &str) {
    let mut buffer = vec![0; 65536];
    while let Some(came) = net::receive_from(socket, &mut buffer).unwrap() {
        let bytes = &buffer[..came.len];
        match bytes {
            b"refuse" => net::refuse_from(&door.out, came.original, came.peer).unwrap(),
            b"silence" => {}
            _ if bytes.starts_with(b"echo") => net::send_from(&door.out, came.original, came.peer, bytes).unwrap(),
            _ => {
                let text = format!("{name} {} {} {}", came.original, came.peer, came.len);
                net::send_from(&door.out, came.original, came.peer, text.as_bytes()).unwrap();
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------------ the guest

const PLACES: &[&str] = &[
    "93.184.216.34:443",
    "8.8.8.8:53",
    "10.0.0.1:1",
    "169.254.169.254:80",
    "192.0.2.1:65535",
    "[2606:2800:220:1::1]:443",
    "[2001:4860:4860::8888]:53",
    "[fd00::1]:1",
    "[::2]:80",
    "[64:ff9b::1]:65535",
];

fn places() -> impl Iterator<Item = SocketAddr> {
    PLACES.iter().map(|text| text.parse().unwrap())
}

fn own(of: SocketAddr) -> IpAddr {
    if of.is_ipv4() { OWN_V4.into() } else { OWN_V6.into() }
}

/// Reads the greeting's two addresses: the original destination and the peer, as the supervisor sees them.
fn greeting(stream: &TcpStream) -> (SocketAddr, SocketAddr) {
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut text = Vec::new();
    while text.last() != Some(&b'\n') {
        let mut byte = [0];
        (&*stream).read_exact(&mut byte).expect("a greeting from the supervisor");
        text.push(byte[0]);
    }
    let text = String::from_utf8(text).unwrap();
    let (original, peer) = text.trim_end().split_once(' ').unwrap();
    (original.parse().unwrap(), peer.parse().unwrap())
}

#[track_caller]
fn assert_arrives(stream: &TcpStream, place: SocketAddr) {
    assert_eq!(greeting(stream), (place, stream.local_addr().unwrap()));
    assert_eq!(stream.peer_addr().unwrap(), place);
}

fn connections_anywhere_arrive() {
    for place in places() {
        let stream = TcpStream::connect(place).unwrap();
        assert_arrives(&stream, place);
        assert_eq!(stream.local_addr().unwrap().ip(), own(place));
    }
    let mapped: SocketAddr = "[::ffff:93.184.216.34]:80".parse().unwrap();
    assert_eq!(greeting(&TcpStream::connect(mapped).unwrap()).0, "93.184.216.34:80".parse().unwrap());
}

fn connections_are_never_to_oneself() {
    // Over all of the ports that the kernel picks sources from: now and then it would pick the same.
    for i in 0..3000u16 {
        let place = SocketAddr::from(([198, 51, 100, (i % 200) as u8], 32768 + i * 9));
        assert_arrives(&TcpStream::connect(place).unwrap(), place);
    }
    // The same port on both ends.
    for (place, any) in [("198.51.100.7:5555", "0.0.0.0:5555"), ("[2001:db8::7]:5556", "[::]:5556")] {
        let place = place.parse().unwrap();
        assert_arrives(&connect_from(any.parse().unwrap(), place).unwrap(), place);
    }
}

// promise 5
fn named_places_on_loopback_lead_outside() {
    for place in named_places() {
        if place.port() != REFUSED_INSIDE {
            let stream = TcpStream::connect(place).unwrap();
            assert_eq!(greeting(&stream), (place, stream.local_addr().unwrap()));
        }
        assert!(TcpListener::bind(place).is_err(), "the place is taken");
    }
    // The other ports stay the guest's own.
    let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, 4999)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    loopback_is_the_guests_own();
}

fn talk_over(listener: &TcpListener, to: SocketAddr) {
    let mut here = TcpStream::connect(to).unwrap();
    let (mut there, _) = listener.accept().unwrap();
    here.write_all(b"one").unwrap();
    there.write_all(b"two").unwrap();
    let mut got = [0; 3];
    there.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"one");
    here.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"two");
}

fn loopback_is_the_guests_own() {
    for (bind, to) in [
        ("127.0.0.1:0", "127.0.0.1"),
        ("0.0.0.0:0", "127.0.0.1"),
        ("0.0.0.0:0", "127.9.8.7"),
        ("0.0.0.0:0", "192.0.0.8"),
        ("[::1]:0", "::1"),
        ("[::]:0", "::1"),
        ("[::]:0", "127.0.0.1"),
    ] {
        let listener = TcpListener::bind(bind).unwrap();
        talk_over(&listener, SocketAddr::new(to.parse().unwrap(), port(&listener)));
    }
    // A port without a listener is refused at once, also at the doors' own ports.
    for nowhere in ["127.0.0.1:4", "[::1]:4", "127.0.0.1:1", "127.0.0.1:53", "[::1]:1"] {
        assert_eq!(TcpStream::connect(nowhere).unwrap_err().kind(), ErrorKind::ConnectionRefused, "{nowhere}");
    }
    for ip in ["127.0.0.1", "::1"] {
        let ip: IpAddr = ip.parse().unwrap();
        let (one, two) = (udp((ip, 0).into()), udp((ip, 0).into()));
        one.send_to(b"hello", two.local_addr().unwrap()).unwrap();
        let mut got = [0; 9];
        assert_eq!(two.recv_from(&mut got).unwrap(), (5, one.local_addr().unwrap()));
        one.connect((ip, 53)).unwrap();
        one.send(b"hello").unwrap();
        assert_eq!(one.recv(&mut got).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
}

fn the_guests_own_port_is_not_in_the_way() {
    let every = TcpListener::bind("[::]:8080").unwrap();
    // The namespace takes this address for its own; what is sent there leaves by the door all the same.
    let stolen = TcpListener::bind("93.184.216.34:8081").unwrap();
    for place in ["93.184.216.34:8080", "[2606:2800:220:1::1]:8080", "93.184.216.34:8081"] {
        let place = place.parse().unwrap();
        assert_arrives(&TcpStream::connect(place).unwrap(), place);
    }
    talk_over(&every, "127.0.0.1:8080".parse().unwrap());
    for listener in [every, stolen] {
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    // Nor are calls to a port in the way of a server that comes later, be they open or over.
    let (open, over) =
        (TcpStream::connect("93.184.216.34:9090").unwrap(), TcpStream::connect("10.1.1.1:9090").unwrap());
    greeting(&open);
    greeting(&over);
    drop(over);
    talk_over(&TcpListener::bind("0.0.0.0:9090").unwrap(), "127.0.0.1:9090".parse().unwrap());
    let _taken = udp("[::]:8080".parse().unwrap());
    let asker = udp("0.0.0.0:0".parse().unwrap());
    assert!(ask(&asker, "93.184.216.34:8080".parse().unwrap(), b"hello").starts_with("udp 93.184.216.34:8080 "));
}

fn every_port_is_free_to_listen_on() {
    for port in 1024..=65535u16 {
        TcpListener::bind(("0.0.0.0", port)).unwrap_or_else(|e| panic!("{port}: {e}"));
        UdpSocket::bind(("::", port)).unwrap_or_else(|e| panic!("{port}: {e}"));
    }
}

fn sources_of_the_guests_choice_work() {
    for (source, place) in [
        ("127.0.0.1:0", "93.184.216.34:80"),
        ("203.0.113.5:0", "93.184.216.34:80"),
        ("93.184.216.34:0", "93.184.216.34:80"),
        ("[::1]:0", "[2001:db8::9]:80"),
    ] {
        let (source, place) = (source.parse().unwrap(), place.parse().unwrap());
        assert_arrives(&connect_from(source, place).unwrap(), place);
        let socket = udp(source);
        assert_eq!(ask(&socket, place, b"hello"), format!("udp {place} {} 5", socket.local_addr().unwrap()));
    }
}

fn much_data_passes_both_ways() {
    for place in ["93.184.216.34:443", "[2606:2800:220:1::1]:443"] {
        let stream = TcpStream::connect(place).unwrap();
        assert_arrives(&stream, place.parse().unwrap());
        let mut sender = stream.try_clone().unwrap();
        let sent: Vec<u8> = (0..8_000_000u32).map(|i| (i * 31) as u8).collect();
        let copy = sent.clone();
        let thread = std::thread::spawn(move || {
            sender.write_all(&copy).unwrap();
            sender.shutdown(Shutdown::Write).unwrap();
        });
        let mut got = Vec::new();
        (&stream).read_to_end(&mut got).unwrap();
        thread.join().unwrap();
        assert!(got == sent);
    }
}

fn udp(bind: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(bind).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket
}

fn any(of: SocketAddr) -> SocketAddr {
    if of.is_ipv4() { "0.0.0.0:0".parse().unwrap() } else { "[::]:0".parse().unwrap() }
}

/// Sends a datagram and returns the reply, which must come from its destination.
#[track_caller]
fn ask(socket: &UdpSocket, place: SocketAddr, bytes: &[u8]) -> String {
    socket.send_to(bytes, place).unwrap();
    let mut got = [0; 200];
    let (len, from) = socket.recv_from(&mut got).expect("an answer");
    assert_eq!(from, place);
    String::from_utf8(got[..len].to_vec()).unwrap()
}

fn datagrams_go_both_ways() {
    for place in places().filter(|p| p.port() != 53) {
        let socket = udp(any(place));
        let us = SocketAddr::new(own(place), socket.local_addr().unwrap().port());
        for bytes in [&b"hello"[..], b"", b"x"] {
            assert_eq!(ask(&socket, place, bytes), format!("udp {place} {us} {}", bytes.len()));
        }
        // A connected socket takes answers from its peer alone.
        socket.connect(place).unwrap();
        socket.send(b"hello").unwrap();
        let mut got = [0; 200];
        let len = socket.recv(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got[..len]), format!("udp {place} {us} 5"));
    }
    // The same port on both ends, with a socket of the guest that does not share its port.
    for (bind, place) in [("0.0.0.0:5000", "198.51.100.7:5000"), ("[::]:5001", "[2001:db8::7]:5001")] {
        let (socket, place) = (udp(bind.parse().unwrap()), place.parse().unwrap());
        let us = SocketAddr::new(own(place), place.port());
        assert_eq!(ask(&socket, place, b"hello"), format!("udp {place} {us} 5"));
    }
}

fn names_have_a_door_of_their_own() {
    for place in ["192.0.0.53:53", "8.8.8.8:53", "[2001:4860:4860::8888]:53"] {
        let place = place.parse().unwrap();
        let socket = udp(any(place));
        let us = SocketAddr::new(own(place), socket.local_addr().unwrap().port());
        assert_eq!(ask(&socket, place, b"name?"), format!("dns {place} {us} 5"));
    }
}

fn refused_datagrams_are_told() {
    for place in ["198.51.100.7:123", "[2001:db8::7]:123", "8.8.8.8:53"] {
        let place: SocketAddr = place.parse().unwrap();
        let socket = udp(any(place));
        socket.connect(place).unwrap();
        socket.send(b"refuse").unwrap();
        assert_eq!(socket.recv(&mut [0; 9]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert_eq!(ask_connected(&socket, b"again").split(' ').nth(1), Some(place.to_string().as_str()));
    }
}

fn ask_connected(socket: &UdpSocket, bytes: &[u8]) -> String {
    socket.send(bytes).unwrap();
    let mut got = [0; 200];
    let len = socket.recv(&mut got).unwrap();
    String::from_utf8_lossy(&got[..len]).into_owned()
}

fn large_datagrams_pass() {
    for (place, most) in [("198.51.100.7:4000", 65507), ("[2001:db8::7]:4000", 65488)] {
        let place: SocketAddr = place.parse().unwrap();
        let socket = udp(any(place));
        for len in [5, 1472, 1473, 9001, most] {
            let mut bytes: Vec<u8> = (0..len as u32).map(|i| (i * 7) as u8).collect();
            bytes[..4].copy_from_slice(b"echo");
            socket.send_to(&bytes, place).unwrap();
            let mut got = vec![0; 65536];
            let (len, from) = socket.recv_from(&mut got).unwrap();
            assert!(from == place && got[..len] == bytes, "{len} bytes");
        }
    }
}

fn groups_and_broadcasts_stay_inside() {
    let socket = udp("0.0.0.0:0".parse().unwrap());
    socket.set_broadcast(true).unwrap();
    // The result does not matter: the namespace has only loopback to send to; and calls do not hang.
    for place in ["255.255.255.255:67", "224.0.0.251:5353", "239.1.2.3:9"] {
        let _ = socket.send_to(b"silence", place);
    }
    let dev = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let names: Vec<_> = dev.lines().skip(2).filter_map(|l| l.split(':').next()).map(str::trim).collect();
    assert!(!names.iter().any(|n| n.starts_with("eth") || n.starts_with("en")), "{names:?}");
    assert_eq!(ask(&socket, "198.51.100.7:9".parse().unwrap(), b"on").split(' ').next(), Some("udp"));
}

fn echo_requests_are_not_answered() {
    assert!(ping("127.0.0.1") && ping("::1"), "the guest's own loopback answers");
    assert!(!ping("8.8.8.8") && !ping("2001:db8::1"));
}

/// Addresses of both protocols, with this port.
fn at_port(port: u16) -> impl Iterator<Item = SocketAddr> {
    ["93.184.216.34", "2606:2800:220:1::1"].into_iter().map(move |ip| SocketAddr::new(ip.parse().unwrap(), port))
}

// promise 7
fn connections_come_when_they_are_let_in() {
    for place in at_port(SILENT) {
        let patience = Duration::from_millis(1500);
        assert_eq!(TcpStream::connect_timeout(&place, patience).unwrap_err().kind(), ErrorKind::TimedOut);
    }
    for place in at_port(LATE) {
        let stream = TcpStream::connect(place).unwrap();
        assert_arrives(&stream, place);
    }
}

// promise 7
fn refusals_are_told_as_outside() {
    for (port, v4, v6) in [
        (REFUSED, libc::ECONNREFUSED, libc::ECONNREFUSED),
        (NO_NETWORK, libc::ENETUNREACH, libc::ENETUNREACH),
        (NO_HOST, libc::EHOSTUNREACH, libc::EHOSTUNREACH),
        (FORBIDDEN, libc::EHOSTUNREACH, libc::EACCES),
    ] {
        for place in at_port(port) {
            let error = TcpStream::connect(place).unwrap_err().raw_os_error();
            assert_eq!(error, Some(if place.is_ipv4() { v4 } else { v6 }), "{place}");
        }
    }
}

fn named_places_refuse_as_outside() {
    let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, REFUSED_INSIDE)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

/// Sends an echo request and waits half a second for the reply.
fn ping(to: &str) -> bool {
    let to: SocketAddr = SocketAddr::new(to.parse().unwrap(), 0);
    let (family, protocol, kind) = match to {
        SocketAddr::V4(_) => (libc::AF_INET, libc::IPPROTO_ICMP, 8),
        SocketAddr::V6(_) => (libc::AF_INET6, libc::IPPROTO_ICMPV6, 128),
    };
    // SAFETY: numbers only; the descriptor is owned once.
    let socket = unsafe {
        let fd = libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, protocol);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        UdpSocket::from(OwnedFd::from_raw_fd(fd))
    };
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    socket.send_to(&[kind, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3], to).unwrap();
    let mut got = [0; 64];
    socket.recv(&mut got).is_ok_and(|len| len == 11)
}

// promise 5
fn nothing_reaches_the_host() {
    let trap: u16 = std::env::var("TRAP").unwrap().parse().unwrap();
    for ip in ["127.0.0.1", "127.0.0.53"] {
        assert_eq!(TcpStream::connect((ip, trap)).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
    // Addresses that hosts commonly have; inside they are foreign.
    for ip in ["10.0.0.1", "172.17.0.1", "192.168.0.1", "192.168.1.1"] {
        let place = SocketAddr::new(ip.parse().unwrap(), trap);
        assert_arrives(&TcpStream::connect(place).unwrap(), place);
    }
}

// promise 5
fn the_guest_cannot_undo_it() {
    // No door came along.
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert_eq!(open, 4, "the three streams and the directory itself");
    // The mark that lets packets pass is not the guest's to set.
    let socket = udp("0.0.0.0:0".parse().unwrap());
    let mark = 0x00c0_ffdau32;
    // SAFETY: one number from a local with its true length.
    let got =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MARK, (&raw const mark).cast(), 4) };
    assert_eq!((got, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EPERM)));
    // Nor are the low ports, where the doors are.
    assert_eq!(TcpListener::bind("0.0.0.0:1").unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(UdpSocket::bind("0.0.0.0:53").unwrap_err().kind(), ErrorKind::PermissionDenied);
}

fn without_ipv6() {
    let place = "93.184.216.34:443".parse().unwrap();
    assert_arrives(&TcpStream::connect(place).unwrap(), place);
    assert!(TcpStream::connect("[2001:db8::1]:443").is_err());
}

fn guests_without_doors_have_none() {
    for place in places() {
        assert_eq!(TcpStream::connect(place).unwrap_err().kind(), ErrorKind::NetworkUnreachable, "{place}");
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    talk_over(&listener, listener.local_addr().unwrap());
}

/// Connects from a chosen source address, which the standard library does not offer.
fn connect_from(source: SocketAddr, place: SocketAddr) -> std::io::Result<TcpStream> {
    let family = if source.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: numbers only; the descriptor is owned once.
    let socket = unsafe {
        let fd = libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0);
        OwnedFd::from_raw_fd(fd)
    };
    for (address, bind) in [(source, true), (place, false)] {
        let (name, len) = raw_name(address);
        // SAFETY: a name with its true length.
        let got = unsafe {
            match bind {
                true => libc::bind(socket.as_raw_fd(), (&raw const name).cast(), len),
                false => libc::connect(socket.as_raw_fd(), (&raw const name).cast(), len),
            }
        };
        if got < 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(socket.into())
}

fn raw_name(address: SocketAddr) -> (libc::sockaddr_in6, u32) {
    let port = address.port().to_be();
    match address {
        SocketAddr::V4(v4) => {
            let s_addr = u32::from_ne_bytes(v4.ip().octets());
            // The shorter address in the longer one's space: family, port and address have the same offsets.
            let mut name = blank(libc::AF_INET, port);
            name.sin6_flowinfo = s_addr;
            (name, size_of::<libc::sockaddr_in>() as u32)
        }
        SocketAddr::V6(v6) => {
            let mut name = blank(libc::AF_INET6, port);
            name.sin6_addr.s6_addr = v6.ip().octets();
            (name, size_of::<libc::sockaddr_in6>() as u32)
        }
    }
}

fn blank(family: i32, port: u16) -> libc::sockaddr_in6 {
    libc::sockaddr_in6 {
        sin6_family: family as u16,
        sin6_port: port,
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
        sin6_scope_id: 0,
    }
}
