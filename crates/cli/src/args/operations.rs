//! The verbs of whoever keeps the daemon running, with their flags; and the flags that stand for keys of the configuration.

use super::{flag, path};
use clap::{Arg, ArgAction, ArgMatches, Command};
use node::config::{Flagged, KEYS, Kind};

/// Known without building anything: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &["config", "backup", "fsck", "top"];

pub fn commands() -> Vec<Command> {
    vec![config(), backup(), fsck(), top()]
}

fn config() -> Command {
    Command::new("config")
        .about("Show the configuration with where each value comes from, or check it")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("show")
                .about("Print every value and its origin: default, file and line, environment, or flag")
                .args(config_args())
                .arg(json()),
        )
        .subcommand(
            Command::new("check")
                .about("Say whether the configuration is sound; exit status 2 when it is not")
                .args(config_args())
                .arg(json()),
        )
}

fn backup() -> Command {
    Command::new("backup")
        .about("Copy the records and the journal to a file, while all goes on; or put such a copy back")
        .long_about(
            "Copy the records and the journal to a file, while all goes on; or put such a copy back. The copy is one moment, \
             checked before it has its name. Layers are not in it: they are plain directories below the state directory.",
        )
        .arg(super::positional("file", "FILE").help("The file to write, which must not be there yet; or to put back"))
        .arg(
            flag("restore")
                .help("Put FILE in the place of the store, with nothing running; what was there is kept beside it"),
        )
        .arg(Arg::new("tenant").long("tenant").value_name("NAME").help("The store of a tenant, not the daemon's own"))
        .arg(json())
}

fn fsck() -> Command {
    Command::new("fsck")
        .about("See whether everything is as the records say; exit status 1 when something is not")
        .long_about(
            "See whether everything is as the records say: layers, directories, runs, keepers, control groups, and the journal. \
             Exit status 1 when something is not. Looks at the states of all tenants.",
        )
        .arg(flag("repair").help("First do what `cofferdam gc` does, and nothing else"))
        .arg(json())
}

fn top() -> Command {
    Command::new("top")
        .about("Show what sandboxes use, again and again: processors, memory, disk, network")
        .arg(
            Arg::new("delay").short('d').long("delay").value_name("TIME").default_value("2s").help("Between two looks"),
        )
        .arg(flag("once").help("Look once; so it is where nobody watches, too"))
        .arg(flag("json").help("Look once and print JSON"))
}

/// `--config`, and a flag for every key that has one.
pub fn config_args() -> Vec<Arg> {
    let file = path("config").value_name("FILE").help(
        "The configuration [default: /etc/cofferdam/config.toml for root, ~/.config/cofferdam/config.toml for others]",
    );
    let of_keys = KEYS.iter().filter_map(|key| Some((key, key.flag?))).map(|(key, flag)| {
        let arg = Arg::new(flag).long(flag).help(key.about);
        match key.kind {
            Kind::Switch => arg.num_args(0).default_missing_value("true").action(ArgAction::Set),
            Kind::Texts => arg.value_name("NAME").action(ArgAction::Append),
            Kind::Path => arg.value_name("PATH").value_hint(clap::ValueHint::FilePath),
            Kind::Word(words) => arg.value_name("WORD").value_parser(words.to_vec()),
            Kind::Time => arg.value_name("TIME"),
            Kind::Size => arg.value_name("SIZE"),
            Kind::Text | Kind::Count | Kind::Number => arg.value_name("VALUE"),
        }
    });
    std::iter::once(file).chain(of_keys).collect()
}

/// What flags say of the configuration.
pub fn flagged(m: &ArgMatches) -> Vec<Flagged> {
    let given = |flag: &str| m.try_get_many::<String>(flag).ok().flatten().map(|v| v.cloned().collect());
    let keys = KEYS.iter().filter_map(|key| Some(Flagged { key, texts: given(key.flag?)? }));
    keys.collect()
}

fn json() -> Arg {
    flag("json").help("Print JSON")
}
