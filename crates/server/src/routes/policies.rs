//! Policies: what is built in, whether a document can be enforced here, and what it decides.

use crate::answer::Answer;
use crate::ask::{Json, Path, broken_body, check_type};
use crate::refuse::Refusal;
use crate::{Scope, Shared, Who};
use axum::extract::{Request, State};
use client::wire::{PolicyChecked, PolicyExplain};
use http::StatusCode;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use node::policies::{self, Explained, Look, Source};
use node::{Caller, Node, Reach};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use terms::{ErrorKind, Fault, LimitKind, PROTOCOL_VERSION, Phase};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const LOOKERS: [Scope; 2] = [Scope::Agent, Scope::Reviewer];

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(list_policies))
        .routes(routes!(show_policy))
        .routes(routes!(check_policy))
        .routes(routes!(explain_policy))
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = PolicyList)]
pub struct Policies {
    pub protocol_version: u32,
    pub policies: Vec<Preset>,
}

/// A policy that is built in.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = PolicyPreset)]
pub struct Preset {
    pub name: String,
    /// What it is for.
    pub about: String,
}

/// The policies that are built in.
#[utoipa::path(get, path = "/v1/policies", tag = "policies", operation_id = "list",
    responses((status = 200, body = Policies)))]
async fn list_policies(who: Who) -> Result<Answer<Policies>, Refusal> {
    who.needs_any(&LOOKERS)?;
    let preset = |(name, about): (&str, &str)| Preset { name: name.to_owned(), about: about.to_owned() };
    let policies = policies::presets().map(preset).collect();
    Ok(Answer::whole(&Policies { protocol_version: PROTOCOL_VERSION, policies }))
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Policy {
    pub protocol_version: u32,
    pub name: String,
    /// As it is written, its `extends` included.
    #[schema(value_type = Object)]
    pub policy: serde_json::Value,
}

/// One of them.
#[utoipa::path(get, path = "/v1/policies/{name}", tag = "policies", operation_id = "get", params(("name" = String, Path)),
    responses((status = 200, body = Policy)))]
async fn show_policy(who: Who, Path(name): Path<String>) -> Result<Answer<Policy>, Refusal> {
    who.needs_any(&LOOKERS)?;
    let unknown = |fault: Fault| Fault { error_kind: ErrorKind::NotFound, ..fault };
    let loaded = policies::load(&Source::Preset(name.clone())).map_err(unknown)?;
    let policy = serde_json::from_str(&loaded.document.to_json()).map_err(|e| Fault::internal(e.to_string()))?;
    Ok(Answer::whole(&Policy { protocol_version: PROTOCOL_VERSION, name, policy }))
}

/// Whether a document is well formed and can be enforced on this host. The body is the document itself, in JSON or TOML; srt
/// settings and codex permissions are taken, too.
#[utoipa::path(post, path = "/v1/policies/check", tag = "policies", operation_id = "check",
    request_body(content((Object = "application/json"), (String = "application/toml"))),
    responses((status = 200, body = PolicyChecked)))]
async fn check_policy(
    State(shared): State<Shared>,
    who: Who,
    request: Request,
) -> Result<Answer<PolicyChecked>, Refusal> {
    who.needs_any(&LOOKERS)?;
    let most = shared.max_body();
    let toml = check_type(request.headers(), &["application/json"]).is_err();
    let body = match Limited::new(request.into_body(), most).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("the body has more than {most} bytes");
            let (status, kind) = (StatusCode::PAYLOAD_TOO_LARGE, LimitKind::BodyBytes);
            return Err(Refusal::limit(status, kind, message, "a policy is smaller"));
        }
        Err(error) => return Err(broken_body(error.as_ref())),
    };
    let text = String::from_utf8(body.to_vec()).map_err(|e| {
        let message = format!("the body: not UTF-8 at byte {}", e.utf8_error().valid_up_to());
        Fault::invalid(message).hint("send the document as JSON or TOML").phase(Phase::Admission)
    })?;
    let verb = move |_: &Node, caller: &Caller| {
        let loaded = policies::parse_text(&text, if toml { "request.toml" } else { "request.json" }).map_err(hinted)?;
        caller.reach.check_document(&Source::Text(String::new()), &loaded.document)?;
        let checked = policies::check(&loaded.document, caller).map_err(hinted)?;
        // What is there on the host and what is not is told to those who may have all of it.
        let of_host = if caller.reach == Reach::All { checked.notes } else { Vec::new() };
        let notes = loaded.notes.into_iter().chain(of_host).collect();
        Ok(PolicyChecked { protocol_version: PROTOCOL_VERSION, success: true, digest: checked.digest, notes })
    };
    shared.answer_whole(&who, verb).await
}

/// Where the message is all that there is to say, it says where to look.
fn hinted(fault: Fault) -> Fault {
    if fault.hint.is_some() { fault } else { fault.hint("docs/reference/policy.md describes every field") }
}

/// What a policy decides, and why. Where links on the host lead is told to nobody but the operator.
#[utoipa::path(post, path = "/v1/policies/explain", tag = "policies", operation_id = "explain", request_body = PolicyExplain,
    responses((status = 200, body = Explained),
        (status = 404, description = "There is no such thing.", body = Fault)))]
async fn explain_policy(
    State(shared): State<Shared>,
    who: Who,
    Json(wish): Json<PolicyExplain>,
) -> Result<Answer<Explained>, Refusal> {
    who.needs_any(&LOOKERS)?;
    let look = if who.is_host_operator() { Look::Host } else { Look::Words };
    let verb = move |node: &Node, caller: &Caller| {
        let what = OsStr::new(&wish.what);
        let dir = wish.dir.as_deref().unwrap_or(policies::NOWHERE);
        if !dir.starts_with('/') {
            let fault = Fault::invalid(format!("dir {dir:?}: not a whole path")).phase(Phase::Admission);
            return Err(fault.hint("give one that begins with a slash, or none"));
        }
        let dir = std::path::Path::new(dir);
        let several: Vec<Source> = wish.policies.iter().cloned().map(Source::from).collect();
        match (&wish.sandbox, &wish.preset, &wish.policy) {
            (None, None, None) if !several.is_empty() => policies::explain_sources(what, &several, dir, look, caller),
            _ if !several.is_empty() => Err(too_many()),
            (Some(sandbox), None, None) if wish.dir.is_none() => {
                policies::explain_sandbox(node, caller, what, sandbox, look)
            }
            (None, preset, None) => {
                let source = Source::Preset(preset.clone().unwrap_or_else(|| "default".to_owned()));
                policies::explain_sources(what, &[source], dir, look, caller)
            }
            (None, None, Some(policy)) => {
                policies::explain_sources(what, &[Source::Text(policy.to_string())], dir, look, caller)
            }
            _ => Err(too_many()),
        }
    };
    shared.answer_whole(&who, verb).await
}

fn too_many() -> Fault {
    let what = "sandbox, preset, policy and policies: more than one is given, or dir with a sandbox";
    Fault::invalid(what).hint("give one of them").phase(Phase::Admission)
}
