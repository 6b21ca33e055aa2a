//! `cofferdam bench`.

mod code;
mod daemon;
mod net;
mod workspace;

use crate::connection;
use crate::render;
use bench::{Amount, BenchConfig, Census, CodeAmount, SoakReport, StartReport, bench, soak};
use clap::ArgMatches;
use std::fmt::Write as _;
use std::io::Write;
use std::process::ExitCode;
use terms::Fault;

pub fn main(m: &ArgMatches) -> ExitCode {
    let json = m.get_flag("json");
    match carry_out(m, json) {
        Ok(code) => code,
        Err(fault) => render::fault(&fault, json),
    }
}

fn carry_out(m: &ArgMatches, json: bool) -> Result<ExitCode, Fault> {
    let caller = connection::local(m, "bench")?;
    let ask = BenchConfig {
        rounds: m.get_one::<u32>("runs").copied().unwrap_or(200),
        work: m.get_flag("work"),
        exe: "/proc/self/exe".into(),
        path: caller.var("PATH").map(ToOwned::to_owned),
        shown: node::policies::shown(&caller)?,
        cwd: caller.cwd.clone(),
        home: caller.home.clone(),
    };
    let mut bar = Bar::new();
    if let Some(runs) = m.get_one::<u32>("soak") {
        let soaked = soak(&ask, *runs, &mut |what, done, all| bar.show(what, done, all))?;
        bar.clear();
        let good = soaked.clean && soaked.failed == 0;
        if json {
            render::print_json(&soaked)
        } else {
            print(&soak_page(&soaked))
        }
        return Ok(ExitCode::from(if good { 0 } else { 1 }));
    }
    if m.get_flag("daemon") {
        let number = |name: &str| m.get_one::<u32>(name).copied().unwrap_or_default();
        let amount = match m.get_flag("quick") {
            true => Amount::QUICK,
            false => Amount { rounds: ask.rounds, sandboxes: number("sandboxes"), cycles: number("cycles") },
        };
        let answer = bench::daemon(&ask, amount, &mut |what, done, all| bar.show(what, done, all))?;
        bar.clear();
        if json {
            render::print_json(&answer)
        } else {
            print(&daemon::page(&answer))
        }
        return Ok(ExitCode::from(if answer.growth.clean { 0 } else { 1 }));
    }
    if m.get_flag("code") {
        let usual = CodeAmount { rounds: ask.rounds, ..CodeAmount::USUAL };
        let amount = if m.get_flag("quick") { CodeAmount::QUICK } else { usual };
        let answer = bench::code(&ask, &caller, amount, &mut |what, done, all| bar.show(what, done, all))?;
        bar.clear();
        if json {
            render::print_json(&answer)
        } else {
            print(&code::page(&answer))
        }
        return Ok(ExitCode::SUCCESS);
    }
    if m.get_flag("net") {
        let bulk = m.get_one::<u64>("bulk").copied().unwrap_or(1024);
        let answer = bench::net(&ask, bulk, &mut |what, done, all| bar.show(what, done, all))?;
        bar.clear();
        if json {
            render::print_json(&answer)
        } else {
            print(&net::page(&answer))
        }
        return Ok(ExitCode::SUCCESS);
    }
    if m.get_flag("workspace") {
        let files = m.get_one::<u32>("files").copied().unwrap_or(100_000);
        let answer = bench::workspace(&ask, files, &mut |what, done, all| bar.show(what, done, all))?;
        bar.clear();
        if json {
            render::print_json(&answer)
        } else {
            print(&workspace::page(&answer))
        }
        return Ok(ExitCode::SUCCESS);
    }
    let answer = bench(&ask, &mut |what, done, all| bar.show(what, done, all))?;
    bar.clear();
    if json {
        render::print_json(&answer)
    } else {
        print(&page(&answer))
    }
    Ok(ExitCode::SUCCESS)
}

fn print(text: &str) {
    // A reader that left early is no error of ours.
    let _ = crate::stdout::lock().write_all(text.as_bytes());
}

/// Progress on a terminal, silence in a pipe.
struct Bar {
    /// The line that was drawn last.
    last: Option<String>,
    on: bool,
}

impl Bar {
    fn new() -> Bar {
        Bar { last: None, on: crate::render::can_draw(&std::io::stderr()) }
    }

    fn show(&mut self, what: &str, done: u32, all: u32) {
        // Writing to a terminal wakes another process, so it is rare: for a new line, and for each twentieth of the
        // work.
        let step = (all / 20).max(1);
        let is_new = self.last.as_deref() != Some(what);
        if self.on && (is_new || done.is_multiple_of(step) || done == all) {
            self.last = Some(what.to_owned());
            let _ = write!(std::io::stderr(), "\r\x1b[K{what}: {done} of {all}");
        }
    }

    fn clear(&mut self) {
        if self.last.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn page(answer: &StartReport) -> String {
    let mut text = String::new();
    let StartReport { rounds, warmup, kernel, cpus, load, .. } = answer;
    let _ = writeln!(
        text,
        "{rounds} rounds after {warmup} to warm up, every contender once a round in shuffled order; Linux {kernel}, {cpus} cpus, load {load}\n"
    );
    let _ = writeln!(text, "{:<22}{:>12}{:>12}{:>12}", "start to end of true", "p50 µs", "p95 µs", "p99 µs");
    for contender in &answer.contenders {
        match (&contender.us, &contender.absent) {
            (Some(us), _) => {
                let _ = writeln!(text, "{:<22}{:>12.0}{:>12.0}{:>12.0}", contender.name, us.p50, us.p95, us.p99);
            }
            (None, why) => {
                let why = why.as_deref().unwrap_or("not measured");
                let _ = writeln!(text, "{:<22}  left out: {}", contender.name, render::safe(why));
            }
        }
    }
    text.push('\n');
    let _ = writeln!(text, "{:<28}{:>12}{:>12}", "ratio", "p50", "p95");
    for ratio in &answer.ratios {
        let _ = writeln!(text, "{:<28}{:>10.2} ×{:>10.2} ×", ratio.name, ratio.p50, ratio.p95);
    }
    if let Some(own) = answer.own_start_us {
        let _ = writeln!(text, "\nown start of the binary (cofferdam-version less bare, p50): {own:.0} µs");
    }
    if !answer.work.is_empty() {
        let _ = writeln!(
            text,
            "\n{:<24}{:>14}{:>14}{:>10}{:>9}",
            "work, medians", "outside ms", "inside ms", "ratio", "rounds"
        );
    }
    for work in &answer.work {
        match (work.outside_us, work.inside_us, work.ratio) {
            (Some(outside), Some(inside), Some(ratio)) => {
                let (outside, inside) = (outside / 1000.0, inside / 1000.0);
                let _ =
                    writeln!(text, "{:<24}{outside:>14.1}{inside:>14.1}{ratio:>8.2} ×{:>9}", work.name, work.rounds);
            }
            _ => {
                let why = work.absent.as_deref().unwrap_or("not measured");
                let _ = writeln!(text, "{:<24}  left out: {}", work.name, render::safe(why));
            }
        }
    }
    text
}

fn soak_page(soaked: &SoakReport) -> String {
    let mut text = String::new();
    let SoakReport { runs, failed, seconds, contender, before, after, .. } = soaked;
    let _ = writeln!(text, "{runs} runs ({contender}) in {seconds:.1} s, {failed} failed\n");
    let _ = writeln!(text, "{:<24}{:>10}{:>10}", "left behind", "before", "after");
    type Count = fn(&Census) -> usize;
    let rows: [(&str, Count); 6] = [
        ("mounts", |c| c.mounts),
        ("orphaned cgroups", |c| c.cgroups),
        ("processes", |c| c.processes),
        ("descriptors", |c| c.descriptors),
        ("files in /tmp", |c| c.tmp_files),
        ("files in the work place", |c| c.work_files),
    ];
    for (name, count) in rows {
        let differs = if count(before) == count(after) { "" } else { "  differs" };
        let _ = writeln!(text, "{name:<24}{:>10}{:>10}{differs}", count(before), count(after));
    }
    let _ = writeln!(
        text,
        "\nmost memory of a run: {} kB among the first, {} kB among the last",
        soaked.peak_kb_first, soaked.peak_kb_last
    );
    text
}
