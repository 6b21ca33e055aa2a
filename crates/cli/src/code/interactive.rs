//! An interactive session: lines with history, which the interpreter itself judges to be whole or not.

use super::interrupt::Interrupts;
use super::{context_of, run};
use crate::render;
use api::{CodeCheck, CodeRequest, Completeness, ContextCreate, Language};
use client::Engine;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Editor, Helper};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use terms::{ErrorKind, Fault, Phase};

/// Bound on the lines of history that are kept.
const HISTORY: usize = 1000;

/// Asks the interpreter whether a text is whole.
struct Judge<'a> {
    engine: &'a Engine,
    sandbox: &'a str,
    context: String,
}

impl Validator for Judge<'_> {
    fn validate(&self, text: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let request = CodeCheck { code: text.input().to_owned() };
        let judged = self.engine.check_code(Some(self.sandbox), &self.context, &request);
        // What cannot be judged is sent as it is: the interpreter says what is wrong.
        Ok(match judged.map(|judged| judged.status) {
            Ok(Completeness::Incomplete) => ValidationResult::Incomplete,
            _ => ValidationResult::Valid(None),
        })
    }
}

impl Completer for Judge<'_> {
    type Candidate = String;
}

impl Hinter for Judge<'_> {
    type Hint = String;
}

impl Highlighter for Judge<'_> {}
impl Helper for Judge<'_> {}

/// Reads and runs code until the end of input; the exit status is that of the last call where input is no terminal.
pub fn session(
    engine: &Engine,
    sandbox: &str,
    request: CodeRequest,
    interrupts: &Interrupts,
) -> Result<ExitCode, Fault> {
    let context = context_of(&request);
    make_context(engine, sandbox, &request)?;
    let is_terminal = std::io::stdin().is_terminal();
    if is_terminal {
        let language = request.language.unwrap_or_default().name();
        render::note(&format!("{language} in {sandbox}, context {context}; Ctrl-C interrupts, Ctrl-D leaves"));
    }
    let failed = |e: ReadlineError| Fault::internal(format!("the terminal: {e}")).phase(Phase::Preparation);
    let mut editor: Editor<Judge<'_>, DefaultHistory> = Editor::new().map_err(failed)?;
    editor.set_helper(Some(Judge { engine, sandbox, context }));
    let history = history_file(engine).filter(|_| is_terminal);
    if let Some(file) = &history {
        let _ = editor.load_history(file); // a first session has none
    }
    let mut status = 0;
    loop {
        match editor.readline(prompt(request.language)) {
            Ok(line) if line.trim().is_empty() => {}
            Ok(code) => {
                let _ = editor.add_history_entry(&code); // a line that is not kept can still run
                let call = CodeRequest { code, ..request.clone() };
                match run(engine, sandbox, &call, interrupts) {
                    Ok(outcome) => status = outcome.status(),
                    Err(fault) => {
                        render::fault(&fault, false);
                        status = fault.status();
                    }
                }
            }
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => break,
            Err(e) => return Err(failed(e)),
        }
    }
    if let Some(file) = &history {
        save_history(&mut editor, file);
    }
    Ok(ExitCode::from(if is_terminal { 0 } else { status }))
}

fn prompt(language: Option<Language>) -> &'static str {
    match language.unwrap_or_default() {
        Language::Python => ">>> ",
        Language::Javascript => "> ",
        Language::Bash => "$ ",
    }
}

/// Makes the context before the first line is judged; one that exists is used.
fn make_context(engine: &Engine, sandbox: &str, request: &CodeRequest) -> Result<(), Fault> {
    let language = request.language.unwrap_or_default();
    let (workdir, cwd, env) = (request.workdir.clone(), request.cwd.clone(), request.env.clone());
    let create = ContextCreate { name: request.context.clone(), language, workdir, cwd, env };
    match engine.context_create(Some(sandbox), &create) {
        Err(fault) if fault.error_kind != ErrorKind::Conflict => Err(fault),
        _ => Ok(()),
    }
}

/// History is the caller's own, beside the state of this program.
fn history_file(engine: &Engine) -> Option<PathBuf> {
    Some(node::directory::place(engine.caller()).ok()?.join("code_history"))
}

/// Lines can hold secrets: the file is for its owner alone.
fn save_history(editor: &mut Editor<Judge<'_>, DefaultHistory>, file: &std::path::Path) {
    use rustyline::history::History;
    use std::os::unix::fs::PermissionsExt;
    let kept = editor.history_mut().set_max_len(HISTORY).and_then(|()| editor.save_history(file));
    let private = kept.is_ok().then(|| std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)));
    if private.is_none_or(|done| done.is_err()) {
        render::note("the history of what was typed could not be kept");
    }
}
