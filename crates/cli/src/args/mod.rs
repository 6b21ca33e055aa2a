//! The command line as data: one tree makes parsing, help, the man page and completions.

use clap::builder::OsStringValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint};
use std::ffi::{OsStr, OsString};
use std::io::Write;

pub mod daemon;
pub mod events;
pub mod files;
pub mod operations;
pub mod questions;
pub mod review;
mod run;
pub mod runs;
pub mod sandboxes;
pub mod secrets;
pub mod server;
pub mod snapshots;

pub use self::run::{Runs, as_run, expand_it, speaks_docker};
use self::run::{exec, limit_args, policy_args, rule_args, run, shell};

const OWN: [&str; 10] = ["run", "exec", "shell", "policy", "doctor", "setup", "bench", "completion", "man", "help"];

/// The verbs of each file beside this one.
const OTHERS: &[&[&str]] = &[
    daemon::VERBS,
    events::VERBS,
    files::VERBS,
    operations::VERBS,
    questions::VERBS,
    review::VERBS,
    runs::VERBS,
    sandboxes::VERBS,
    secrets::VERBS,
    snapshots::VERBS,
];

/// Every verb there is.
pub fn all_verbs() -> impl Iterator<Item = &'static str> {
    OWN.into_iter().chain(OTHERS.iter().copied().flatten().copied())
}

/// Short verbs take as long as it takes to build the tree of all verbs. Those that come by the dozen get a tree of their own file's
/// verbs alone; where that does not understand the words, the whole tree says why.
pub fn parse(words: Vec<OsString>) -> Result<ArgMatches, clap::Error> {
    let line = || std::iter::once(OsString::from("cofferdam")).chain(words.iter().cloned());
    let verb = words.first().and_then(|word| word.to_str()).unwrap_or_default();
    let own: Option<fn() -> Vec<Command>> = match verb {
        _ if snapshots::VERBS.contains(&verb) => Some(snapshots::commands),
        _ if sandboxes::VERBS.contains(&verb) => Some(sandboxes::commands),
        _ if review::VERBS.contains(&verb) => Some(review::commands),
        _ => None,
    };
    if let Some(Ok(matches)) = own.map(|own| bare().subcommands(own()).try_get_matches_from(line())) {
        return Ok(matches);
    }
    whole().try_get_matches_from(line())
}

fn bare() -> Command {
    Command::new("cofferdam").subcommand_required(true).disable_help_subcommand(true).args(server::args())
}

/// The verb that a word is a slip of, if it is one.
pub fn near_verb(word: &OsStr) -> Option<&'static str> {
    node::policies::nearest(word.to_str()?, all_verbs())
}

pub fn whole() -> Command {
    Command::new("cofferdam")
        .version(env!("CARGO_PKG_VERSION"))
        .about("A place for agents to work: sealed by the Linux kernel, metered, watched, reviewed")
        .long_about(
            "A place for agents to work: sealed by the Linux kernel, metered, watched, reviewed.\n\n\
             `cofferdam run -- COMMAND` runs a command that sees the system's programs and works on the current directory. \
             What it changes there stays in a workspace until you let it through; it has no network. \
             What it is refused is reported, with the flag that would allow it.\n\n\
             The word `run` may be left out: `cofferdam -- COMMAND`.",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .args(server::args())
        .subcommand(run())
        .subcommand(exec())
        .subcommand(shell())
        .subcommands(sandboxes::commands())
        .subcommands(runs::commands())
        .subcommands(daemon::commands())
        .subcommands(operations::commands())
        .subcommands(questions::commands())
        .subcommands(review::commands())
        .subcommands(snapshots::commands())
        .subcommands(events::commands())
        .subcommands(files::commands())
        .subcommands(secrets::commands())
        .subcommand(policy())
        .subcommand(doctor())
        .subcommand(setup())
        .subcommand(bench())
        .subcommand(
            Command::new("completion").about("Print a completion script for a shell").arg(
                Arg::new("shell")
                    .required(true)
                    .value_parser(["bash", "zsh", "fish", "elvish", "powershell"])
                    .help("The shell to complete for"),
            ),
        )
        .subcommand(Command::new("man").about("Print the manual page (roff)"))
}

fn policy() -> Command {
    let source = || path("policy").short('p').value_name("NAME|FILE").action(ArgAction::Append);
    let json = || flag("json").help("Print JSON");
    Command::new("policy")
        .about("Check, show, explain, import, learn and compare policies")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("check")
                .about("Say whether a policy is well formed and can be enforced here")
                .arg(positional("file", "FILE").help("The policy file, or `-`"))
                .arg(json()),
        )
        .subcommand(
            Command::new("show")
                .about("Print a preset or an effective policy; without a name, list the presets")
                .arg(
                    positional("name", "NAME|FILE")
                        .action(ArgAction::Append)
                        .required(false)
                        .help("Presets and files; several are merged"),
                )
                .arg(flag("toml").help("Print TOML")),
        )
        .subcommand(
            Command::new("explain")
                .about("Say what a policy decides about a path, a host or a command, and why")
                .arg(
                    positional("what", "PATH|HOST|CMD")
                        .help("A path with a slash, a host name or address, icmp:HOST, unix:PATH, or a command"),
                )
                .arg(source().help("Presets and files [default: default]"))
                .args(rule_args())
                .arg(json()),
        )
        .subcommand(
            Command::new("import")
                .about("Turn srt settings JSON or codex permissions TOML into a policy")
                .arg(positional("file", "FILE").help("The file to import"))
                .arg(Arg::new("profile").long("profile").value_name("NAME").help("Which codex permission profile"))
                .arg(flag("toml").help("Print TOML")),
        )
        .subcommand(
            Command::new("learn")
                .about("Run a command, watch it, and print the smallest policy under which it passes")
                .long_about(
                    "Run a command, watch it, and print the smallest policy under which it passes.\n\n\
                    While learning the command may read everything the caller may read but credentials, write only \
                    where --write says, and reach only what --net says. What else it tries to write or to reach fails, \
                    and becomes a rule or a note.",
                )
                .args([
                    Arg::new("write")
                        .long("write")
                        .value_name("PATH")
                        .action(ArgAction::Append)
                        .value_delimiter(',')
                        .help("Where the command may write while it is watched"),
                    Arg::new("net")
                        .long("net")
                        .value_name("HOST")
                        .action(ArgAction::Append)
                        .help("What it may reach meanwhile: HOST[:PORTS], unix:PATH, or `*` for every public host"),
                    path("output").short('o').value_name("FILE").help("Write the policy to FILE instead of stdout"),
                    flag("toml").help("Print TOML"),
                    Arg::new("command")
                        .value_name("COMMAND")
                        .required(true)
                        .num_args(1..)
                        .trailing_var_arg(true)
                        .value_parser(OsStringValueParser::new())
                        .help("The command and its arguments"),
                ]),
        )
        .subcommand(
            Command::new("diff")
                .about("Say what one policy allows more or less than another")
                .arg(positional("old", "OLD").help("A preset or file"))
                .arg(positional("new", "NEW").help("A preset or file"))
                .arg(json()),
        )
}

fn doctor() -> Command {
    Command::new("doctor")
        .about("Say what this host can enforce, and the smallest fix for what it cannot")
        .long_about(
            "Say what this host can enforce, and the smallest fix for what it cannot.\n\n\
             Everything is tried, at last with a real enclosure; nothing is changed. Exit status: 0 when all walls stand, else 1. \
             Limits that need control groups are listed beside and do not count: a run that asks for one is refused.",
        )
        .arg(flag("json").help("Print JSON: protocol_version, level, missing, degrade, checks, limits"))
}

fn setup() -> Command {
    Command::new("setup")
        .about("As root, once: delegate control groups to a user, so that all limits work for them")
        .arg(
            Arg::new("user")
                .long("user")
                .required(true)
                .value_name("NAME")
                .help("Who gets them: an account's name or a uid"),
        )
        .arg(flag("undo").help("Take them back"))
}

fn bench() -> Command {
    Command::new("bench")
        .about("Measure start-up against a bare fork+exec and bubblewrap, side by side")
        .arg(
            Arg::new("runs")
                .long("runs")
                .value_name("N")
                .default_value("200")
                .value_parser(clap::value_parser!(u32).range(10..=100_000))
                .help("Rounds; every round runs each contender once"),
        )
        .arg(flag("json").help("Print JSON"))
        .arg(flag("work").help("Also compare work inside and outside: Python start-up, a compile, git status, single calls"))
        .arg(flag("net").conflicts_with("work").help(
            "Instead: what the network costs, against none of ours and against srt's proxy (installed with npm for this)",
        ))
        .arg(
            Arg::new("bulk")
                .long("bulk")
                .value_name("MIB")
                .requires("net")
                .default_value("1024")
                .value_parser(clap::value_parser!(u64).range(1..=65_536))
                .help("Size of the large downloads of --net"),
        )
        .arg(flag("workspace").conflicts_with_all(["work", "net"]).help(
            "Instead: what workspaces cost, against git worktree, cp -a and an overlay by hand, on trees of two sizes",
        ))
        .arg(
            Arg::new("files")
                .long("files")
                .value_name("N")
                .requires("workspace")
                .default_value("100000")
                .value_parser(clap::value_parser!(u32).range(1_000..=1_000_000))
                .help("Files in the larger tree of --workspace; the smaller has a hundredth"),
        )
        .arg(flag("daemon").conflicts_with_all(["work", "net", "workspace"]).help(
            "Instead: what a daemon does under load, on a state of its own: commands, live sandboxes, what cycles leave",
        ))
        .arg(
            Arg::new("sandboxes")
                .long("sandboxes")
                .value_name("N")
                .requires("daemon")
                .default_value("200")
                .value_parser(clap::value_parser!(u32).range(1..=5_000))
                .help("Idle live sandboxes of --daemon"),
        )
        .arg(
            Arg::new("cycles")
                .long("cycles")
                .value_name("N")
                .requires("daemon")
                .default_value("1000")
                .value_parser(clap::value_parser!(u32).range(20..=1_000_000))
                .help("Cycles of create, command and delete of --daemon; exit status 1 when they leave anything"),
        )
        .arg(
            flag("quick")
                .requires("daemon")
                .conflicts_with_all(["runs", "sandboxes", "cycles"])
                .help("Few of everything with --daemon: to see that it works, not for figures"),
        )
        .arg(
            Arg::new("soak")
                .long("soak")
                .value_name("N")
                .conflicts_with_all(["work", "net", "workspace", "daemon"])
                .value_parser(clap::value_parser!(u32).range(1..=1_000_000))
                .help("Instead: run N times, then count what is left behind; exit status 1 when anything is"),
        )
}

fn flag(name: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue)
}

fn path(name: &'static str) -> Arg {
    Arg::new(name).long(name).value_parser(OsStringValueParser::new()).value_hint(ValueHint::FilePath)
}

fn positional(name: &'static str, value: &'static str) -> Arg {
    Arg::new(name)
        .value_name(value)
        .required(true)
        .value_parser(OsStringValueParser::new())
        .value_hint(ValueHint::FilePath)
}

/// Every value of a repeated option, where the verb has it.
pub fn all<'a>(matches: &'a ArgMatches, name: &str) -> impl Iterator<Item = &'a OsStr> {
    matches.try_get_many::<OsString>(name).ok().flatten().unwrap_or_default().map(OsString::as_os_str)
}

/// The script for a shell.
pub fn completion(matches: &ArgMatches) -> Vec<u8> {
    use clap_complete::Shell;
    let shell = match matches.get_one::<String>("shell").map(String::as_str) {
        Some("zsh") => Shell::Zsh,
        Some("fish") => Shell::Fish,
        Some("elvish") => Shell::Elvish,
        Some("powershell") => Shell::PowerShell,
        _ => Shell::Bash,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut whole(), "cofferdam", &mut script);
    script
}

/// One page: the binary, then every verb with its own flags.
pub fn man() -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man_page(&mut page)?;
    Ok(page)
}

fn man_page(page: &mut Vec<u8>) -> std::io::Result<()> {
    let mut whole = whole();
    whole.build();
    let head = clap_mangen::Man::new(whole.clone());
    head.render_title(page)?;
    head.render_name_section(page)?;
    head.render_synopsis_section(page)?;
    head.render_description_section(page)?;
    verbs(&whole, "cofferdam", page)
}

fn verbs(of: &Command, name: &str, page: &mut Vec<u8>) -> std::io::Result<()> {
    for verb in of.get_subcommands().filter(|c| c.get_name() != "help") {
        let name = format!("{name} {}", verb.get_name());
        writeln!(page, ".SH \"{}\"", name.to_uppercase())?;
        let about = verb.get_long_about().or(verb.get_about()).map(ToString::to_string).unwrap_or_default();
        // A line that starts with a dot or a quote would be an instruction.
        about.lines().try_for_each(|line| match line.is_empty() {
            true => writeln!(page, ".PP"),
            false => writeln!(page, "\\&{}", line.replace('\\', "\\e")),
        })?;
        let man = clap_mangen::Man::new(verb.clone());
        man.render_synopsis_section(page)?;
        if verb.get_arguments().any(|a| a.get_id() != "help") {
            man.render_options_section(page)?;
        }
        verbs(verb, &name, page)?;
    }
    Ok(())
}
