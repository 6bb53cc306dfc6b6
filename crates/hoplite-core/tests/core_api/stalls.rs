//! Streams that stall although no connection breaks.

use hoplite_core::Input;
use hoplite_types::peer::PeerMessage;
use hoplite_types::{ObjectId, TransferId};

use crate::gets::lend;
use crate::node::{node, Node};
use crate::puts::put;
use crate::requests::{edition, get, object, SIZE};
use crate::sends::edition_of;

const CAME: u64 = 1000;

fn receiving() -> (Node, ObjectId, TransferId) {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(2);
    at.ask(get(id));
    let transfer = lend(&mut at, 2, id, 3, edition(5), SIZE);
    at.arrived.insert(transfer, CAME);
    at.take_mail();
    (at, id, transfer)
}

/// Node 2 pulls what was put here.
fn sending() -> (Node, TransferId) {
    let mut at = Node::among(2, 8 << 20);
    let id = object("x");
    put(&mut at, id, SIZE);
    let here = edition_of(&mut at, id);
    let transfer = TransferId(9);
    at.hear(2, PeerMessage::Pull { transfer, id, edition: here, offset: 0, patient: false });
    (at, transfer)
}

fn stall(at: &mut Node, transfer: TransferId, watermark: u64) {
    at.handle(Input::ReceiveStalled { transfer, watermark });
}

#[test]
fn a_sender_that_does_not_answer_is_given_up() {
    let (mut at, _, transfer) = receiving();
    stall(&mut at, transfer, CAME);
    assert_eq!(at.take_mail(), [(node(3), PeerMessage::Check { transfer })]);
    assert!(at.receives.contains_key(&transfer), "it is asked first");
    stall(&mut at, transfer, CAME);
    assert!(!at.receives.contains_key(&transfer));
}

#[test]
fn a_sender_that_has_more_than_it_sends_is_given_up() {
    let (mut at, _, transfer) = receiving();
    stall(&mut at, transfer, CAME);
    at.hear(3, PeerMessage::Checked { transfer, watermark: CAME + 1 });
    assert!(at.receives.contains_key(&transfer), "it may be under way");
    stall(&mut at, transfer, CAME);
    assert!(!at.receives.contains_key(&transfer));
}

#[test]
fn a_sender_that_waits_itself_is_waited_for() {
    let (mut at, _, transfer) = receiving();
    for _ in 0..100 {
        stall(&mut at, transfer, CAME);
        at.hear(3, PeerMessage::Checked { transfer, watermark: CAME });
    }
    assert!(at.receives.contains_key(&transfer));
}

#[test]
fn a_stream_that_moves_between_two_stalls_is_given_its_time() {
    let (mut at, _, transfer) = receiving();
    stall(&mut at, transfer, CAME);
    stall(&mut at, transfer, CAME + 1);
    assert!(at.receives.contains_key(&transfer));
}

/// Its last bytes may be in the network still.
#[test]
fn a_check_of_a_finished_send_is_not_a_refusal() {
    let (mut at, transfer) = sending();
    let &send = at.sends.keys().next().expect("it sends");
    at.handle(Input::SendEnded { send, outcome: Ok(()) });
    at.take_mail();
    at.hear(2, PeerMessage::Check { transfer });
    assert_eq!(at.take_mail(), [(node(2), PeerMessage::Checked { transfer, watermark: u64::MAX })]);
    let other = TransferId(77);
    at.hear(2, PeerMessage::Check { transfer: other });
    assert_eq!(at.take_mail(), [(node(2), PeerMessage::PullRefused { transfer: other })]);
}

/// Each change of all senders fills the links with bytes that are no longer needed.
#[test]
fn senders_that_stall_at_the_same_byte_get_twice_the_time_each() {
    let (mut at, id, mut transfer) = receiving();
    let mut looks = Vec::new();
    for round in 0..3 {
        let mut count = 0;
        while at.receives.contains_key(&transfer) {
            stall(&mut at, transfer, CAME);
            at.hear(3, PeerMessage::Checked { transfer, watermark: u64::MAX });
            count += 1;
        }
        looks.push(count);
        transfer = lend(&mut at, 2, id, 3 - round % 2, edition(5), SIZE);
        at.arrived.insert(transfer, CAME);
    }
    assert_eq!(looks, [2, 3, 5]);
}

#[test]
fn a_sealed_copy_counts_its_seal() {
    let (mut at, transfer) = sending();
    at.take_mail();
    at.hear(2, PeerMessage::Check { transfer });
    assert_eq!(at.take_mail(), [(node(2), PeerMessage::Checked { transfer, watermark: SIZE + 1 })]);
}
