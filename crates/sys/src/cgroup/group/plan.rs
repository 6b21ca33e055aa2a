//! Selection of the hierarchies that a sandbox needs, before any group is made.

use super::super::layout::Layout;
use super::super::parent::ParentGroup;
use super::super::{GroupSpec, Missing};

/// A hierarchy in which a group has to be made, with the controllers that it serves.
pub struct PlannedPart<'a> {
    pub hierarchy: usize,
    pub parent_group: &'a ParentGroup,
    pub serves: Vec<&'static str>,
}

/// Selects the hierarchies that serve the wanted limits, each once.
pub fn plan<'a>(layout: &'a Layout, want: &GroupSpec) -> Result<Vec<PlannedPart<'a>>, Missing> {
    let mut needs: Vec<PlannedPart<'a>> = Vec::new();
    let v2 = layout.v2();
    let limits = [
        ("memory", "memory_mb", want.memory_bytes.is_some()),
        ("pids", "processes", want.pids.is_some()),
        ("cpu", "cpus", want.cpu_quota.is_some()),
    ];
    for (controller, limit, wanted) in limits {
        if wanted {
            let (i, parent_group) = layout.find(controller).map_err(|lack| lack.of(limit))?;
            require(&mut needs, i, parent_group, Some(controller));
        }
    }
    if want.cpus.is_some()
        && let Ok((i, parent_group)) = layout.find("cpuset")
    {
        require(&mut needs, i, parent_group, Some("cpuset"));
    }
    if want.kill {
        match &v2 {
            Ok((i, parent_group)) => require(&mut needs, *i, parent_group, None),
            Err(lack) if needs.is_empty() => {
                let i = layout.any_v1().ok_or_else(|| lack.clone().of("kill"))?;
                let parent_group = layout.hierarchies[i].parent_group().map_err(|lack| lack.of("kill"))?;
                require(&mut needs, i, parent_group, None);
            }
            // Members can be killed by the member list of any group that is made anyway.
            Err(_) => {}
        }
    }
    if want.cpu_usage {
        let made = |i: usize| needs.iter().any(|n| n.hierarchy == i);
        let (i, parent_group) = match &v2 {
            Ok((i, parent_group)) if made(*i) => (*i, *parent_group),
            _ => layout.find("cpuacct").or_else(|lack| v2.map_err(|_| lack)).map_err(|lack| lack.of("cpu_ms"))?,
        };
        require(&mut needs, i, parent_group, Some("cpuacct"));
    }
    Ok(needs)
}

fn require<'a>(
    needs: &mut Vec<PlannedPart<'a>>,
    hierarchy: usize,
    parent_group: &'a ParentGroup,
    controller: Option<&'static str>,
) {
    match needs.iter_mut().find(|n| n.hierarchy == hierarchy) {
        Some(need) => need.serves.extend(controller),
        None => needs.push(PlannedPart { hierarchy, parent_group, serves: controller.into_iter().collect() }),
    }
}
