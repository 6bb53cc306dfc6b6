//! Prefetches of many objects: only a few run at once.

use std::time::Duration;

use hoplite_types::client::Request;
use hoplite_types::peer::{DirectoryAnswer, DirectoryRequest, PeerMessage};
use hoplite_types::{ObjectId, TransferId};

use crate::node::Node;
use crate::requests::{edition, get, inline_of, lend_of, object, SIZE};

const ROOM: u64 = 64 * SIZE;

/// A node that prefetches objects of another's, and what it has asked for.
struct Prefetching {
    at: Node,
    ids: Vec<ObjectId>,
    asked: Vec<(ObjectId, u64)>,
    pulled: Vec<(ObjectId, TransferId)>,
}

impl Prefetching {
    fn of(count: usize) -> Self {
        let mut at = Node::among(2, ROOM);
        let names = (0..).map(|number| object(&format!("part {number}")));
        let ids: Vec<_> = names.filter(|&id| at.owner_of(id) == 2).take(count).collect();
        at.ask(Request::Prefetch { ids: ids.clone(), nodes: Vec::new() });
        let mut new = Prefetching { at, ids, asked: Vec::new(), pulled: Vec::new() };
        new.listen();
        new
    }

    fn listen(&mut self) {
        for (_, message) in self.at.take_mail() {
            match message {
                // Some are repeated.
                PeerMessage::Directory { id, request: DirectoryRequest::Ask { ask, .. }, .. }
                    if !self.asked.contains(&(id, ask)) =>
                {
                    self.asked.push((id, ask));
                }
                PeerMessage::Pull { transfer, id, .. } => self.pulled.push((id, transfer)),
                _ => {}
            }
        }
    }

    /// The objects asked for, by their numbers.
    fn asked(&self) -> Vec<usize> {
        let number = |id| self.ids.iter().position(|&known| known == id).expect("one of ours");
        self.asked.iter().map(|&(id, _)| number(id)).collect()
    }

    fn answer(&mut self, number: usize, answer: impl FnOnce(u64) -> DirectoryAnswer) {
        let id = self.ids[number];
        let &(_, ask) = self.asked.iter().find(|&&(asked, _)| asked == id).expect("it was asked for");
        self.at.answer(2, id, answer(ask));
        self.listen();
    }

    fn lend(&mut self, number: usize, size: u64) {
        self.answer(number, |ask| lend_of(ask, 2, edition(5), size));
    }

    fn end(&mut self, number: usize) {
        let id = self.ids[number];
        let &(_, transfer) = self.pulled.iter().find(|&&(pulled, _)| pulled == id).expect("it is pulled");
        self.at.end_receive(transfer);
        self.listen();
    }
}

#[test]
fn large_objects_come_two_at_a_time() {
    let mut prefetching = Prefetching::of(5);
    assert_eq!(prefetching.asked(), [0, 1]);
    prefetching.lend(0, 8 * SIZE);
    prefetching.lend(1, 8 * SIZE);
    assert_eq!(prefetching.asked(), [0, 1]);
    prefetching.end(1);
    assert_eq!(prefetching.asked(), [0, 1, 2], "in their order, one for one that is here");
    prefetching.end(0);
    assert_eq!(prefetching.asked(), [0, 1, 2, 3]);
}

#[test]
fn as_many_as_have_four_mebibytes_go_together() {
    let mut prefetching = Prefetching::of(8);
    prefetching.lend(0, SIZE);
    assert_eq!(prefetching.asked(), [0, 1], "of the second nothing is known");
    prefetching.lend(1, SIZE);
    assert_eq!(prefetching.asked(), [0, 1, 2, 3]);
    prefetching.end(0);
    assert_eq!(prefetching.asked(), [0, 1, 2, 3, 4]);
}

#[test]
fn small_objects_come_many_at_a_time() {
    let mut prefetching = Prefetching::of(40);
    let bytes = |ask| inline_of(ask, edition(5), 8);
    prefetching.answer(0, bytes);
    prefetching.answer(1, bytes);
    assert_eq!(prefetching.asked().len(), 2 + 16);
}

#[test]
fn a_prefetch_of_an_object_without_copies_delays_no_other() {
    let mut prefetching = Prefetching::of(40);
    prefetching.at.wait(Duration::from_millis(50));
    prefetching.listen();
    assert!(prefetching.asked().len() >= 18, "many at a time, since the first were not answered for");
    prefetching.at.wait(Duration::from_millis(50));
    prefetching.listen();
    assert_eq!(prefetching.asked().len(), 40);
    prefetching.lend(39, SIZE);
    prefetching.end(39);
}

#[test]
fn a_stalled_prefetch_delays_the_others_for_a_second() {
    let mut prefetching = Prefetching::of(3);
    prefetching.lend(0, 8 * SIZE);
    prefetching.lend(1, 8 * SIZE);
    prefetching.at.wait(Duration::from_millis(900));
    prefetching.listen();
    assert_eq!(prefetching.asked(), [0, 1]);
    prefetching.at.wait(Duration::from_millis(200));
    prefetching.listen();
    assert_eq!(prefetching.asked(), [0, 1, 2]);
}

#[test]
fn a_prefetched_object_that_a_client_gets_is_fetched_at_once() {
    let mut prefetching = Prefetching::of(5);
    let wanted = prefetching.ids[4];
    prefetching.at.ask(get(wanted));
    prefetching.listen();
    assert_eq!(prefetching.asked(), [0, 1, 4]);
    for number in [0, 1, 4] {
        prefetching.lend(number, 8 * SIZE);
        prefetching.end(number);
    }
    assert_eq!(prefetching.asked(), [0, 1, 4, 2, 3], "and is not asked for again");
}
