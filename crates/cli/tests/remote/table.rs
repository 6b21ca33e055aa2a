//! Table of all verbs: carried out by a daemon, with a script that shows it; or local, with the reason. Scripts are
//! run by a shell in a directory of their own, which the sandbox `$b` covers; `c` is the command line, which talks to
//! the daemon and has no state of its own.

/// The side that carries out a verb.
pub enum Side {
    /// By the daemon: a script, and the texts that it must print, in this order.
    Remote(&'static str, &'static [&'static str]),
    /// Locally, and refused with a server: arguments.
    Local(&'static [&'static str]),
    /// Locally with or without a server, as it reads only its arguments: arguments, and the text that it must print.
    Pure(&'static [&'static str], &'static str),
}

use Side::{Local, Pure, Remote};

// A comment beside each local verb gives the reason.

pub const TABLE: &[(&str, Side)] = &[
    (
        "run",
        Remote(
            "c run -- sh -c 'echo ran; echo x > made'; c run --explain -- true | grep '# setup'; echo h > h; \
             c run --json --report-reads --ask-timeout 5s --deny-read h -- cat h || echo $?; \
             c exec $b -c 'echo kept > kept'; c run --continue=$b cat kept; c run --continue -c 'echo again; cat kept'",
            &["ran", "# setup", "fs.read", "1", "kept", "again", "kept"],
        ),
    ),
    (
        "exec",
        Remote(
            "c exec --explain $b -- true | grep '# setup'; c exec $b -c 'echo out; exit 3' || echo $?",
            &["# setup", "out", "3"],
        ),
    ),
    ("shell", Remote("echo 'echo from-shell' | c shell $b", &["from-shell"])),
    (
        "create",
        Remote(
            "c create --name made-$b --report-reads --ask-timeout 5s; c inspect made-$b --json",
            &["sbx_", "made-", "\"report_reads\"", "\"ask_timeout_ms\""],
        ),
    ),
    ("ls", Remote("c exec $b -c 'echo x > new; echo of-ls'; c ls", &["CHANGES", "box-ls", "of-ls"])),
    (
        "ps",
        Remote(
            "c exec $b -c 'exit 7' || true; c exec -d $b -c 'sleep 60' > /dev/null; c ps; c ps $b; c ps -a $b",
            &["sleep", "sleep", "sleep", "ended (7)"],
        ),
    ),
    ("inspect", Remote("c inspect $b --json", &["\"base\""])),
    ("start", Remote("c stop $b; c start $b; c exec $b -c 'echo again'", &["again"])),
    ("suspend", Remote("c exec -d $b -c 'sleep 60' > /dev/null; c suspend $b --json", &["reached"])),
    ("resume", Remote("c start --live $b > /dev/null; c suspend $b > /dev/null; c resume $b --json", &["\"id\""])),
    ("publish", Remote("c start --live $b > /dev/null; c publish $b $(port):80 --json", &["127.0.0.1"])),
    ("stop", Remote("c stop $b; c exec $b true || echo stopped", &["stopped"])),
    (
        "rm",
        Remote(
            "c rm --older 100d --force --json; c rm --force $b > /dev/null; c inspect $b || echo gone",
            &["\"removed\": []", "gone"],
        ),
    ),
    ("gc", Remote("c gc --dry-run --json", &["protocol_version"])),
    ("audit log", Remote("c audit log $b", &["create"])),
    ("audit verify", Remote("c audit verify", &["entries"])),
    ("code", Remote("c code --sandbox $b -e 'x = 6' && c code --sandbox $b -e 'x * 7'", &["42"])),
    ("context create", Remote("c context create fast -E A=b --sandbox $b", &["fast", "python"])),
    ("context ls", Remote("c code --sandbox $b -e 1; c context ls --sandbox $b", &["CONTEXT", "python", "idle"])),
    ("context restart", Remote("c code --sandbox $b -e 1; c context restart python --sandbox $b", &["python"])),
    (
        "context interrupt",
        Remote("c code --sandbox $b -e 1; c context interrupt python --sandbox $b", &["no call is under way"]),
    ),
    (
        "context rm",
        Remote("c code --sandbox $b -e 1; c context rm python --sandbox $b; c context ls --sandbox $b --json", &["[]"]),
    ),
    ("logs", Remote("r=$(c exec -d $b -c 'echo said'); c wait $r; c logs $r", &["said"])),
    ("attach", Remote("r=$(c exec -d $b -c 'sleep 0.5; echo late; exit 4'); c attach $r || echo $?", &["late", "4"])),
    ("wait", Remote("r=$(c exec -d $b -c 'exit 5'); c wait $r || echo $?", &["5"])),
    ("kill", Remote("r=$(c exec -d $b -c 'sleep 60'); c kill $r > /dev/null; c wait $r || echo $?", &["137"])),
    ("serve", Local(&["serve", "--json"])), // a daemon itself
    ("token create", Remote("c token create t-$b --scope agent --json", &["\"token\""])),
    ("token ls", Remote("c token create t-$b --scope agent > /dev/null; c token ls", &["t-box"])),
    (
        "token rm",
        Remote("i=$(c token create t-$b --scope agent --json | field id); c token rm $i; c token ls --json", &["tok"]),
    ),
    ("config show", Local(&["config", "show", "--json"])), // about a file of this host
    ("config check", Local(&["config", "check", "--json"])), // about a file of this host
    ("backup", Local(&["backup", "--json", "copy"])),      // copies the state of this host
    ("fsck", Local(&["fsck", "--json"])),                  // checks the state of this host
    ("top", Remote("c start --live $b > /dev/null; c top --once", &["MEMORY", "box-top"])),
    ("questions", Remote("asking; c questions", &[".env"])),
    (
        "answer",
        Remote(
            "asking; c answer $(c questions q-$b --json | question) allow > /dev/null; c wait $r; c logs $r",
            &["hush"],
        ),
    ),
    ("diff", Remote("c exec $b -c 'echo x > new'; c diff $b --name-status", &["A\tnew"])),
    ("prune", Remote("c prune $b", &["0 files"])),
    (
        "approve",
        Remote(
            "c exec $b -c 'echo x > landed; echo y > second'; c diff $b > shown; rm shown; c approve $b landed; cat landed; \
             c approve $b; cat second; c approve $b --json; c approve box-aprove || echo $?",
            &["landed", "x", "second", "y", "nothing is left", "125"],
        ),
    ),
    (
        "reject",
        Remote("c exec $b -c 'echo x > not'; c reject $b --all --json; c diff $b --name-only", &["protocol_version"]),
    ),
    (
        "undo",
        Remote(
            "c exec $b -c 'echo x > u'; c approve $b --unseen > /dev/null; c undo; test -e u || echo undone",
            &["undone"],
        ),
    ),
    ("fetch", Local(&["fetch", "--json"])), // writes to a repository of this host
    ("provenance", Remote("c exec $b -c 'echo x > p'; c approve $b --unseen > /dev/null; c provenance p", &["bat_"])),
    ("rebase", Remote("c rebase $b --json", &["protocol_version"])),
    ("conflicts", Remote("c conflicts $b --json", &["protocol_version"])),
    ("snapshot", Remote("c snapshot $b --name s-$b", &["snp_"])),
    ("snapshot ls", Remote("c snapshot $b --name s-$b > /dev/null; c snapshot ls", &["s-box"])),
    ("snapshot rm", Remote("c snapshot $b --name s-$b > /dev/null; c snapshot rm s-$b", &["snp_"])),
    ("fork", Remote("c fork $b --name f-$b; c inspect f-$b --json", &["sbx_", "f-box"])),
    (
        "restore",
        Remote(
            "c snapshot $b --name s-$b > /dev/null; c exec $b -c 'echo x > y'; c restore s-$b > /dev/null; c diff $b --name-only; echo back",
            &["back"],
        ),
    ),
    ("template create", Remote("c template create t-$b --from $b", &["t-box-template-create@"])),
    ("template ls", Remote("c template create t-$b --from $b > /dev/null; c template ls", &["t-box"])),
    ("template inspect", Remote("c template create t-$b --from $b > /dev/null; c template inspect t-$b", &["t-box"])),
    (
        "template warm",
        Remote("c template create t-$b --from $b > /dev/null; c template warm t-$b --keep 0 --json", &["keep"]),
    ),
    (
        "template rm",
        Remote("c template create t-$b --from $b > /dev/null; c template rm t-$b", &["t-box-template-rm@"]),
    ),
    (
        "export",
        Remote(
            "c exec $b -c 'echo x > e'; c stop $b; c export $b out.zst; test -s out.zst && echo there",
            &["digest", "there"],
        ),
    ),
    (
        "import",
        Remote(
            "c exec $b -c 'echo x > e'; c stop $b; c export $b out.zst > /dev/null; c import out.zst --name i-$b -p default -p no-network --onto .; c inspect i-$b --json",
            &["sbx_", "i-box"],
        ),
    ),
    ("events", Remote("c events --json | tail -n 1", &["protocol_version"])),
    ("cp", Remote("echo there > f; c cp f $b:g; c cp $b:g h; cat h", &["there"])),
    ("files ls", Remote("c exec $b touch seen; c files ls $b:.", &["seen"])),
    ("files cat", Remote("c exec $b -c 'echo read > f'; c files cat $b:f", &["read"])),
    ("files stat", Remote("c exec $b -c 'echo read > f'; c files stat $b:f --json", &["\"size\": 5"])),
    ("files mkdir", Remote("c files mkdir $b:d > /dev/null; c files ls $b:.", &["d"])),
    ("files mv", Remote("c exec $b touch old; c files mv $b:old newer > /dev/null; c files ls $b:.", &["newer"])),
    (
        "files rm",
        Remote("c exec $b touch old; c files rm $b:old > /dev/null; c files stat $b:old || echo gone", &["gone"]),
    ),
    ("files search", Remote("c exec $b -c 'echo needle > hay'; c files search $b: --content needle", &["hay"])),
    (
        "files watch",
        Remote(
            "c start --live $b > /dev/null; (sleep 1; c exec $b touch w) & timeout 10 $COFFERDAM files watch $b:. | head -n 1",
            &["w"],
        ),
    ),
    ("secret set", Remote("echo value | c secret set S1; c secret ls", &["S1"])),
    ("secret ls", Remote("echo value | c secret set S2 > /dev/null; c secret ls", &["S2"])),
    ("secret rm", Remote("echo value | c secret set S3 > /dev/null; c secret rm S3", &["S3"])),
    ("policy check", Remote("c policy check default", &["ok: default"])),
    ("policy explain", Remote("c policy explain ./x --json", &["decisions"])),
    ("policy show", Pure(&["policy", "show"], "default")),
    ("agents show", Pure(&["agents", "show", "claude"], "api.anthropic.com")),
    ("policy import", Pure(&["policy", "import", "srt.json"], "version")),
    ("policy diff", Pure(&["policy", "diff", "default", "default"], "")),
    ("policy learn", Local(&["policy", "learn", "--", "true"])), // watches a command of this host
    ("doctor", Local(&["doctor", "--json"])),                    // checks this host
    ("setup", Local(&["setup", "--user", "1500"])),              // sets up this host
    ("bench", Local(&["bench", "--json"])),                      // measures this host
    ("completion", Pure(&["completion", "bash"], "cofferdam")),
    ("man", Pure(&["man"], "COFFERDAM")),
];

/// Arguments of each remote verb for tests with a fake daemon: `box` has a change, `snap` and `tpl` were made from it,
/// `RUN` is a run that has ended. Verbs that print a guest's own bytes are listed in `RAW`.
pub const ARGS: &[(&str, &[&str])] = &[
    ("create", &["create", "--name", "other"]),
    ("code", &["code", "--sandbox", "box", "-e", "1"]),
    ("context create", &["context", "create", "fast", "--sandbox", "box"]),
    ("context ls", &["context", "ls", "--sandbox", "box"]),
    ("context restart", &["context", "restart", "python", "--sandbox", "box"]),
    ("context interrupt", &["context", "interrupt", "python", "--sandbox", "box"]),
    ("context rm", &["context", "rm", "python", "--sandbox", "box"]),
    ("ls", &["ls"]),
    ("ps", &["ps"]),
    ("inspect", &["inspect", "box"]),
    ("run", &["run", "--events", "made/events", "--", "true"]),
    ("run --explain", &["run", "--explain", "--", "true"]),
    ("exec", &["exec", "box", "--", "echo", "said"]),
    ("shell", &["shell", "box"]),
    ("publish", &["publish", "box"]),
    ("audit log", &["audit", "log"]),
    ("audit verify", &["audit", "verify"]),
    ("logs", &["logs", "RUN"]),
    ("attach", &["attach", "RUN"]),
    ("wait", &["wait", "RUN"]),
    ("kill", &["kill", "RUN"]),
    ("token create", &["token", "create", "t", "--scope", "agent"]),
    ("token ls", &["token", "ls"]),
    ("token rm", &["token", "rm", "tok_0"]),
    ("top", &["top", "--once"]),
    ("questions", &["questions"]),
    ("answer", &["answer", "qst_0", "allow"]),
    ("diff", &["diff", "box"]),
    ("prune", &["prune", "box"]),
    ("provenance", &["provenance", "new"]),
    ("conflicts", &["conflicts", "box"]),
    ("rebase", &["rebase", "box", "--dry-run"]),
    ("approve", &["approve", "box", "new", "--unseen"]),
    ("undo", &["undo"]),
    ("reject", &["reject", "box", "--all"]),
    ("snapshot", &["snapshot", "box", "--name", "snap2"]),
    ("snapshot ls", &["snapshot", "ls"]),
    ("fork", &["fork", "snap", "--name", "forked"]),
    ("restore", &["restore", "snap"]),
    ("template create", &["template", "create", "tpl2", "--from", "box"]),
    ("template ls", &["template", "ls"]),
    ("template inspect", &["template", "inspect", "tpl"]),
    ("template warm", &["template", "warm", "tpl", "--keep", "0"]),
    ("template rm", &["template", "rm", "tpl2"]),
    ("export", &["export", "snap", "made/export"]),
    ("import", &["import", "--onto", ".", "exported"]),
    ("events", &["events"]),
    ("cp", &["cp", "box:dir", "made/copied"]),
    ("files ls", &["files", "ls", "box:."]),
    ("files cat", &["files", "cat", "box:text"]),
    ("files stat", &["files", "stat", "box:text"]),
    ("files mkdir", &["files", "mkdir", "box:made"]),
    ("files mv", &["files", "mv", "box:made", "moved"]),
    ("files rm", &["files", "rm", "box:moved"]),
    ("files search", &["files", "search", "box:.", "--content", "x"]),
    ("files watch", &["files", "watch", "box:no-such-directory"]),
    ("secret set", &["secret", "set", "S"]),
    ("secret ls", &["secret", "ls"]),
    ("secret rm", &["secret", "rm", "S"]),
    ("policy check", &["policy", "check", "default"]),
    ("policy explain", &["policy", "explain", "./x"]),
    ("snapshot rm", &["snapshot", "rm", "snap2"]),
    ("gc", &["gc", "--dry-run"]),
    ("suspend", &["suspend", "box"]),
    ("resume", &["resume", "box"]),
    ("stop", &["stop", "box"]),
    ("start", &["start", "box"]),
    ("rm", &["rm", "--force", "box"]),
];

/// Verbs that print bytes of a guest or a file.
pub const RAW: &[&str] = &["run", "exec", "shell", "logs", "attach", "files cat"];
