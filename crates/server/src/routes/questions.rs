//! Questions of policy rules to a person: lists open ones and answers them. A client that runs commands cannot answer its own questions.

use crate::answer::Answer;
use crate::extract::{Json, Path, Query};
use crate::refuse::Refusal;
use crate::{Principal, Shared};
use api::{Document, OpenQuestion, QuestionAnswer, QuestionList, Scope, WaitParam};
use axum::extract::State;
use node::questions;
use serde::Deserialize;
use std::time::Duration;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(answer))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WaitQuery {
    /// Wait until there is a question, at most for this time (up to `10m`).
    wait: Option<WaitParam>,
}

/// Lists the open questions of a sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/questions", tag = "questions",
    params(("id" = String, Path), WaitQuery), responses((status = 200, body = Document<QuestionList>)))]
async fn list(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    Query(query): Query<WaitQuery>,
) -> Result<Answer<QuestionList>, Refusal> {
    principal.require_scope(Scope::Reviewer)?;
    let time = query.wait.map_or(Duration::ZERO, |wait| wait.0);
    let some = |questions: &Vec<OpenQuestion>| !questions.is_empty();
    let questions = shared.wait(&principal, time, move |node, caller| questions::open(node, caller, &id), some).await?;
    Ok(Answer::ok(QuestionList { questions }))
}

/// Answers a question: the waiting operation continues, or is refused.
#[utoipa::path(post, path = "/v1/questions/{id}", tag = "questions", request_body = QuestionAnswer,
    params(("id" = String, Path)), responses((status = 200, body = Document<OpenQuestion>)))]
async fn answer(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    Json(said): Json<QuestionAnswer>,
) -> Result<Answer<OpenQuestion>, Refusal> {
    principal.require_scope(Scope::Reviewer)?;
    let QuestionAnswer { answer, remember } = said;
    shared.answer(&principal, move |node, caller| questions::answer(node, caller, &id, answer, remember)).await
}
