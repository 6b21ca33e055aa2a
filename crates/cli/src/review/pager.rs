//! Pager for long output on a terminal, restricted to displaying it.

use crate::render;
use crate::stdout::{self, Stdout};
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

/// Standard output, or a pager in front of it. Dropping it waits for the pager.
pub enum Out {
    Plain(io::BufWriter<Stdout>),
    Paged { child: Child, input: Option<io::BufWriter<ChildStdin>> },
}

/// Variables that a pager needs to draw on the terminal. Others could make it start programs (LESSOPEN) or write files.
const PASSED: [&str; 9] = ["PATH", "HOME", "TERM", "TERMINFO", "LANG", "LC_ALL", "LC_CTYPE", "COLUMNS", "LINES"];

impl Out {
    /// Starts a pager, if standard output is a terminal and the user wants one.
    pub fn open(wanted: bool) -> Out {
        let plain = || Out::Plain(io::BufWriter::new(stdout::lock()));
        if !wanted || !render::can_draw(&io::stdout()) {
            return plain();
        }
        let pager = ["COFFERDAM_PAGER", "PAGER"].into_iter().find_map(std::env::var_os);
        let pager = pager.unwrap_or_else(|| OsString::from("less"));
        if pager.is_empty() || pager == "cat" {
            return plain();
        }
        match start(&pager) {
            Some(mut child) => {
                let input = child.stdin.take().map(io::BufWriter::new);
                Out::Paged { child, input }
            }
            None => plain(),
        }
    }
}

/// Starts the pager; `None` where the program is missing, and the output is printed without.
fn start(pager: &OsString) -> Option<Child> {
    let mut command = Command::new("/bin/sh");
    // A shell, because $PAGER may have arguments. `exec` of a missing program fails too late, so `command -v` checks
    // first.
    let first = pager.to_string_lossy().split_whitespace().next().map(str::to_owned)?;
    let is_there = Command::new("/bin/sh")
        .args(["-c", "command -v -- \"$1\" >/dev/null 2>&1", "sh", &first])
        .stdin(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !is_there {
        return None;
    }
    let mut script = OsString::from("exec ");
    script.push(pager);
    command.arg("-c").arg(script).env_clear().stdin(Stdio::piped());
    command.envs(PASSED.into_iter().filter_map(|name| std::env::var_os(name).map(|value| (name, value))));
    // F: quit if one screen; R: pass colours; X: keep the screen.
    command.env("LESS", "FRX").env("LESSSECURE", "1").env("LESSHISTFILE", "-").env("LV", "-c");
    command.spawn().ok()
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Out::Plain(out) => out.write(bytes),
            Out::Paged { input: Some(input), .. } => input.write(bytes),
            Out::Paged { input: None, .. } => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Out::Plain(out) => out.flush(),
            Out::Paged { input: Some(input), .. } => input.flush(),
            Out::Paged { input: None, .. } => Ok(()),
        }
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        // A reader that left early is no error of ours.
        let _ = self.flush();
        if let Out::Paged { child, input } = self {
            drop(input.take());
            let _ = child.wait();
        }
    }
}
