//! Logins of coding agents in files of a known format. The token that goes into a header is a secret of the run; the copy of the file in
//! the sandbox's home has its placeholder instead, and nothing that could renew the login or prove who is logged in. What is not known of a
//! file is not copied.

use super::fault;
use policy::agents::{AGENTS, Agent};
use policy::{Labelled, Policy, RulePath};
use serde::Deserialize;
use serde_json::{Value, json};
use state::{Caller, SecretSources};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use terms::Fault;

/// Longest file of a login.
const LONGEST: usize = 64 * 1024;

/// A login's file and the secret that its token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Login {
    /// Below the home.
    pub file: &'static str,
    pub secret: &'static str,
}

impl Login {
    fn of(agent: &Agent) -> Option<Login> {
        Some(Login { file: agent.login?.strip_prefix("~/")?, secret: agent.login_secret? })
    }

    /// Returns the login whose token is this secret.
    pub fn of_secret(name: &str) -> Option<Login> {
        AGENTS.iter().filter_map(Login::of).find(|login| login.secret == name)
    }

    /// Returns the login of a file below the home, where a policy gives its token to a host and the caller's files may be a source.
    pub fn at(below: &Path, policy: &Policy, caller: &Caller) -> Option<Login> {
        let login = AGENTS.iter().filter_map(Login::of).find(|login| Path::new(login.file) == below)?;
        let is_given = policy.secrets.iter().any(|secret| secret.rule.name == login.secret);
        (is_given && caller.secret_sources == SecretSources::All).then_some(login)
    }

    /// Returns the file that holds the value of a secret: a login's that the policy copies in.
    pub fn source(name: &str, copies: &[Labelled<RulePath>], caller: &Caller) -> Option<(Login, PathBuf)> {
        let login = Login::of_secret(name)?;
        let is_copied = copies.iter().any(|path| path.rule.below_home().is_some_and(|at| at == Path::new(login.file)));
        let path = caller.home.join(login.file);
        (is_copied && path.is_file()).then_some((login, path))
    }

    /// Returns what stands for the token inside. It is no random text: the copy is made once, and each run of the sandbox must know it.
    pub fn placeholder(self) -> String {
        format!("cofferdam-secret-{}-of-a-login", self.secret)
    }

    /// Returns the copy of a file for the sandbox.
    pub fn copy(self, file: impl Read) -> Result<Vec<u8>, Fault> {
        let text = Wiped::read(file).map_err(|e| fault(self.secret, format!("~/{}: {e}", self.file)))?;
        let read = self.parse(&text.0)?;
        self.token_of(&read)?;
        serde_json::to_vec(&read.copy(&self.placeholder())).map_err(|e| Fault::internal(e.to_string()))
    }

    /// Returns the token.
    pub fn token(self, file: impl Read) -> Result<Vec<u8>, Fault> {
        let text = Wiped::read(file).map_err(|e| fault(self.secret, format!("~/{}: {e}", self.file)))?;
        let read = self.parse(&text.0)?;
        Ok(self.token_of(&read)?.as_bytes().to_vec())
    }

    fn token_of<'a>(self, read: &'a File<'_>) -> Result<&'a str, Fault> {
        read.token().filter(|token| !token.is_empty()).ok_or_else(|| self.unknown("no token"))
    }

    fn parse(self, text: &[u8]) -> Result<File<'_>, Fault> {
        // The parser's messages can contain parts of the file.
        serde_json::from_slice(text).map_err(|_| self.unknown("no login in a known format"))
    }

    fn unknown(self, what: &str) -> Fault {
        let fault = fault(self.secret, format!("~/{} has {what}", self.file));
        fault.hint("log in outside, or use a key in a variable (`cofferdam agents`)")
    }
}

/// The known parts of a login's file. Tokens are borrowed from its text, so that no copy of them is left behind.
#[derive(Deserialize)]
#[serde(untagged)]
enum File<'a> {
    #[serde(borrow)]
    Claude(Claude<'a>),
    #[serde(borrow)]
    Codex(Codex<'a>),
}

#[derive(Deserialize)]
struct Claude<'a> {
    #[serde(borrow, rename = "claudeAiOauth")]
    oauth: ClaudeOauth<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaudeOauth<'a> {
    access_token: &'a str,
    scopes: Option<Vec<String>>,
    subscription_type: Option<String>,
    rate_limit_tier: Option<String>,
}

#[derive(Deserialize)]
struct Codex<'a> {
    #[serde(rename = "OPENAI_API_KEY")]
    key: Option<&'a str>,
    auth_mode: Option<String>,
    #[serde(borrow)]
    tokens: Option<CodexTokens<'a>>,
}

#[derive(Deserialize)]
struct CodexTokens<'a> {
    id_token: &'a str,
    access_token: &'a str,
    account_id: Option<String>,
}

impl File<'_> {
    fn token(&self) -> Option<&str> {
        match self {
            File::Claude(claude) => Some(claude.oauth.access_token),
            File::Codex(codex) => codex.tokens.as_ref().map(|tokens| tokens.access_token).or(codex.key),
        }
    }

    fn copy(&self, placeholder: &str) -> Value {
        match self {
            // Without a time of expiry and a token to renew it with, the agent takes the login as it is.
            File::Claude(Claude { oauth }) => json!({ "claudeAiOauth": {
                "accessToken": placeholder,
                "refreshToken": null,
                "expiresAt": null,
                "scopes": oauth.scopes,
                "subscriptionType": oauth.subscription_type,
                "rateLimitTier": oauth.rate_limit_tier,
            }}),
            File::Codex(Codex { tokens: None, auth_mode, .. }) => {
                json!({ "auth_mode": auth_mode, "OPENAI_API_KEY": placeholder })
            }
            File::Codex(Codex { tokens: Some(tokens), auth_mode, .. }) => json!({
                "auth_mode": auth_mode,
                "OPENAI_API_KEY": null,
                "tokens": {
                    "id_token": unsigned(tokens.id_token),
                    "access_token": placeholder,
                    "refresh_token": "",
                    "account_id": tokens.account_id,
                },
                "last_refresh": terms::clock::timestamp(SystemTime::now()),
            }),
        }
    }
}

/// Returns an identity token with its claims and without its signature: the agent reads the plan from it, and nobody else takes it.
fn unsigned(token: &str) -> String {
    let mut parts = token.split('.');
    format!("{}.{}.none", parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}

/// The bytes of a file, which are wiped when they are no longer used.
struct Wiped(Vec<u8>);

impl Wiped {
    fn read(mut file: impl Read) -> io::Result<Wiped> {
        // Allocated at full size: a growing buffer leaves copies behind.
        let mut all = Wiped(vec![0; LONGEST + 1]);
        let mut len = 0;
        loop {
            match file.read(&mut all.0[len..]) {
                Ok(0) if len > LONGEST => return Err(io::Error::other(format!("longer than {LONGEST} bytes"))),
                Ok(0) => break,
                Ok(n) => len += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        all.0.truncate(len);
        Ok(all)
    }
}

impl Drop for Wiped {
    fn drop(&mut self) {
        self.0.fill(0);
        // Keeps the compiler from removing the wipe as a dead store.
        std::hint::black_box(&self.0);
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_copy_has_the_placeholder_and_no_other_credential() {
        let claude = json!({"claudeAiOauth": {"accessToken": "real-access", "refreshToken": "real-refresh",
            "expiresAt": 1, "scopes": ["user:inference"], "subscriptionType": "max", "later": "real-later"}, "more": "real-more"});
        let codex = json!({"OPENAI_API_KEY": null, "tokens": {"id_token": "aGVhZA.Y2xhaW1z.real-signature",
            "access_token": "real-access", "refresh_token": "real-refresh", "account_id": "acc"}, "last_refresh": "2026-01-01T00:00:00Z"});
        let key = json!({"OPENAI_API_KEY": "real-access"});
        let cases = [
            ("CLAUDE_LOGIN", claude, "/claudeAiOauth/accessToken", ("/claudeAiOauth/subscriptionType", "max")),
            ("CODEX_LOGIN", codex, "/tokens/access_token", ("/tokens/id_token", "aGVhZA.Y2xhaW1z.none")),
            ("CODEX_LOGIN", key, "/OPENAI_API_KEY", ("/OPENAI_API_KEY", "cofferdam-secret-CODEX_LOGIN-of-a-login")),
        ];
        for (name, file, at, (kept_at, kept)) in cases {
            let login = Login::of_secret(name).unwrap();
            let text = file.to_string();
            assert_eq!(login.token(text.as_bytes()).unwrap(), b"real-access", "{name}");
            let copy = String::from_utf8(login.copy(text.as_bytes()).unwrap()).unwrap();
            assert!(!copy.contains("real-"), "{name}: {copy}");
            let copy: Value = serde_json::from_str(&copy).unwrap();
            assert_eq!(copy.pointer(at).and_then(Value::as_str), Some(&*login.placeholder()), "{name}: {copy}");
            assert_eq!(copy.pointer(kept_at).and_then(Value::as_str), Some(kept), "{name}: {copy}");
        }
    }

    #[test]
    fn what_is_no_login_is_refused_without_a_word_of_it() {
        let login = Login::of_secret("CLAUDE_LOGIN").unwrap();
        let long = format!("\"{}\"", "x".repeat(LONGEST));
        for text in ["real", "{\"claudeAiOauth\": {\"accessToken\": 7, \"x\": \"real\"}}", "{}", "", &long] {
            let fault = login.token(text.as_bytes()).unwrap_err();
            assert!(
                fault.message.contains("~/.claude/.credentials.json") && !fault.message.contains("real"),
                "{fault}"
            );
        }
    }
}
