//! Tokens, secrets, and questions that rules put to a person.

use super::Engine;
use crate::transport::Request;
use api::{
    OpenQuestion, QuestionAnswer, QuestionDecision, QuestionList, Remember, SecretChanged, SecretList, Token,
    TokenCreate, TokenCreated, TokenList, TokenRevoked,
};
use node::questions;
use node::secrets::kept;
use node::tokens;
use serde_json::json;
use terms::{Fault, Phase};

impl Engine {
    pub fn token_create(&self, ask: &TokenCreate) -> Result<TokenCreated, Fault> {
        match self {
            Engine::Local(node, caller) => tokens::create(node, caller, ask),
            Engine::Remote(remote) => remote.post(&["v1", "tokens"], ask),
        }
    }

    pub fn token_list(&self) -> Result<Vec<Token>, Fault> {
        match self {
            Engine::Local(node, caller) => tokens::list(node, caller),
            Engine::Remote(remote) => {
                remote.list(|| Request::get(&["v1", "tokens"]), |part: TokenList| (part.tokens, part.next))
            }
        }
    }

    pub fn token_revoke(&self, id: &str) -> Result<TokenRevoked, Fault> {
        match self {
            Engine::Local(node, caller) => tokens::revoke(node, caller, id),
            Engine::Remote(remote) => remote.client.document(Request::delete(&["v1", "tokens", id])),
        }
    }

    /// Lists questions that wait for an answer, of one sandbox or of all.
    pub fn questions(&self, word: Option<&str>) -> Result<Vec<OpenQuestion>, Fault> {
        let remote = match (self, word) {
            (Engine::Local(node, caller), Some(word)) => return questions::open(node, caller, word),
            (Engine::Local(node, caller), None) => return questions::open_everywhere(node, caller),
            (Engine::Remote(remote), _) => remote,
        };
        // Only live sandboxes have open questions.
        let words = match word {
            Some(word) => vec![remote.word(Some(word))?],
            None => self.list(false)?.into_iter().filter(|row| row.live).map(|row| row.id).collect(),
        };
        let of =
            |word: &String| remote.get(&["v1", "sandboxes", word, "questions"]).map(|all: QuestionList| all.questions);
        words.iter().map(of).collect::<Result<Vec<_>, _>>().map(|all| all.into_iter().flatten().collect())
    }

    pub fn answer(&self, question: &str, answer: QuestionDecision, remember: Remember) -> Result<OpenQuestion, Fault> {
        match self {
            Engine::Local(node, caller) => questions::answer(node, caller, question, answer, remember),
            Engine::Remote(remote) => remote.post(&["v1", "questions", question], &QuestionAnswer { answer, remember }),
        }
    }

    pub fn secret_set(&self, name: &str, value: Vec<u8>) -> Result<SecretChanged, Fault> {
        let remote = match self {
            Engine::Local(node, caller) => return kept::set(node, caller, name, value),
            Engine::Remote(remote) => remote,
        };
        // The fault does not show the value.
        let value =
            String::from_utf8(value).map_err(|_| Fault::invalid("the value is no text").phase(Phase::Admission))?;
        remote.client.document(Request::put(&["v1", "secrets", name]).document(&json!({ "value": value }))?)
    }

    pub fn secret_remove(&self, name: &str) -> Result<SecretChanged, Fault> {
        match self {
            Engine::Local(node, caller) => kept::remove(node, caller, name),
            Engine::Remote(remote) => remote.client.document(Request::delete(&["v1", "secrets", name])),
        }
    }

    pub fn secret_list(&self) -> Result<SecretList, Fault> {
        match self {
            Engine::Local(node, caller) => kept::list(node, caller),
            Engine::Remote(remote) => remote.get(&["v1", "secrets"]),
        }
    }
}
