//! Frames on a Unix socket, with descriptors beside them. Does not interpret their content.
//!
//! ```text
//!  frame: u32 length of JSON │ u32 length of payload │ JSON │ payload      little endian, at most 1 MiB each
//! ```
//!
//! Descriptors come along with a frame's first byte.

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The longest JSON, and the longest payload.
pub const MOST: usize = 1 << 20;
const HEAD: usize = 8;
/// Bound on descriptors in one frame.
pub const MOST_HANDLES: usize = 4;

/// Unit of transfer: JSON, payload and descriptors.
#[derive(Debug, Default)]
pub struct Frame {
    pub json: Vec<u8>,
    pub payload: Vec<u8>,
    pub handles: Vec<OwnedFd>,
}

impl Frame {
    pub fn of(document: &impl Serialize) -> Frame {
        Frame { json: serde_json::to_vec(document).unwrap_or_default(), ..Frame::default() }
    }

    pub fn with(mut self, payload: Vec<u8>) -> Frame {
        self.payload = payload;
        self
    }

    pub fn and(mut self, handle: OwnedFd) -> Frame {
        self.handles.push(handle);
        self
    }

    /// Returns whether the frame is within the bounds and can be sent.
    pub fn fits(&self) -> bool {
        self.json.len() <= MOST && self.payload.len() <= MOST && self.handles.len() <= MOST_HANDLES
    }
}

/// An end of a connection; never blocks.
#[derive(Debug)]
pub struct WireConnection {
    socket: OwnedFd,
    /// Received part of the next frame, header included, and its descriptors.
    inbox: Vec<u8>,
    handles: Vec<OwnedFd>,
    outbox: VecDeque<Sent>,
}

#[derive(Debug)]
struct Sent {
    bytes: Vec<u8>,
    at: usize,
    handles: Vec<OwnedFd>,
}

/// Result of a read.
#[derive(Debug)]
pub enum ReadResult {
    Frame(Frame),
    /// No complete frame yet.
    Later,
    /// The peer closed the connection.
    Closed,
}

impl WireConnection {
    /// Wraps a non-blocking socket.
    pub fn new(socket: OwnedFd) -> WireConnection {
        WireConnection { socket, inbox: Vec::new(), handles: Vec::new(), outbox: VecDeque::new() }
    }

    /// Appends a frame to the send queue.
    pub fn put(&mut self, frame: Frame) -> io::Result<()> {
        if !frame.fits() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let Frame { json, payload, handles } = frame;
        let mut bytes = Vec::with_capacity(HEAD + json.len() + payload.len());
        bytes.extend_from_slice(&(json.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&json);
        bytes.extend_from_slice(&payload);
        self.outbox.push_back(Sent { bytes, at: 0, handles });
        Ok(())
    }

    /// Number of unsent bytes.
    pub fn waiting(&self) -> usize {
        self.outbox.iter().map(|sent| sent.bytes.len() - sent.at).sum()
    }

    /// Sends as much as the socket takes without blocking.
    pub fn push(&mut self) -> io::Result<()> {
        while let Some(sent) = self.outbox.front_mut() {
            match send(&self.socket, &sent.bytes[sent.at..], &sent.handles) {
                Ok(n) => {
                    sent.at += n;
                    sent.handles.clear();
                    if sent.at == sent.bytes.len() {
                        self.outbox.pop_front();
                    }
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Returns the next frame if it is complete. Never reads past it, so that descriptors belong to one frame.
    pub fn pull(&mut self) -> io::Result<ReadResult> {
        loop {
            let wanted = match self.wanted()? {
                Some(0) => return Ok(ReadResult::Frame(self.take())),
                Some(rest) => rest,
                None => HEAD - self.inbox.len(),
            };
            match self.receive(wanted) {
                Ok(0) => return Ok(ReadResult::Closed),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(ReadResult::Later),
                Err(Errno::CONNRESET) => return Ok(ReadResult::Closed),
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn lengths(&self) -> Option<(usize, usize)> {
        let [a, b, c, d, e, f, g, h] = *self.inbox.first_chunk::<HEAD>()?;
        Some((u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes([e, f, g, h]) as usize))
    }

    /// Bytes missing from the frame; `None` while its header is incomplete.
    fn wanted(&self) -> io::Result<Option<usize>> {
        match self.lengths() {
            Some((json, payload)) if json > MOST || payload > MOST => Err(io::ErrorKind::InvalidData.into()),
            Some((json, payload)) => Ok(Some(HEAD + json + payload - self.inbox.len())),
            None => Ok(None),
        }
    }

    fn take(&mut self) -> Frame {
        let (json, _) = self.lengths().unwrap_or_default();
        let payload = self.inbox.split_off(HEAD + json);
        let json = self.inbox.split_off(HEAD);
        self.inbox = Vec::new();
        Frame { json, payload, handles: std::mem::take(&mut self.handles) }
    }

    /// Reads at most `wanted` bytes; memory is allocated for received bytes, not for announced lengths.
    fn receive(&mut self, wanted: usize) -> Result<usize, Errno> {
        const PIECE: usize = 64 << 10;
        let begin = self.inbox.len();
        self.inbox.resize(begin + wanted.min(PIECE), 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_HANDLES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut self.inbox[begin..])];
        let got = rustix::net::recvmsg(&self.socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC);
        self.inbox.truncate(begin + got.as_ref().map_or(0, |got| got.bytes));
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(handles) = message {
                self.handles.extend(handles.take(MOST_HANDLES));
            }
        }
        self.handles.truncate(MOST_HANDLES);
        got.map(|got| got.bytes)
    }
}

impl AsFd for WireConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn send(socket: &OwnedFd, bytes: &[u8], handles: &[OwnedFd]) -> Result<usize, Errno> {
    let handles: Vec<BorrowedFd<'_>> = handles.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_HANDLES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !handles.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&handles)) {
        return Err(Errno::INVAL);
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (WireConnection, WireConnection) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        (WireConnection::new(a), WireConnection::new(b))
    }

    fn next(from: &mut WireConnection, to: &mut WireConnection) -> Frame {
        loop {
            from.push().unwrap();
            if let ReadResult::Frame(frame) = to.pull().unwrap() {
                return frame;
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn frames_come_as_they_were_sent(
            sent in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..500), 0usize..300_000, 0usize..MOST_HANDLES), 1..6)
        ) {
            let (mut here, mut there) = pair();
            for (json, payload, handles) in &sent {
                let handles = (0..*handles).map(|_| rustix::pipe::pipe().unwrap().0).collect();
                here.put(Frame { json: json.clone(), payload: vec![9; *payload], handles }).unwrap();
            }
            for (json, payload, handles) in &sent {
                let got = next(&mut here, &mut there);
                prop_assert_eq!((&got.json, got.payload.len(), got.handles.len()), (json, *payload, *handles));
            }
            drop(here);
            prop_assert!(matches!(there.pull().unwrap(), ReadResult::Closed));
        }
    }

    #[test]
    fn what_is_too_long_is_neither_sent_nor_taken() {
        let (mut here, mut there) = pair();
        assert!(here.put(Frame { payload: vec![0; MOST + 1], ..Frame::default() }).is_err());
        rustix::io::write(&here.socket, &[0, 0, 0, 0xff, 0, 0, 0, 0]).unwrap();
        assert!(there.pull().is_err());
        let (mut here, mut there) = pair();
        here.put(Frame { payload: vec![0; MOST], ..Frame::default() }).unwrap();
        assert_eq!(next(&mut here, &mut there).payload.len(), MOST);
    }
}
