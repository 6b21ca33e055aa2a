//! A virtual machine: booted once, sent many scripts over its port, ended with the tests.

use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use serde_json::Value;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Upper bound for any step that is not stuck, in an emulated machine on a busy host.
const PATIENCE: Duration = Duration::from_secs(600);

/// Shell functions for every script.
const SHELL_FUNCTIONS: &str = r#"
export HOME=/root
as_ann() { setpriv --reuid 1500 --regid 1500 --init-groups env -i HOME=/home/ann USER=ann LOGNAME=ann \
    PATH=/usr/local/bin:/usr/bin:/bin XDG_RUNTIME_DIR=/run/user/1500 "$@"; }
in_scope() { as_ann systemd-run --user --scope --quiet -p Delegate=yes "$@"; }
until_true() { for _ in $(seq 1500); do eval "$1" && return; sleep 0.2; done; echo "never: $1" >&2; return 1; }
groups() { find /sys/fs/cgroup -type d -name 'cofferdam-*' ! -name cofferdam-self; }
"#;

pub struct Machine {
    port: Mutex<UnixStream>,
    waiting: Mutex<HashMap<u64, Sender<ScriptResult>>>,
    /// The script that got no answer. A stuck machine is waited for once, not by every test again.
    stuck: OnceLock<String>,
    dir: PathBuf,
}

#[derive(Debug)]
pub struct ScriptResult {
    pub status: i32,
    pub out: String,
    pub err: String,
}

impl ScriptResult {
    #[track_caller]
    pub fn assert_ok(self) -> String {
        assert_eq!(self.status, 0, "{}\n{}", self.out, self.err);
        self.out
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

type Booted = OnceLock<Result<&'static Machine, String>>;

/// Linux 6.12 or newer: has every mechanism.
#[track_caller]
pub fn new() -> &'static Machine {
    static MACHINE: Booted = OnceLock::new();
    MACHINE.get_or_init(|| Machine::boot("new")).as_ref().expect("a machine")
}

/// Linux 6.1: lacks some mechanisms.
#[track_caller]
pub fn old() -> &'static Machine {
    static MACHINE: Booted = OnceLock::new();
    MACHINE.get_or_init(|| Machine::boot("old")).as_ref().expect("a machine")
}

impl Machine {
    fn boot(kernel: &'static str) -> Result<&'static Machine, String> {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let dir = top.join("target/tools").join(format!("vm-{kernel}-{}", std::process::id()));
        sweep(&top.join("target/tools"));
        let bin = dir.join("local/bin");
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(dir.join("local/packaging")).unwrap();
        // Without debug information the binary is less than half as large.
        let mut strip = Command::new("strip");
        strip.arg("-o").arg(bin.join("cofferdam")).arg(env!("CARGO_BIN_EXE_cofferdam"));
        assert!(strip.status().expect("binutils are installed; see tools/test").success());
        for unit in ["cofferdam.service", "cofferdam-user.service"] {
            fs::copy(top.join("packaging").join(unit), dir.join("local/packaging").join(unit)).unwrap();
        }
        start(&top, kernel, &dir);
        let port = connect(&dir)?;
        let lines = BufReader::new(port.try_clone().unwrap());
        let machine = Machine { port: Mutex::new(port), waiting: Mutex::default(), stuck: OnceLock::new(), dir };
        let machine: &'static Machine = Box::leak(Box::new(machine));
        thread::spawn(move || machine.hear(lines));
        let up = "until_true '! systemctl is-system-running | grep -qE \"starting|initializing\"'; systemctl is-active user@1500";
        let up = machine.try_bash(up)?;
        if up.status == 0 { Ok(machine) } else { Err(format!("{up:?}")) }
    }

    fn hear(&self, lines: BufReader<UnixStream>) {
        for line in lines.lines().map_while(Result::ok) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [number, status, out, err] = words[..] else { continue };
            // A trailing equals sign keeps an empty word from disappearing.
            let text = |word: &str| {
                let bytes = word.strip_suffix('=').and_then(|word| BASE64.decode(word).ok());
                String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
            };
            let answer = ScriptResult { status: status.parse().unwrap_or(-1), out: text(out), err: text(err) };
            let waiting = number.parse().ok().and_then(|n: u64| self.waiting.lock().unwrap().remove(&n));
            if let Some(waiting) = waiting {
                let _ = waiting.send(answer);
            }
        }
        // The machine is gone: waiting callers are released.
        self.waiting.lock().unwrap().clear();
    }

    /// Runs a bash script as root, to its end.
    #[track_caller]
    pub fn bash(&self, script: &str) -> ScriptResult {
        self.try_bash(script).unwrap_or_else(|stuck| panic!("{stuck}"))
    }

    fn try_bash(&self, script: &str) -> Result<ScriptResult, String> {
        if let Some(stuck) = self.stuck.get() {
            return Err(format!("the machine is stuck since it was asked: {stuck}"));
        }
        self.begin(script).recv_timeout(PATIENCE).map_err(|_| {
            let _ = self.stuck.set(script.to_owned());
            let console = fs::read_to_string(self.dir.join("console.log")).unwrap_or_default();
            format!("no answer to: {script}\nthe machine's console: {console}")
        })
    }

    fn begin(&self, script: &str) -> Receiver<ScriptResult> {
        static NEXT: Mutex<u64> = Mutex::new(0);
        let number = {
            let mut next = NEXT.lock().unwrap();
            *next += 1;
            *next
        };
        let (sender, receiver) = channel();
        self.waiting.lock().unwrap().insert(number, sender);
        let line = format!("{number} {}\n", BASE64.encode(format!("{SHELL_FUNCTIONS}\n{script}")));
        self.port.lock().unwrap().write_all(line.as_bytes()).unwrap();
        receiver
    }
}

/// Starts the emulator from a thread that lives as long as the tests: the emulator dies with that thread.
fn start(top: &Path, kernel: &'static str, dir: &Path) {
    let log = fs::File::create(dir.join("emulator.log")).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(top.join("tools/vm")).args(["boot", kernel]).arg(dir);
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    thread::spawn(move || {
        let status = command.status();
        eprintln!("the machine {kernel} ended: {status:?}");
        loop {
            thread::park();
        }
    });
}

fn connect(dir: &Path) -> Result<UnixStream, String> {
    let until = Instant::now() + PATIENCE;
    loop {
        let refused = match UnixStream::connect(dir.join("agent.sock")) {
            Ok(port) => return Ok(port),
            Err(e) => e,
        };
        let said = fs::read_to_string(dir.join("emulator.log")).unwrap_or_default();
        if !said.is_empty() || Instant::now() >= until {
            return Err(format!("{refused}: {said}"));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Removes directories of machines from earlier tests.
fn sweep(tools: &Path) {
    for entry in fs::read_dir(tools).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix("vm-").and_then(|rest| rest.split('-').nth(1)?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
