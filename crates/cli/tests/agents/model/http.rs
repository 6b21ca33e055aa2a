//! HTTP/1.1 as far as the model server needs it: one request on a connection, answered whole or as a stream of events.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// Largest body that is read.
const MOST: u64 = 16 << 20;

pub struct Request {
    pub method: String,
    /// Path with its query.
    pub path: String,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map_or("", |(_, value)| value)
    }

    pub fn json(&self) -> Result<Value, String> {
        match self.header("content-type").starts_with("application/json") {
            true => serde_json::from_slice(&self.body).map_err(|e| format!("the body is not JSON: {e}")),
            false => Err(format!("content-type is {:?}", self.header("content-type"))),
        }
    }

    /// Returns the start of the body, for a complaint.
    pub fn shortened(&self) -> String {
        String::from_utf8_lossy(&self.body).chars().take(4000).collect()
    }
}

pub enum Answer {
    Whole {
        status: u16,
        body: String,
    },
    /// Events with their names; an empty name is left out.
    Stream(Vec<(String, String)>),
}

impl Answer {
    pub fn json(status: u16, body: &Value) -> Answer {
        Answer::Whole { status, body: body.to_string() }
    }
}

/// Answers the request of a connection. A client that leaves early is no failure of the server.
pub fn serve(stream: &TcpStream, answer: impl FnOnce(&Request) -> Answer) {
    let Some(request) = read(stream) else { return };
    let mut out = stream;
    let _ = match answer(&request) {
        Answer::Whole { status, body } => {
            let length = body.len();
            let body = if request.method == "HEAD" { "" } else { body.as_str() };
            write!(
                out,
                "HTTP/1.1 {status} Told\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            )
        }
        Answer::Stream(events) => stream_events(out, &events),
    };
    let _ = out.flush();
}

fn stream_events(mut out: &TcpStream, events: &[(String, String)]) -> std::io::Result<()> {
    write!(
        out,
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    )?;
    for (name, data) in events {
        let name = if name.is_empty() { String::new() } else { format!("event: {name}\n") };
        let event = format!("{name}data: {data}\n\n");
        write!(out, "{:x}\r\n{event}\r\n", event.len())?;
        out.flush()?;
    }
    write!(out, "0\r\n\r\n")
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut input = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if input.by_ref().take(64 << 10).read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let mut first = lines.first()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let pair = |line: &String| line.split_once(':').map(|(n, v)| (n.to_ascii_lowercase(), v.trim().to_owned()));
    let headers: Vec<(String, String)> = lines[1..].iter().filter_map(pair).collect();
    let mut request = Request { method, path, headers, body: Vec::new() };
    if request.header("expect") == "100-continue" {
        write!(&mut &*stream, "HTTP/1.1 100 Continue\r\n\r\n").ok()?;
    }
    request.body = match request.header("transfer-encoding") {
        "chunked" => read_chunks(&mut input)?,
        _ => {
            let length: u64 = request.header("content-length").parse().unwrap_or(0);
            let mut body = Vec::new();
            input.take(length.min(MOST)).read_to_end(&mut body).ok()?;
            body
        }
    };
    Some(request)
}

fn read_chunks(input: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        input.read_line(&mut line).ok()?;
        let length = u64::from_str_radix(line.trim().split(';').next()?, 16).ok()?;
        if length + body.len() as u64 > MOST {
            return None;
        }
        input.by_ref().take(length).read_to_end(&mut body).ok()?;
        input.read_line(&mut String::new()).ok()?;
        if length == 0 {
            return Some(body);
        }
    }
}
