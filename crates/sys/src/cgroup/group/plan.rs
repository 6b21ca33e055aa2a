//! Which hierarchies a sandbox needs, decided before anything is made.

use super::super::layout::Layout;
use super::super::place::Place;
use super::super::{Missing, Want};

/// One hierarchy that the group needs, before anything is made.
pub struct Need<'a> {
    pub hierarchy: usize,
    pub place: &'a Place,
    pub serves: Vec<&'static str>,
}

/// Which hierarchies serve the want, each once.
pub fn plan<'a>(layout: &'a Layout, want: &Want) -> Result<Vec<Need<'a>>, Missing> {
    let mut needs: Vec<Need<'a>> = Vec::new();
    let v2 = layout.v2();
    let limits = [
        ("memory", "memory_mb", want.memory_bytes.is_some()),
        ("pids", "processes", want.pids.is_some()),
        ("cpu", "cpus", want.cpu_quota.is_some()),
    ];
    for (controller, limit, wanted) in limits {
        if wanted {
            let (i, place) = layout.find(controller).map_err(|lack| lack.of(limit))?;
            require(&mut needs, i, place, Some(controller));
        }
    }
    if want.cpus.is_some()
        && let Ok((i, place)) = layout.find("cpuset")
    {
        require(&mut needs, i, place, Some("cpuset"));
    }
    if want.kill {
        match &v2 {
            Ok((i, place)) => require(&mut needs, *i, place, None),
            Err(lack) if needs.is_empty() => {
                let i = layout.any_v1().ok_or_else(|| lack.clone().of("kill"))?;
                let place = layout.hierarchies[i].place().map_err(|lack| lack.of("kill"))?;
                require(&mut needs, i, place, None);
            }
            // The member list of any group we make anyway is enough to kill by.
            Err(_) => {}
        }
    }
    if want.cpu_usage {
        let made = |i: usize| needs.iter().any(|n| n.hierarchy == i);
        let (i, place) = match &v2 {
            Ok((i, place)) if made(*i) => (*i, *place),
            _ => layout.find("cpuacct").or_else(|lack| v2.map_err(|_| lack)).map_err(|lack| lack.of("cpu_ms"))?,
        };
        require(&mut needs, i, place, Some("cpuacct"));
    }
    Ok(needs)
}

fn require<'a>(needs: &mut Vec<Need<'a>>, hierarchy: usize, place: &'a Place, controller: Option<&'static str>) {
    match needs.iter_mut().find(|n| n.hierarchy == hierarchy) {
        Some(need) => need.serves.extend(controller),
        None => needs.push(Need { hierarchy, place, serves: controller.into_iter().collect() }),
    }
}
