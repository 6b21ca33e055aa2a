//! Network events of a sandbox. Those of a run at a daemon can be copied to a local file while it runs: on a thread and a connection of
//! their own, so that neither the run nor its terminal waits.

use super::remote::{Reconnect, Remote};
use super::{Engine, audit};
use crate::transport::{Client, Request, StreamControl};
use node::events::EventFile;
use node::keeper::journal::{self, JournalPosition};
use std::sync::mpsc;
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase};

/// Timeout for the last events after the run's end.
const REST_TIMEOUT: Duration = Duration::from_secs(30);

/// The interval between two looks at a local file that is followed.
const POLL: Duration = Duration::from_millis(100);

impl Engine {
    /// Reports network events of a sandbox from a line on, each with the number of the next line; with `follow` also new ones, as long
    /// as the sandbox is live. Stops when `each` returns false.
    pub fn network(
        &self,
        sandbox: &str,
        from: u64,
        follow: bool,
        each: &mut dyn FnMut(u64, &str) -> bool,
    ) -> Result<(), Fault> {
        let (node, caller) =
            match self {
                Engine::Local(node, caller) => (node, caller),
                Engine::Remote(remote) => {
                    return read(&remote.client, sandbox, (from, follow), &mut |next_line, line| match each(
                        next_line, line,
                    ) {
                        true => StreamControl::Continue,
                        false => StreamControl::Stop,
                    });
                }
            };
        let mut spot = JournalPosition::before(from);
        loop {
            let page = journal::read(node, caller, sandbox, spot)?;
            for (next_line, line) in &page.lines {
                if !each(*next_line, line) {
                    return Ok(());
                }
            }
            spot = page.spot;
            match (page.more, page.over || !follow) {
                (true, _) => {}
                (false, true) => return Ok(()),
                (false, false) => std::thread::sleep(POLL),
            }
        }
    }
}

/// A thread that copies the network events of a sandbox to a file.
pub struct NetworkLog(mpsc::Receiver<(EventFile, Option<Fault>)>);

impl NetworkLog {
    /// Starts the thread.
    pub fn start(remote: &Remote, sandbox: &str, mut file: EventFile) -> Result<NetworkLog, Fault> {
        let client = Client::new(remote.client.server().clone())?;
        let (sender, receiver) = mpsc::channel();
        let sandbox = sandbox.to_owned();
        std::thread::spawn(move || {
            let done = read(&client, &sandbox, (0, true), &mut |_, line| {
                file.pass_on(line);
                StreamControl::Continue
            });
            // The receiver may have given up waiting.
            let _ = sender.send((file, done.err()));
        });
        Ok(NetworkLog(receiver))
    }

    /// Waits for the last events, once the sandbox has stopped. Returns how many are missing, and why.
    pub fn finish(self) -> (u64, Option<String>) {
        match self.0.recv_timeout(REST_TIMEOUT) {
            Ok((mut file, None)) => file.close(),
            Ok((mut file, Some(fault))) => {
                let (dropped, reason) = file.close();
                // At least one: their number is unknown.
                (dropped + 1, reason.or(Some(fault.message)))
            }
            Err(_) => (1, Some("the daemon does not send the rest".to_owned())),
        }
    }
}

fn read(
    client: &Client,
    sandbox: &str,
    (from, follow): (u64, bool),
    each: &mut dyn FnMut(u64, &str) -> StreamControl,
) -> Result<(), Fault> {
    let (mut at, mut reconnect) = (from, Reconnect::new(client));
    loop {
        let request = Request::get(&["v1", "sandboxes", sandbox, "network", "events"]);
        let request = request.query("follow", follow.to_string()).query("from", at.to_string());
        let done = client.events(request, &mut |event| match event.name.as_str() {
            "line" => {
                let next_line = event.id.filter(|next_line| *next_line > at).ok_or_else(backwards)?;
                at = next_line;
                reconnect.reset();
                Ok(each(next_line, &event.data))
            }
            "end" => Ok(StreamControl::Stop),
            _ => Ok(StreamControl::Continue),
        });
        match done {
            Ok(true) => return Ok(()),
            Err(fault) if fault.error_kind != ErrorKind::Unavailable => return Err(fault),
            _ if reconnect.wait() => {}
            done => return Err(done.err().unwrap_or_else(|| audit::keeps_ending(sandbox))),
        }
    }
}

fn backwards() -> Fault {
    let fault = Fault::new(ErrorKind::ProviderFailed, "network events do not continue at the last position");
    fault.phase(Phase::Delivery).hint("check that --server names a daemon of the same version")
}
