//! A scripted model behind the wire formats of four vendors, on the host's loopback. It asks for one tool call after another and then ends
//! the conversation. It is strict: a request that it does not know in every part is answered with a status of 400, and fails the test.

mod anthropic;
mod chat;
mod gemini;
mod http;
mod responses;

use http::{Answer, Request};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

/// A wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Anthropic Messages.
    Messages,
    /// OpenAI Responses.
    Responses,
    /// OpenAI Chat Completions.
    Chat,
    /// Gemini `generateContent`.
    Gemini,
}

/// A tool call that the model asks for.
#[derive(Clone, Debug)]
pub struct Step {
    pub tool: &'static str,
    pub input: Value,
}

/// Words with which the model ends the conversation.
pub const LAST_WORDS: &str = "The work is finished.";
/// The same with a file in them, for an agent that takes files from words: what the model says where the script has no calls.
const WORDS_WITH_A_FILE: &str = "The work is finished.\n\nmade.txt\n```\nmade by the model\n```\n";

#[derive(Default)]
struct Log {
    /// Values of the header with the key.
    keys: Vec<String>,
    /// Results of tools as the agent told them, by turn.
    results: BTreeMap<usize, String>,
    complaints: Vec<String>,
    /// Number of calls that were asked for, and whether the last words were said.
    asked: usize,
    finished: bool,
}

/// End of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model says its last words.
    Words,
    /// The last call ends it, and the agent does not come back with a result.
    Call,
}

pub struct Model {
    pub port: u16,
    log: Arc<Mutex<Log>>,
}

impl Model {
    pub fn start(wire: Wire, steps: Vec<Step>) -> Model {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let log = Arc::new(Mutex::new(Log::default()));
        let kept = log.clone();
        let steps = Arc::new(steps);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, steps) = (log.clone(), steps.clone());
                std::thread::spawn(move || http::serve(&stream, |request| answer(wire, &steps, &log, request)));
            }
        });
        Model { port, log: kept }
    }

    /// Fails unless the whole script was played, with this key in every request.
    #[track_caller]
    pub fn assert_played(&self, key: &str, steps: usize, end: End, story: &str) {
        let log = self.log.lock().unwrap();
        let results = if end == End::Words { steps } else { steps - 1 };
        assert!(log.complaints.is_empty(), "the model was asked what it does not know: {:#?}\n{story}", log.complaints);
        assert!(
            log.asked == steps && log.finished == (end == End::Words),
            "the model was not asked to the end; results of tools: {:#?}\n{story}",
            log.results
        );
        assert_eq!(log.results.len(), results, "a result for each call: {:#?}\n{story}", log.results);
        assert!(log.keys.iter().all(|sent| sent == key), "every request has the key: {:?}\n{story}", log.keys);
    }
}

/// A request for a turn, in the terms of every wire format.
struct Turn {
    /// Names of the tools that are offered, with their parameters' schemas.
    tools: BTreeMap<String, Value>,
    /// Results of the tools that were called so far, in order.
    results: Vec<String>,
    streams: bool,
}

/// What the model says in a turn.
enum Said {
    Text(&'static str),
    Call { number: usize, tool: &'static str, input: Value },
}

fn answer(wire: Wire, steps: &[Step], log: &Mutex<Log>, request: &Request) -> Answer {
    let answered = match wire {
        Wire::Messages => anthropic::answer(request, |turn| play(steps, log, turn)),
        Wire::Responses => responses::answer(request, |turn| play(steps, log, turn)),
        Wire::Chat => chat::answer(request, |turn| play(steps, log, turn)),
        Wire::Gemini => gemini::answer(request, |turn| play(steps, log, turn)),
    };
    let bearer = || request.header("authorization").strip_prefix("Bearer ").unwrap_or_default();
    let key = match wire {
        // A login goes in the other header.
        Wire::Messages if request.header("x-api-key").is_empty() => bearer(),
        Wire::Messages => request.header("x-api-key"),
        Wire::Responses | Wire::Chat => bearer(),
        Wire::Gemini => request.header("x-goog-api-key"),
    };
    let mut log = log.lock().unwrap();
    match answered {
        Ok(Some(answer)) => {
            log.keys.push(key.to_owned());
            answer
        }
        // A probe that agents make before the first request.
        Ok(None) => Answer::json(404, &json!({"error": {"message": "not found"}})),
        Err(why) => {
            log.complaints.push(format!("{} {}: {why}\n{}", request.method, request.path, request.shortened()));
            Answer::json(400, &json!({"type": "error", "error": {"type": "invalid_request_error", "message": why}}))
        }
    }
}

/// Decides what the model says. Requests without tools are an agent's own business, such as a title for the conversation.
fn play(steps: &[Step], log: &Mutex<Log>, turn: &Turn) -> Result<Said, String> {
    if turn.tools.is_empty() && steps.is_empty() {
        log.lock().unwrap().finished = true;
        return Ok(Said::Text(WORDS_WITH_A_FILE));
    }
    if turn.tools.is_empty() {
        return Ok(Said::Text("A title"));
    }
    // Tools of a helper of the agent that lacks those of the script.
    if steps.iter().any(|step| !turn.tools.contains_key(step.tool)) && turn.results.is_empty() {
        let known: Vec<&String> = turn.tools.keys().collect();
        return Err(format!("the tools of the script are not offered, but {known:?}"));
    }
    let mut log = log.lock().unwrap();
    for (number, result) in turn.results.iter().enumerate() {
        log.results.insert(number, result.clone());
    }
    let number = turn.results.len();
    let Some(step) = steps.get(number) else {
        log.finished = true;
        return Ok(Said::Text(LAST_WORDS));
    };
    let schema = &turn.tools[step.tool];
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    if let Some(missing) = required.iter().filter_map(Value::as_str).find(|name| step.input.get(name).is_none()) {
        return Err(format!("{} requires {missing:?}: {schema}", step.tool));
    }
    log.asked = log.asked.max(number + 1);
    Ok(Said::Call { number, tool: step.tool, input: step.input.clone() })
}

/// Checks that an object has no keys but these.
fn only(object: &Value, place: &str, known: &[&str]) -> Result<(), String> {
    let map = object.as_object().ok_or_else(|| format!("{place} is not an object: {object}"))?;
    match map.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(format!("{place} has the unknown key {key:?}")),
        None => Ok(()),
    }
}

fn list<'a>(object: &'a Value, key: &str) -> Result<&'a Vec<Value>, String> {
    object[key].as_array().ok_or_else(|| format!("{key} is not a list: {}", object[key]))
}

fn text<'a>(object: &'a Value, key: &str) -> Result<&'a str, String> {
    object[key].as_str().ok_or_else(|| format!("{key} is not a string: {}", object[key]))
}

/// Splits a text in pieces, as a stream brings it.
fn pieces(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(7).map(|piece| piece.iter().collect()).collect()
}
