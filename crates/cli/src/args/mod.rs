//! The command line as data: one tree makes parsing, help, the man page and completions.

use clap::builder::OsStringValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint};
use std::ffi::{OsStr, OsString};
use std::io::Write;

pub mod agents;
pub mod code;
pub mod daemon;
pub mod events;
pub mod files;
mod groups;
pub mod operations;
pub mod questions;
pub mod review;
mod run;
pub mod runs;
pub mod sandboxes;
pub mod secrets;
pub mod server;
pub mod snapshots;

pub use self::run::{PLACES, Runs, as_run, expand, may_expand};
use self::run::{copy_in, exec, limit_args, policy_args, rule_args, run, shell};

const OWN: [&str; 10] = ["run", "exec", "shell", "policy", "doctor", "setup", "bench", "completion", "man", "help"];

/// Verbs of the files beside this one.
const OTHERS: &[&[&str]] = &[
    agents::VERBS,
    code::VERBS,
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

/// Returns the names of all verbs.
pub fn all_verbs() -> impl Iterator<Item = &'static str> {
    OWN.into_iter().chain(OTHERS.iter().copied().flatten().copied())
}

/// Parses the words of a line. For short verbs, most of the time goes into building the tree of all verbs: verbs that are called
/// often get a tree of their own file's verbs only. If that cannot parse the line, the whole tree reports why.
pub fn parse(words: Vec<OsString>) -> Result<ArgMatches, clap::Error> {
    let line = || std::iter::once(OsString::from("cofferdam")).chain(words.iter().cloned());
    let verb = words.first().and_then(|word| word.to_str()).unwrap_or_default();
    let own: Option<fn() -> Vec<Command>> = match verb {
        _ if snapshots::VERBS.contains(&verb) => Some(snapshots::commands),
        _ if sandboxes::VERBS.contains(&verb) => Some(sandboxes::commands),
        _ if review::VERBS.contains(&verb) => Some(review::commands),
        _ if code::VERBS.contains(&verb) => Some(code::commands),
        _ => None,
    };
    if let Some(Ok(matches)) = own.map(|own| bare().subcommands(own()).try_get_matches_from(line())) {
        return Ok(matches);
    }
    let tree = match verb {
        // Only these lines can show the top page, which needs the list of verbs.
        "" | "-h" | "--help" | "help" => whole(),
        _ => tree(),
    };
    tree.try_get_matches_from(line())
}

fn bare() -> Command {
    Command::new("cofferdam").subcommand_required(true).disable_help_subcommand(true).args(server::args())
}

/// Returns the verb that a mistyped word is closest to.
pub fn near_verb(word: &OsStr) -> Option<&'static str> {
    node::policies::nearest(word.to_str()?, all_verbs())
}

/// The tree of all verbs, with help that lists them by group.
pub fn whole() -> Command {
    groups::grouped(tree())
}

/// The tree of all verbs as the manual page and completions need it, with every verb visible.
fn tree() -> Command {
    Command::new("cofferdam")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Run AI agents in kernel-enforced sandboxes, and review changes before they land")
        .long_about(
            "Run AI agents in kernel-enforced sandboxes, and review changes before they land.\n\n\
             `cofferdam run -- COMMAND` runs a command on the current directory. It sees the\n\
             system's programs and has no network. Its changes stay in a workspace until you\n\
             approve them. Refused operations are reported with the flag that allows them.\n\n\
             The word `run` may be left out: `cofferdam -- COMMAND`.",
        )
        .after_help(
            "Examples:\n  \
               cofferdam run -- make test\n  \
               cofferdam diff\n  \
               cofferdam approve\n\n\
             `cofferdam help COMMAND` describes a command with all its options.",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .args(server::args())
        .subcommand(run())
        .subcommand(exec())
        .subcommand(shell())
        .subcommands(sandboxes::commands())
        .subcommands(code::commands())
        .subcommands(runs::commands())
        .subcommands(daemon::commands())
        .subcommands(operations::commands())
        .subcommands(questions::commands())
        .subcommands(review::commands())
        .subcommands(snapshots::commands())
        .subcommands(events::commands())
        .subcommands(files::commands())
        .subcommands(secrets::commands())
        .subcommands(agents::commands())
        .subcommand(policy())
        .subcommand(doctor())
        .subcommand(setup())
        .subcommand(bench())
        .subcommand(
            Command::new("completion").about("Print a completion script for a shell").arg(
                Arg::new("shell")
                    .required(true)
                    .value_parser(["bash", "zsh", "fish", "elvish", "powershell"])
                    .help("Shell to complete for"),
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
                .about("Check that a policy is valid and can be enforced on this host")
                .arg(positional("file", "FILE").help("Policy file, or `-` for standard input"))
                .arg(json()),
        )
        .subcommand(
            Command::new("show")
                .about("Print a preset or a merged policy; without a name, list the presets")
                .arg(
                    positional("name", "NAME|FILE")
                        .action(ArgAction::Append)
                        .required(false)
                        .help("Presets or policy files to merge"),
                )
                .arg(flag("toml").help("Print TOML")),
        )
        .subcommand(
            Command::new("explain")
                .about("Explain what a policy decides about a path, a host or a command")
                .arg(
                    positional("what", "PATH|HOST|CMD")
                        .help("Path with a slash, host name, address, icmp:HOST, unix:PATH, or command"),
                )
                .arg(source().help("Presets or policy files to merge [default: default]"))
                .args(rule_args())
                .arg(json()),
        )
        .subcommand(
            Command::new("import")
                .about("Convert srt settings JSON or codex permissions TOML to a policy")
                .arg(positional("file", "FILE").help("File to import"))
                .arg(Arg::new("profile").long("profile").value_name("NAME").help("Codex permission profile to import"))
                .arg(flag("toml").help("Print TOML")),
        )
        .subcommand(
            Command::new("learn")
                .about("Run a command and print the smallest policy under which it passes")
                .long_about(
                    "Run a command and print the smallest policy under which it passes.\n\n\
                     While it is watched, the command may read everything that you may read, except\n\
                     credentials. It may write only to --write paths and connect only to --net hosts.\n\
                     Any other write or connection fails and becomes a rule or a note.",
                )
                .after_help(
                    "Examples:\n  \
                       cofferdam policy learn -o learned.json -- make test\n  \
                       cofferdam run -p learned.json -- make test",
                )
                .args([
                    Arg::new("write")
                        .long("write")
                        .value_name("PATH")
                        .action(ArgAction::Append)
                        .value_delimiter(',')
                        .help("Path that the command may write to while it is watched"),
                    Arg::new("net").long("net").value_name("HOST").action(ArgAction::Append).help(
                        "Host that it may connect to meanwhile: HOST[:PORTS], unix:PATH,\nor `*` for every public host",
                    ),
                    path("output").short('o').value_name("FILE").help("Write the policy to FILE instead of stdout"),
                    flag("toml").help("Print TOML"),
                    Arg::new("command")
                        .value_name("COMMAND")
                        .required(true)
                        .num_args(1..)
                        .trailing_var_arg(true)
                        .value_parser(OsStringValueParser::new())
                        .help("Command and its arguments"),
                ]),
        )
        .subcommand(
            Command::new("diff")
                .about("Show what one policy allows more or less than another")
                .arg(positional("old", "OLD").help("Preset or policy file"))
                .arg(positional("new", "NEW").help("Preset or policy file"))
                .arg(json()),
        )
}

fn doctor() -> Command {
    Command::new("doctor")
        .about("Check what this host can enforce, with a fix for each gap")
        .long_about(
            "Check what this host can enforce, with the smallest fix for each gap.\n\n\
             Every mechanism is tried, at the end in a real enclosure. Nothing is changed.\n\
             Limits that need control groups are listed apart and do not count: a run that\n\
             asks for one is refused.\n\n\
             Exit status: 0 if every mechanism works, else 1.",
        )
        .arg(flag("json").help("Print JSON: protocol_version, level, missing, degrade, checks, limits"))
}

fn setup() -> Command {
    Command::new("setup")
        .about("Delegate control groups to a user (once, as root)")
        .long_about("Delegate control groups to a user (once, as root).\n\nAll limits then work for that user.")
        .arg(
            Arg::new("user")
                .long("user")
                .required(true)
                .value_name("NAME")
                .help("User who gets the control groups, by name or uid"),
        )
        .arg(flag("undo").help("Take the delegation back"))
}

fn bench() -> Command {
    Command::new("bench")
        .about("Measure start-up time, side by side with fork+exec and bubblewrap")
        .arg(
            Arg::new("runs")
                .long("runs")
                .value_name("N")
                .default_value("200")
                .value_parser(clap::value_parser!(u32).range(10..=100_000))
                .help("Number of rounds; each runs every contender once"),
        )
        .arg(flag("json").help("Print JSON"))
        .arg(
            flag("work").help(
                "Also compare work inside and outside: Python start-up, a\ncompile, git status, single system calls",
            ),
        )
        .arg(flag("net").conflicts_with("work").help(
            "Measure the network instead: against no sandbox and against\nsrt's proxy (installed with npm for this)",
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
            "Measure workspaces instead: against git worktree, cp -a and an\noverlay by hand, on trees of two sizes",
        ))
        .arg(
            Arg::new("files")
                .long("files")
                .value_name("N")
                .requires("workspace")
                .default_value("100000")
                .value_parser(clap::value_parser!(u32).range(1_000..=1_000_000))
                .help("Files in the larger tree of --workspace; the smaller has 1%"),
        )
        .arg(flag("daemon").conflicts_with_all(["work", "net", "workspace"]).help(
            "Measure a daemon under load instead, on its own state: commands,\nlive sandboxes, leftovers of cycles",
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
                .help("Cycles of create, command and delete of --daemon;\nexit status 1 if they leave anything"),
        )
        .group(clap::ArgGroup::new("quickly").args(["daemon", "code"]))
        .arg(flag("code").conflicts_with_all(["work", "net", "workspace", "daemon"]).help(
            "Measure code in warm interpreters instead: calls, output, memory,\nwrites; against a Jupyter kernel, if python3 has jupyter_client",
        ))
        .arg(
            flag("quick")
                .requires("quickly")
                .conflicts_with_all(["runs", "sandboxes", "cycles", "work", "net", "workspace", "soak"])
                .help("Use small numbers with --daemon or --code: a test that it works,\nnot a measurement"),
        )
        .arg(
            Arg::new("soak")
                .long("soak")
                .value_name("N")
                .conflicts_with_all(["work", "net", "workspace", "daemon", "code"])
                .value_parser(clap::value_parser!(u32).range(1..=1_000_000))
                .help("Run N times instead, then count leftovers; exit status 1 if\nthere are any"),
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

/// Returns every value of a repeated option, or none if the verb does not have the option.
pub fn all<'a>(matches: &'a ArgMatches, name: &str) -> impl Iterator<Item = &'a OsStr> {
    matches.try_get_many::<OsString>(name).ok().flatten().unwrap_or_default().map(OsString::as_os_str)
}

/// Returns the completion script for a shell.
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
    clap_complete::generate(shell, &mut tree(), "cofferdam", &mut script);
    script
}

/// Returns the manual page: the binary, then every verb with its own flags.
pub fn man() -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man_page(&mut page)?;
    Ok(page)
}

fn man_page(page: &mut Vec<u8>) -> std::io::Result<()> {
    let mut tree = tree();
    tree.build();
    let head = clap_mangen::Man::new(tree.clone());
    head.render_title(page)?;
    head.render_name_section(page)?;
    head.render_synopsis_section(page)?;
    head.render_description_section(page)?;
    examples(&tree, page)?;
    verbs(&tree, "cofferdam", page)
}

fn verbs(of: &Command, name: &str, page: &mut Vec<u8>) -> std::io::Result<()> {
    for verb in of.get_subcommands().filter(|c| c.get_name() != "help") {
        let name = format!("{name} {}", verb.get_name());
        writeln!(page, ".SH \"{}\"", name.to_uppercase())?;
        let about = verb.get_long_about().or(verb.get_about()).map(ToString::to_string).unwrap_or_default();
        about.lines().try_for_each(|line| text_line(line, page))?;
        let man = clap_mangen::Man::new(verb.clone());
        man.render_synopsis_section(page)?;
        if verb.get_arguments().any(|a| a.get_id() != "help") {
            man.render_options_section(page)?;
        }
        examples(verb, page)?;
        verbs(verb, &name, page)?;
    }
    Ok(())
}

/// Writes the text after a verb's options, line by line as it is.
fn examples(of: &Command, page: &mut Vec<u8>) -> std::io::Result<()> {
    let Some(text) = of.get_after_help() else { return Ok(()) };
    writeln!(page, ".PP\n.nf")?;
    text.to_string().lines().try_for_each(|line| text_line(line, page))?;
    writeln!(page, ".fi")
}

/// Writes a line so that a dot or a quote at its start is no roff request.
fn text_line(line: &str, page: &mut Vec<u8>) -> std::io::Result<()> {
    match line.is_empty() {
        true => writeln!(page, ".PP"),
        false => writeln!(page, "\\&{}", line.replace('\\', "\\e")),
    }
}
