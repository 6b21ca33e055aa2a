//! Waits for a descriptor without a thread: an object is stepped whenever its descriptor is ready.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use terms::Fault;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// An object whose descriptor is registered with the runtime. Its own calls must not block.
pub struct Ready<T: AsFd>(AsyncFd<Registered<T>>);

struct Registered<T>(T);

impl<T: AsFd> AsRawFd for Registered<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl<T: AsFd> Ready<T> {
    #[expect(
        deprecated,
        reason = "its successor is unsafe: the descriptor must stay the same, and no step replaces its object"
    )]
    pub fn new(object: T, interest: Interest) -> io::Result<Ready<T>> {
        AsyncFd::with_interest(Registered(object), interest).map(Ready)
    }

    pub fn get(&self) -> &T {
        &self.0.get_ref().0
    }

    pub fn into_inner(self) -> T {
        self.0.into_inner().0
    }

    /// Resolves when the descriptor is readable. The next call waits for the next event.
    pub async fn readable(&mut self) -> io::Result<()> {
        self.0.readable_mut().await?.clear_ready();
        Ok(())
    }

    /// Steps the object until a step has a result: at once, and then whenever the descriptor is ready.
    pub async fn until<R>(
        &mut self,
        interest: Interest,
        mut step: impl FnMut(&mut T) -> Result<Option<R>, Fault>,
    ) -> Result<R, Fault> {
        if let Some(found) = step(&mut self.0.get_mut().0)? {
            return Ok(found);
        }
        loop {
            let mut ready = self.0.ready_mut(interest).await.map_err(|e| lost(&e))?;
            match step(&mut ready.get_inner_mut().0)? {
                Some(found) => return Ok(found),
                // The guard clears only events before this step; a later event stays set.
                None => ready.clear_ready(),
            }
        }
    }
}

/// The fault of a keeper connection whose descriptor cannot be polled.
pub fn lost(error: &io::Error) -> Fault {
    Fault::internal(format!("cannot poll a keeper's connection: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[tokio::test]
    async fn a_step_is_tried_whenever_something_came() {
        let (mut far, near) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let mut near = Ready::new(near, Interest::READABLE).unwrap();
        let mut text = Vec::new();
        let mut step = |near: &mut UnixStream| {
            let mut bytes = [0; 1];
            if near.read(&mut bytes).is_ok() {
                text.push(bytes[0]);
            }
            Ok((text.len() == 3).then(|| text.clone()))
        };
        let early = tokio::time::timeout(Duration::from_millis(20), near.until(Interest::READABLE, &mut step)).await;
        assert!(early.is_err(), "nothing came yet");
        let sender = tokio::task::spawn_blocking(move || {
            for byte in b"abc" {
                far.write_all(&[*byte]).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
            far
        });
        assert_eq!(near.until(Interest::READABLE, step).await.unwrap(), b"abc");
        drop(sender.await.unwrap());
    }
}
