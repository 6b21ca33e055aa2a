//! Gemini: `POST /v1beta/models/MODEL:generateContent` and `:streamGenerateContent?alt=sse`.

use super::http::{Answer, Request};
use super::{Said, Turn, list, only, pieces, text};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const KEYS: [&str; 8] = [
    "contents",
    "systemInstruction",
    "tools",
    "toolConfig",
    "generationConfig",
    "safetySettings",
    "cachedContent",
    "labels",
];

pub fn answer(request: &Request, play: impl Fn(&Turn) -> Result<Said, String>) -> Result<Option<Answer>, String> {
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let method = path.strip_prefix("/v1beta/models/").and_then(|rest| rest.split_once(':'));
    let Some((model, method)) = method.filter(|_| request.method == "POST") else {
        return Err("there is no such route".into());
    };
    let streams = match (method, query) {
        ("generateContent", "") => false,
        ("streamGenerateContent", "alt=sse") => true,
        ("countTokens", "") => return Ok(Some(Answer::json(200, &json!({"totalTokens": 100})))),
        _ => return Err("there is no such method".into()),
    };
    let body = request.json()?;
    only(&body, "the body", &KEYS)?;
    let turn = turn(&body, streams)?;
    let said = match body["generationConfig"]["responseMimeType"].as_str() {
        // An agent's own question, which wants a document.
        Some("application/json") => {
            return Ok(Some(Answer::json(
                400,
                &json!({"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "no document is made up"}}),
            )));
        }
        _ => play(&turn)?,
    };
    Ok(Some(told(model, &said, streams)))
}

fn turn(body: &Value, streams: bool) -> Result<Turn, String> {
    let mut tools = BTreeMap::new();
    for tool in body["tools"].as_array().into_iter().flatten() {
        for function in tool["functionDeclarations"].as_array().into_iter().flatten() {
            let schema = match function.get("parametersJsonSchema") {
                Some(schema) => schema,
                None => &function["parameters"],
            };
            tools.insert(text(function, "name")?.to_owned(), schema.clone());
        }
    }
    let (mut results, mut calls) = (Vec::new(), 0);
    for content in list(body, "contents")? {
        only(content, "a content", &["role", "parts"])?;
        let role = text(content, "role")?;
        for part in list(content, "parts")? {
            if part.get("functionCall").is_some() && role == "model" {
                calls += 1;
            } else if let Some(result) = part.get("functionResponse").filter(|_| role == "user") {
                if results.len() >= calls {
                    return Err("a result without a call".into());
                }
                if let Some(error) = result["response"].get("error") {
                    return Err(format!("a tool failed: {error}"));
                }
                results.push(result["response"].to_string());
            } else if part.get("text").is_none() {
                return Err(format!("a part of {role:?}: {part}"));
            }
        }
    }
    Ok(Turn { tools, results, streams })
}

fn told(model: &str, said: &Said, streams: bool) -> Answer {
    let response = |part: Value, last: bool| {
        let mut candidate = json!({"index": 0, "content": {"role": "model", "parts": [part]}});
        if last {
            candidate["finishReason"] = json!("STOP");
        }
        json!({"candidates": [candidate], "modelVersion": model, "responseId": "r01",
            "usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 20, "totalTokenCount": 120}})
    };
    let parts: Vec<Value> = match said {
        Said::Text(text) if streams => pieces(text).into_iter().map(|piece| json!({"text": piece})).collect(),
        Said::Text(text) => vec![json!({"text": text})],
        Said::Call { tool, input, .. } => vec![json!({"functionCall": {"name": tool, "args": input}})],
    };
    let last = parts.len() - 1;
    let mut all = parts.into_iter().enumerate().map(|(i, part)| response(part, i == last));
    match (streams, all.next()) {
        (false, Some(whole)) => Answer::json(200, &whole),
        (_, first) => {
            Answer::Stream(first.into_iter().chain(all).map(|data| (String::new(), data.to_string())).collect())
        }
    }
}
