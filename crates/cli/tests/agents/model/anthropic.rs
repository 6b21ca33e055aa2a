//! Anthropic Messages: `POST /v1/messages`, streamed or whole.

use super::http::{Answer, Request};
use super::{Said, Turn, list, only, pieces, text};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const KEYS: [&str; 20] = [
    "model",
    "messages",
    "max_tokens",
    "system",
    "tools",
    "tool_choice",
    "stream",
    "metadata",
    "thinking",
    "temperature",
    "stop_sequences",
    "context_management",
    "output_config",
    "cache_control",
    "betas",
    "service_tier",
    "top_p",
    "top_k",
    "container",
    "diagnostics",
];

pub fn answer(request: &Request, play: impl Fn(&Turn) -> Result<Said, String>) -> Result<Option<Answer>, String> {
    let path = request.path.split('?').next().unwrap_or_default();
    match (request.method.as_str(), path) {
        ("POST", "/v1/messages") => {}
        ("POST", "/v1/messages/count_tokens") => return Ok(Some(Answer::json(200, &json!({"input_tokens": 100})))),
        ("HEAD" | "GET", _) => return Ok(None),
        _ => return Err("there is no such route".into()),
    }
    if request.header("anthropic-version") != "2023-06-01" {
        return Err(format!("anthropic-version is {:?}", request.header("anthropic-version")));
    }
    let body = request.json()?;
    only(&body, "the body", &KEYS)?;
    let model = text(&body, "model")?;
    body["max_tokens"].as_u64().ok_or("max_tokens is not a number")?;
    let turn = turn(&body)?;
    let said = play(&turn)?;
    Ok(Some(if turn.streams { stream(model, &said) } else { whole(model, &said) }))
}

fn turn(body: &Value) -> Result<Turn, String> {
    let mut tools = BTreeMap::new();
    for tool in body["tools"].as_array().into_iter().flatten() {
        // Tools that the server itself carries out have a type and no schema.
        if tool.get("input_schema").is_some() {
            tools.insert(text(tool, "name")?.to_owned(), tool["input_schema"].clone());
        }
    }
    let mut results = Vec::new();
    let mut called: Vec<String> = Vec::new();
    for message in list(body, "messages")? {
        only(message, "a message", &["role", "content", "output_config"])?;
        let role = text(message, "role")?;
        if message["content"].is_string() {
            continue;
        }
        for block in list(message, "content")? {
            match (role, text(block, "type")?) {
                ("user" | "assistant" | "system", "text") | ("assistant", "thinking") => {}
                ("assistant", "tool_use") => called.push(text(block, "id")?.to_owned()),
                ("user", "tool_result") => {
                    let id = text(block, "tool_use_id")?;
                    if !called.iter().any(|known| known == id) {
                        return Err(format!("a result for {id:?}, which was not called"));
                    }
                    if block["is_error"] == true {
                        return Err(format!("a tool failed: {}", block["content"]));
                    }
                    results.push(block["content"].to_string());
                }
                (role, kind) => return Err(format!("a block {kind:?} of {role:?}")),
            }
        }
    }
    Ok(Turn { tools, results, streams: body["stream"] == true })
}

fn block(said: &Said) -> (Value, &'static str) {
    match said {
        Said::Text(text) => (json!({"type": "text", "text": text}), "end_turn"),
        Said::Call { number, tool, input } => {
            (json!({"type": "tool_use", "id": format!("toolu_{number:02}"), "name": tool, "input": input}), "tool_use")
        }
    }
}

fn message(model: &str) -> Value {
    json!({"id": "msg_01", "type": "message", "role": "assistant", "model": model, "content": [], "stop_reason": null,
        "stop_sequence": null, "usage": {"input_tokens": 100, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0, "output_tokens": 1}})
}

fn whole(model: &str, said: &Said) -> Answer {
    let (block, reason) = block(said);
    let mut message = message(model);
    (message["content"], message["stop_reason"]) = (json!([block]), json!(reason));
    Answer::json(200, &message)
}

fn stream(model: &str, said: &Said) -> Answer {
    let (block, reason) = block(said);
    let (empty, deltas): (Value, Vec<Value>) = match said {
        Said::Text(text) => {
            let delta = |piece| json!({"type": "text_delta", "text": piece});
            (json!({"type": "text", "text": ""}), pieces(text).into_iter().map(delta).collect())
        }
        Said::Call { input, .. } => {
            let mut empty = block.clone();
            empty["input"] = json!({});
            let delta = |piece| json!({"type": "input_json_delta", "partial_json": piece});
            (empty, pieces(&input.to_string()).into_iter().map(delta).collect())
        }
    };
    let mut events = vec![
        json!({"type": "message_start", "message": message(model)}),
        json!({"type": "content_block_start", "index": 0, "content_block": empty}),
        json!({"type": "ping"}),
    ];
    let delta = |delta| json!({"type": "content_block_delta", "index": 0, "delta": delta});
    events.extend(deltas.into_iter().map(delta));
    events.push(json!({"type": "content_block_stop", "index": 0}));
    let end = json!({"stop_reason": reason, "stop_sequence": null});
    events.push(json!({"type": "message_delta", "delta": end, "usage": {"output_tokens": 20}}));
    events.push(json!({"type": "message_stop"}));
    let named = |event: Value| (event["type"].as_str().unwrap_or_default().to_owned(), event.to_string());
    Answer::Stream(events.into_iter().map(named).collect())
}
