//! Guest connections that were admitted (pending_connections.rs): relayed once their first bytes show the destination host.
//!
//! ```text
//! server dialed ─────▶ the server's bytes pass at once; the guest's first bytes are held
//!                          │
//! must be inspected ─────▶ first bytes: SNI, Host, or another protocol (first_bytes.rs)
//!                          ├─▶ refused: reset
//!                          ├─▶ relayed          (forward.rs: plain HTTP under the name of a host)
//!                          └─▶ inspected
//! ```
//!
//! Bytes that no server can take for a request yet are passed on while detection continues, so that other protocols are not
//! delayed. A connection that passed as another protocol under a host name is reset when its server answers in HTTP.

use crate::event::GuestSocket;
use crate::first_bytes::{self, Detector, FirstBytes, MAX_KEPT, ServerProtocol, UnexpectedHttp};
use crate::flow::{Direction, Flow, read_more, reset, write_all};
use crate::forward;
use crate::gate::{ApprovalOutcome, ConnectionJudge, Gate, GateState, QuestionContext, Remote, Ruling, StreamDecision};
use crate::hello::MAX_HELLO;
use crate::inspect::{self, Tls};
use crate::pump::{Pump, relay};
use crate::request_judge::{Destination, RequestJudge};
use crate::resolver::Resolver;
use policy::Proto;
use std::io::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep};

/// Deadline for held first bytes to become complete.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(10);
/// Hint for protocols that look like HTTP: a rule that ignores host names.
const OPAQUE_HINT: &str = r#"if this is another protocol, a rule with "opaque": true (--net opaque:HOST:PORT) lets it pass to the address, whatever host it names"#;

/// Parts of the broker that every connection uses.
pub(crate) struct Services {
    pub gate: Arc<Gate>,
    pub resolver: Arc<Resolver>,
    /// A permit per connection, also while its server is dialed. Connections beyond the limit wait.
    pub slots: Arc<Semaphore>,
    /// Settings and certificates of the request inspector.
    pub tls: Arc<Tls>,
    /// Deadline for dialing on behalf of a proxy client. Other connections follow the SYN retries of the guest's
    /// kernel.
    pub connect_timeout: Duration,
}

/// An admitted connection, from its first bytes to its end.
pub(crate) struct GuestConnection<'a> {
    pub services: &'a Arc<Services>,
    pub flow: Flow,
    pub guest: TcpStream,
    /// Connection to the server; `None` while no server may be dialed.
    pub outside: Option<TcpStream>,
    pub remote: Remote,
    /// Ruling that allowed the connection so far.
    pub ruling: Option<Ruling>,
    /// Subscribed before the connection was judged, so that no change of the rules is missed.
    pub state: watch::Receiver<GateState>,
}

/// Reason for the end of a connection other than both sides closing it.
enum ConnectionEnd {
    Refused(Ruling),
    Broken,
    /// A connection that passed as another protocol got an answer in HTTP.
    AnsweredInHttp,
    Inspect(Vec<String>),
}

impl From<Error> for ConnectionEnd {
    fn from(error: Error) -> ConnectionEnd {
        if UnexpectedHttp::is(&error) { ConnectionEnd::AnsweredInHttp } else { ConnectionEnd::Broken }
    }
}

/// Serves a connection to its end. `bytes` were already read from the guest.
pub(crate) async fn serve(mut connection: GuestConnection<'_>, mut bytes: Vec<u8>) {
    match connection.run(&mut bytes).await {
        Ok(()) => {}
        Err(ConnectionEnd::Broken) => {
            connection.ruling.iter().for_each(|ruling| connection.flow.opened(ruling));
            connection.services.gate.limit_refusal().iter().for_each(|ruling| connection.flow.refused(ruling));
            connection.reset();
        }
        Err(ConnectionEnd::Refused(ruling)) => {
            connection.flow.refused(&ruling);
            connection.reset();
        }
        Err(ConnectionEnd::AnsweredInHttp) => {
            connection.flow.refused(
                &connection.services.gate.refusal(connection.name(), UnexpectedHttp::REASON).hint(OPAQUE_HINT),
            );
            connection.reset();
        }
        Err(ConnectionEnd::Inspect(names)) => inspect_requests(connection, bytes, names).await,
    }
}

/// Hands a connection to the request inspector, which dials the server itself and reports each request.
async fn inspect_requests(connection: GuestConnection<'_>, first: Vec<u8>, names: Vec<String>) {
    let GuestConnection { services, flow, guest, remote, mut state, .. } = connection;
    let tls = services.tls.clone();
    if !tls.has_authority() && !first.starts_with(first_bytes::HTTP2_PREFACE) {
        let name = names.first().map(String::as_str);
        flow.refused(&services.gate.refusal(
            name,
            "its requests must be inspected, and the guest has no certificate authority of the broker to trust",
        ));
        return reset(&guest);
    }
    let to = Destination { names, addr: remote.addr };
    let judge: Arc<dyn RequestJudge> = Arc::new(ConnectionJudge::new(&services.gate, GuestSocket::of(&guest)));
    tokio::select! {
        () = inspect::serve(guest, first, to, judge, tls) => {}
        ruling = services.gate.until_forbidden(&remote, &mut state) => flow.refused(&ruling),
    }
}

impl<'a> GuestConnection<'a> {
    pub fn new(services: &'a Arc<Services>, guest: TcpStream, remote: Remote) -> GuestConnection<'a> {
        let flow = Flow::new(&services.gate, Proto::Tcp, remote.addr, GuestSocket::of(&guest));
        GuestConnection { services, flow, guest, outside: None, remote, ruling: None, state: services.gate.watch() }
    }

    async fn run(&mut self, bytes: &mut Vec<u8>) -> Result<(), ConnectionEnd> {
        // Where the address itself is allowed, the server's protocol makes no difference.
        let mut back = match self.is_open() {
            true => Pump::new(Direction::ToGuest),
            false => Pump::detecting_http(Direction::ToGuest),
        };
        let mut passed = 0;
        let first = tokio::select! {
            first = self.read_first_bytes(&mut back, bytes, &mut passed) => first?,
            ruling = self.until_forbidden(None) => return Err(ConnectionEnd::Refused(ruling)),
        };
        let is_http = matches!(first, FirstBytes::Http(_)) && !self.is_open();
        let by_request = is_http && self.outside.is_some();
        let decision = match self.judge(&first) {
            // `forward` judges every HTTP request, and asks about it if necessary.
            decision if by_request => decision,
            decision => self.await_approval(&first, decision).await,
        };
        match decision {
            StreamDecision::Pass(ruling) => self.open(ruling),
            StreamDecision::Inspect(names) => return Err(ConnectionEnd::Inspect(names)),
            // `forward` answers a refused HTTP client in HTTP.
            StreamDecision::Refuse(_) | StreamDecision::Ask(..) if by_request => {}
            StreamDecision::Refuse(ruling) | StreamDecision::Ask(_, ruling) => {
                return Err(ConnectionEnd::Refused(ruling));
            }
        }
        let Some(outside) = &self.outside else {
            return Err(ConnectionEnd::Refused(
                self.services.gate.refusal(None, "the rules changed while the connection started"),
            ));
        };
        if first != FirstBytes::Other || self.is_open() {
            back.stop_detecting();
        }
        if back.server_protocol() == ServerProtocol::Http && !bytes.is_empty() {
            return Err(ConnectionEnd::AnsweredInHttp);
        }
        let bytes = std::mem::take(bytes);
        let relayed = async {
            if is_http {
                back.flush(&self.guest).await?;
                return forward::forward_requests(&self.flow, &self.guest, (bytes, passed), outside, &self.remote)
                    .await;
            }
            self.pass(outside, &bytes[passed..]).await?;
            // Freed early: a relayed connection may last for days.
            drop(bytes);
            relay(&self.flow, &self.guest, outside, back).await
        };
        tokio::select! {
            relayed = relayed => Ok(relayed?),
            ruling = self.until_forbidden(Some(&first)) => Err(ConnectionEnd::Refused(ruling)),
        }
    }

    /// Holds the guest's first bytes until the protocol is known, while the server's bytes pass. `passed` counts the
    /// leading bytes that went to the server already.
    async fn read_first_bytes(
        &self,
        back: &mut Pump,
        bytes: &mut Vec<u8>,
        passed: &mut usize,
    ) -> Result<FirstBytes, Error> {
        let mut detector = Detector::default();
        let deadline = sleep(FIRST_BYTES_TIMEOUT);
        tokio::pin!(deadline);
        loop {
            let first = detector.read(bytes);
            let server = self.outside.as_ref().filter(|_| self.may_pass_unjudged(bytes, &first, back));
            match first {
                FirstBytes::NeedMore => {}
                // No request is possible if the server answers to less than a line in another protocol than HTTP, or if
                // it has received nothing.
                FirstBytes::Undecided { is_text: false }
                    if back.server_protocol() == ServerProtocol::Other || server.is_none() || self.is_open() =>
                {
                    return Ok(FirstBytes::Other);
                }
                FirstBytes::Undecided { .. } => {}
                decided => return Ok(decided),
            }
            if let Some(outside) = server {
                self.send_and_relay_back(outside, &bytes[*passed..], back).await?;
                if first != FirstBytes::NeedMore && bytes.len() > MAX_KEPT {
                    detector.forget(bytes);
                }
                *passed = bytes.len();
            }
            let held_before = bytes.len() > *passed;
            tokio::select! {
                got = read_more(&self.guest, bytes, MAX_HELLO + 1) => match got? {
                    0 => return Ok(first_bytes::ended(bytes, &first)),
                    _ if !held_before => deadline.as_mut().reset(Instant::now() + FIRST_BYTES_TIMEOUT),
                    _ => {}
                },
                back = self.relay_from_server(back) => back?,
                // The deadline holds only for clients that have begun to send.
                _ = &mut deadline, if held_before => {
                    return Ok(FirstBytes::Bad("the client's first bytes take too long".to_owned()));
                }
            }
        }
    }

    /// Returns true if the server may receive these bytes whatever follows them, so that a server that answers to them
    /// is not delayed.
    fn may_pass_unjudged(&self, bytes: &[u8], first: &FirstBytes, back: &Pump) -> bool {
        let is_undecided =
            matches!(first, FirstBytes::Undecided { .. }) && back.server_protocol() != ServerProtocol::Http;
        let harmless = !bytes.is_empty() && (is_undecided || self.is_open());
        harmless && matches!(self.services.gate.judge_unnamed(&self.remote, false), StreamDecision::Pass(_))
    }

    async fn pass(&self, outside: &TcpStream, bytes: &[u8]) -> Result<(), Error> {
        self.flow.count_bytes(Direction::FromGuest, bytes.len())?;
        write_all(outside, bytes).await
    }

    /// Sends bytes while the server's bytes pass back: a server that answers while it reads would otherwise block on
    /// its full send buffer.
    async fn send_and_relay_back(&self, outside: &TcpStream, bytes: &[u8], back: &mut Pump) -> Result<(), Error> {
        let passing = self.pass(outside, bytes);
        tokio::pin!(passing);
        loop {
            tokio::select! {
                passed = &mut passing => return passed,
                relayed = self.relay_from_server(back) => relayed?,
            }
        }
    }

    /// Holds the connection while a person is asked, and returns the decision after the answer.
    async fn await_approval(&mut self, first: &FirstBytes, mut decision: StreamDecision) -> StreamDecision {
        while let StreamDecision::Ask(subject, ruling) = &decision {
            let context = QuestionContext::connection(&self.remote, GuestSocket::of(&self.guest));
            let outcome = tokio::select! {
                outcome = self.services.gate.await_approval(subject, ruling, context) => outcome,
                ruling = self.until_forbidden(None) => ApprovalOutcome::Refused(ruling),
            };
            match outcome {
                ApprovalOutcome::Approved => self.remote.approved.add(subject.clone()),
                ApprovalOutcome::Refused(ruling) => return StreamDecision::Refuse(ruling),
                ApprovalOutcome::Changed => {}
            }
            decision = self.judge(first);
        }
        decision
    }

    /// Relays bytes that the server sends before the guest's first bytes are judged.
    async fn relay_from_server(&self, back: &mut Pump) -> Result<(), Error> {
        let Some(outside) = self.outside.as_ref().filter(|_| !back.ended()) else {
            return std::future::pending().await;
        };
        back.step(&self.flow, outside, &self.guest).await?;
        if let Some(ruling) = self.ruling.as_ref().filter(|_| self.flow.has_bytes_to_guest()) {
            self.flow.opened(ruling);
        }
        Ok(())
    }

    fn judge(&self, first: &FirstBytes) -> StreamDecision {
        let gate = &self.services.gate;
        if gate.is_opaque(&self.remote) {
            return gate.judge_unnamed(&self.remote, false);
        }
        match first {
            FirstBytes::Tls(Some(name)) | FirstBytes::Http(name) => gate.judge_named(&self.remote, name),
            FirstBytes::Tls(None) => gate.judge_unnamed(&self.remote, true),
            FirstBytes::Other => gate.judge_unnamed(&self.remote, false),
            // Where the address itself is allowed, bytes of an unknown protocol may pass.
            FirstBytes::Bad(_) | FirstBytes::NeedMore | FirstBytes::Undecided { .. } | FirstBytes::Http2
                if self.is_open() =>
            {
                gate.judge_unnamed(&self.remote, false)
            }
            FirstBytes::Http2 => gate.judge_http2(&self.remote),
            FirstBytes::Bad(reason) => StreamDecision::Refuse(gate.refusal(self.name(), reason).hint(OPAQUE_HINT)),
            FirstBytes::NeedMore | FirstBytes::Undecided { .. } => {
                StreamDecision::Refuse(gate.refusal(self.name(), "the client's first bytes break off"))
            }
        }
    }

    fn name(&self) -> Option<&str> {
        self.ruling.as_ref().and_then(|ruling| ruling.name.as_deref()).or(self.remote.requested_host.as_deref())
    }

    fn is_open(&self) -> bool {
        self.services.gate.is_open(&self.remote)
    }

    /// Waits until rules or the byte limit forbid the connection, and returns the refusal.
    async fn until_forbidden(&self, judged: Option<&FirstBytes>) -> Ruling {
        let mut state = self.state.clone();
        loop {
            if state.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            if let Some(ruling) = self.services.gate.judge_connect(&self.remote).refusal() {
                return ruling;
            }
            // HTTP requests are judged one by one anyway.
            let judged = judged.filter(|first| !matches!(first, FirstBytes::Http(_)) || self.is_open());
            if let Some(ruling) = judged.and_then(|first| self.judge(first).refusal()) {
                return ruling;
            }
        }
    }

    fn open(&mut self, ruling: Ruling) {
        self.flow.opened(&ruling);
        self.ruling = Some(ruling);
    }

    fn reset(&self) {
        reset(&self.guest);
        self.outside.iter().for_each(reset);
    }
}
