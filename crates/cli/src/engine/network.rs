//! What happens on the network of a sandbox. Of a run at a daemon it is written down here while it runs: on a thread and a connection of
//! its own, so that neither the run nor its terminal waits for it.

use super::there::Again;
use super::{Engine, There};
use client::{Ask, Client, Heard};
use node::events::EventFile;
use node::keeper::journal::{self, Spot};
use std::sync::mpsc;
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase};

/// How long the rest may take once the run has ended.
const REST: Duration = Duration::from_secs(30);

/// How often somebody who follows looks for more.
const PAUSE: Duration = Duration::from_millis(100);

impl Engine {
    /// What happened on a sandbox's network from a line on, each with the number of the next; and what happens from now on, as long as
    /// it is live. `each` says whether it wants more.
    pub fn network(
        &self,
        sandbox: &str,
        from: u64,
        follows: bool,
        each: &mut dyn FnMut(u64, &str) -> bool,
    ) -> Result<(), Fault> {
        let caller = match self {
            Engine::Here(caller) => caller,
            Engine::There(there) => {
                return follow(&there.client, sandbox, (from, follows), &mut |behind, line| match each(behind, line) {
                    true => Heard::More,
                    false => Heard::Enough,
                });
            }
        };
        let mut spot = Spot::before(from);
        loop {
            let page = journal::read(sandbox, spot, caller)?;
            for (behind, line) in &page.lines {
                if !each(*behind, line) {
                    return Ok(());
                }
            }
            spot = page.spot;
            match (page.more, page.over || !follows) {
                (true, _) => {}
                (false, true) => return Ok(()),
                (false, false) => std::thread::sleep(PAUSE),
            }
        }
    }
}

/// Somebody who writes them down.
pub struct Following(mpsc::Receiver<(EventFile, Option<Fault>)>);

/// Begins to write down what happens in a sandbox.
pub fn follow_network(there: &There, sandbox: &str, file: EventFile) -> Result<Following, Fault> {
    let client = Client::new(there.client.server().clone())?;
    let (done, waits) = mpsc::channel();
    let sandbox = sandbox.to_owned();
    std::thread::spawn(move || {
        let mut file = file;
        let trouble = follow(&client, &sandbox, (0, true), &mut |_, line| {
            file.pass_on(line);
            Heard::More
        });
        let trouble = trouble.err();
        let _nobody_waits = done.send((file, trouble));
    });
    Ok(Following(waits))
}

impl Following {
    /// Waits for the rest, once nothing happens any more; how many are missing, and why.
    pub fn finish(self) -> (u64, Option<String>) {
        match self.0.recv_timeout(REST) {
            Ok((mut file, None)) => file.close(),
            Ok((mut file, Some(trouble))) => {
                let (dropped, reason) = file.close();
                // How many there were nobody knows.
                (dropped + 1, reason.or(Some(trouble.message)))
            }
            Err(_) => (1, Some("the daemon does not tell the rest of them".to_owned())),
        }
    }
}

fn follow(
    client: &Client,
    sandbox: &str,
    (from, follows): (u64, bool),
    each: &mut dyn FnMut(u64, &str) -> Heard,
) -> Result<(), Fault> {
    let (mut at, mut again) = (from, Again::new(client));
    loop {
        let ask = Ask::get(&["v1", "sandboxes", sandbox, "network", "events"]).query("follow", follows.to_string());
        let heard = client.events(ask.query("from", at.to_string()), &mut |event| match event.name.as_str() {
            "line" => {
                let behind = event.id.filter(|behind| *behind > at).ok_or_else(backwards)?;
                at = behind;
                again.is_well();
                Ok(each(behind, &event.data))
            }
            "end" => Ok(Heard::Enough),
            _ => Ok(Heard::More),
        });
        match heard {
            Ok(true) => return Ok(()),
            Err(fault) if fault.error_kind != ErrorKind::Unavailable => return Err(fault),
            _ if again.look() => {}
            heard => return Err(heard.err().unwrap_or_else(|| super::others::ends_again(sandbox))),
        }
    }
}

fn backwards() -> Fault {
    let fault = Fault::new(ErrorKind::ProviderFailed, "events of the network do not go on where they were");
    fault.phase(Phase::Delivery).hint("see that --server names a daemon of the same version")
}
