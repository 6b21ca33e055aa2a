//! The verb `events`, with its flags.

use super::{flag, review};
use clap::{Arg, Command};

/// Names of the verbs, known without building the tree: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &["events"];

pub fn commands() -> Vec<Command> {
    vec![events()]
}

fn events() -> Command {
    Command::new("events")
        .about("Show events of sandboxes, or of the network of one sandbox")
        .long_about(
            "Show events of sandboxes, or of the network of one sandbox.\n\n\
             Every entry of the journal is an event. Events are numbered; --from resumes\n\
             after a number, also days later.\n\n\
             With --network, shows the network events of one sandbox while it is live: every\n\
             name, connection and request, allowed or refused, with its run, its rule and the\n\
             revision of the rules.",
        )
        .arg(review::one().help("Only events of this sandbox (id, id prefix or name) [default: all]"))
        .arg(flag("follow").short('f').help("Continue with new events"))
        .arg(
            Arg::new("from")
                .long("from")
                .value_name("N")
                .value_parser(clap::value_parser!(u64))
                .help("Start after event N [default: with the last 100]"),
        )
        .arg(
            flag("network")
                .requires("sandbox")
                .conflicts_with("verb")
                .help("Show network events of the sandbox instead; N is then the number\nof a line [default: 0]"),
        )
        .arg(Arg::new("verb").long("verb").value_name("VERB").help("Only events of this verb: create, run, approve, …"))
        .arg(flag("json").help("Print JSON, one document per line"))
}
