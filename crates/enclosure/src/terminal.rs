//! The caller's terminal: its size, and raw mode while a guest uses it.

use rustix::termios::{self, OptionalActions, Termios};
use std::os::fd::{AsFd, BorrowedFd};

/// Returns rows and columns of a terminal; 24 by 80 if it reports none.
pub fn size(fd: impl AsFd) -> (u16, u16) {
    match termios::tcgetwinsize(fd) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row, size.ws_col),
        _ => (24, 80),
    }
}

pub fn resize(fd: BorrowedFd<'_>, (rows, columns): (u16, u16)) {
    let size = termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // A pty whose guest just ended cannot be resized; no caller depends on it.
    let _ = termios::tcsetwinsize(fd, size);
}

/// Raw mode on standard input; dropping it restores the former settings.
pub struct Raw {
    before: Option<Termios>,
}

impl Raw {
    pub fn on_stdin() -> Raw {
        let stdin = rustix::stdio::stdin();
        let before = termios::tcgetattr(stdin).ok();
        if let Some(before) = &before {
            let mut raw = before.clone();
            raw.make_raw();
            let _ = termios::tcsetattr(stdin, OptionalActions::Now, &raw);
        }
        Raw { before }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = termios::tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, before);
        }
    }
}
