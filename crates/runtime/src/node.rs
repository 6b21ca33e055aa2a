//! Live state of one process: open state directories, and keepers with the connections to them. A front end makes one `Node` and passes it
//! to every verb. There is no other access to it, so that two nodes in one process share nothing.

use crate::keeper::Keepers;
use state::StatePool;

/// Owner of everything that outlives one verb.
#[derive(Debug)]
pub struct Node {
    pub states: StatePool,
    pub keepers: Keepers,
}

impl Node {
    /// Creates a node for a process that carries out one command: nothing stays open after its verb.
    pub fn for_command() -> Node {
        Node { states: StatePool::closing(), keepers: Keepers::closing() }
    }

    /// Creates a node for a process that carries out many verbs: states and connections to keepers are pooled until `sweep` closes them.
    /// Must be created before the process raises its open-file limit, which is not for guests.
    pub fn for_daemon() -> Node {
        Node { states: StatePool::resting(), keepers: Keepers::resting() }
    }

    /// Closes pooled entries that have expired, and returns how many remain.
    pub fn sweep(&self) -> usize {
        self.states.sweep() + self.keepers.sweep()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use state::Caller;
    use std::path::Path;

    /// Counts descriptors of this process that are open on a directory.
    fn handles_on(dir: &Path) -> usize {
        let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        all.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|to| to == dir)).count()
    }

    #[test]
    fn two_nodes_share_nothing_and_that_of_a_command_keeps_nothing_open() {
        let root = std::env::temp_dir().join(format!("cofferdam-nodes-{}", std::process::id()));
        let state = root.join("state");
        let caller = Caller::new(root.clone(), root.clone(), "rita".into(), Vec::new(), |_| None).in_state(&state);
        let (one, other, command) = (Node::for_daemon(), Node::for_daemon(), Node::for_command());
        let used = |node: &Node| drop(node.states.lend(&caller).unwrap());
        used(&command);
        let dir = std::fs::canonicalize(&state).unwrap();
        assert_eq!((handles_on(&dir), command.sweep()), (0, 0), "a command closes what it used");
        used(&one);
        let each = handles_on(&dir);
        assert!(each > 0, "a daemon's state rests");
        used(&other);
        assert_eq!(handles_on(&dir), 2 * each, "a state that rests in one node is not found by another");
        used(&one);
        assert_eq!(handles_on(&dir), 2 * each, "the control: the node that it rests in finds it");
        drop(other);
        assert_eq!(handles_on(&dir), each);
        drop(one);
        assert_eq!(handles_on(&dir), 0, "what rests goes with its node");
        std::fs::remove_dir_all(&root).unwrap();
    }
}
