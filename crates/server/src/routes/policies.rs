//! Policies: lists the built-in ones, checks whether a document can be enforced on this host, and explains decisions.

use crate::answer::Answer;
use crate::extract::{Json, Path, broken_body, check_type};
use crate::refuse::Refusal;
use crate::{Principal, Shared};
use api::{Policy, PolicyChecked, PolicyExplain, PolicyExplained, PolicyList, PolicyPreset, Scope};
use axum::extract::{Request, State};
use http::StatusCode;
use http_body_util::BodyExt;
use http_body_util::{LengthLimitError, Limited};
use node::policies::{self, PathLookup, RequestedPolicy};
use node::{Caller, Node, Reach};
use std::ffi::OsStr;
use terms::{ErrorKind, Fault, LimitKind, PROTOCOL_VERSION, Phase};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const READ_SCOPES: [Scope; 2] = [Scope::Agent, Scope::Reviewer];

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(list_policies))
        .routes(routes!(show_policy))
        .routes(routes!(check_policy))
        .routes(routes!(explain_policy))
}

/// Lists the built-in policies.
#[utoipa::path(get, path = "/v1/policies", tag = "policies", operation_id = "list",
    responses((status = 200, body = PolicyList)))]
async fn list_policies(principal: Principal) -> Result<Answer<PolicyList>, Refusal> {
    principal.require_any_scope(&READ_SCOPES)?;
    let preset = |(name, about): (&str, &str)| PolicyPreset { name: name.to_owned(), about: about.to_owned() };
    let policies = policies::presets().map(preset).collect();
    Ok(Answer::whole(&PolicyList { protocol_version: PROTOCOL_VERSION, policies }))
}

/// Returns a built-in policy.
#[utoipa::path(get, path = "/v1/policies/{name}", tag = "policies", operation_id = "get", params(("name" = String, Path)),
    responses((status = 200, body = Policy)))]
async fn show_policy(principal: Principal, Path(name): Path<String>) -> Result<Answer<Policy>, Refusal> {
    principal.require_any_scope(&READ_SCOPES)?;
    let unknown = |fault: Fault| Fault { error_kind: ErrorKind::NotFound, ..fault };
    let loaded = policies::load(&RequestedPolicy::Preset(name.clone())).map_err(unknown)?;
    let policy = serde_json::from_str(&loaded.document.to_json()).map_err(|e| Fault::internal(e.to_string()))?;
    Ok(Answer::whole(&Policy { protocol_version: PROTOCOL_VERSION, name, policy }))
}

/// Checks that a policy document is well formed and can be enforced on this host. The body is the document, in JSON or TOML; srt settings
/// and codex permissions are accepted, too.
#[utoipa::path(post, path = "/v1/policies/check", tag = "policies", operation_id = "check",
    request_body(content((Object = "application/json"), (String = "application/toml"))),
    responses((status = 200, body = PolicyChecked)))]
async fn check_policy(
    State(shared): State<Shared>,
    principal: Principal,
    request: Request,
) -> Result<Answer<PolicyChecked>, Refusal> {
    principal.require_any_scope(&READ_SCOPES)?;
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
        caller.reach.check_document(&RequestedPolicy::Text(String::new()), &loaded.document)?;
        let checked = policies::check(&loaded.document, caller).map_err(hinted)?;
        // Notes reveal which paths exist on the host, so that only callers with the whole host get them.
        let of_host = if caller.reach == Reach::All { checked.notes } else { Vec::new() };
        let notes = loaded.notes.into_iter().chain(of_host).collect();
        Ok(PolicyChecked { protocol_version: PROTOCOL_VERSION, success: true, digest: checked.digest, notes })
    };
    shared.answer_whole(&principal, verb).await
}

/// Adds a hint to a fault without one.
fn hinted(fault: Fault) -> Fault {
    if fault.hint.is_some() { fault } else { fault.hint("docs/reference/policy.md describes every field") }
}

/// Explains what a policy decides, and why. Targets of symbolic links on the host are shown to the operator only.
#[utoipa::path(post, path = "/v1/policies/explain", tag = "policies", operation_id = "explain", request_body = PolicyExplain,
    responses((status = 200, body = PolicyExplained),
        (status = 404, description = "Not found.", body = Fault)))]
async fn explain_policy(
    State(shared): State<Shared>,
    principal: Principal,
    Json(request): Json<PolicyExplain>,
) -> Result<Answer<PolicyExplained>, Refusal> {
    principal.require_any_scope(&READ_SCOPES)?;
    let look = if principal.is_host_operator() { PathLookup::Host } else { PathLookup::Words };
    let verb = move |node: &Node, caller: &Caller| {
        let what = OsStr::new(&request.what);
        let dir = request.dir.as_deref().unwrap_or(policies::NOWHERE);
        if !dir.starts_with('/') {
            let fault = Fault::invalid(format!("dir {dir:?}: not an absolute path")).phase(Phase::Admission);
            return Err(fault.hint("give one that begins with a slash, or none"));
        }
        let dir = std::path::Path::new(dir);
        let several: Vec<RequestedPolicy> = request.policies.iter().cloned().map(RequestedPolicy::from).collect();
        match (&request.sandbox, &request.preset, &request.policy) {
            (None, None, None) if !several.is_empty() => policies::explain_sources(what, &several, dir, look, caller),
            _ if !several.is_empty() => Err(too_many()),
            (Some(sandbox), None, None) if request.dir.is_none() => {
                policies::explain_sandbox(node, caller, what, sandbox, look)
            }
            (None, preset, None) => {
                let source = RequestedPolicy::Preset(preset.clone().unwrap_or_else(|| "default".to_owned()));
                policies::explain_sources(what, &[source], dir, look, caller)
            }
            (None, None, Some(policy)) => {
                policies::explain_sources(what, &[RequestedPolicy::Text(policy.to_string())], dir, look, caller)
            }
            _ => Err(too_many()),
        }
    };
    shared.answer_whole(&principal, verb).await
}

fn too_many() -> Fault {
    let what = "sandbox, preset, policy and policies: more than one is given, or dir together with sandbox";
    Fault::invalid(what).hint("give one of them").phase(Phase::Admission)
}
