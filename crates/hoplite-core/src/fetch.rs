//! Getting an object here: one receiver's side of a broadcast [design §5].
//!
//! ```text
//!   want ──▶ Asking ──Lend──▶ Receiving ──trailer──▶ sealed
//!              ▲  │ ▲             │
//!              │  │ └── broken ───┘   (asks again, keeps what it has)
//!              │  └─ no room ─▶ NoRoom ─ room ─┐
//!              └──────────────────────────────┘
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use hoplite_words::client::Location;
use hoplite_words::peer::{DirectoryRequest, PeerMessage, Seal};
use hoplite_words::{Blob, CopyId, Edition, ErrorKind, Header, NodeId, ObjectId, TransferId};

use crate::copies::{NewCopy, Phase};
use crate::io::{Broken, ClientId, Event, FoldId, Output};
use crate::room::RoomFor;
use crate::timers::Timer;
use crate::Core;

/// Someone here who needs the object complete.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Want {
    Call(ClientId, u64),
    Reduction(u64),
    Prefetch,
}

/// How long a prefetch waits for an object that nobody has put.
const PREFETCH_PATIENCE: Duration = Duration::from_secs(600);

/// How often the patience with senders that stand still is doubled: 32 s at the default of a second.
const PATIENCE_DOUBLINGS_MAX: u32 = 5;

/// Broken senders that a fetch can name.
const BROKEN_MAX: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Asking,
    NoRoom,
    Receiving(TransferId),
}

/// A running fetch of one object.
#[derive(Debug)]
pub(crate) struct Fetch {
    ask: u64,
    state: State,
    /// The sender that broke off last.
    failed: Option<NodeId>,
    /// Senders tried so far, and the last of those that broke off with the bytes that were here then:
    /// for the story a time-out tells.
    tried: u32,
    broken: VecDeque<(NodeId, u64)>,
    /// When the owner was first asked for a sender since the last one, and who has the object, says it.
    asked: Duration,
    known: Option<Vec<Location>>,
    /// The owner said that the object is lost, and lent no sender since.
    lost: bool,
    /// How often in a row a sender that stood still was given up, and where.
    given_up: (u32, u64),
}

/// What an incoming stream feeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Feeds {
    Copy(CopyId),
    Fold(FoldId),
}

/// An incoming stream.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub from: NodeId,
    pub feeds: Feeds,
    /// It stands still, and its sender has been asked why.
    check: Option<Check>,
}

impl Transfer {
    pub fn new(from: NodeId, feeds: Feeds) -> Self {
        Transfer { from, feeds, check: None }
    }
}

#[derive(Debug)]
struct Check {
    /// What had come by then.
    watermark: u64,
    /// What the sender says it has.
    answer: Option<u64>,
    /// How often in a row it had no excuse.
    strikes: u32,
}

/// All fetches and who waits for them.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    running: BTreeMap<ObjectId, Fetch>,
    wants: BTreeMap<ObjectId, BTreeSet<Want>>,
    pub transfers: BTreeMap<TransferId, Transfer>,
    /// Objects that are to stay here once they have come.
    pins: BTreeSet<ObjectId>,
}

impl Fetches {
    /// Whether a copy of `object` is about to be opened here.
    pub fn is_expected(&self, object: ObjectId) -> bool {
        self.running.contains_key(&object)
    }

    /// Streams into copies here that come from `node`.
    pub fn transfers_from(&self, node: NodeId) -> Vec<TransferId> {
        let copies =
            self.transfers.iter().filter(|(_, t)| t.from == node && matches!(t.feeds, Feeds::Copy(_)));
        copies.map(|(&id, _)| id).collect()
    }

    /// Client calls that wait for `object`.
    pub fn waiting_calls(&self, object: ObjectId) -> Vec<(ClientId, u64)> {
        let wants = self.wants.get(&object).into_iter().flatten();
        wants
            .filter_map(|want| if let Want::Call(client, call) = *want { Some((client, call)) } else { None })
            .collect()
    }
}

impl Core {
    /// Someone needs `object`; they are told through `satisfy_wants` or `fail_wants`, perhaps
    /// before this returns.
    pub(crate) fn want(&mut self, object: ObjectId, want: Want) {
        self.fetches.wants.entry(object).or_default().insert(want);
        if self.copies.sealed(object).is_some() {
            self.satisfy_wants(object);
            return;
        }
        if want == Want::Prefetch {
            self.timers.set(self.now + PREFETCH_PATIENCE, Timer::Prefetch(object));
        }
        self.ensure_fetch(object);
        if self.fetches.running.get(&object).is_some_and(|fetch| fetch.lost) {
            self.tell_lost_to(object, want);
        }
    }

    /// They need it no more. A transfer that runs goes on: others may stream behind it.
    pub(crate) fn unwant(&mut self, object: ObjectId, want: Want) {
        if let Some(wants) = self.fetches.wants.get_mut(&object) {
            wants.remove(&want);
            if wants.is_empty() {
                self.fetches.wants.remove(&object);
                self.drop_unwanted_fetch(object);
            }
        }
    }

    pub(crate) fn on_prefetch_timer(&mut self, object: ObjectId) {
        self.unwant(object, Want::Prefetch);
    }

    /// Gives up a fetch that waits for a sender, unless somebody wants the object, looks at its
    /// partial copy or streams from it.
    pub(crate) fn drop_unwanted_fetch(&mut self, object: ObjectId) {
        let Some(fetch) = self.fetches.running.get(&object) else { return };
        let receiving = matches!(fetch.state, State::Receiving(_));
        if receiving || self.fetches.wants.contains_key(&object) {
            return;
        }
        let Some(copy) = self.copies.live(object) else { return self.drop_fetch(object) };
        let partial = &self.copies.table[&copy];
        if partial.phase == Phase::Received(None) && partial.views == 0 && partial.users == 0 {
            // Half a copy without anyone who wants it only takes room.
            self.drop_fetch(object);
            self.withdraw(copy);
            self.doom(copy);
        }
    }

    /// Starts a fetch if somebody wants the object and nothing here is on the way to it.
    pub(crate) fn ensure_fetch(&mut self, object: ObjectId) {
        let wanted = self.fetches.wants.contains_key(&object);
        if !wanted || self.copies.live(object).is_some() || self.fetches.running.contains_key(&object) {
            return;
        }
        let fetch = Fetch {
            ask: 0,
            state: State::Asking,
            failed: None,
            tried: 0,
            broken: VecDeque::new(),
            asked: self.now,
            known: None,
            lost: false,
            given_up: (0, 0),
        };
        self.fetches.running.insert(object, fetch);
        self.ask_for_sender(object);
    }

    fn ask_for_sender(&mut self, object: ObjectId) {
        let ask = self.next_number();
        if let Some(fetch) = self.fetches.running.get_mut(&object) {
            fetch.ask = ask;
            fetch.state = State::Asking;
            fetch.asked = self.now;
            fetch.known = None;
            self.repeat_ask(object);
        }
    }

    /// Sends the open question to whoever owns the id now.
    pub(crate) fn repeat_ask(&mut self, object: ObjectId) {
        let Some(fetch) = self.fetches.running.get(&object) else { return };
        if fetch.state != State::Asking {
            return;
        }
        let (ask, failed) = (fetch.ask, fetch.failed);
        let have = self.copies.live_copy(object).map(|copy| copy.edition);
        self.ask_owner(object, DirectoryRequest::Ask { ask, have, failed }, None);
        self.arm_refresh();
    }

    pub(crate) fn open_asks(&self) -> Vec<ObjectId> {
        let asking = self.fetches.running.iter().filter(|(_, fetch)| fetch.state == State::Asking);
        asking.map(|(&object, _)| object).collect()
    }

    /// Forgets the fetch; tells the owner if it still has our question.
    pub(crate) fn drop_fetch(&mut self, object: ObjectId) {
        self.fetches.pins.remove(&object);
        if let Some(fetch) = self.fetches.running.remove(&object) {
            if fetch.state == State::Asking {
                self.ask_owner(object, DirectoryRequest::Unask { ask: fetch.ask }, None);
            }
            self.refuse_parked(object);
        }
    }

    /// The owner lends us a sender.
    pub(crate) fn on_lend(
        &mut self,
        object: ObjectId,
        ask: u64,
        sender: NodeId,
        edition: Edition,
        size: u64,
        header: Header,
    ) {
        let current = self.fetches.running.get(&object);
        let asking = current.filter(|fetch| fetch.state == State::Asking).map(|fetch| fetch.ask);
        if asking != Some(ask) {
            // We changed our mind meanwhile, or asked twice. The owner counts us as a partial copy
            // behind that sender: put it right.
            match self.copies.live(object) {
                Some(copy) if self.copies.table[&copy].edition == edition => {
                    if asking.is_none() {
                        self.announce_again(copy);
                    }
                }
                _ => self.withdraw_edition(object, edition),
            }
            return;
        }
        match self.copy_to_receive(object, edition, size, header) {
            Some(copy) => self.receive(object, copy, sender),
            None if !self.copies.arena.could_hold(size) => {
                self.withdraw_edition(object, edition);
                let kind = ErrorKind::StoreFull;
                let message = format!("{object} has {size} bytes, more than the whole store of {}", self.me);
                self.drop_fetch(object);
                self.fail_wants(object, kind, &message);
            }
            None => {
                self.withdraw_edition(object, edition);
                if let Some(fetch) = self.fetches.running.get_mut(&object) {
                    fetch.state = State::NoRoom;
                }
                self.refuse_parked(object);
                self.wait_for_room(RoomFor::Fetch { object, size });
            }
        }
    }

    /// The partial copy we have, if it is of this edition; else a new one.
    fn copy_to_receive(
        &mut self,
        object: ObjectId,
        edition: Edition,
        size: u64,
        header: Header,
    ) -> Option<CopyId> {
        if let Some(copy) = self.copies.live(object) {
            let known = &self.copies.table[&copy];
            if known.edition == edition && known.extent.size == size {
                return Some(copy);
            }
            // Another edition: bytes never mix. The fetch itself stays.
            self.doom(copy);
        }
        let phase = Phase::Received(None);
        self.open_copy(NewCopy { object, edition, size, header, phase, pinned: false, public: true })
    }

    fn receive(&mut self, object: ObjectId, copy: CopyId, sender: NodeId) {
        let transfer = TransferId(self.next_number());
        let owner = self.shards.owner(object);
        let (edition, offset) = self.copies.with(copy, |copy| {
            copy.phase = Phase::Received(Some(transfer));
            copy.upstream = Some(sender);
            copy.told = Some(owner);
            copy.users += 1;
            (copy.edition, copy.watermark)
        });
        if let Some(fetch) = self.fetches.running.get_mut(&object) {
            fetch.state = State::Receiving(transfer);
            fetch.tried += 1;
            fetch.lost = false;
        }
        self.fetches.transfers.insert(transfer, Transfer::new(sender, Feeds::Copy(copy)));
        self.out.push_back(Output::Receive { transfer, from: sender, copy, offset });
        let pull = PeerMessage::Pull { transfer, id: object, edition, offset, patient: false };
        self.send(sender, pull, None);
        self.on_opened(object);
    }

    /// Room for a fetch that had none: ask anew, the world has changed since.
    pub(crate) fn on_room_for_fetch(&mut self, object: ObjectId) {
        if self.fetches.running.get(&object).is_some_and(|fetch| fetch.state == State::NoRoom) {
            self.ask_for_sender(object);
        }
    }

    /// The bytes came with the answer.
    pub(crate) fn on_inline(
        &mut self,
        object: ObjectId,
        ask: u64,
        edition: Edition,
        header: Header,
        payload: Blob,
    ) {
        let current = self.fetches.running.get(&object);
        if !current.is_some_and(|fetch| fetch.state == State::Asking && fetch.ask == ask) {
            return;
        }
        let size = payload.0.len() as u64;
        if let Some(partial) = self.copies.live(object) {
            // It is written in one piece; what some sender brought of it stays with those who look at it.
            self.doom(partial);
        }
        match self.copy_to_receive(object, edition, size, header) {
            Some(copy) => {
                self.out.push_back(Output::Write { copy, bytes: payload.0 });
                // The question is answered; nothing to take back.
                self.fetches.running.remove(&object);
                self.seal_copy(copy, Seal::default());
                self.on_opened(object);
            }
            None => {
                if let Some(fetch) = self.fetches.running.get_mut(&object) {
                    fetch.state = State::NoRoom;
                }
                self.wait_for_room(RoomFor::Fetch { object, size });
            }
        }
    }

    pub(crate) fn on_receive_ended(
        &mut self,
        transfer: TransferId,
        watermark: u64,
        outcome: Result<Seal, Broken>,
    ) {
        let Some(Transfer { from, feeds: Feeds::Copy(id), .. }) = self.fetches.transfers.remove(&transfer)
        else {
            return;
        };
        let (object, doomed) = self.copies.with(id, |copy| {
            copy.watermark = watermark;
            if !copy.doomed {
                copy.phase = Phase::Received(None);
            }
            (copy.object, copy.doomed)
        });
        match outcome {
            _ if doomed => {}
            Ok(seal) => self.seal_copy(id, seal),
            Err(Broken) => {
                let size = self.copies.table[&id].extent.size;
                let event = Event::TransferBroken { transfer, from, bytes: watermark, size };
                self.out.push_back(Output::Event(event));
                if let Some(fetch) = self.fetches.running.get_mut(&object) {
                    fetch.failed = Some(from);
                    fetch.broken.push_back((from, watermark));
                    if fetch.broken.len() > BROKEN_MAX {
                        fetch.broken.pop_front();
                    }
                }
                self.ask_for_sender(object);
                // A put here need not wait for what nobody sends us.
                self.retry_puts(object);
            }
        }
        self.remove_user(id);
        self.drop_unwanted_fetch(object);
    }

    /// The sender has no such copy: its bulk connection will stay silent, so stop listening.
    pub(crate) fn on_pull_refused(&mut self, transfer: TransferId) {
        match self.fetches.transfers.get(&transfer).map(|transfer| transfer.feeds) {
            Some(Feeds::Copy(_)) => self.out.push_back(Output::StopReceive { transfer }),
            Some(Feeds::Fold(fold)) => self.on_fold_stream_broken(fold, transfer),
            None => {}
        }
    }

    /// A stream stands still although its connection does not break. Its sender may rightly wait for
    /// bytes itself; who does not answer, or has more than it sends, is given up in the end.
    pub(crate) fn on_receive_stalled(&mut self, transfer: TransferId, watermark: u64) {
        let Some(stalled) = self.fetches.transfers.get_mut(&transfer) else { return };
        let (from, feeds) = (stalled.from, stalled.feeds);
        let asked = stalled.check.take().filter(|check| check.watermark == watermark);
        let strikes = match asked {
            Some(check) if check.answer.is_none_or(|there| there > watermark) => check.strikes + 1,
            _ => 0,
        };
        if strikes > 0 && strikes >= self.patience(feeds, watermark) {
            return self.give_up(transfer, feeds, watermark);
        }
        if let Some(stalled) = self.fetches.transfers.get_mut(&transfer) {
            stalled.check = Some(Check { watermark, answer: None, strikes });
        }
        self.send(from, PeerMessage::Check { transfer }, None);
    }

    /// How many strikes a sender has. It doubles with each one given up at the same place: where all are
    /// slow, changing them over and over would move nothing.
    fn patience(&self, feeds: Feeds, watermark: u64) -> u32 {
        let in_a_row = match feeds {
            Feeds::Copy(copy) => {
                let fetch = self.fetches.running.get(&self.copies.table[&copy].object);
                fetch.map_or(0, |fetch| if fetch.given_up.1 == watermark { fetch.given_up.0 } else { 0 })
            }
            Feeds::Fold(fold) => self.attempt_of_fold(fold),
        };
        1 << in_a_row.min(PATIENCE_DOUBLINGS_MAX)
    }

    fn give_up(&mut self, transfer: TransferId, feeds: Feeds, watermark: u64) {
        if let Feeds::Copy(copy) = feeds {
            let object = self.copies.table[&copy].object;
            if let Some(fetch) = self.fetches.running.get_mut(&object) {
                let in_a_row = if fetch.given_up.1 == watermark { fetch.given_up.0 } else { 0 };
                fetch.given_up = (in_a_row + 1, watermark);
            }
        }
        self.on_pull_refused(transfer);
    }

    pub(crate) fn on_checked(&mut self, transfer: TransferId, watermark: u64) {
        let check = self.fetches.transfers.get_mut(&transfer).and_then(|transfer| transfer.check.as_mut());
        if let Some(check) = check {
            check.answer = Some(watermark);
        }
    }

    /// The owner sees that the chain we receive from leads back to us.
    pub(crate) fn on_ask_again(&mut self, object: ObjectId, edition: Edition) {
        let copy = self.copies.live_copy(object).filter(|copy| copy.edition == edition);
        if let Some(Phase::Received(Some(transfer))) = copy.map(|copy| copy.phase) {
            self.on_pull_refused(transfer);
        }
    }

    /// The object must stay here, the owner says; if it is not here yet, it is to be brought.
    pub(crate) fn on_pin(&mut self, object: ObjectId) {
        match self.copies.sealed(object) {
            Some(copy) if self.copies.table[&copy].pinned => {}
            Some(copy) => {
                self.copies.with(copy, |copy| copy.pinned = true);
                self.announce(copy, true, false);
            }
            None => {
                self.fetches.pins.insert(object);
                self.want(object, Want::Prefetch);
            }
        }
    }

    /// A copy is complete: whether it is to stay.
    pub(crate) fn take_pin(&mut self, object: ObjectId) -> bool {
        self.fetches.pins.remove(&object)
    }

    /// A sealed copy is here: everyone who waited for it gets it.
    pub(crate) fn satisfy_wants(&mut self, object: ObjectId) {
        let Some(wants) = self.fetches.wants.remove(&object) else { return };
        self.timers.clear(Timer::Prefetch(object));
        for want in wants {
            match want {
                Want::Call(client, call) => self.on_call_object_here(client, call, object),
                Want::Reduction(number) => self.on_reduction_object_here(number, object),
                Want::Prefetch => {}
            }
        }
    }

    /// The object will not come.
    pub(crate) fn fail_wants(&mut self, object: ObjectId, kind: ErrorKind, message: &str) {
        let Some(wants) = self.fetches.wants.remove(&object) else { return };
        self.timers.clear(Timer::Prefetch(object));
        for want in wants {
            match want {
                Want::Call(client, call) => self.fail_call(client, call, kind, message),
                Want::Reduction(number) => self.on_reduction_object_failed(number, object, kind, message),
                Want::Prefetch => {}
            }
        }
    }

    /// The last complete copy is gone: those who asked to be told are.
    pub(crate) fn on_lost(&mut self, object: ObjectId) {
        self.watched_lost(object);
        match self.fetches.running.get_mut(&object) {
            Some(fetch) if fetch.state == State::Asking => fetch.lost = true,
            // Old news: a sender was lent since, or the object is being written here.
            _ => return,
        }
        let wants: Vec<_> = self.fetches.wants.get(&object).into_iter().flatten().copied().collect();
        for want in wants {
            self.tell_lost_to(object, want);
        }
    }

    fn tell_lost_to(&mut self, object: ObjectId, want: Want) {
        if let Want::Call(client, call) = want {
            if self.call_fails_if_lost(client, call) {
                self.fail_lost(client, call, object);
                self.unwant(object, want);
            }
        }
    }

    /// The owner has no free sender for us yet.
    pub(crate) fn on_not_yet(&mut self, object: ObjectId, ask: u64, copies: Vec<Location>) {
        if let Some(fetch) = self.fetches.running.get_mut(&object).filter(|fetch| fetch.ask == ask) {
            fetch.known = Some(copies);
        }
    }

    /// Where the fetch of `object` stands, for error messages.
    pub(crate) fn story(&self, object: ObjectId) -> String {
        let mut story = match self.copies.live_copy(object) {
            Some(copy) if copy.upstream.is_some() || copy.watermark > 0 => {
                format!("at least {} of {} bytes are here", copy.watermark, copy.extent.size)
            }
            Some(copy) => format!("being written here ({} bytes)", copy.extent.size),
            None => "0 bytes are here".to_owned(),
        };
        let Some(fetch) = self.fetches.running.get(&object) else { return story };
        match fetch.state {
            State::NoRoom => story += "; it waits for room in the store",
            State::Receiving(transfer) => {
                if let Some(transfer) = self.fetches.transfers.get(&transfer) {
                    story += &format!("; being sent by {}", transfer.from);
                }
            }
            State::Asking => {
                let (owner, ago) = (self.shards.owner(object), (self.now - fetch.asked).as_secs_f64());
                story += &format!("; its directory owner {owner} was asked for a sender {ago:.1} s ago");
                story += &match fetch.known.as_deref() {
                    _ if fetch.lost => ": the object is lost".to_owned(),
                    None => String::new(),
                    Some([]) => ": it knows of no copy".to_owned(),
                    Some(copies) => {
                        let state = |copy: &Location| if copy.complete { "complete" } else { "partial" };
                        let held = copies.iter().map(|copy| format!("{} ({})", copy.node, state(copy)));
                        format!(": none free yet; held by {}", held.collect::<Vec<_>>().join(", "))
                    }
                };
            }
        }
        if !fetch.broken.is_empty() {
            let broken = fetch.broken.iter().map(|(node, bytes)| format!("{node} at {bytes} bytes"));
            story += &format!(
                "; {} sender(s) tried, of which broke off: {}",
                fetch.tried,
                broken.collect::<Vec<_>>().join(", ")
            );
        }
        story
    }
}
