//! Questions to a person at the terminal. Reads and writes /dev/tty, never standard input, which is the command's. An
//! answer is a whole line, so that a key pressed by accident is none.

use crate::render::safe;
use api::{Question, QuestionDecision, Remember};
use node::questions::Person;
use rustix::fs::{Mode, OFlags, open};
use rustix::termios::{self, QueueSelector};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes of the longest line that is taken for an answer.
const LONGEST: usize = 64;

pub struct Terminal {
    tty: OwnedFd,
    line: Vec<u8>,
    /// A yes to this question cannot be revoked.
    is_irrevocable: bool,
}

impl Terminal {
    /// Opens the controlling terminal, if there is one and this process is in its foreground group.
    pub fn open() -> Option<Terminal> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let tty = open("/dev/tty", flags, Mode::empty()).ok()?;
        // A background process that reads the terminal is stopped by SIGTTIN.
        let ours = termios::tcgetpgrp(&tty).is_ok_and(|group| group == rustix::process::getpgrp());
        ours.then(|| Terminal { tty, line: Vec::new(), is_irrevocable: false })
    }

    fn is_raw(&self) -> bool {
        termios::tcgetattr(&self.tty).is_ok_and(|t| !t.local_modes.contains(termios::LocalModes::ICANON))
    }

    /// Writes to the terminal; in raw mode a line feed needs a carriage return.
    fn say(&self, text: &str) {
        let text = text.replace('\n', "\r\n");
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            match rustix::io::write(&self.tty, rest) {
                Ok(written) => rest = &rest[written..],
                Err(rustix::io::Errno::INTR) => {}
                // A terminal that accepts no output shows no question; the question times out.
                Err(_) => return,
            }
        }
    }

    fn prompt(&self) {
        let yes = match self.is_irrevocable {
            true => "[y] yes, until this ends",
            false => "[y] yes, once  [a] yes, until this ends",
        };
        self.say(&format!("{yes}  [n] no, once  [never] no, until this ends: "));
    }

    /// Takes one character; returns the line once it is complete.
    fn take(&mut self, byte: u8, raw: bool) -> Option<String> {
        const BACKSPACES: [u8; 2] = [0x08, 0x7f];
        const INTERRUPT: u8 = 3;
        match byte {
            b'\r' | b'\n' => {
                if raw {
                    self.say("\n");
                }
                return Some(String::from_utf8_lossy(&std::mem::take(&mut self.line)).trim().to_lowercase());
            }
            INTERRUPT => {
                self.line.clear();
                self.say("\n");
                return Some("n".to_owned());
            }
            byte if BACKSPACES.contains(&byte) => {
                let taken_back = self.line.pop();
                if taken_back.is_some() && raw {
                    self.say("\x08 \x08");
                }
            }
            byte if byte.is_ascii_graphic() && self.line.len() < LONGEST => {
                self.line.push(byte);
                if raw {
                    self.say(&char::from(byte).to_string());
                }
            }
            _ => {}
        }
        None
    }
}

impl Person for Terminal {
    fn hearing(&self) -> BorrowedFd<'_> {
        self.tty.as_fd()
    }

    fn ask(&mut self, question: &Question) {
        self.line.clear();
        // Input that was typed before the question was shown is no answer to it.
        let _ = termios::tcflush(&self.tty, QueueSelector::IFlush);
        let who = match (&question.exe, question.pid) {
            (Some(exe), Some(pid)) if !exe.is_empty() => format!("{} ({pid})", safe(exe)),
            _ => "the command".to_owned(),
        };
        let Question { op, target, rule, .. } = question;
        self.is_irrevocable = op == "exec";
        let (target, rule) = (safe(target), safe(rule));
        let seconds = question.deadline_ms.saturating_sub(question.asked_ms) / 1000;
        // Colours that the guest left on are reset first.
        self.say(&format!("\x1b[0m\ncofferdam: {who} wants {op} {target}\n"));
        self.say(&format!("cofferdam: {rule} asks; without an answer it is refused after {seconds} s\n"));
        self.prompt();
    }

    fn heard(&mut self) -> Option<(QuestionDecision, Remember)> {
        let raw = self.is_raw();
        let mut buffer = [0; 256];
        let got = rustix::io::read(&self.tty, &mut buffer).unwrap_or(0);
        for byte in &buffer[..got] {
            match self.take(*byte, raw).as_deref() {
                None => {}
                Some("y" | "yes") if !self.is_irrevocable => return Some((QuestionDecision::Allow, Remember::Once)),
                Some("y" | "yes" | "a" | "always") => return Some((QuestionDecision::Allow, Remember::Run)),
                Some("n" | "no") => return Some((QuestionDecision::Deny, Remember::Once)),
                Some("never") => return Some((QuestionDecision::Deny, Remember::Run)),
                Some(_) => self.prompt(),
            }
        }
        None
    }

    fn never_mind(&mut self) {
        self.line.clear();
        self.say("\ncofferdam: the question was withdrawn\n");
    }
}
