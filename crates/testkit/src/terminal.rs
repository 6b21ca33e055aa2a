//! A person at a terminal, played by Python: types, reads the screen, resizes the window.

use super::world::World;
use super::{Place, to_the_end, unique};
use serde_json::{Value, json};
use std::fs;
use std::process::{Command, Output};

/// Python driver of a terminal. Steps are `["expect", text]`, `["send", text]`, `["resize", rows, columns]` and
/// `["signal", number]`.
const DRIVER: &str = r#"
import fcntl, json, os, pty, select, struct, sys, termios, time
ask = json.loads(sys.argv[1])
master, slave = pty.openpty()
def resize(rows, columns):
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack('HHHH', rows, columns, 0, 0))
resize(*ask['size'])
before = termios.tcgetattr(slave)
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for fd in 0, 1, 2:
        os.dup2(slave, fd)
    os.closerange(3, 256)
    os.execvp(ask['argv'][0], ask['argv'])
seen, at, missed = b'', 0, None
deadline = time.monotonic() + 180
def pump():
    global seen
    if select.select([master], [], [], 0.05)[0]:
        seen += os.read(master, 65536)
def expect(text):
    global at
    while text not in seen[at:]:
        if time.monotonic() > deadline:
            raise TimeoutError(text)
        pump()
    at = seen.index(text, at) + len(text)
try:
    for step in ask['steps']:
        if step[0] == 'expect': expect(step[1].encode())
        if step[0] == 'send': os.write(master, step[1].encode())
        if step[0] == 'resize': resize(step[1], step[2])
        if step[0] == 'signal': os.kill(pid, step[1])
except TimeoutError as e:
    missed = str(e)
    os.kill(pid, 9)
while True:
    done, status = os.waitpid(pid, os.WNOHANG)
    if done: break
    if time.monotonic() > deadline: os.kill(pid, 9)
    pump()
restored = termios.tcgetattr(slave) == before
os.close(slave)
try:
    while True:
        more = os.read(master, 65536)
        if not more: break
        seen += more
except OSError:
    pass
print(json.dumps({'text': seen.decode('utf-8', 'replace'), 'code': os.waitstatus_to_exitcode(status),
    'restored': restored, 'missed': missed}))
"#;

/// The screen at the end.
pub struct Screen {
    pub text: String,
    pub code: i64,
    /// The terminal's settings were restored.
    pub restored: bool,
    pub outcome: Value,
    /// The expected text that never appeared.
    pub missed: Option<String>,
}

impl Screen {
    #[track_caller]
    pub fn assert_code(&self, code: i64) -> &Screen {
        assert_eq!(self.missed, None, "never appeared; the screen: {}\n{:#}", self.text, self.outcome);
        assert_eq!(self.code, code, "the screen: {}\n{:#}", self.text, self.outcome);
        assert!(self.restored, "terminal settings must be restored; the screen: {}", self.text);
        self
    }
}

/// Runs `cofferdam run ARGS…` on a terminal of 31 rows and 97 columns.
pub fn on_terminal(place: &Place, args: &[&str], steps: Value) -> Screen {
    let status = place.file(format!("screen-{}.json", unique()), "");
    let name = status.display().to_string();
    let words = [&["run", "--status-file", &name], args].concat();
    let screen = at_terminal(place, &words, steps);
    Screen { outcome: serde_json::from_str(&fs::read_to_string(&status).unwrap()).unwrap_or(Value::Null), ..screen }
}

/// Like `on_terminal`, in a world with servers.
pub fn on_terminal_in(world: &World, args: &[&str], steps: Value) -> Screen {
    let status = world.file();
    let name = status.display().to_string();
    let words = [&["run", "--status-file", &name], args].concat();
    let mut driver = world.command("/usr/bin/python3", &["-c", DRIVER, &driver_input(&words, steps)]);
    let screen = parse_screen(&to_the_end(driver.env("TERM", "xterm"), b""));
    Screen { outcome: serde_json::from_str(&fs::read_to_string(&status).unwrap()).unwrap_or(Value::Null), ..screen }
}

/// Runs `cofferdam WORDS…` on such a terminal.
pub fn at_terminal(place: &Place, words: &[&str], steps: Value) -> Screen {
    let mut driver = place.outside("/usr/bin/python3");
    parse_screen(&to_the_end(driver.env("TERM", "xterm").args(["-c", DRIVER, &driver_input(words, steps)]), b""))
}

/// Runs `sh -eu -c TEXT` on such a terminal, where nobody types. `python` starts the driver as the person would.
pub fn shell_at_terminal(mut python: Command, text: &str) -> Screen {
    let argv = ["/bin/sh", "-eu", "-c", text].map(String::from).to_vec();
    parse_screen(&to_the_end(python.env("TERM", "xterm").args(["-c", DRIVER, &input_of(argv, json!([]))]), b""))
}

/// Formats the driver's input.
fn driver_input(words: &[&str], steps: Value) -> String {
    let mut argv = vec![super::binary().display().to_string()];
    argv.extend(words.iter().map(|a| a.to_string()));
    input_of(argv, steps)
}

fn input_of(argv: Vec<String>, steps: Value) -> String {
    json!({"argv": argv, "size": [31, 97], "steps": steps}).to_string()
}

/// Parses the driver's output.
fn parse_screen(output: &Output) -> Screen {
    let seen: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("the driver failed: {e}: {}", String::from_utf8_lossy(&output.stderr)));
    Screen {
        text: seen["text"].as_str().unwrap_or_default().into(),
        code: seen["code"].as_i64().unwrap_or(-1),
        restored: seen["restored"] == true,
        outcome: Value::Null,
        missed: seen["missed"].as_str().map(String::from),
    }
}
