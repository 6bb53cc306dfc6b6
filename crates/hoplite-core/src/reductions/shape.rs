//! The tree over slots numbered by arrival, without knowing how many will come.
//!
//! Chain: each slot's child is the one before it. Binary: the infinite in-order binary tree, where
//! position p has level `trailing zeros of p+1`; when the last slot has come, right subtrees that
//! stick out beyond it are cut off. Star: the second slot is the parent of all others.

use crate::cost::Degree;

/// A slot's place in the tree.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Place {
    /// Positions of children that exist.
    pub children: Vec<usize>,
    /// Whether more children may still come.
    pub expects_more: bool,
    /// Some children exist or are expected, so it is not a mere leaf.
    pub is_inner: bool,
    pub has_parent: bool,
}

/// The places of `count` slots; `last` if no more will come. The root is the slot without a parent; if `last`, there
/// is exactly one.
pub(super) fn places(degree: Degree, count: usize, last: bool) -> Vec<Place> {
    let mut places = vec![Place::default(); count];
    for position in 0..count {
        let (children, expects_more) = children(degree, position, count, last);
        for &child in &children {
            places[child].has_parent = true;
        }
        places[position].is_inner = !children.is_empty() || expects_more;
        places[position].expects_more = expects_more;
        places[position].children = children;
    }
    places
}

fn children(degree: Degree, position: usize, count: usize, last: bool) -> (Vec<usize>, bool) {
    match degree {
        Degree::Chain => (position.checked_sub(1).into_iter().collect(), false),
        Degree::Star if position == 1 => ((0..count).filter(|&other| other != 1).collect(), !last),
        Degree::Star => (Vec::new(), false),
        Degree::Binary => binary_children(position, count, last),
    }
}

fn level(position: usize) -> u32 {
    (position + 1).trailing_zeros()
}

fn binary_children(position: usize, count: usize, last: bool) -> (Vec<usize>, bool) {
    if level(position) == 0 {
        return (Vec::new(), false);
    }
    let step = 1 << (level(position) - 1);
    let mut children = vec![position - step];
    let mut right = position + step;
    if right >= count && !last {
        return (children, true);
    }
    // Cut off what sticks out: the right subtree is headed by its highest existing ancestor-line
    // member on the left.
    while right >= count && level(right) > 0 {
        right -= 1 << (level(right) - 1);
    }
    if right < count {
        children.push(right);
    }
    (children, false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Degree::{Binary, Chain, Star};

    #[test]
    fn every_finished_shape_is_one_tree() {
        for degree in [Chain, Binary, Star] {
            for count in 1..200 {
                let places = places(degree, count, true);
                let roots: Vec<_> = (0..count).filter(|&p| !places[p].has_parent).collect();
                assert_eq!(roots.len(), 1, "{degree:?} of {count}: roots {roots:?}");
                let mut seen = vec![false; count];
                let mut open = roots;
                let mut depth = 0;
                while !open.is_empty() {
                    depth += 1;
                    let mut next = Vec::new();
                    for position in open {
                        assert!(!std::mem::replace(&mut seen[position], true), "visited twice");
                        assert!(!places[position].expects_more);
                        next.extend(&places[position].children);
                    }
                    open = next;
                }
                assert!(seen.into_iter().all(|seen| seen));
                let most = match degree {
                    Chain => count,
                    Binary => count.ilog2() as usize + 2,
                    Star => 2,
                };
                assert!(depth <= most, "{degree:?} of {count} is {depth} deep");
            }
        }
    }

    /// Slots are never taken away from a parent as others arrive: their folded bytes stay useful.
    #[test]
    fn growing_only_adds() {
        for degree in [Chain, Binary, Star] {
            for count in 1..100 {
                let (before, after) = (places(degree, count, false), places(degree, count + 1, false));
                let end = places(degree, count, true);
                for position in 0..count {
                    for child in &before[position].children {
                        assert!(after[position].children.contains(child));
                        assert!(end[position].children.contains(child));
                    }
                    // A slot that gains a child was open for it.
                    for grown in [&after[position], &end[position]] {
                        if grown.children.len() > before[position].children.len() {
                            assert!(before[position].expects_more);
                        }
                    }
                }
            }
        }
    }
}
