use hoplite_types::{Edition, Header};

use super::*;
use crate::repeats::LOOKED_AT_MAX;

#[test]
fn a_pass_over_nothing_leaves_no_mark() {
    let mut subscriptions = Subscriptions::default();
    let count = LOOKED_AT_MAX as u128 + 10;
    for number in 0..count {
        subscriptions.table.entry(ObjectId(number.to_be_bytes())).or_default();
    }
    subscriptions.repeats.begin(&ShardSet::default());
    assert_eq!(subscriptions.next_to_repeat(256), []);
    subscriptions.repeats.begin(&ShardSet::all());
    let mut said = BTreeSet::new();
    while subscriptions.is_repeating() {
        let some = subscriptions.next_to_repeat(256);
        assert!(some.len() <= 256);
        said.extend(some);
    }
    assert_eq!(said.len() as u128, count);
}

#[test]
fn what_a_node_says_when_it_is_back_is_not_forgotten_with_what_it_had() {
    let (mut subscriptions, node) =
        (Subscriptions::default(), NodeId { addr: ([10, 0, 0, 1], 1).into(), incarnation: 1 });
    let objects = [1, 2].map(|number: u128| ObjectId(number.to_be_bytes()));
    let report = |seq| CopyReport {
        seq,
        edition: Edition { writing: 1, attempt: 0 },
        size: 1,
        header: Header::default(),
        complete: true,
        pinned: true,
        upstream: None,
        leaving: false,
        stamp: None,
        claim: None,
    };
    for object in objects {
        subscriptions.table.entry(object).or_default();
        subscriptions.note_copy(object, node, report(7));
    }
    subscriptions.disregard_copies_of(node);
    assert_eq!(subscriptions.copies(objects[1]).count(), 0);
    assert!(!subscriptions.knows_later(objects[1], node, 1));
    subscriptions.note_copy(objects[1], node, report(1));
    assert_eq!(subscriptions.gone.next(), Some((objects[0], node)));
    assert!(subscriptions.forget_copy(objects[0], node));
    assert_eq!(subscriptions.gone.next(), None);
    assert_eq!(subscriptions.copies(objects[1]).count(), 1);
    // It dies once more, and there is no watcher any more.
    subscriptions.disregard_copies_of(node);
    assert!(subscriptions.gone.is_left());
    objects.into_iter().for_each(|object| drop(subscriptions.remove(object)));
    assert!(!subscriptions.gone.is_left() && subscriptions.by_node.is_empty());
}
