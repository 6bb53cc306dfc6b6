//! Calls under way: concurrent, cancelled, interrupted, pumped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hoplite_client::{never, Client, Lookup, ReduceCall, View};
use hoplite_types::client::{Call, Reply, Request, Status};
use hoplite_types::limits::{IDS_MAX, SOURCES_MAX};
use hoplite_types::{Blob, Error, ErrorKind, FoldOrder, Header, ObjectId, Op};

use crate::node::{bytes, id, node_id, view, Node, Session, COPY, OFFSET};

/// A call and its answer. The client has then received all earlier answers.
fn settle(client: &Arc<Client>, session: &mut Session) {
    let mut ticket = client.submit(Request::Status).unwrap();
    assert_eq!(session.answer_next(Reply::Done), Request::Status);
    assert_eq!(ticket.wait(None, &mut never).unwrap(), Reply::Done);
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(20))
}

#[test]
fn answers_find_their_callers_in_any_order() {
    const CALLERS: u64 = 8;
    const ROUNDS: u64 = 50;
    let node = Node::start();
    let (client, mut session) = node.connect();
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let client = &client;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let name = ObjectId::from_name(&format!("{caller}/{round}"));
                    let ready = client.wait(vec![name], 1, None, &mut never).unwrap();
                    assert_eq!(ready, [name]);
                }
            });
        }
        for _ in 0..ROUNDS {
            // All callers are waiting now: the last who asked is answered first.
            let mut asked: Vec<_> = (0..CALLERS).map(|_| session.next()).collect();
            while let Some(Call { call, request: Request::Wait { ids, .. } }) = asked.pop() {
                session.answer(call, Reply::Ready { ids });
            }
        }
    });
}

#[test]
fn the_nodes_own_error_is_passed_on() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let deleted = Error::new(ErrorKind::Deleted, "deleted, and more of the story");
    let mut ticket = client.submit(Request::Status).unwrap();
    session.answer_next(Reply::Failed(deleted.clone()));
    assert_eq!(ticket.wait(None, &mut never).unwrap_err(), deleted);
    assert_eq!(ticket.wait(None, &mut never).unwrap_err().kind, ErrorKind::BadArgument);
}

#[test]
fn a_timed_out_wait_can_be_repeated() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let mut ticket = client.submit(Request::Locate { id: id(), timeout_ms: None }).unwrap();
    let error = ticket.wait(soon(), &mut never).unwrap_err();
    assert_eq!(error.kind, ErrorKind::TimedOut);
    assert!(error.message.contains(&id().to_string()), "{error}");
    assert!(error.message.contains(&node_id().to_string()), "{error}");
    session.answer_next(Reply::Done);
    assert_eq!(ticket.wait(None, &mut never).unwrap(), Reply::Done);
}

#[test]
fn a_dropped_call_is_cancelled_and_its_copy_given_back() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let get = Request::Get { id: id(), timeout_ms: None, partial: false, fail_if_lost: false };
    drop(client.submit(get).unwrap());
    let call = session.next().call;
    session.expect(Request::Cancel { call });
    session.answer(call, view(10, true));
    settle(&client, &mut session);
    session.expect(Request::Release { copy: COPY });

    let header = Default::default();
    let create = Request::Create { id: id(), size: 100_000, header, timeout_ms: None, keep: true };
    drop(client.submit(create).unwrap());
    let call = session.next().call;
    session.expect(Request::Cancel { call });
    session.answer(call, Reply::Created { copy: COPY, offset: OFFSET, kept: true });
    settle(&client, &mut session);
    session.expect(Request::Abort { copy: COPY });
    session.expect(Request::Release { copy: COPY });
}

#[test]
fn an_untaken_answer_is_given_back() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let get = Request::Get { id: id(), timeout_ms: None, partial: false, fail_if_lost: false };
    let ticket = client.submit(get).unwrap();
    session.answer_next(view(10, true));
    settle(&client, &mut session);
    drop(ticket);
    session.expect(Request::Release { copy: COPY });
}

#[test]
fn an_interrupt_ends_a_wait_and_cancels_the_call() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let interrupted = Error::new(ErrorKind::Aborted, "Ctrl-C");
    let mut looks = 0;
    let mut interrupt = || {
        looks += 1;
        match looks {
            3 => Err(interrupted.clone()),
            _ => Ok(()),
        }
    };
    assert_eq!(client.get(id(), None, false, &mut interrupt).unwrap_err(), interrupted);
    let call = session.next().call;
    session.expect(Request::Cancel { call });
}

#[test]
fn an_interrupt_may_make_calls_itself() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    std::thread::scope(|scope| {
        let client = &client;
        let outer = scope.spawn(move || {
            let mut inner = None;
            let mut interrupt = || {
                if inner.is_none() {
                    inner = Some(client.status(&mut never)?);
                }
                Ok(())
            };
            let locate = client.submit(Request::Locate { id: id(), timeout_ms: None });
            let reply = locate.unwrap().wait(None, &mut interrupt);
            (reply, inner)
        });
        let outer_call = session.next().call;
        assert_eq!(session.answer_next(Reply::Status(Status::default())), Request::Status);
        session.answer(outer_call, Reply::Done);
        assert_eq!(outer.join().unwrap(), (Ok(Reply::Done), Some(Status::default())));
    });
}

#[test]
fn an_event_loop_pumps_and_takes() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let get = Request::Get { id: id(), timeout_ms: None, partial: false, fail_if_lost: false };
    let Lookup::Miss(miss) = client.look_up(id()).unwrap() else { panic!("nobody has got it before") };
    let mut ticket = client.submit(get).unwrap();
    client.pump().unwrap();
    assert!(ticket.try_take().unwrap().is_none());
    let contents = bytes(5000);
    node.open_sealed(&contents);
    session.answer_next(view(contents.len(), true));
    client.pump().unwrap();
    let reply = ticket.try_take().unwrap().unwrap().unwrap();
    let view = View::adopt(&client, miss, reply).unwrap();
    assert_eq!(view.bytes(), contents);
    drop(view);
    session.expect(Request::Release { copy: COPY });
}

#[test]
fn calls_wait_for_space_in_the_socket() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let ids: Vec<ObjectId> = (0..IDS_MAX).map(|k| ObjectId::from_name(&k.to_string())).collect();
    let mut ticket = client
        .submit(Request::Wait {
            ids: ids.clone(),
            count: 1,
            timeout_ms: None,
            fail_if_lost: false,
            known_lost: Vec::new(),
        })
        .unwrap();
    assert!(client.wants_write(), "a megabyte is more than a socket takes");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || ticket.wait(None, &mut never).unwrap());
        let Request::Wait { ids: arrived, .. } = session.answer_next(Reply::Done) else { panic!() };
        assert!(arrived == ids);
        assert_eq!(waiter.join().unwrap(), Reply::Done);
    });
    assert!(!client.wants_write());
}

#[test]
fn a_call_over_a_limit_is_not_sent() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let too_many = vec![id(); IDS_MAX + 1];
    let reduce = ReduceCall {
        target: id(),
        sources: vec![id(); SOURCES_MAX + 1],
        num_objects: 1,
        op: Op::Sum,
        order: FoldOrder::Arrival,
        to_sources: false,
        timeout: None,
    };
    let header = hoplite_types::Header::array(hoplite_types::Dtype::F32, 3);
    for error in [
        client.delete(too_many.clone(), None, &mut never).unwrap_err(),
        client.wait(too_many, 1, None, &mut never).unwrap_err(),
        client.reduce(reduce).unwrap_err(),
        client.put(id(), header, &[&[0; 11]], None, &mut never).unwrap_err(),
    ] {
        assert_eq!(error.kind, ErrorKind::BadArgument, "{error}");
    }
    drop(client.submit(Request::Status).unwrap());
    session.expect(Request::Status);
}

/// An event loop puts many small objects at once in this way.
#[test]
fn a_slow_node_is_not_taken_for_dead() {
    const CALLS: usize = 2000;
    let node = Node::start();
    let (client, mut session) = node.connect();
    std::thread::scope(|scope| {
        let calling = scope.spawn(|| {
            let put = || {
                let payload = Blob(vec![1; 60_000]);
                client.submit(Request::PutSmall {
                    id: id(),
                    header: Header::default(),
                    payload,
                    timeout_ms: None,
                })
            };
            (0..CALLS).map(|_| put()).collect::<Result<Vec<_>, _>>().map(|tickets| {
                // Not cancelled before the node has heard of them.
                tickets.into_iter().for_each(std::mem::forget);
                while client.wants_write() {
                    client.pump().unwrap();
                }
            })
        });
        std::thread::sleep(Duration::from_millis(500));
        if calling.is_finished() {
            return calling.join().unwrap().unwrap();
        }
        (0..CALLS).for_each(|_| drop(session.next()));
        calling.join().unwrap().unwrap();
    });
}
