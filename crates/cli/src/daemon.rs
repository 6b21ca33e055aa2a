//! `cofferdam serve` and `cofferdam token`.

use crate::render::{print_document, say};
use crate::sandboxes::table::{Table, ago, from_now};
use crate::{args, connection, operations, quantity as quantity_of, render};
use api::{LimitAmounts, LimitBounds, Scope, Token, TokenCreate};
use clap::ArgMatches;
use client::Engine;
use node::Caller;
use std::path::PathBuf;
use std::process::ExitCode;
use terms::{Fault, Phase, quantity};

pub fn main(verb: &str, m: &ArgMatches) -> ExitCode {
    let inner = m.subcommand().map_or(m, |(_, m)| m);
    let json = inner.get_flag("json");
    let done = match verb {
        "serve" => connection::daemon(m, verb).and_then(|caller| serve(m, caller, json)),
        _ => connection::open(inner).and_then(|engine| match m.subcommand() {
            Some(("create", m)) => create(m, &engine, json),
            Some(("rm", m)) => revoke(m, &engine, json),
            _ => list(&engine, json),
        }),
    };
    done.unwrap_or_else(|fault| render::fault(&fault, json))
}

fn serve(m: &ArgMatches, caller: Caller, json: bool) -> Result<ExitCode, Fault> {
    let state = node::directory::prepare(&caller)?.0;
    let settings = settings(m, caller, state)?;
    if m.get_flag("check") {
        let checked = server::dry_run(&settings)?;
        if json {
            print_document(&checked);
        } else {
            tell(&checked)
        }
        return Ok(ExitCode::SUCCESS);
    }
    server::serve(settings, |checked| {
        if json {
            print_document(checked);
        } else {
            tell(checked)
        }
        ready();
    })?;
    Ok(ExitCode::SUCCESS)
}

fn settings(m: &ArgMatches, caller: Caller, state: PathBuf) -> Result<server::Settings, Fault> {
    let config = operations::load(m, &caller)?;
    let serve = config.serve()?;
    let tenants = config.tenants_with_quotas().into_iter().map(|tenant| (tenant.to_owned(), config.quota_of(tenant)));
    let quotas = server::Quotas { node: config.quota(), tenants: tenants.collect() };
    let usual = server::Settings::new(caller, state);
    Ok(server::Settings {
        socket: serve.socket.unwrap_or(usual.socket),
        listen: serve.listen,
        anywhere: serve.listen_anywhere,
        tls: serve.tls,
        allow_hosts: serve.allow_hosts,
        allow_origins: serve.allow_origins,
        grace: serve.grace,
        logs: config.logs(),
        telemetry: config.telemetry(),
        patience: serve.patience,
        max_body: serve.max_body as usize,
        connections: serve.max_connections,
        connections_each: serve.max_connections_per_peer,
        event_streams: serve.max_event_streams,
        quotas,
        limits: config.limit_bounds(node::bounds::BuiltIn::of_this_host()),
        warm: config.warm_max(),
        keep: config.keep(),
        names: server::SettingNames {
            socket: config.named("serve.socket"),
            listen: config.named("serve.listen"),
            tls_cert: config.named("serve.tls_cert"),
            tls_key: config.named("serve.tls_key"),
        },
        ..usual
    })
}

fn tell(checked: &server::CheckedSettings) {
    say(&format!("socket {}", checked.socket.display()));
    if let Some(address) = &checked.listen {
        say(&format!("listen {address}"));
    }
    if let Some(token) = &checked.operator_token {
        say(&format!("operator's token in {}", token.display()));
    }
    checked.notes.iter().for_each(|note| render::note(note));
}

/// Sends READY=1 to systemd (sd_notify), where it started this process.
fn ready() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        _ => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(b"READY=1\n", &address));
    if let Err(e) = sent {
        render::note(&format!("NOTIFY_SOCKET: {e}"));
    }
}

fn time(flag: &str, text: &str) -> Result<u64, Fault> {
    quantity::time(text).map_err(|why| Fault::invalid(format!("--{flag} {why}")).phase(Phase::Admission))
}

/// Limits as `--limit` takes them, and `cpus=N`.
fn amounts(m: &ArgMatches, flag: &str) -> Result<LimitAmounts, Fault> {
    let (mut limits, mut cpus) = (terms::Limits::default(), None);
    for item in m.get_many::<String>(flag).into_iter().flatten() {
        let refuse = |why: String| Fault::invalid(format!("--{flag} {why}")).phase(Phase::Admission);
        let pair = item.split_once('=');
        let (name, amount) = pair.ok_or_else(|| refuse(format!("{item:?}: write NAME=AMOUNT, e.g. memory=256m")))?;
        let set = match name {
            "cpus" => quantity_of::cpus(amount).map(|amount| cpus = Some(amount)),
            "on_output_limit" => Err("no amount".to_owned()),
            name => quantity_of::set_one(&mut limits, name, amount),
        };
        set.map_err(|why| refuse(format!("{name}: {why}")))?;
    }
    Ok(LimitAmounts::new(&limits, cpus))
}

fn create(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let scope = |name: &String| match name.as_str() {
        "agent" => Scope::Agent,
        "reviewer" => Scope::Reviewer,
        "metrics" => Scope::Metrics,
        _ => Scope::Operator,
    };
    let ask = TokenCreate {
        name: m.get_one::<String>("name").cloned().unwrap_or_default(),
        tenant: m.get_one::<String>("tenant").cloned().unwrap_or_default(),
        scopes: m.get_many::<String>("scope").into_iter().flatten().map(scope).collect(),
        dirs: args::all(m, "dir").map(|dir| engine.caller().cwd.join(dir)).collect(),
        policies: m.get_many::<String>("policy").into_iter().flatten().cloned().collect(),
        sandboxes: m.get_many::<String>("sandbox").into_iter().flatten().cloned().collect(),
        limits: LimitBounds { default: amounts(m, "limit-default")?, ceiling: amounts(m, "limit-ceiling")? },
        ttl_ms: m.get_one::<String>("ttl").map(|text| time("ttl", text)).transpose()?,
    };
    let minted = engine.token_create(&ask)?;
    if json {
        print_document(&minted);
    } else {
        say(&minted.token)
    }
    Ok(ExitCode::SUCCESS)
}

fn list(engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let all = engine.token_list()?;
    if json {
        print_document(serde_json::json!({ "tokens": all }));
        return Ok(ExitCode::SUCCESS);
    }
    let now = terms::clock::now_ms();
    let mut table = Table::new(&["TOKEN", "NAME", "TENANT", "SCOPES", "USED", "EXPIRES"]);
    for Token { id, name, tenant, scopes, used_ms, expires_ms, .. } in all {
        let scopes: Vec<&str> = scopes.iter().map(|scope| scope.name()).collect();
        let used = used_ms.map_or("never".into(), |at| ago(at, now));
        let expires =
            expires_ms.map_or("never".into(), |at| if at <= now { "expired".into() } else { from_now(at, now) });
        table.row(vec![id, name, tenant, scopes.join(","), used, expires]);
    }
    table.print();
    Ok(ExitCode::SUCCESS)
}

fn revoke(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let ids = m.get_many::<String>("token").into_iter().flatten();
    let revoked = ids.map(|id| engine.token_revoke(id)).collect::<Result<Vec<_>, _>>()?;
    if json {
        print_document(serde_json::json!({ "revoked": revoked }));
    } else {
        revoked.iter().for_each(|one| say(&one.id));
    }
    Ok(ExitCode::SUCCESS)
}
