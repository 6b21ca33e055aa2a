//! Secrets that are kept for runs. They go in and are used; nothing here gives a value back.

use crate::answer::Answer;
use crate::ask::{Json, Path};
use crate::refuse::Refusal;
use crate::{Scope, Shared, Who};
use axum::extract::State;
use node::secrets::kept::{self, Changed, Names};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(list_secrets)).routes(routes!(set_secret, remove_secret))
}

/// The names of all secrets, with when each was set.
#[utoipa::path(get, path = "/v1/secrets", tag = "secrets", operation_id = "list",
    responses((status = 200, body = Names)))]
async fn list_secrets(State(shared): State<Shared>, who: Who) -> Result<Answer<Names>, Refusal> {
    who.needs_any(&[Scope::Agent, Scope::Reviewer])?;
    shared.answer_whole(&who, kept::list).await
}

/// What is kept. It is read by hand: a fault of the usual reading would repeat what was sent.
#[derive(ToSchema)]
#[schema(as = SecretSet)]
pub struct SetSecret {
    /// Goes into a header: one line, at most 64 KiB.
    #[schema(write_only, max_length = 65536)]
    value: String,
}

impl<'de> Deserialize<'de> for SetSecret {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<SetSecret, D::Error> {
        let read = serde_json::Value::deserialize(from);
        match read.map_err(|_| D::Error::custom("not JSON"))? {
            serde_json::Value::Object(mut fields) if fields.len() == 1 => match fields.remove("value") {
                Some(serde_json::Value::String(value)) => Ok(SetSecret { value }),
                _ => Err(D::Error::custom("`value` must be there, and be a string")),
            },
            _ => Err(D::Error::custom("an object with the field `value`, and no other")),
        }
    }
}

/// Keeps a value for runs whose policy names it, in place of the one before.
#[utoipa::path(put, path = "/v1/secrets/{name}", tag = "secrets", operation_id = "set",
    params(("name" = String, Path, description = "As policies have it: letters, digits and '_'")),
    request_body = SetSecret, responses((status = 200, body = Changed)))]
async fn set_secret(
    State(shared): State<Shared>,
    who: Who,
    Path(name): Path<String>,
    Json(wish): Json<SetSecret>,
) -> Result<Answer<Changed>, Refusal> {
    who.needs(Scope::Operator)?;
    let value = wish.value.into_bytes();
    shared.answer_whole(&who, move |node, caller| kept::set(node, caller, &name, value)).await
}

/// Forgets a secret. Runs that have it already go on.
#[utoipa::path(delete, path = "/v1/secrets/{name}", tag = "secrets", operation_id = "delete", params(("name" = String, Path)),
    responses((status = 200, body = Changed)))]
async fn remove_secret(
    State(shared): State<Shared>,
    who: Who,
    Path(name): Path<String>,
) -> Result<Answer<Changed>, Refusal> {
    who.needs(Scope::Operator)?;
    shared.answer_whole(&who, move |node, caller| kept::remove(node, caller, &name)).await
}
