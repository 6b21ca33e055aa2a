//! The daemon's sockets and its life.

use crate::{Scope, Shared, Who, routes};
use hyper_util::rt::{TokioIo, TokioTimer};
use node::Caller;
use std::path::PathBuf;
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase};
use tokio::net::UnixListener;
use tower::ServiceExt;

/// How long the head of a request may take to arrive.
const HEAD: Duration = Duration::from_secs(10);

/// What the daemon is started with.
pub struct Settings {
    pub socket: PathBuf,
    pub caller: Caller,
}

/// Serves until it is told to end.
pub fn serve(settings: Settings) -> Result<(), Fault> {
    let broken = |e: std::io::Error| Fault::internal(format!("the daemon cannot start: {e}"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(broken)?;
    runtime.block_on(listen(settings))
}

async fn listen(settings: Settings) -> Result<(), Fault> {
    let cannot = |e: std::io::Error| {
        let message = format!("{}: cannot listen there: {e}", settings.socket.display());
        Fault::new(ErrorKind::Unavailable, message).phase(Phase::Start)
    };
    let listener = UnixListener::bind(&settings.socket).map_err(cannot)?;
    let app = routes::all(Shared::new(settings.caller));
    loop {
        let (stream, _) = listener.accept().await.map_err(cannot)?;
        let app = app.clone();
        tokio::spawn(async move {
            let who = Who { tenant: "default".into(), name: "owner".into(), scopes: vec![Scope::Operator] };
            let service = hyper::service::service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
                request.extensions_mut().insert(who.clone());
                app.clone().oneshot(request)
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEAD);
            // A client that left is no error of ours.
            let _ = http.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
        });
    }
}
