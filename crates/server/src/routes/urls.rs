//! Tickets and signed URLs, for requests of browsers that can send no header. Each stands for the credential that asks for it.

use crate::answer::Answer;
use crate::extract::Json;
use crate::refuse::Refusal;
use crate::{Principal, Shared};
use api::{Document, Scope, TicketCreate, TicketCreated, UrlMethod, UrlSign, UrlSigned};
use axum::extract::State;
use terms::clock::now_ms;
use terms::{Fault, Phase};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// How long a signed URL is good: by default, and the bounds.
const USUAL_MS: u64 = 15 * 60_000;
const BOUNDS_MS: std::ops::RangeInclusive<u64> = 1_000..=7 * 86_400_000;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(create_ticket)).routes(routes!(sign))
}

fn invalid(message: String, hint: &str) -> Refusal {
    Fault::invalid(message).hint(hint).phase(Phase::Admission).into()
}

/// Creates a ticket for one GET request of a path within 30 s, as the parameter `cofferdam_ticket`: for a WebSocket, an event stream or a
/// port of a guest. It permits what the credential of this request permits.
#[utoipa::path(post, path = "/v1/tickets", tag = "urls", operation_id = "create_ticket", request_body = TicketCreate,
    responses((status = 201, body = Document<TicketCreated>)))]
async fn create_ticket(
    State(shared): State<Shared>,
    principal: Principal,
    Json(request): Json<TicketCreate>,
) -> Result<Answer<TicketCreated>, Refusal> {
    principal.require_any_scope(&[Scope::Agent, Scope::Reviewer])?;
    let path = request.path;
    if !path.starts_with("/v1/") || path.contains(['?', '#', ' ']) {
        return Err(invalid(
            format!("path: {path:?}"),
            "give a path of the API without its query, e.g. /v1/runs/RUN/attach",
        ));
    }
    let (ticket, expires_ms) = shared.url_grants().ticket(&principal.token, &path)?;
    Ok(Answer::made(TicketCreated { ticket, path, expires_ms }, false))
}

/// Signs a URL for an upload or a download, which then needs no credential. It permits what the credential of this request permits, as long
/// as that is valid.
#[utoipa::path(post, path = "/v1/urls", tag = "urls", operation_id = "sign", request_body = UrlSign,
    responses((status = 201, body = Document<UrlSigned>)))]
async fn sign(
    State(shared): State<Shared>,
    principal: Principal,
    Json(request): Json<UrlSign>,
) -> Result<Answer<UrlSigned>, Refusal> {
    principal.require_any_scope(&[Scope::Agent, Scope::Reviewer])?;
    let UrlSign { method, url, ttl_ms } = request;
    let ttl_ms = ttl_ms.unwrap_or(USUAL_MS);
    if !BOUNDS_MS.contains(&ttl_ms) {
        return Err(invalid(format!("ttl_ms: {ttl_ms}"), "from 1000 to 604800000, which is seven days"));
    }
    let is_uri = url.parse::<http::Uri>().is_ok_and(|uri| uri.authority().is_none());
    if !is_uri || !is_of_files(method, &url) || url.contains("cofferdam_") || url.contains('#') {
        let hint = "sign /v1/sandboxes/ID/files/content?path=…, …/files/archive?path=…, or with GET …/export";
        return Err(invalid(format!("url: {url:?} cannot be signed"), hint));
    }
    let expires_ms = now_ms().saturating_add(ttl_ms);
    let url = shared.url_grants().sign(&principal.token, method.name(), &url, expires_ms);
    Ok(Answer::made(UrlSigned { method, url, expires_ms }, false))
}

/// Returns true for the routes of uploads and downloads.
fn is_of_files(method: UrlMethod, url: &str) -> bool {
    let path = url.split('?').next().unwrap_or_default();
    match path.split('/').collect::<Vec<_>>()[..] {
        ["", "v1", "sandboxes", _, "files", "content" | "archive"] => true,
        ["", "v1", "sandboxes", _, "export"] => method == UrlMethod::Get,
        _ => false,
    }
}
