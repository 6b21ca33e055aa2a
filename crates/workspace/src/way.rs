//! Cache of open directories of a view: the next one visited is mostly near, and a deep tree must not be descended
//! anew each time.

use crate::layer::Stack;
use crate::view::MergedDir;
use api::Rel;
use std::io;
use std::rc::Rc;

/// Bound on the open descriptors.
const MOST_HANDLES: usize = 300;

/// Directories on the path to the one visited last; only the deepest, as descriptors are few.
#[derive(Debug, Default)]
pub struct OpenPath {
    open: Vec<(Rel, Rc<MergedDir>)>,
}

impl OpenPath {
    /// Parts of a directory, opened from its nearest parent that is still open. None if it exists on neither side.
    pub fn to(&mut self, stack: &Stack, path: &Rel) -> io::Result<Option<Rc<MergedDir>>> {
        while self.open.last().is_some_and(|(above, _)| !path.is_at_or_below(above)) {
            self.open.pop();
        }
        let (mut at, mut place) = match self.open.last() {
            Some((at, place)) => (at.clone(), Rc::clone(place)),
            None => (Rel::top(), Rc::new(stack.top()?)),
        };
        let rest = path.as_bytes()[at.as_bytes().len()..].split(|b| *b == b'/').filter(|part| !part.is_empty());
        for name in rest {
            let Some(below) = place.enter(name)? else { return Ok(None) };
            at = at.join(name);
            place = Rc::new(below);
            self.open.push((at.clone(), Rc::clone(&place)));
            self.let_go();
        }
        Ok(Some(place))
    }

    /// Closes the uppermost directories beyond the bound; the last always stays open.
    fn let_go(&mut self) {
        let mut held: usize = self.open.iter().map(|(_, place)| place.handles()).sum();
        let mut surplus = 0;
        while held > MOST_HANDLES && surplus + 1 < self.open.len() {
            held -= self.open[surplus].1.handles();
            surplus += 1;
        }
        self.open.drain(..surplus);
    }
}
