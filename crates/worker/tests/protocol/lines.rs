//! A worker written from `docs/reference/worker-protocol.md` alone, in the way of a language without shared mappings: it uses none of the
//! supervisor's code. Its programs are single lines: `print TEXT`, `value COUNT`, `flood COUNT`, `fail TEXT`, `quit`.

use rustix::io::{pread, pwrite};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::os::fd::OwnedFd;

const HEAD: u64 = 16;
const TAIL: u64 = 24;
const LARGEST: usize = 262_144;

pub struct Worker {
    memory: OwnedFd,
    bell: OwnedFd,
    capacity: u64,
    count: u64,
}

impl Worker {
    /// Takes the memory file and the doorbell, and works until the supervisor hangs up.
    pub fn work(memory: OwnedFd, bell: OwnedFd) {
        let mut worker = Worker { memory, bell, capacity: 0, count: 0 };
        worker.capacity = worker.number(8, 4);
        while let Some((kind, request, payload)) = worker.receive() {
            let text = String::from_utf8(payload).unwrap();
            match kind {
                1 => worker.send(0x10, 0, br#"{"protocol": 1, "language": "lines", "version": "1", "pid": 1}"#),
                2 if text == "quit" => return,
                2 => worker.execute(request, &text),
                3 => worker.send(0x17, request, br#"{"status": "complete"}"#),
                _ => {}
            }
        }
    }

    fn execute(&mut self, request: u32, line: &str) {
        self.count += 1;
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut status = "ok";
        match word {
            "print" => self.send(0x11, request, rest.as_bytes()),
            "value" => {
                let text = "v".repeat(rest.parse().unwrap());
                self.send(0x14, request, format!(r#"{{"data": {{"text/plain": "{text}"}}}}"#).as_bytes());
            }
            "flood" => (0..rest.parse().unwrap()).for_each(|n: u32| self.send(0x11, request, &n.to_le_bytes())),
            _ => {
                status = "error";
                self.send(0x15, request, br#"{"name": "Unknown", "value": "line", "traceback": ""}"#);
            }
        }
        self.send(0x16, request, format!(r#"{{"status": "{status}", "execution_count": {}}}"#, self.count).as_bytes());
    }

    fn receive(&self) -> Option<(u8, u32, Vec<u8>)> {
        let mut whole = Vec::new();
        loop {
            let header = self.take(0, 16)?;
            let length = number(&header, 0) as u64;
            let frame = self.take(16, length)?;
            assert_eq!(number(&header, 12), crc32(&[&header[..12], &frame].concat()));
            let tail = self.number(TAIL, 8);
            let queued = self.number(HEAD, 8) - tail;
            self.store(TAIL, tail + 16 + length);
            if queued >= self.capacity / 2 && queued - 16 - length < self.capacity / 2 {
                self.ring();
            }
            whole.extend(frame);
            if header[5] & 1 == 0 {
                return Some((header[4], number(&header, 8), whole));
            }
        }
    }

    /// Waits for bytes behind the reader's position of the input ring, and copies them.
    fn take(&self, at: u64, length: u64) -> Option<Vec<u8>> {
        let tail = self.number(TAIL, 8);
        while self.number(HEAD, 8) - tail < at + length {
            self.wait()?;
        }
        let bytes = (tail + at..tail + at + length).map(|n| self.bytes(64 + n % self.capacity, 1)[0]);
        Some(bytes.collect())
    }

    fn send(&self, kind: u8, request: u32, payload: &[u8]) {
        let pieces = payload.chunks(LARGEST).collect::<Vec<_>>();
        for (n, piece) in pieces.iter().enumerate() {
            let goes_on = u8::from(n + 1 < pieces.len() && kind != 0x11);
            let start =
                [&(piece.len() as u32).to_le_bytes()[..], &[kind, goes_on, 0, 0], &request.to_le_bytes()].concat();
            let sum = crc32(&[&start[..], piece].concat());
            self.write(&[&start[..], &sum.to_le_bytes(), piece].concat());
        }
    }

    fn write(&self, frame: &[u8]) {
        let ring = 64 + self.capacity;
        let head = self.number(ring + HEAD, 8);
        while self.capacity - (head - self.number(ring + TAIL, 8)) < frame.len() as u64 {
            if self.wait().is_none() {
                return;
            }
        }
        let at = head % self.capacity;
        let first = frame.len().min((self.capacity - at) as usize);
        pwrite(&self.memory, &frame[..first], ring + 64 + at).unwrap();
        pwrite(&self.memory, &frame[first..], ring + 64).unwrap();
        self.store(ring + HEAD, head + frame.len() as u64);
        self.ring();
    }

    fn ring(&self) {
        let _ = send(&self.bell, b"!", SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    fn wait(&self) -> Option<()> {
        let mut rungs = [0; 4096];
        recv(&self.bell, &mut rungs, RecvFlags::empty()).ok().filter(|(_, count)| *count > 0).map(drop)
    }

    fn bytes(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        assert_eq!(pread(&self.memory, &mut bytes, at), Ok(length));
        bytes
    }

    /// Reads until two reads in a row agree.
    fn number(&self, at: u64, length: usize) -> u64 {
        let read = || {
            let mut whole = self.bytes(at, length);
            whole.resize(8, 0);
            u64::from_le_bytes(whole.try_into().unwrap())
        };
        let mut last = read();
        loop {
            let next = read();
            if next == last {
                return next;
            }
            last = next;
        }
    }

    fn store(&self, at: u64, value: u64) {
        assert_eq!(pwrite(&self.memory, &value.to_le_bytes(), at), Ok(8));
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(sum & 1)))
    })
}
