//! Verbs of an operator, with their flags: config, backup, fsck, top. Also the flags that set configuration keys.

use super::{flag, path};
use clap::{Arg, ArgAction, ArgMatches, Command};
use node::config::{Flagged, KEYS, ValueKind};

/// Names of the verbs, known without building the tree: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &["config", "backup", "fsck", "top"];

pub fn commands() -> Vec<Command> {
    vec![config(), backup(), fsck(), top()]
}

fn config() -> Command {
    Command::new("config")
        .about("Show or check the configuration")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("show")
                .about("Print every value and its origin: default, file and line, environment, or flag")
                .next_line_help(true)
                .args(config_args())
                .arg(json()),
        )
        .subcommand(
            Command::new("check")
                .about("Check the configuration; exit status 2 if it is invalid")
                .next_line_help(true)
                .args(config_args())
                .arg(json()),
        )
}

fn backup() -> Command {
    Command::new("backup")
        .about("Back up the records and the journal to a file, or restore them")
        .long_about(
            "Back up the records and the journal to a file, or restore them.\n\n\
             A backup does not interrupt anything. It is consistent, and is verified before\n\
             the file gets its name. Layers are not included: they are plain directories\n\
             below the state directory.",
        )
        .arg(super::positional("file", "FILE").help("File to write, which must not exist yet; or file to restore"))
        .arg(flag("restore").help("Replace the store with FILE while nothing runs; the old store\nis kept beside it"))
        .arg(
            Arg::new("tenant")
                .long("tenant")
                .value_name("NAME")
                .help("Use the store of this tenant instead of the daemon's own"),
        )
        .arg(json())
}

fn fsck() -> Command {
    Command::new("fsck")
        .about("Check that everything on disk agrees with the records")
        .long_about(
            "Check that everything on disk agrees with the records.\n\n\
             Checks layers, directories, runs, keepers, control groups and the journal, for\n\
             all tenants. Exit status 1 if anything disagrees.",
        )
        .arg(flag("repair").help("First do what `cofferdam gc` does, and nothing else"))
        .arg(json())
}

fn top() -> Command {
    Command::new("top")
        .about("Show what sandboxes use: processors, memory, disk, network")
        .arg(
            Arg::new("delay")
                .short('d')
                .long("delay")
                .value_name("TIME")
                .default_value("2s")
                .help("Time between two updates"),
        )
        .arg(flag("once").help("Print once and exit (the default without a terminal)"))
        .arg(flag("json").help("Print once, as JSON"))
}

/// Returns `--config` and the flags of all keys that have one.
pub fn config_args() -> Vec<Arg> {
    let file = path("config").value_name("FILE").help(
        "Configuration file [default: /etc/cofferdam/config.toml for root,\n\
         ~/.config/cofferdam/config.toml for others]",
    );
    let of_keys = KEYS.iter().filter_map(|key| Some((key, key.flag?))).map(|(key, flag)| {
        let arg = Arg::new(flag).long(flag).help(key.about);
        match key.kind {
            ValueKind::Switch => arg.num_args(0).default_missing_value("true").action(ArgAction::Set),
            ValueKind::Texts => arg.value_name("NAME").action(ArgAction::Append),
            ValueKind::Path => arg.value_name("PATH").value_hint(clap::ValueHint::FilePath),
            // The key's text lists the words.
            ValueKind::Word(words) => arg.value_name("WORD").value_parser(words.to_vec()).hide_possible_values(true),
            ValueKind::Time => arg.value_name("TIME"),
            ValueKind::Size => arg.value_name("SIZE"),
            ValueKind::Text | ValueKind::Count | ValueKind::Number => arg.value_name("VALUE"),
        }
    });
    std::iter::once(file).chain(of_keys).collect()
}

/// Returns the configuration keys that flags set.
pub fn flagged(m: &ArgMatches) -> Vec<Flagged> {
    let given = |flag: &str| m.try_get_many::<String>(flag).ok().flatten().map(|v| v.cloned().collect());
    let keys = KEYS.iter().filter_map(|key| Some(Flagged { key, texts: given(key.flag?)? }));
    keys.collect()
}

fn json() -> Arg {
    flag("json").help("Print JSON")
}
