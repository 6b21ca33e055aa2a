//! A writer that remembers whether its reader is gone, so that the cause of a failed copy does not have to be read from a message.

use std::io::{self, Write};

pub struct Pipe<W> {
    inner: W,
    is_broken: bool,
}

impl<W: Write> Pipe<W> {
    pub fn new(inner: W) -> Pipe<W> {
        Pipe { inner, is_broken: false }
    }

    /// True once a write has failed because the reader is gone.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    fn noted<T>(&mut self, written: io::Result<T>) -> io::Result<T> {
        self.is_broken |= written.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::BrokenPipe);
        written
    }
}

impl<W: Write> Write for Pipe<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes);
        self.noted(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.inner.flush();
        self.noted(flushed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_is_gone_is_told_from_other_failures() {
        let (reader, writer) = io::pipe().unwrap();
        let mut pipe = Pipe::new(writer);
        pipe.write_all(b"x").unwrap();
        assert!(!pipe.is_broken(), "the control");
        drop(reader);
        assert!(pipe.write_all(b"x").is_err() && pipe.is_broken());
        let mut full = Pipe::new(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
        assert!(full.write_all(b"x").is_err() && !full.is_broken());
    }
}
