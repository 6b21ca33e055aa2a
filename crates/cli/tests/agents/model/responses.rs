//! OpenAI Responses: `POST /v1/responses`, streamed.

use super::http::{Answer, Request};
use super::{Said, Turn, list, only, pieces, text};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const KEYS: [&str; 19] = [
    "model",
    "instructions",
    "input",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning",
    "store",
    "stream",
    "include",
    "prompt_cache_key",
    "text",
    "service_tier",
    "max_output_tokens",
    "metadata",
    "truncation",
    "client_metadata",
    "stream_options",
    "safety_identifier",
];

pub fn answer(request: &Request, play: impl Fn(&Turn) -> Result<Said, String>) -> Result<Option<Answer>, String> {
    let path = request.path.split('?').next().unwrap_or_default();
    match (request.method.as_str(), path) {
        ("POST", "/v1/responses") => {}
        // The list of models, and a WebSocket, which agents try before they fall back to a stream.
        ("GET", "/v1/models" | "/v1/responses") => return Ok(None),
        _ => return Err("there is no such route".into()),
    }
    let body = request.json()?;
    only(&body, "the body", &KEYS)?;
    if body["stream"] != true {
        return Err("only streams are answered".into());
    }
    let turn = turn(&body)?;
    Ok(Some(stream(text(&body, "model")?, &play(&turn)?)))
}

fn turn(body: &Value) -> Result<Turn, String> {
    let mut tools = BTreeMap::new();
    for tool in body["tools"].as_array().into_iter().flatten() {
        if tool["type"] == "function" {
            tools.insert(text(tool, "name")?.to_owned(), tool["parameters"].clone());
        }
    }
    let (mut results, mut called) = (Vec::new(), Vec::new());
    for item in list(body, "input")? {
        match item["type"].as_str() {
            None | Some("message" | "reasoning") => {}
            Some("function_call") => called.push(text(item, "call_id")?.to_owned()),
            Some("function_call_output") => {
                let id = text(item, "call_id")?;
                if !called.iter().any(|known| known == id) {
                    return Err(format!("a result for {id:?}, which was not called"));
                }
                results.push(item["output"].to_string());
            }
            Some(kind) => return Err(format!("an item {kind:?}")),
        }
    }
    Ok(Turn { tools, results, streams: true })
}

fn stream(model: &str, said: &Said) -> Answer {
    let response = |status: &str, output: Value| {
        json!({"id": "resp_01", "object": "response", "created_at": 1, "status": status, "model": model, "output": output,
            "parallel_tool_calls": false, "tool_choice": "auto", "tools": [], "error": null, "incomplete_details": null,
            "usage": {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 20,
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 120}})
    };
    let mut events = vec![json!({"type": "response.created", "response": response("in_progress", json!([]))})];
    let item = match said {
        Said::Text(text) => {
            let part = |text: &str| json!({"type": "output_text", "text": text, "annotations": []});
            let item = |status: &str, content: Value| json!({"type": "message", "id": "msg_01", "role": "assistant", "status": status, "content": content});
            let place = |mut event: Value| {
                (event["item_id"], event["output_index"], event["content_index"]) =
                    (json!("msg_01"), json!(0), json!(0));
                event
            };
            events.push(added(&item("in_progress", json!([]))));
            events.push(place(json!({"type": "response.content_part.added", "part": part("")})));
            for piece in pieces(text) {
                events.push(place(json!({"type": "response.output_text.delta", "delta": piece})));
            }
            events.push(place(json!({"type": "response.output_text.done", "text": text})));
            events.push(place(json!({"type": "response.content_part.done", "part": part(text)})));
            item("completed", json!([part(text)]))
        }
        Said::Call { number, tool, input } => {
            let (id, arguments) = (format!("fc_{number:02}"), input.to_string());
            let item = |status: &str, arguments: &str| {
                json!({"type": "function_call", "id": id, "call_id": format!("call_{number:02}"), "name": tool,
                    "arguments": arguments, "status": status})
            };
            events.push(added(&item("in_progress", "")));
            for piece in pieces(&arguments) {
                let delta = json!({"type": "response.function_call_arguments.delta", "item_id": id, "output_index": 0, "delta": piece});
                events.push(delta);
            }
            let done = json!({"type": "response.function_call_arguments.done", "item_id": id, "output_index": 0, "arguments": arguments});
            events.push(done);
            item("completed", &arguments)
        }
    };
    events.push(json!({"type": "response.output_item.done", "output_index": 0, "item": item}));
    events.push(json!({"type": "response.completed", "response": response("completed", json!([item]))}));
    let numbered = |(number, mut event): (usize, Value)| {
        event["sequence_number"] = json!(number);
        (event["type"].as_str().unwrap_or_default().to_owned(), event.to_string())
    };
    Answer::Stream(events.into_iter().enumerate().map(numbered).collect())
}

fn added(item: &Value) -> Value {
    json!({"type": "response.output_item.added", "output_index": 0, "item": item})
}
