//! What a delivery has, by name, without its values.

use crate::resolve::Resolved;
use crate::scheme::Scheme;
use mica_dtype::Dtype;
use mica_models::naming::Naming;
use std::collections::HashSet;

/// How many similar names an error offers.
const OFFERED: usize = 3;

/// A tensor's type and shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its elements.
    pub dtype: Dtype,
    /// Its shape, outermost first.
    pub shape: Vec<u64>,
}

/// The tensors of a delivery.
pub trait Names {
    /// The tensor of a name.
    fn find(&self, name: &str) -> Option<TensorInfo>;
    /// Whether there is a tensor of a name.
    fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }
    /// All names, in any order.
    fn all(&self) -> Box<dyn Iterator<Item = &str> + '_>;
    /// How integers are packed, where the delivery says so.
    fn scheme(&self) -> Option<&Scheme> {
        None
    }
}

/// The tensors that no part reads and that the model does not knowingly ignore, sorted. `resolved` are all
/// parts of the stack that `naming` belongs to.
pub fn unread<'a>(
    names: &dyn Names,
    naming: &Naming,
    resolved: impl IntoIterator<Item = &'a Resolved>,
) -> Vec<String> {
    let read: HashSet<&str> = resolved.into_iter().flat_map(|part| &part.read).map(String::as_str).collect();
    let nobodys = |name: &&str| !read.contains(name) && !naming.ignored(name);
    let mut left: Vec<String> = names.all().filter(nobodys).map(str::to_owned).collect();
    left.sort_unstable();
    left
}

/// The delivery's names most like any of `tried`, best first; none where nothing is like them.
pub(crate) fn nearest(names: &dyn Names, tried: &[String]) -> Vec<String> {
    let distance = |name: &str| {
        let each = tried.iter().filter_map(|tried| {
            let most = tried.len() / 2;
            // The edit distance is at least the difference in length, which is cheaper.
            let near = tried.len().abs_diff(name.len()) <= most;
            near.then(|| strsim::damerau_levenshtein(tried, name)).filter(|&distance| distance <= most)
        });
        each.min()
    };
    let mut scored: Vec<(usize, &str)> =
        names.all().filter_map(|name| Some((distance(name)?, name))).collect();
    scored.sort_unstable();
    scored.into_iter().take(OFFERED).map(|(_, name)| name.to_owned()).collect()
}
