//! Reading numbers and runs of bytes off the front of a slice; past the end there is nothing, never a panic.

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a> {
    whole: &'a [u8],
    at: usize,
}

impl<'a> Bytes<'a> {
    pub fn new(whole: &'a [u8]) -> Bytes<'a> {
        Bytes { whole, at: 0 }
    }

    /// The same slice, read from another place.
    pub fn from(whole: &'a [u8], at: usize) -> Bytes<'a> {
        Bytes { whole, at: at.min(whole.len()) }
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

    /// A run with its length before it in one byte.
    pub fn short_run(&mut self) -> Option<&'a [u8]> {
        let len = self.u8()?;
        self.take(len.into())
    }

    /// A run with its length before it in two bytes.
    pub fn long_run(&mut self) -> Option<&'a [u8]> {
        let len = self.u16()?;
        self.take(len.into())
    }
}
