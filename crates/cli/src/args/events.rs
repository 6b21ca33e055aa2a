//! `cofferdam events`, with its flags.

use super::{flag, review};
use clap::{Arg, Command};

/// Known without building anything: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &["events"];

pub fn commands() -> Vec<Command> {
    vec![events()]
}

fn events() -> Command {
    Command::new("events")
        .about("Tell what happens to sandboxes, as it happens")
        .long_about(
            "Tell what happens to sandboxes: every entry of the journal is an event, whoever made it. An event's number says where a \
             reader was; --from goes on from there, also after days.\n\nWith --network, what happens on the network of one sandbox while it is \
             live: every name, connection and request, allowed or refused, with its run, its rule and the revision of the rules that judged it.",
        )
        .arg(review::one().help("Only of this sandbox, by id, the beginning of it, or name [default: of all]"))
        .arg(flag("follow").short('f').help("Go on with what happens from now on"))
        .arg(
            Arg::new("from")
                .long("from")
                .value_name("N")
                .value_parser(clap::value_parser!(u64))
                .help("Begin after event N [default: with the last 100]"),
        )
        .arg(
            flag("network")
                .requires("sandbox")
                .conflicts_with("verb")
                .help("Instead: what happens on the network of this sandbox; N is the number of a line then [default: 0]"),
        )
        .arg(Arg::new("verb").long("verb").value_name("VERB").help("Only of this verb: create, run, approve, …"))
        .arg(flag("json").help("Print JSON, one document on each line"))
}
