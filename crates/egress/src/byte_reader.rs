//! Cursor that reads big-endian integers and byte strings from a slice. Reading past the end returns `None`, never
//! panics.

#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteReader<'a> {
    whole: &'a [u8],
    at: usize,
}

impl<'a> ByteReader<'a> {
    pub fn new(whole: &'a [u8]) -> ByteReader<'a> {
        ByteReader { whole, at: 0 }
    }

    /// Starts reading at an offset.
    pub fn from(whole: &'a [u8], at: usize) -> ByteReader<'a> {
        ByteReader { whole, at: at.min(whole.len()) }
    }

    pub fn whole(&self) -> &'a [u8] {
        self.whole
    }

    pub fn at(&self) -> usize {
        self.at
    }

    pub fn is_empty(&self) -> bool {
        self.at == self.whole.len()
    }

    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.whole.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// Reads a byte string with a one-byte length prefix.
    pub fn u8_prefixed(&mut self) -> Option<&'a [u8]> {
        let len = self.u8()?;
        self.take(len.into())
    }

    /// Reads a byte string with a two-byte length prefix.
    pub fn u16_prefixed(&mut self) -> Option<&'a [u8]> {
        let len = self.u16()?;
        self.take(len.into())
    }
}
