//! Questions that rules put to a person: which wait, and the answer to one. Whoever runs commands cannot answer for himself.

use crate::answer::{Answer, Document};
use crate::ask::{Json, Path, Query, Wait};
use crate::refuse::Refusal;
use crate::{Scope, Shared, Who};
use axum::extract::State;
use client::wire::{QuestionAnswer, QuestionList};
use node::questions::{self, Open};
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
    /// Hold the answer back until there is a question, at most so long; up to `10m`, and more is refused.
    wait: Option<Wait>,
}

/// What waits for an answer in a sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/questions", tag = "questions",
    params(("id" = String, Path), WaitQuery), responses((status = 200, body = Document<QuestionList>)))]
async fn list(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    Query(query): Query<WaitQuery>,
) -> Result<Answer<QuestionList>, Refusal> {
    who.needs(Scope::Reviewer)?;
    let time = query.wait.map_or(Duration::ZERO, |wait| wait.0);
    let some = |questions: &Vec<Open>| !questions.is_empty();
    let questions = shared.wait(&who, time, move |node, caller| questions::open(node, caller, &id), some).await?;
    Ok(Answer::ok(QuestionList { questions }))
}

/// Answer a question: what waits for it goes on, or is refused.
#[utoipa::path(post, path = "/v1/questions/{id}", tag = "questions", request_body = QuestionAnswer,
    params(("id" = String, Path)), responses((status = 200, body = Document<Open>)))]
async fn answer(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    Json(said): Json<QuestionAnswer>,
) -> Result<Answer<Open>, Refusal> {
    who.needs(Scope::Reviewer)?;
    let QuestionAnswer { answer, remember } = said;
    shared.answer(&who, move |node, caller| questions::answer(node, caller, &id, answer, remember)).await
}
