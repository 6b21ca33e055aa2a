//! Handmade HTTP/2 frames, for peers that behave as no library does.

use super::world::within;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub id: u32,
    pub payload: Vec<u8>,
}

pub fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap();
    let mut out = len.to_be_bytes()[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(id.to_be_bytes());
    out.extend(payload);
    out
}

pub fn setting(id: u16, value: u32) -> Vec<u8> {
    [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

/// Encodes a field as a literal without indexing: any bytes are possible.
pub fn literal(name: &[u8], value: &[u8]) -> Vec<u8> {
    [&[0][..], &text(name), &text(value)].concat()
}

/// Encodes a field as a literal that the peer adds to its table.
pub fn kept(name: &[u8], value: &[u8]) -> Vec<u8> {
    [&[0x40][..], &text(name), &text(value)].concat()
}

fn text(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    if bytes.len() < 127 {
        out.push(bytes.len() as u8);
    } else {
        out.push(127);
        let mut left = bytes.len() - 127;
        while left >= 128 {
            out.push(left as u8 | 128);
            left >>= 7;
        }
        out.push(left as u8);
    }
    out.extend(bytes);
    out
}

pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    fields.iter().flat_map(|(name, value)| literal(name.as_bytes(), value.as_bytes())).collect()
}

pub async fn read_frame<S: AsyncRead + Unpin>(stream: &mut S) -> Option<Frame> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.ok()?;
    let len = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
    let mut payload = vec![0; len as usize];
    stream.read_exact(&mut payload).await.ok()?;
    Some(Frame { kind: head[3], flags: head[4], id, payload })
}

/// End of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Body of the response.
    Answered(String),
    Reset(u32),
    /// The connection ended, perhaps with an error code.
    Gone(Option<u32>),
}

/// A peer of a connection.
pub struct Peer<S>(pub S);

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    pub async fn say(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).await.is_ok() && self.0.flush().await.is_ok()
    }

    /// Sends the bytes again and again, until done, blocked or disconnected.
    pub async fn flood(&mut self, bytes: &[u8], times: usize) {
        let many = bytes.repeat((64 * 1024 / bytes.len()).clamp(1, times));
        let rounds = times.div_ceil(many.len() / bytes.len());
        for _ in 0..rounds {
            match tokio::time::timeout(Duration::from_millis(500), self.0.write_all(&many)).await {
                Ok(Ok(())) => {}
                _ => return,
            }
        }
    }

    pub async fn fate(&mut self, id: u32) -> Fate {
        within(async {
            let (mut body, mut reason) = (Vec::new(), None);
            while let Some(frame) = read_frame(&mut self.0).await {
                match frame.kind {
                    GOAWAY => reason = frame.payload.get(4..8).map(|b| u32::from_be_bytes(b.try_into().unwrap())),
                    SETTINGS if frame.flags & ACK == 0 => {
                        self.say(&self::frame(SETTINGS, ACK, 0, &[])).await;
                    }
                    RST_STREAM if frame.id == id => {
                        return Fate::Reset(u32::from_be_bytes(frame.payload[..4].try_into().unwrap()));
                    }
                    DATA if frame.id == id => body.extend(frame.payload),
                    _ => {}
                }
                if frame.id == id && matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0 {
                    return Fate::Answered(String::from_utf8_lossy(&body).into_owned());
                }
            }
            Fate::Gone(reason)
        })
        .await
    }

    /// Reads until the peer closes the connection, and returns its error code.
    pub async fn end(&mut self) -> Option<u32> {
        match self.fate(0).await {
            Fate::Gone(reason) => reason,
            other => panic!("{other:?}"),
        }
    }
}

static ALONE: Mutex<()> = Mutex::new(());

/// Memory limit of an attack.
pub const ROOM: usize = 64 << 20;

/// Measures the peak memory of the process, one test at a time.
pub struct Watch {
    before: usize,
    _alone: MutexGuard<'static, ()>,
}

impl Watch {
    pub fn begin() -> Watch {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        // Resets the peak to the present value.
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        Watch { before: mark(), _alone }
    }

    pub fn grown(&self) -> usize {
        mark().saturating_sub(self.before)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.grown() < ROOM, "it took {} KiB", self.grown() >> 10);
        }
    }
}

fn mark() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}
