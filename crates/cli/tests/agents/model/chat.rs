//! OpenAI Chat Completions: `POST /v1/chat/completions`, streamed or whole.

use super::http::{Answer, Request};
use super::{Said, Turn, list, only, pieces, text};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const KEYS: [&str; 18] = [
    "frequency_penalty",
    "presence_penalty",
    "model",
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "response_format",
    "reasoning_effort",
    "user",
    "store",
];

pub fn answer(request: &Request, play: impl Fn(&Turn) -> Result<Said, String>) -> Result<Option<Answer>, String> {
    match (request.method.as_str(), request.path.as_str()) {
        ("POST", "/v1/chat/completions") => {}
        _ => return Err("there is no such route".into()),
    }
    let body = request.json()?;
    only(&body, "the body", &KEYS)?;
    let model = text(&body, "model")?;
    let turn = turn(&body)?;
    let said = play(&turn)?;
    Ok(Some(if turn.streams { stream(model, &said) } else { whole(model, &said) }))
}

fn turn(body: &Value) -> Result<Turn, String> {
    let mut tools = BTreeMap::new();
    for tool in body["tools"].as_array().into_iter().flatten() {
        if tool["type"] != "function" {
            return Err(format!("a tool of type {}", tool["type"]));
        }
        tools.insert(text(&tool["function"], "name")?.to_owned(), tool["function"]["parameters"].clone());
    }
    let (mut results, mut called) = (Vec::new(), Vec::new());
    for message in list(body, "messages")? {
        match text(message, "role")? {
            "system" | "developer" | "user" => {}
            "assistant" => {
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    let arguments = text(&call["function"], "arguments")?;
                    serde_json::from_str::<Value>(arguments).map_err(|e| format!("arguments {arguments:?}: {e}"))?;
                    called.push(text(call, "id")?.to_owned());
                }
            }
            "tool" => {
                let id = text(message, "tool_call_id")?;
                if !called.iter().any(|known| known == id) {
                    return Err(format!("a result for {id:?}, which was not called"));
                }
                results.push(message["content"].to_string());
            }
            role => return Err(format!("a message of {role:?}")),
        }
    }
    Ok(Turn { tools, results, streams: body["stream"] == true })
}

fn message(said: &Said) -> (Value, &'static str) {
    match said {
        Said::Text(text) => (json!({"role": "assistant", "content": text}), "stop"),
        Said::Call { number, tool, input } => {
            let function = json!({"name": tool, "arguments": input.to_string()});
            let call = json!({"id": format!("call_{number:02}"), "type": "function", "function": function});
            (json!({"role": "assistant", "content": null, "tool_calls": [call]}), "tool_calls")
        }
    }
}

fn usage() -> Value {
    json!({"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120})
}

fn whole(model: &str, said: &Said) -> Answer {
    let (message, reason) = message(said);
    let choice = json!({"index": 0, "message": message, "finish_reason": reason, "logprobs": null});
    let body = json!({"id": "chatcmpl-01", "object": "chat.completion", "created": 1, "model": model,
        "choices": [choice], "usage": usage()});
    Answer::json(200, &body)
}

fn stream(model: &str, said: &Said) -> Answer {
    let chunk = |choices: Value, usage: Value| {
        json!({"id": "chatcmpl-01", "object": "chat.completion.chunk", "created": 1, "model": model,
            "choices": choices, "usage": usage})
    };
    let delta = |delta: Value, reason: Value| {
        chunk(json!([{"index": 0, "delta": delta, "finish_reason": reason}]), Value::Null)
    };
    let (whole, reason) = message(said);
    let mut chunks = vec![delta(json!({"role": "assistant", "content": ""}), Value::Null)];
    match said {
        Said::Text(text) => {
            chunks.extend(pieces(text).into_iter().map(|piece| delta(json!({"content": piece}), Value::Null)));
        }
        Said::Call { input, .. } => {
            let mut call = whole["tool_calls"][0].clone();
            (call["index"], call["function"]["arguments"]) = (json!(0), json!(""));
            chunks.push(delta(json!({"tool_calls": [call]}), Value::Null));
            for piece in pieces(&input.to_string()) {
                let call = json!({"index": 0, "function": {"arguments": piece}});
                chunks.push(delta(json!({"tool_calls": [call]}), Value::Null));
            }
        }
    }
    chunks.push(delta(json!({}), json!(reason)));
    chunks.push(chunk(json!([]), usage()));
    let data = chunks.iter().map(Value::to_string).chain(["[DONE]".to_owned()]);
    Answer::Stream(data.map(|data| (String::new(), data)).collect())
}
