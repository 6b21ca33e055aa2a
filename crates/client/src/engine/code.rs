//! Code in contexts, here or at a daemon.

use super::Engine;
use super::remote::Remote;
use crate::transport::{Request, StreamControl};
use api::{
    Capability, CodeCheck, CodeChecked, CodeEvent, CodeRequest, ContextCreate, ContextInterrupt, ContextInterrupted,
    ContextList, ContextRemoved, ContextStatus, PathText,
};
use node::code::{self, CodeCall};
use std::os::unix::ffi::OsStrExt;
use terms::{ErrorKind, Fault, Phase};

impl Engine {
    /// Runs code in a context and reports its events, the last of which is `End`. Without a word, the sandbox is the one that covers the
    /// current directory.
    pub fn code(
        &self,
        word: Option<&str>,
        request: &CodeRequest,
        each: &mut dyn FnMut(CodeEvent),
    ) -> Result<(), Fault> {
        let (node, caller) = match self {
            Engine::Local(node, caller) => (node, caller),
            Engine::Remote(remote) => return remote.code(word, request, each),
        };
        let mut call = CodeCall::begin(node, caller, word.unwrap_or_default(), request)?;
        loop {
            let events = call.step();
            let is_idle = events.is_empty();
            events.into_iter().for_each(&mut *each);
            if call.is_over() {
                call.rest(node);
                return Ok(());
            }
            if is_idle {
                call.wait(None);
            }
        }
    }

    /// Says whether code is a whole input.
    pub fn check_code(&self, word: Option<&str>, name: &str, request: &CodeCheck) -> Result<CodeChecked, Fault> {
        match self {
            Engine::Local(node, caller) => code::check(node, caller, word.unwrap_or_default(), name, request),
            Engine::Remote(remote) => remote.post(&remote.context(word, name, Some("check"))?.parts(), request),
        }
    }

    pub fn contexts(&self, word: Option<&str>) -> Result<Vec<ContextStatus>, Fault> {
        match self {
            Engine::Local(node, caller) => code::contexts(node, caller, word.unwrap_or_default()),
            Engine::Remote(remote) => {
                remote.require(Capability::Code, "code")?;
                let list: ContextList = remote.get(&["v1", "sandboxes", &remote.word(word)?, "contexts"])?;
                Ok(list.contexts)
            }
        }
    }

    pub fn context_create(&self, word: Option<&str>, request: &ContextCreate) -> Result<ContextStatus, Fault> {
        match self {
            Engine::Local(node, caller) => code::create_context(node, caller, word.unwrap_or_default(), request),
            Engine::Remote(remote) => {
                remote.require(Capability::Code, "code")?;
                let cwd = request.cwd.clone().or_else(|| Some(remote.here()));
                let request = ContextCreate { cwd, ..request.clone() };
                remote.post(&["v1", "sandboxes", &remote.word(word)?, "contexts"], &request)
            }
        }
    }

    /// Interrupts the call that is under way in a context.
    pub fn context_interrupt(
        &self,
        word: Option<&str>,
        name: &str,
        request: &ContextInterrupt,
    ) -> Result<ContextInterrupted, Fault> {
        match self {
            Engine::Local(node, caller) => code::interrupt(node, caller, word.unwrap_or_default(), name, request),
            Engine::Remote(remote) => remote.post(&remote.context(word, name, Some("interrupt"))?.parts(), request),
        }
    }

    /// Ends the interpreter of a context; the next call starts it anew.
    pub fn context_restart(&self, word: Option<&str>, name: &str) -> Result<ContextStatus, Fault> {
        match self {
            Engine::Local(node, caller) => code::restart(node, caller, word.unwrap_or_default(), name),
            Engine::Remote(remote) => {
                let path = remote.context(word, name, Some("restart"))?;
                remote.client.document(Request::post(&path.parts()))
            }
        }
    }

    pub fn context_remove(&self, word: Option<&str>, name: &str) -> Result<ContextRemoved, Fault> {
        match self {
            Engine::Local(node, caller) => code::remove_context(node, caller, word.unwrap_or_default(), name),
            Engine::Remote(remote) => {
                let path = remote.context(word, name, None)?;
                remote.client.document(Request::delete(&path.parts()))
            }
        }
    }
}

/// The path of a context, or of a verb on it.
struct ContextPath(Vec<String>);

impl ContextPath {
    fn parts(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }
}

impl Remote {
    fn context(&self, word: Option<&str>, name: &str, verb: Option<&str>) -> Result<ContextPath, Fault> {
        self.require(Capability::Code, "code")?;
        let word = self.word(word)?;
        let parts = ["v1", "sandboxes", &word, "contexts", name].into_iter().chain(verb);
        Ok(ContextPath(parts.map(str::to_owned).collect()))
    }

    /// Returns the caller's directory, in which a context that is made begins if the sandbox has it.
    fn here(&self) -> PathText {
        PathText::of(self.caller.cwd.as_os_str().as_bytes())
    }

    fn code(&self, word: Option<&str>, request: &CodeRequest, each: &mut dyn FnMut(CodeEvent)) -> Result<(), Fault> {
        self.require(Capability::Code, "code")?;
        let request = CodeRequest { cwd: request.cwd.clone().or_else(|| Some(self.here())), ..request.clone() };
        let post = Request::post(&["v1", "sandboxes", &self.word(word)?, "code"]).document(&request)?;
        let post = post.header("accept", "text/event-stream")?;
        let (mut ended, mut lost) = (false, None);
        self.client.events(post, &mut |event| {
            if event.name == "lost" {
                lost = serde_json::from_str::<Fault>(&event.data).ok();
            }
            let read = CodeEvent::read(&event.name, &event.data).map_err(|e| unreadable(&event.name, &e))?;
            let Some(read) = read else { return Ok(StreamControl::Continue) };
            ended = matches!(read, CodeEvent::End(_));
            each(read);
            Ok(if ended { StreamControl::Stop } else { StreamControl::Continue })
        })?;
        match (ended, lost) {
            (true, _) => Ok(()),
            (false, Some(fault)) => Err(fault),
            (false, None) => Err(cut_off()),
        }
    }
}

fn unreadable(name: &str, error: &serde_json::Error) -> Fault {
    let fault = Fault::new(ErrorKind::ProviderFailed, format!("the event {name:?} of a call cannot be read: {error}"));
    fault.phase(Phase::Delivery).hint("check that --server names a daemon of the same version")
}

fn cut_off() -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, "the daemon ended the stream before the end of the call");
    fault.phase(Phase::Delivery).hint("`cofferdam context ls` shows whether the call goes on")
}
