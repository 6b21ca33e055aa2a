//! Streaming decoder for chunked bodies. Each byte is read once and no part of the body is buffered, so a chunk may
//! have any size; extensions and trailers are bounded.

use crate::http1::{HeaderFields, field, lines};
use std::ops::Range;

/// Limits on chunk extensions, for one chunk and for all of a body. No receiver uses them.
const MAX_EXTENSION: usize = 256;
const MAX_EXTENSIONS: usize = 16 * 1024;
const MAX_TRAILERS: usize = 8 * 1024;
const MAX_TRAILER_FIELDS: usize = 64;
/// Limit on digits of a chunk size: fifteen hexadecimal digits fit into any 64-bit integer, signed or not.
const MAX_DIGITS: u8 = 15;

/// Last chunk of a body without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Returns the size line of a chunk; `\r\n` follows the data. A length of zero would end the body.
pub fn chunk_head(len: usize) -> Vec<u8> {
    format!("{len:x}\r\n").into_bytes()
}

/// Result of one decoder step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeStep {
    /// Every byte was consumed.
    NeedMore,
    /// Range of body bytes; continue after it.
    Data(Range<usize>),
    /// End of the body, with the number of bytes consumed.
    End(usize),
    Bad(&'static str),
}

/// Decoder for one body. After `End` or `Bad` it returns the same result again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunked {
    state: ChunkState,
    extensions: usize,
    raw_trailers: Vec<u8>,
    trailers: HeaderFields,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    Size { digits: u8, size: u64 },
    Extension { len: usize, size: u64 },
    SizeEnd { size: u64 },
    Data { left: u64 },
    DataReturn,
    DataEnd,
    Trailers,
    Ended,
    Failed(&'static str),
}

impl Default for ChunkState {
    fn default() -> ChunkState {
        ChunkState::START
    }
}

impl ChunkState {
    const START: ChunkState = ChunkState::Size { digits: 0, size: 0 };
}

impl Chunked {
    pub fn new() -> Chunked {
        Chunked::default()
    }

    /// Decodes up to the next piece of the body.
    pub fn next(&mut self, bytes: &[u8]) -> DecodeStep {
        let mut used = 0;
        loop {
            match self.state {
                ChunkState::Failed(reason) => return DecodeStep::Bad(reason),
                ChunkState::Ended => return DecodeStep::End(used),
                ChunkState::Data { left } if used < bytes.len() => {
                    let len = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len() - used);
                    let left = left - len as u64;
                    self.state = if left == 0 { ChunkState::DataReturn } else { ChunkState::Data { left } };
                    return DecodeStep::Data(used..used + len);
                }
                _ => {}
            }
            let Some(byte) = bytes.get(used) else {
                return DecodeStep::NeedMore;
            };
            self.state = self.after(*byte).unwrap_or_else(ChunkState::Failed);
            used += 1;
        }
    }

    /// Returns the trailer fields, once the body has ended.
    pub fn trailers(&self) -> &HeaderFields {
        &self.trailers
    }

    fn after(&mut self, byte: u8) -> Result<ChunkState, &'static str> {
        match (self.state, byte) {
            (ChunkState::Size { digits: 0, .. }, b'\r' | b';') => Err("the size of a chunk is missing"),
            (ChunkState::Size { size, .. }, b'\r') => Ok(ChunkState::SizeEnd { size }),
            (ChunkState::Size { size, .. }, b';') => Ok(ChunkState::Extension { len: 0, size }),
            (ChunkState::Size { digits: MAX_DIGITS, .. }, _) => Err("the size of a chunk has too many digits"),
            (ChunkState::Size { digits, size }, byte) => match (byte as char).to_digit(16) {
                Some(digit) => Ok(ChunkState::Size { digits: digits + 1, size: size << 4 | u64::from(digit) }),
                None => Err("the size of a chunk is malformed"),
            },
            (ChunkState::Extension { size, .. }, b'\r') => Ok(ChunkState::SizeEnd { size }),
            (ChunkState::Extension { len, size }, byte) => self.extension(byte, len + 1, size),
            (ChunkState::SizeEnd { size: 0 }, b'\n') => Ok(ChunkState::Trailers),
            (ChunkState::SizeEnd { size }, b'\n') => Ok(ChunkState::Data { left: size }),
            (ChunkState::DataEnd, b'\n') => Ok(ChunkState::START),
            (ChunkState::SizeEnd { .. } | ChunkState::DataEnd, _) => Err("a carriage return stands alone"),
            (ChunkState::DataReturn, b'\r') => Ok(ChunkState::DataEnd),
            (ChunkState::DataReturn, _) => Err("a chunk is longer than its size"),
            (ChunkState::Trailers, byte) => self.trailer(byte),
            // These states take no single bytes.
            (state @ (ChunkState::Data { .. } | ChunkState::Ended | ChunkState::Failed(_)), _) => Ok(state),
        }
    }

    fn extension(&mut self, byte: u8, len: usize, size: u64) -> Result<ChunkState, &'static str> {
        self.extensions += 1;
        if byte != b'\t' && !(b' '..=b'~').contains(&byte) {
            return Err("the extension of a chunk holds a character that is not ASCII");
        }
        if len > MAX_EXTENSION || self.extensions > MAX_EXTENSIONS {
            return Err("the extensions of chunks are too long");
        }
        Ok(ChunkState::Extension { len, size })
    }

    fn trailer(&mut self, byte: u8) -> Result<ChunkState, &'static str> {
        let after_return = self.raw_trailers.last() == Some(&b'\r');
        match byte {
            b'\n' if !after_return => return Err("a line feed stands alone"),
            b'\n' => {}
            _ if after_return => return Err("a carriage return stands alone"),
            b'\r' | b'\t' | b' '..=b'~' | 0x80.. => {}
            _ => return Err("a trailer contains a control character"),
        }
        if self.raw_trailers.len() == MAX_TRAILERS {
            return Err("the trailers are longer than 8 KiB");
        }
        self.raw_trailers.push(byte);
        match self.raw_trailers == b"\r\n" || self.raw_trailers.ends_with(b"\r\n\r\n") {
            true => self.end(),
            false => Ok(ChunkState::Trailers),
        }
    }

    /// Parses the trailers like header fields. Fields that only a head may carry are refused.
    fn end(&mut self) -> Result<ChunkState, &'static str> {
        const OF_HEADS: [&str; 4] = ["content-length", "transfer-encoding", "host", "trailer"];
        for line in lines(&std::mem::take(&mut self.raw_trailers)) {
            let field = field(line)?;
            if OF_HEADS.iter().any(|name| field.name.eq_ignore_ascii_case(name)) {
                return Err("a trailer belongs in the head");
            }
            if self.trailers.0.len() == MAX_TRAILER_FIELDS {
                return Err("there are too many trailers");
            }
            self.trailers.0.push(field);
        }
        Ok(ChunkState::Ended)
    }
}
