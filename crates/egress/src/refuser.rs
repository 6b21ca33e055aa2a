//! The name server of a guest without a network. It refuses every name but `localhost`, and gives an event for each, so
//! that a refusal names the host that was meant. It asks no resolver and opens no socket.

use crate::dns::{self, Rcode, RecordType};
use crate::event::{Event, EventStage, GuestSocket, Op};
use crate::resolver::loopback;
use policy::{Proto, Resolved};

/// Replies to one query, and returns the event of the refusal. Without a reply the message deserves none.
pub fn refuse(
    message: &[u8],
    policy: &Resolved,
    revision: u64,
    socket: GuestSocket,
) -> (Option<Vec<u8>>, Option<Event>) {
    let query = match dns::parse_query(message) {
        Ok(query) => query,
        Err(bad) => return (bad.reply, None),
    };
    if !query.is_host {
        return (Some(dns::udp_reply(&query, Rcode::Refused, &[], 0)), None);
    }
    if let Some(own) = loopback(&query.name, query.record_type) {
        return (Some(dns::udp_reply(&query, own.rcode, &own.addresses, own.ttl)), None);
    }
    // Programs give up at once on NXDOMAIN, whereas REFUSED makes them retry.
    let reply = Some(dns::udp_reply(&query, Rcode::NxDomain, &[], 0));
    if matches!(query.record_type, RecordType::Other(_)) {
        return (reply, None);
    }
    let decision = policy.resolves(&query.name);
    let event = Event {
        op: Op::Resolve,
        stage: EventStage::Refused,
        action: decision.action,
        rule: decision.rule,
        revision,
        proto: Proto::Udp,
        name: Some(query.name),
        address: None,
        method: None,
        path: None,
        bytes_in: 0,
        bytes_out: 0,
        reason: None,
        hint: decision.hint,
        socket: Some(socket),
        actor: None,
        run: None,
    };
    (reply, Some(event))
}
