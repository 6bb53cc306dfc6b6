//! All decisions of a Hoplite node, and no I/O.
//!
//! A [`Core`] makes the decisions of one node. It is driven through one function and one queue (see [`io`]). It owns no
//! clock, socket, thread or file, and the same inputs produce the same outputs.
//!
//! - A put: `calls` (space from `copies`) → announced to the shard owner's `directory`.
//! - A get: `calls` → `fetch` asks the owner, which lends a sender → `sends` there.
//! - A reduce: `reductions` at its coordinator, `slots` at the nodes of its sources.
//!
//! Components have private state. Their methods are lent `ctx` and the components below, and never call one above: what
//! concerns those is pushed as a notice, which `dispatch` hands on. `tests/layers.rs` checks that. From the bottom:
//! `copies`, `directory`, `sends`, `subscriptions`, `leave`, `fetch`, `writes`, `slots`, `reductions`, `calls`; besides
//! them `members`, `joining`, `resync`. On top, `dispatch` hands on what comes in.
#![forbid(unsafe_code)]

mod calls;
mod clock;
mod config;
mod copies;
mod cost;
mod ctx;
mod directory;
mod dispatch;
mod fetch;
pub mod io;
mod joining;
mod keys;
mod leave;
mod lent;
mod members;
mod notices;
mod reductions;
mod repeats;
mod resync;
mod sends;
mod shard_table;
mod shards;
mod slots;
mod subscriptions;
mod timers;
mod writes;

use std::time::Duration;

use hoplite_types::client::{Gauge, Status};

pub use config::Config;
pub use cost::{best_degree, fanout, stripes_pay, Degree};
pub use io::{Input, Output};

use calls::Calls;
use copies::Copies;
use ctx::Ctx;
use directory::Directory;
use fetch::Fetches;
use joining::Joining;
use leave::Leave;
use members::Members;
use reductions::{Policy, Reductions};
use resync::Resync;
use sends::Sends;
use slots::Slots;
use subscriptions::Subscriptions;
use timers::Timer;
use writes::Writes;

/// One node's decisions. To drive it: call `handle`, then `poll_output` until `None`, then sleep until an
/// input comes or `next_deadline`.
pub struct Core {
    ctx: Ctx,
    members: Members,
    joining: Joining,
    leave: Leave,
    /// Count of invalid messages.
    bad_messages: u64,
    resync: Resync,
    directory: Directory,
    copies: Copies,
    calls: Calls,
    writes: Writes,
    fetches: Fetches,
    sends: Sends,
    subscriptions: Subscriptions,
    slots: Slots,
    reductions: Reductions,
}

impl Core {
    /// A node that has not started yet; the first call of `handle` starts it (a `Tick` will do).
    pub fn new(config: Config) -> Self {
        let members = Members::new(&config);
        let alone = members.expects_nobody();
        let policy = Policy { degree: config.reduce_degree, striped_bytes_min: config.striped_bytes_min };
        Core {
            ctx: if alone { Ctx::new(config.node) } else { Ctx::joining(config.node) },
            members,
            joining: Joining::new(alone),
            leave: Leave::default(),
            bad_messages: 0,
            resync: Resync::default(),
            directory: if alone { Directory::alone() } else { Directory::joining(config.node) },
            copies: Copies::new(config.store_bytes),
            calls: Calls::default(),
            writes: Writes::default(),
            fetches: Fetches::default(),
            sends: Sends::new(config.connections),
            subscriptions: Subscriptions::default(),
            slots: Slots::default(),
            reductions: Reductions::new(policy),
        }
    }

    /// Handles an event that happened at `now`: time since any fixed moment, which never goes back.
    pub fn handle(&mut self, now: Duration, input: Input) {
        debug_assert!(now >= self.ctx.now, "time went back");
        self.ctx.now = now;
        if self.leave.has_left() {
            return;
        }
        self.copies.begin_turn();
        match input {
            Input::Client { client, call, request } => self.on_request(client, call, request),
            Input::ClientGone { client } => self.on_client_gone(client),
            Input::Peer { from, message } => self.on_peer_said(from, message),
            Input::PeerBroken { node } => self.on_peer_broken(node),
            Input::PeerGone { node } => {
                let changes = self.members.on_gone(now, node);
                self.on_member_changes(changes);
                if !self.ctx.departed.has(node) {
                    // It died before we knew it as a member, but it may have sent asks and been lent senders.
                    self.on_node_down(node, None);
                }
            }
            Input::Datagram { bytes } => {
                let changes = self.members.on_datagram(now, &bytes);
                self.on_member_changes(changes);
            }
            Input::ReceiveEnded { transfer, watermark, outcome } => {
                self.fetcher().on_receive_ended(transfer, watermark, outcome);
            }
            Input::ReceiveStalled { transfer, watermark } => {
                self.fetcher().on_receive_stalled(transfer, watermark)
            }
            Input::SendMeasured { send, bytes, bytes_per_s } => {
                self.sends.on_send_measured(&self.ctx, send, bytes, bytes_per_s);
            }
            Input::SendEnded { send, outcome } => {
                self.sends.on_send_ended(&mut self.ctx, &mut self.copies, send, outcome);
            }
            Input::SendNotBegun { send } => {
                self.sends.on_send_not_begun(&mut self.ctx, &mut self.copies, send);
            }
            Input::FoldStreamBroken { fold, transfer } => {
                self.slots.on_stream_broken(&mut self.ctx, fold, transfer);
            }
            Input::FoldEnded { fold, outcome } => {
                if !self.with_slots(|slots, lent| slots.on_fold_ended(lent, fold, outcome)) {
                    self.with_reductions(|reductions, lent| reductions.on_fold_ended(lent, fold, outcome));
                }
            }
            Input::Measured { peer, bytes_per_s } => {
                // Links of departed nodes have been forgotten already.
                if self.fetches.has_link_to_itself(peer) && !self.ctx.departed.has(peer) {
                    self.ctx.links.on_bandwidth(peer, bytes_per_s);
                }
            }
            Input::Leave { within } => {
                self.leave.begin(&mut self.ctx, &mut self.copies, &mut self.subscriptions, within);
            }
            Input::StoodStill { time } => {
                if self.joining.is_over() && self.members.may_be_held_for_dead_after(time) {
                    self.directory.recover_everything(&mut self.ctx);
                    self.ask_for_all_verdicts_again();
                }
            }
            Input::Tick => {}
        }
        self.settle();
        self.on_time();
        if !self.leave.has_left() {
            self.settle();
            self.take_part_when_joined();
        }
    }

    /// The next output to carry out; outputs are in order.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.ctx.out.pop_front()
    }

    /// The latest time at which `handle` must be called with `Tick`.
    pub fn next_deadline(&self) -> Option<Duration> {
        let next = [self.ctx.timers.next(), self.members.next_deadline()].into_iter().flatten().min();
        next.filter(|_| !self.leave.has_left())
    }

    fn on_time(&mut self) {
        let changes = self.members.on_time(self.ctx.now);
        self.on_member_changes(changes);
        while let Some(timer) = self.ctx.timers.pop(self.ctx.now) {
            self.on_timer(timer);
            self.hand_on_notices();
            if self.leave.has_left() {
                break;
            }
        }
    }

    fn on_timer(&mut self, timer: Timer) {
        match timer {
            Timer::Call(client, call) => self.call_handler().on_call_timer(client, call),
            Timer::Parked(key) => self.sends.on_parked_timer(&mut self.ctx, &mut self.copies, key),
            Timer::Prefetch(object) => self.fetcher().on_prefetch_timer(object),
            Timer::PrefetchStalled(object) => self.fetcher().on_prefetch_stalled(object),
            Timer::Questions => self.call_handler().ask_due_questions(),
            Timer::LongWork => self.work_on_calls(),
            Timer::Refresh => self.on_refresh(),
            Timer::RefreshWatched => self.subscriptions.repeat_some(&mut self.ctx),
            Timer::Resync(node) => self.on_resync(node),
            Timer::NotPulled => self.resync.ask_for_pulls(&mut self.ctx, &self.copies),
            Timer::Join => self.joining.on_timer(&mut self.ctx),
            Timer::TakeIn => self.take_in_members(),
            Timer::AdvanceReduction(number) => {
                self.with_reductions(|reductions, lent| reductions.on_advance_timer(lent, number));
            }
            Timer::SlotNeedsSpace(reduction, slot) => {
                self.with_slots(|slots, lent| slots.on_space_timer(lent, (reduction, slot)));
            }
            Timer::RootLost(number) => {
                self.with_reductions(|reductions, lent| reductions.on_root_lost_timer(lent, number));
            }
            Timer::Barrier(number) => {
                self.with_reductions(|reductions, lent| reductions.on_barrier_timer(lent, number));
            }
            Timer::Ping(node) => self.ping(node),
            Timer::OwnInventory => self.take_own_inventory(),
            Timer::Strangers => self.forget_strangers(),
            Timer::HandOver => {
                self.leave.hand_over_some(&mut self.ctx, &mut self.copies, &mut self.subscriptions);
            }
            Timer::Leave => self.on_leave_timer(),
            Timer::Asks(object) => self.directory.serve_asks(&mut self.ctx, &self.copies, object),
            Timer::Pin(object) => self.directory.on_pin_timer(&mut self.ctx, object),
            Timer::InventoryPull(node) => self.directory.on_inventory_pull_timer(&mut self.ctx, node),
            Timer::AskAgain(object) => self.fetcher().on_ask_timer(object),
            Timer::Work => self.work_on_directory(),
            Timer::Tombstones => self.directory.expire_tombstones(&mut self.ctx),
            Timer::LostIds => self.directory.forget_lost(&mut self.ctx),
            Timer::Backups => self.directory.send_backups(&mut self.ctx),
            Timer::BackupRenewal => self.directory.on_backup_renewal(&mut self.ctx),
            Timer::ForgetBackups => self.directory.forget_backups(&mut self.ctx),
        }
    }

    /// This core's part of the status; the driver adds the bytes that it moved.
    pub(crate) fn status(&self) -> Status {
        let (entries, tombstones) = self.directory.counts();
        Status {
            node: Some(self.ctx.me),
            members: self.ctx.shards.iter().collect(),
            store_bytes: self.copies.store_bytes(),
            used_bytes: self.copies.used_bytes(),
            copies: self.copies.count() as u64,
            entries,
            tombstones,
            transfers: (self.sends.count() + self.fetches.transfers.len()) as u64,
            reductions: (self.reductions.count() + self.slots.count()) as u64,
            clients: self.calls.clients_count() as u64,
            evicted_copies: self.copies.evicted(),
            links: self.ctx.links.report(),
            gauges: self.gauges(),
            ..Status::default()
        }
    }

    fn gauges(&self) -> Vec<Gauge> {
        let mut gauges = Vec::new();
        self.directory.gauges(&mut gauges);
        gauges.push(self.copies.gauge());
        gauges.extend(self.calls.gauges());
        gauges.push(self.subscriptions.gauge());
        gauges.push(self.calls.work_gauge());
        gauges.push(self.sends.gauge());
        gauges.push(self.fetches.gauge());
        let name = "messages of peers that cannot be right".to_owned();
        gauges.push(Gauge { name, value: 0, limit: 0, met: self.bad_messages });
        gauges
    }
}
