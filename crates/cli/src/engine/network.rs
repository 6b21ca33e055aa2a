//! What happens on the network of a run at a daemon, written down here while it runs: on a thread and a connection of its own, so that
//! neither the run nor its terminal waits for it.

use super::There;
use super::there::Again;
use client::{Ask, Client, Heard};
use node::events::EventFile;
use std::sync::mpsc;
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase};

/// How long the rest may take once the run has ended.
const REST: Duration = Duration::from_secs(30);

/// Somebody who writes them down.
pub struct Following(mpsc::Receiver<(EventFile, Option<Fault>)>);

/// Begins to write down what happens in a sandbox.
pub fn follow_network(there: &There, sandbox: &str, file: EventFile) -> Result<Following, Fault> {
    let client = Client::new(there.client.server().clone())?;
    let (done, waits) = mpsc::channel();
    let sandbox = sandbox.to_owned();
    std::thread::spawn(move || {
        let mut file = file;
        let trouble = follow(&client, &sandbox, &mut file).err();
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

fn follow(client: &Client, sandbox: &str, file: &mut EventFile) -> Result<(), Fault> {
    let (mut at, mut again) = (0, Again::new(client));
    loop {
        let ask = Ask::get(&["v1", "sandboxes", sandbox, "network", "events"]).query("follow", "true");
        let heard = client.events(ask.query("from", at.to_string()), &mut |event| match event.name.as_str() {
            "line" => {
                let behind = event.id.filter(|behind| *behind > at).ok_or_else(backwards)?;
                at = behind;
                again.is_well();
                file.pass_on(&event.data);
                Ok(Heard::More)
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
