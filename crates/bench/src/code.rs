//! Benchmark of code in warm interpreters: calls over HTTP and over the rings alone, beside a Jupyter kernel and beside a new
//! process for each call; throughput of output; memory of an interpreter; cost of writes under a policy.

use super::daemon::{BenchClient, Daemon, create, lost};
use super::statistics::{Quantiles, Samples};
use super::work::WorkDir;
use super::{BenchConfig, Progress, Shuffle, find, load, round, warmup};
use api::{CodeEvent, CodeRequest};
use node::code::CodeCall;
use node::{Caller, Node};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use terms::{Fault, PROTOCOL_VERSION, Verdict};

/// Sizes of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct CodeAmount {
    pub rounds: u32,
    /// Output to pass on, in MiB.
    pub output_mib: u32,
    /// Files to write, in the interpreter and in a command.
    pub files: u32,
}

impl CodeAmount {
    pub const USUAL: CodeAmount = CodeAmount { rounds: 300, output_mib: 1024, files: 2000 };
    /// Enough to see that the benchmark works, and too little for figures.
    pub const QUICK: CodeAmount = CodeAmount { rounds: 5, output_mib: 8, files: 20 };
}

#[derive(Clone, Debug, Serialize)]
pub struct CodeReport {
    pub protocol_version: u32,
    pub kernel: String,
    pub cpus: usize,
    pub load: f64,
    pub rounds: u32,
    /// Times of the expression `1+1`.
    pub calls: Vec<CallRow>,
    pub output: OutputRow,
    pub memory: MemoryRow,
    pub writes: WriteRow,
}

#[derive(Clone, Debug, Serialize)]
pub struct CallRow {
    pub name: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us: Option<Quantiles>,
    /// Median of the kernel's time in each round, divided by this one's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faster_than_jupyter: Option<f64>,
    /// The reason why it could not take part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
}

/// Throughput of output, in 10⁹ bytes a second.
#[derive(Clone, Debug, Serialize)]
pub struct OutputRow {
    pub mib: u32,
    /// From the interpreter to the program that reads its rings.
    pub rings_gb_per_s: f64,
    /// From a Python of its own through a pipe.
    pub pipe_gb_per_s: f64,
    pub ratio: f64,
}

/// Resident memory of an idle interpreter.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryRow {
    pub worker_kb: u64,
    /// A Python that does nothing.
    pub plain_kb: u64,
}

/// Writes of files of 4 KiB in the workspace.
#[derive(Clone, Debug, Serialize)]
pub struct WriteRow {
    pub files: u32,
    pub worker_us_each: f64,
    /// The same by a command in the same sandbox.
    pub command_us_each: f64,
    pub ratio: f64,
}

const HTTP: &str = "over HTTP";
const RINGS: &str = "over the rings";
const JUPYTER: &str = "Jupyter kernel";
const PROCESS: &str = "python3 -c, outside";
const EXPRESSION: &str = "1+1";
const RESIDENT: &str = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmRSS')))";

/// Speaks to a kernel as notebooks do: one call for each line of input, and its time as a line of output.
const JUPYTER_DRIVER: &str = "
import sys, time
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name='python3')
print('ready', flush=True)
for line in sys.stdin:
    begun = time.perf_counter()
    sent = client.execute(line.strip())
    while True:
        got = client.get_iopub_msg(timeout=60)
        if got['parent_header'].get('msg_id') == sent and got['msg_type'] == 'status' and got['content']['execution_state'] == 'idle':
            break
    print(int((time.perf_counter() - begun) * 1e9), flush=True)
client.stop_channels()
manager.shutdown_kernel(now=True)
";

pub fn code(
    config: &BenchConfig,
    caller: &Caller,
    amount: CodeAmount,
    progress: Progress<'_>,
) -> Result<CodeReport, Fault> {
    let load = load();
    let place = WorkDir::make(config)?;
    let daemon = Daemon::start(&config.exe, &place.root)?;
    let mut client = BenchClient::connect(&daemon.socket)?;
    let sandbox = create(&mut client)?;
    let caller = Caller { state_dir: Some(daemon.state.clone()), ..caller.clone() };
    let mut bench = CodeBench { client, node: Node::for_command(), caller, sandbox };
    let calls = bench.calls(config, amount.rounds, progress)?;
    progress("output", 0, 1);
    let output = bench.output(config, amount.output_mib)?;
    progress("writes", 0, 1);
    let writes = bench.writes(amount.files)?;
    let memory = bench.memory(config)?;
    Ok(CodeReport {
        protocol_version: PROTOCOL_VERSION,
        kernel: super::kernel(),
        cpus: super::cpus(),
        load,
        rounds: amount.rounds,
        calls,
        output,
        memory,
        writes,
    })
}

struct CodeBench {
    client: BenchClient,
    node: Node,
    caller: Caller,
    sandbox: String,
}

impl CodeBench {
    fn calls(&mut self, config: &BenchConfig, rounds: u32, progress: Progress<'_>) -> Result<Vec<CallRow>, Fault> {
        let mut jupyter = Jupyter::start(config);
        let names = [HTTP, RINGS, PROCESS, JUPYTER];
        let mut samples: [Samples; 4] = Default::default();
        let mut order: Vec<usize> = (0..names.len()).filter(|at| names[*at] != JUPYTER || jupyter.is_ok()).collect();
        let (mut shuffle, warmup) = (Shuffle(0x9e37_79b9_7f4a_7c15), warmup(rounds).max(1));
        for at in 0..warmup + rounds {
            shuffle.apply(&mut order);
            for &contender in &order {
                let took = match (names[contender], &mut jupyter) {
                    (HTTP, _) => self.over_http()?,
                    (RINGS, _) => self.over_rings(EXPRESSION, &mut |_| {})?,
                    (JUPYTER, Ok(kernel)) => kernel.call()?,
                    _ => process(config)?,
                };
                if at >= warmup {
                    samples[contender].add(took);
                }
            }
            progress("calls", at + 1, warmup + rounds);
        }
        let kernel = samples[3].clone();
        let row = |(name, samples): (&'static str, Samples)| {
            let absent = match (name, &jupyter) {
                (JUPYTER, Err(why)) => Some(why.clone()),
                _ => None,
            };
            let faster_than_jupyter = kernel.median_ratio(&samples).map(round).filter(|_| name != JUPYTER);
            CallRow { name, us: samples.quantiles(), faster_than_jupyter, absent }
        };
        Ok(names.into_iter().zip(samples).map(row).collect())
    }

    fn over_http(&mut self) -> Result<Duration, Fault> {
        let begun = Instant::now();
        let path = format!("/v1/sandboxes/{}/code", self.sandbox);
        let done = self.client.ask("POST", &path, Some(&json!({"code": EXPRESSION})))?;
        let took = begun.elapsed();
        match done["results"][0]["data"]["text/plain"].as_str() {
            Some("2") => Ok(took),
            other => Err(lost(&format!("1+1 is {other:?}"))),
        }
    }

    /// Runs code in a context of this process's own, whose rings it maps itself.
    fn over_rings(&self, code: &str, each: &mut dyn FnMut(&CodeEvent)) -> Result<Duration, Fault> {
        let begun = Instant::now();
        let request = CodeRequest { code: code.into(), context: Some("rings".into()), ..CodeRequest::default() };
        let mut call = CodeCall::begin(&self.node, &self.caller, &self.sandbox, &request)?;
        let mut verdict = None;
        while !call.is_over() {
            let events = call.step();
            if events.is_empty() {
                call.wait(None);
            }
            for event in &events {
                each(event);
                if let CodeEvent::End(outcome) = event {
                    verdict = Some(outcome.verdict);
                }
            }
        }
        call.rest(&self.node);
        match verdict {
            Some(Verdict::Ok) => Ok(begun.elapsed()),
            other => Err(lost(&format!("a call ended {other:?}"))),
        }
    }

    fn output(&self, config: &BenchConfig, mib: u32) -> Result<OutputRow, Fault> {
        let code = format!("import os\nblock = b'x' * (1 << 20)\nfor _ in range({mib}): os.write(1, block)");
        let mut got = 0;
        let rings = self.over_rings(&code, &mut |event| {
            if let CodeEvent::Stdout(text) = event {
                got += text.text.len();
            }
        })?;
        let bytes = u64::from(mib) << 20;
        if got as u64 != bytes {
            return Err(lost(&format!("{got} of {bytes} bytes of output came")));
        }
        let pipe = through_pipe(config, &code, bytes)?;
        let speed = |took: Duration| round(bytes as f64 / 1e9 / took.as_secs_f64());
        let ratio = round(pipe.as_secs_f64() / rings.as_secs_f64());
        Ok(OutputRow { mib, rings_gb_per_s: speed(rings), pipe_gb_per_s: speed(pipe), ratio })
    }

    /// Compares writes of an interpreter with those of a command, in turns; both measure themselves.
    fn writes(&mut self, files: u32) -> Result<WriteRow, Fault> {
        const TURNS: u32 = 5;
        let script = format!(
            "import os, time\nos.makedirs('w', exist_ok=True)\nbegun = time.perf_counter()\nfor n in range({files}):\n    \
             with open(f'w/{{n}}', 'wb') as f: f.write(b'x' * 4096)\nprint(int((time.perf_counter() - begun) * 1e9))"
        );
        let (mut worker, mut command) = (Samples::default(), Samples::default());
        for _ in 0..TURNS {
            worker.add(nanoseconds(&self.said(&script)?)?);
            command.add(nanoseconds(&self.command(&["python3", "-c", &script])?)?);
        }
        let ratio = worker.median_ratio(&command).map(round).unwrap_or_default();
        let each = |samples: Samples| samples.quantiles().map_or(0.0, |us| round(us.p50 / f64::from(files)));
        Ok(WriteRow { files, worker_us_each: each(worker), command_us_each: each(command), ratio })
    }

    fn memory(&mut self, config: &BenchConfig) -> Result<MemoryRow, Fault> {
        let worker = self.said(RESIDENT)?;
        let plain = python(config).args(["-c", RESIDENT]).output().map_err(|e| lost(&format!("python3: {e}")))?;
        let number = |text: &str| text.trim().parse().map_err(|_| lost(&format!("{text:?} is no number of kB")));
        Ok(MemoryRow { worker_kb: number(&worker)?, plain_kb: number(&String::from_utf8_lossy(&plain.stdout))? })
    }

    /// Returns what code prints in the context that calls over HTTP use.
    fn said(&mut self, code: &str) -> Result<String, Fault> {
        let path = format!("/v1/sandboxes/{}/code", self.sandbox);
        let done = self.client.ask("POST", &path, Some(&json!({"code": code})))?;
        text_of(&done, "/outcome/verdict", "/stdout")
    }

    /// Returns what a command prints.
    fn command(&mut self, words: &[&str]) -> Result<String, Fault> {
        let path = format!("/v1/sandboxes/{}/runs?wait=60s", self.sandbox);
        let done = self.client.ask("POST", &path, Some(&json!({"command": words})))?;
        if let Ok(text) = text_of(&done, "/outcome/verdict", "/outcome/stdout") {
            return Ok(text);
        }
        let run = done["id"].as_str().unwrap_or_default();
        let shown = self.client.ask("GET", &format!("/v1/runs/{run}"), None)?;
        text_of(&shown, "/outcome/verdict", "/output/stdout")
    }
}

fn text_of(done: &Value, verdict: &str, text: &str) -> Result<String, Fault> {
    match (done.pointer(verdict).and_then(Value::as_str), done.pointer(text).and_then(Value::as_str)) {
        (Some("ok"), Some(text)) => Ok(text.to_owned()),
        _ => Err(lost(&format!("it answers {done}"))),
    }
}

fn nanoseconds(text: &str) -> Result<Duration, Fault> {
    let number = text.trim().parse().map_err(|_| lost(&format!("{text:?} is no time")))?;
    Ok(Duration::from_nanos(number))
}

fn python(config: &BenchConfig) -> Command {
    let path = find("python3", config.path.as_deref());
    let mut command = Command::new(path.as_deref().unwrap_or(Path::new("python3")));
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command
}

/// Measures a new process for one expression, outside.
fn process(config: &BenchConfig) -> Result<Duration, Fault> {
    let begun = Instant::now();
    let done = python(config).args(["-c", "print(1+1)"]).output().map_err(|e| lost(&format!("python3: {e}")))?;
    match done.stdout.as_slice() {
        b"2\n" => Ok(begun.elapsed()),
        other => Err(lost(&format!("1+1 is {:?}", String::from_utf8_lossy(other)))),
    }
}

fn through_pipe(config: &BenchConfig, code: &str, bytes: u64) -> Result<Duration, Fault> {
    let failed = |e: std::io::Error| lost(&format!("python3: {e}"));
    let begun = Instant::now();
    let mut child = python(config).args(["-c", code]).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let (mut buffer, mut got) = (vec![0; 1 << 20], 0);
    if let Some(mut pipe) = child.stdout.take() {
        loop {
            match pipe.read(&mut buffer).map_err(failed)? {
                0 => break,
                count => got += count as u64,
            }
        }
    }
    child.wait().map_err(failed)?;
    match got == bytes {
        true => Ok(begun.elapsed()),
        false => Err(lost(&format!("{got} of {bytes} bytes came through a pipe"))),
    }
}

/// A kernel behind `jupyter_client`. Dropping it ends both.
struct Jupyter {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Jupyter {
    fn start(config: &BenchConfig) -> Result<Jupyter, String> {
        const MISSING: &str = "python3 on PATH has no jupyter_client with ipykernel (both are on PyPI)";
        let mut command = python(config);
        let child = command.args(["-c", JUPYTER_DRIVER]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|e| e.to_string())?;
        let (input, output) = (child.stdin.take(), child.stdout.take().map(BufReader::new));
        let mut kernel = Jupyter { child, input, output: output.ok_or(MISSING)? };
        match kernel.line() {
            Ok(line) if line == "ready" => Ok(kernel),
            _ => Err(MISSING.into()),
        }
    }

    fn line(&mut self) -> Result<String, Fault> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(|e| lost(&format!("the kernel: {e}")))?;
        Ok(line.trim().to_owned())
    }

    fn call(&mut self) -> Result<Duration, Fault> {
        let input = self.input.as_mut().ok_or_else(|| lost("the kernel has no input"))?;
        writeln!(input, "{EXPRESSION}").map_err(|e| lost(&format!("the kernel: {e}")))?;
        nanoseconds(&self.line()?)
    }
}

impl Drop for Jupyter {
    fn drop(&mut self) {
        self.input = None; // the driver ends its kernel when its input does
        let _ = self.child.wait();
    }
}
