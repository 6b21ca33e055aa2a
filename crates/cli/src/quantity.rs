//! Amounts on the command line: limits by their short and full names, counts, and durations.

pub use terms::quantity::{size, time};
use terms::{COUNTS, CPUS, Fault, Limits, MEGABYTES, OnOutputLimit};

/// Formats a duration in its largest whole unit.
pub fn spell(ms: u64) -> String {
    let units = [(86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second"), (1, "millisecond")];
    let (size, name) =
        units.into_iter().find(|(size, _)| ms >= *size && ms.is_multiple_of(*size)).unwrap_or((1, "millisecond"));
    let count = ms / size;
    format!("{count} {name}{}", if count == 1 { "" } else { "s" })
}

pub fn count(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(0) => Err(format!("{text:?}: must be at least 1")),
        Ok(n) if !COUNTS.contains(&n) => Err(format!("{text:?}: must be at most {}", COUNTS.end())),
        Ok(n) => Ok(n),
        Err(_) => Err(format!("{text:?}: not a whole number")),
    }
}

pub fn cpus(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if CPUS.contains(&n) => Ok(n),
        _ => Err(format!("{text:?}: not a number of processors; use e.g. 2 or 0.5")),
    }
}

fn megabytes(text: &str) -> Result<f64, String> {
    Ok(size(text)? as f64 / 1_048_576.0)
}

/// Sets one limit by its short or full name.
pub fn set(limits: &mut Limits, item: &str) -> Result<(), Fault> {
    let refuse = |why: String| Fault::invalid(format!("--limit {why}"));
    let (name, amount) =
        item.split_once('=').ok_or_else(|| refuse(format!("{item:?}: write NAME=AMOUNT, e.g. memory=256m")))?;
    set_one(limits, name, amount).map_err(|why| refuse(format!("{name}: {why}")))
}

pub fn set_one(limits: &mut Limits, name: &str, amount: &str) -> Result<(), String> {
    match name {
        "wall" | "timeout" => limits.max_wall_ms = Some(time(amount)?),
        "max_wall_ms" => limits.max_wall_ms = Some(count(amount)?),
        "cpu" => limits.max_cpu_ms = Some(time(amount)?),
        "max_cpu_ms" => limits.max_cpu_ms = Some(count(amount)?),
        "memory" => limits.max_memory_mb = Some(megabytes(amount)?),
        "max_memory_mb" => limits.max_memory_mb = Some(plain_megabytes(amount)?),
        "output" | "max_output_bytes" => limits.max_output_bytes = Some(size(amount)?),
        "processes" | "pids" | "max_processes" => limits.max_processes = Some(count(amount)?),
        "open_files" | "nofile" | "max_open_files" => limits.max_open_files = Some(count(amount)?),
        "disk" => limits.max_disk_mb = Some(megabytes(amount)?),
        "max_disk_mb" => limits.max_disk_mb = Some(plain_megabytes(amount)?),
        "files" | "max_files" => limits.max_files = Some(count(amount)?),
        "net" | "max_net_bytes" => limits.max_net_bytes = Some(size(amount)?),
        "on_output_limit" => {
            limits.on_output_limit = Some(match amount {
                "end" => OnOutputLimit::End,
                "truncate" => OnOutputLimit::Truncate,
                _ => return Err(format!("{amount:?}: use end or truncate")),
            });
        }
        _ => {
            return Err(
                "no such limit; use wall, cpu, memory, output, processes, open_files, disk, files, net or on_output_limit"
                    .into(),
            );
        }
    }
    Ok(())
}

fn plain_megabytes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(mb) if MEGABYTES.contains(&mb) => Ok(mb),
        _ => Err(format!("{text:?}: not a number of megabytes")),
    }
}
