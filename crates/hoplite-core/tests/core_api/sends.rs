//! Sends: pulls, refusals, streams that break, and the number of connections.

use std::time::Duration;

use hoplite_core::io::{Broken, Input, SendId};
use hoplite_types::client::Request;
use hoplite_types::peer::{DirectoryRequest, PeerMessage};
use hoplite_types::{Edition, ObjectId, TransferId};

use crate::gets::lend;
use crate::node::{node, Node, Sending};
use crate::puts::{created, put, viewed};
use crate::requests::{create, delete, edition, get, object, SIZE};

fn pull(transfer: u64, id: ObjectId, edition: Edition, patient: bool) -> PeerMessage {
    PeerMessage::Pull { transfer: TransferId(transfer), id, edition, offset: 0, patient }
}

fn refusals(at: &mut Node) -> usize {
    at.take_mail().iter().filter(|(_, message)| matches!(message, PeerMessage::PullRefused { .. })).count()
}

/// The edition of the only object of a lone node.
pub fn edition_of(at: &mut Node, id: ObjectId) -> Edition {
    at.request(7, id, DirectoryRequest::Locate { token: 1 });
    let located = at.take_mail().into_iter().find_map(|(_, message)| match message {
        PeerMessage::Answer {
            answer: hoplite_types::peer::DirectoryAnswer::Located { copies, .. }, ..
        } => Some(copies[0].edition),
        _ => None,
    });
    located.expect("it is here")
}

#[test]
fn pulls_of_copies_that_are_here_are_served_and_others_refused() {
    let mut at = Node::alone(8 << 20);
    let id = object("x");
    put(&mut at, id, SIZE);
    let here = edition_of(&mut at, id);
    at.hear(2, pull(1, id, here, false));
    assert_eq!(at.sends.len(), 1);
    at.hear(2, pull(2, id, edition(99), false));
    at.hear(2, pull(3, object("y"), here, false));
    assert_eq!(refusals(&mut at), 2);
    at.hear(2, PeerMessage::CancelPull { transfer: TransferId(1) });
    assert!(at.sends.is_empty());
}

/// Its connection may never have been made.
#[test]
fn a_receiver_is_told_of_a_broken_stream_but_not_of_a_cancelled_one() {
    let mut at = Node::among(2, 8 << 20);
    let id = at.id_owned_by(1);
    put(&mut at, id, SIZE);
    let here = edition_of(&mut at, id);
    at.hear(2, pull(1, id, here, false));
    at.take_mail();
    let send = send_of(&at, 1);
    at.sends.remove(&send);
    at.handle(Input::SendEnded { send, outcome: Err(Broken) });
    let refused = PeerMessage::PullRefused { transfer: TransferId(1) };
    assert_eq!(at.take_mail(), [(node(2), refused)]);
    at.hear(2, pull(2, id, here, false));
    at.hear(2, PeerMessage::CancelPull { transfer: TransferId(2) });
    assert_eq!((at.sends.len(), refusals(&mut at)), (0, 0));
}

fn not_begun(at: &mut Node, transfer: u64) {
    let send = send_of(at, transfer);
    at.sends.remove(&send);
    at.handle(Input::SendNotBegun { send });
}

/// Or a sum of twenty streams would begin anew whenever one of them could not be connected.
#[test]
fn a_send_that_only_this_node_can_do_is_tried_again_without_a_connection() {
    let mut at = Node::among(2, 8 << 20);
    let id = at.id_owned_by(1);
    put(&mut at, id, SIZE);
    let here = edition_of(&mut at, id);
    at.hear(2, pull(1, id, here, false));
    not_begun(&mut at, 1);
    assert_eq!(refusals(&mut at), 1, "it can ask another");
    at.hear(2, pull(2, id, here, true));
    for rest in [50, 100, 200] {
        not_begun(&mut at, 2);
        assert!(at.sends.is_empty());
        at.wait(Duration::from_millis(rest));
        assert_eq!((at.sends.len(), refusals(&mut at)), (1, 0));
    }
    not_begun(&mut at, 2);
    assert_eq!((at.sends.len(), refusals(&mut at)), (0, 1));
    // A send that was cancelled, or whose copy is gone, is not tried again.
    for transfer in [3, 4] {
        at.hear(2, pull(transfer, id, here, true));
        not_begun(&mut at, transfer);
    }
    at.hear(2, PeerMessage::CancelPull { transfer: TransferId(3) });
    at.ask(delete(id));
    at.wait(Duration::from_secs(1));
    assert_eq!((at.sends.len(), refusals(&mut at)), (0, 1));
}

#[test]
fn an_early_pull_waits_for_its_copy_but_not_for_ever() {
    let mut at = Node::among(4, 8 << 20);
    let id = at.id_owned_by(2);
    at.ask(get(id));
    at.hear(4, pull(1, id, edition(5), false));
    at.hear(4, pull(2, id, edition(6), false));
    assert!(at.sends.is_empty());
    lend(&mut at, 2, id, 3, edition(5), SIZE);
    assert_eq!(at.sends.values().map(|send| send.transfer).collect::<Vec<_>>(), [TransferId(1)]);
    at.hear(4, pull(3, object("a seat to come"), edition(7), true));
    at.take_mail();
    at.wait(Duration::from_secs(3));
    assert_eq!(refusals(&mut at), 2);
}

#[test]
fn a_deleted_object_is_sent_no_further_but_views_keep_its_bytes() {
    let mut at = Node::alone(8 << 20);
    let id = object("x");
    let copy = put(&mut at, id, SIZE);
    let here = edition_of(&mut at, id);
    let call = at.ask(get(id));
    viewed(&at, call);
    at.hear(2, pull(1, id, here, false));
    at.ask(delete(id));
    assert!(at.sends.is_empty() && at.copies.contains_key(&copy));
    at.ask(Request::Release { copy });
    at.assert_empty();
}

#[test]
fn an_abandoned_put_breaks_its_streams() {
    let mut at = Node::alone(8 << 20);
    let id = object("x");
    let call = at.ask(create(id, SIZE));
    let copy = created(&at, call);
    let here = edition_of(&mut at, id);
    at.hear(2, pull(1, id, here, false));
    assert_eq!(at.sends.len(), 1);
    at.ask(Request::Abort { copy });
    at.assert_empty();
}

/// A directory that still counts us as a holder would lend us again and again.
#[test]
fn a_node_that_refuses_a_pull_corrects_the_directory() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(2);
    at.hear(3, pull(1, id, edition(5), false));
    let said = at.take_requests(id);
    assert!(
        matches!(said[..], [DirectoryRequest::Withdraw { edition: e, .. }] if e == edition(5)),
        "{said:?}"
    );
}

#[test]
fn a_dead_receiver_is_sent_nothing_more() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(1);
    put(&mut at, id, SIZE);
    let here = edition_of(&mut at, id);
    at.hear(3, pull(1, id, here, false));
    at.hear(3, pull(2, object("to come"), here, true));
    at.kill(3);
    assert!(at.sends.is_empty());
    at.take_mail();
    at.wait(Duration::from_secs(3));
    assert!(at.take_mail().iter().all(|(to, _)| *to != node(3)));
}

const LARGE: u64 = 16 << 20;

/// Sends it to `receiver`, at so much for each connection; tells how many it went by.
pub fn send_at(at: &mut Node, receiver: u16, transfer: u64, id: ObjectId, bytes_per_s: u64) -> u8 {
    let here = edition_of(at, id);
    at.hear(receiver, pull(transfer, id, here, false));
    let used = used_by(at, transfer);
    let send = send_of(at, transfer);
    let bytes_per_s = bytes_per_s * u64::from(used);
    at.handle(Input::SendMeasured { send, bytes: LARGE, bytes_per_s });
    at.end_send(send);
    used
}

fn send_of(at: &Node, transfer: u64) -> SendId {
    let of = |(_, sending): &(&SendId, &Sending)| sending.transfer == TransferId(transfer);
    *at.sends.iter().find(of).expect("it is sent").0
}

fn used_by(at: &Node, transfer: u64) -> u8 {
    at.sends[&send_of(at, transfer)].connections.get()
}

#[test]
fn large_objects_go_by_more_connections_where_that_is_faster() {
    let mut at = Node::alone(64 << 20);
    let id = object("x");
    put(&mut at, id, LARGE);
    let used: Vec<_> = (1..=6).map(|transfer| send_at(&mut at, 2, transfer, id, 1000)).collect();
    assert_eq!(used, [1, 2, 1, 4, 2, 8]);
    let small = object("small");
    put(&mut at, small, 512 << 10);
    assert_eq!(send_at(&mut at, 2, 7, small, 1000), 1);
}

#[test]
fn transfers_at_the_same_time_prove_nothing_and_share_connections() {
    let mut at = Node::alone(64 << 20);
    let id = object("x");
    put(&mut at, id, LARGE);
    let here = edition_of(&mut at, id);
    for transfer in [1, 2] {
        at.hear(2, pull(transfer, id, here, false));
    }
    let both = [send_of(&at, 1), send_of(&at, 2)];
    for send in both {
        at.handle(Input::SendMeasured { send, bytes: LARGE, bytes_per_s: 10 });
        at.end_send(send);
    }
    // Otherwise this would be a trial already.
    let used: Vec<_> = (3..=7).map(|transfer| send_at(&mut at, 2, transfer, id, 1000)).collect();
    assert_eq!(used, [1, 2, 1, 4, 2]);
    for transfer in [8, 9, 10] {
        at.hear(2, pull(transfer, id, here, false));
    }
    assert_eq!([8, 9, 10].map(|transfer| used_by(&at, transfer)), [8, 2, 1]);
}
