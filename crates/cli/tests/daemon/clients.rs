//! Clients that generators make from the daemon's description of itself: they take it as it is, and what they make works.

use crate::support::http::Daemon;
use crate::support::{As, Place, to_the_end};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Generators are installed by `tools/test`; without them the test says so.
fn tools() -> PathBuf {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/clients");
    assert!(tools.join("node_modules/.bin/openapi-typescript").exists(), "{tools:?}: tools/test installs them");
    tools.canonicalize().unwrap()
}

fn succeeds(command: &mut Command) -> String {
    let output = to_the_end(command, b"");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

/// Types of media that the generator knows by another name only.
const OVERRIDES: &str = r#"{"content_type_overrides": {"application/x-tar": "application/octet-stream",
    "application/zstd": "application/octet-stream", "application/toml": "application/json", "text/x-diff": "text/plain"}}"#;

/// Makes a sandbox, writes bytes, runs a command, reads them back; with the generated client alone.
const USE: &str = r#"
import io, sys
from client import AuthenticatedClient
from client.api.files import files_read, files_write
from client.api.runs import runs_create, runs_run_once
from client.api.sandboxes import sandboxes_create, sandboxes_delete, sandboxes_list
from client.api.workspace import workspace_diff
from client.models import RunCreate, RunOnce, SandboxCreate
from client.types import File
api = AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2], raise_on_unexpected_status=True)
made = sandboxes_create.sync(client=api, body=SandboxCreate(name="made"))
files_write.sync(made.id, client=api, path="in", body=File(payload=io.BytesIO(b"\xff\0bytes")))
ran = runs_create.sync(made.id, client=api, wait="2m", body=RunCreate(shell="cat in > out; wc -c < out"))
read = files_read.sync(made.id, client=api, path="out").payload.read()
diff = workspace_diff.sync(made.id, client=api)
names = [row.name for row in sandboxes_list.sync(client=api).sandboxes]
sandboxes_delete.sync(made.id, client=api, force=True)
once = runs_run_once.sync(client=api, body=RunOnce(command=["cat"], stdin="in"))
print(ran.outcome.stdout.strip(), read, len(diff.files), diff.files[0].class_, names, once.outcome.stdout)
"#;

const TYPED: &str = r#"
import type { components, paths } from "./api";
type Schemas = components["schemas"];
const run: Schemas["RunCreate"] = { shell: "true" };
const sandbox: Schemas["SandboxCreate"] = {};
const once: paths["/v1/run"]["post"]["requestBody"]["content"]["application/json"] = { command: ["cat"], stdin: "in" };
const status = (answer: paths["/v1/run"]["post"]["responses"]["200"]["content"]["application/json"]): number => answer.status;
const code = (diff: Schemas["WorkspaceDiff"]): string[] => (diff.files ?? []).map((file) => file.class);
const path = (file: Schemas["FileEntry"]): string => (typeof file.path === "string" ? file.path : file.path.base64);
export { run, sandbox, once, status, code, path };
"#;

#[test]
fn generated_clients_work_with_the_daemon() {
    let tools = tools();
    let place = Place::new(As::Root);
    let daemon = Daemon::start_tcp(&place);
    let dir = place.dir("generated");
    let at = |name: &str| dir.join(name);
    fs::write(at("openapi.json"), daemon.get("/v1/openapi.json").body).unwrap();
    fs::write(at("overrides.json"), OVERRIDES).unwrap();
    let python = |name: &str| {
        let mut command = Command::new(tools.join("python/bin").join(name));
        command.current_dir(&dir);
        command
    };
    let said = succeeds(
        python("openapi-python-client")
            .args(["generate", "--path", "openapi.json", "--output-path", "client", "--meta", "none"])
            .args(["--config", "overrides.json"]),
    );
    assert!(!said.contains("WARNING parsing") && !said.contains("ERROR"), "{said}");
    fs::write(at("use.py"), USE).unwrap();
    let url = format!("http://localhost:{}", daemon.port.unwrap());
    let said = succeeds(python("python").args(["use.py", &url, &daemon.operator_token()]));
    assert_eq!(said, "7 b'\\xff\\x00bytes' 2 ordinary ['made'] in\n");
    succeeds(
        python("datamodel-codegen")
            .args(["--input", "openapi.json", "--input-file-type", "openapi", "--output", "models.py"])
            .args(["--output-model-type", "pydantic_v2.BaseModel", "--formatters", "builtin"]),
    );
    succeeds(
        python("python").args(["-c", "import models; assert models.RunCreate(shell='true').shell.root == 'true'"]),
    );
    let node = |name: &str| {
        let mut command = Command::new(tools.join("node_modules/.bin").join(name));
        command.current_dir(&dir);
        command
    };
    succeeds(node("openapi-typescript").args(["openapi.json", "-o", "api.ts"]));
    fs::write(at("typed.ts"), TYPED).unwrap();
    succeeds(node("tsc").args(["--noEmit", "--strict", "--target", "es2022", "--module", "esnext", "typed.ts"]));
}
