//! Draws each message type. The struct literals and matches below are complete, so a new field or variant does not
//! compile until it is listed here; it is then tested and pinned automatically.

use hoplite_types::client::{Answer, Call, Gauge, Link, Location, Reply, Request, Status};
use hoplite_types::peer::{
    BulkFrame, BulkHead, BundlePart, Child, CopyReport, Cursor, Deletion, DirectoryAnswer, DirectoryRequest,
    InventoryPage, PeerHello, PeerMessage, PeerRefusal, Purpose, Scope, Seal, ShardQuery, SlotAssignment,
    SlotFailure, Source as SlotSource, Verdict,
};
use hoplite_types::{
    Claim, CopyId, Dtype, Edition, Encoding, Error, ErrorKind, FoldOrder, Header, NodeId, Op, ReductionId,
    Shard, Stamp, TransferId,
};

use crate::draw::{Draw, Source, Variants};

macro_rules! draw_struct {
    ($($type:ident { $($field:tt),* })*) => {$(
        impl Draw for $type {
            fn draw(from: &mut dyn Source) -> Self {
                $type { $($field: Draw::draw(from)),* }
            }
        }
    )*};
}

macro_rules! draw_enum {
    ($($type:ident { $($variant:ident $({ $($field:tt),* })?),* $(,)? })*) => {$(
        impl Variants for $type {
            const NAMES: &'static [&'static str] = &[$(stringify!($variant)),*];

            fn nth(index: usize, from: &mut dyn Source) -> Self {
                let makers: [fn(&mut dyn Source) -> $type; Self::NAMES.len()] = [
                    $(|_from| $type::$variant { $($($field: Draw::draw(_from)),*)? }),*
                ];
                let value = makers[index](from);
                // The compiler checks that this is complete: no variant can be left out.
                let name = match &value {
                    $($type::$variant { .. } => stringify!($variant)),*
                };
                assert_eq!(name, Self::NAMES[index]);
                value
            }
        }

        impl Draw for $type {
            fn draw(from: &mut dyn Source) -> Self {
                let index = from.below(Self::NAMES.len());
                Self::nth(index, from)
            }
        }
    )*};
}

draw_struct! {
    NodeId { addr, incarnation }
    Edition { writing, attempt }
    CopyId { 0 }
    TransferId { 0 }
    ReductionId { coordinator, number }
    Shard { 0 }
    Stamp { 0 }
    Claim { number, by }
    Header { encoding, dtype, shape, descr }
    Error { kind, message, object }
    Call { call, request }
    Answer { call, reply }
    Location { node, complete, pinned, edition }
    Link { peer, latency_ns, bytes_per_s }
    Status {
        node, members, store_bytes, used_bytes, copies, entries, tombstones, transfers, reductions,
        clients, sent_bytes, received_bytes, folded_bytes, evicted_copies, links, gauges
    }
    Gauge { name, value, limit, met }
    PeerHello { version, from, to, purpose, part }
    BundlePart { bundle, number, of }
    PeerRefusal { version, node }
    BulkHead { transfer, offset, size }
    Seal { sources }
    CopyReport { seq, edition, size, header, complete, pinned, upstream, leaving, stamp, claim }
    ShardQuery { shard, digest }
    Cursor { shard, section, after }
    InventoryPage { copies, claims, tombstones, lost }
    Deletion { stamp, age_ms }
    SlotAssignment {
        slot, attempt, out, edition, root, size, header, dtype, op, divide_by, sources, children, open, version,
        lacking, offset, part_bytes, claim, stamp, epoch
    }
    SlotSource { id, edition }
    Child { slot, node, id, edition }
}

draw_enum! {
    Dtype { F16, Bf16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64 }
    Op { Sum, Prod, Min, Max, Mean }
    FoldOrder { Arrival, Fixed }
    Encoding { Bytes, Array, Pickle }
    Purpose { Control, Bulk }
    BulkFrame { Whole { 0 }, Begin { 0 }, Piece { transfer, bytes }, End { transfer, seal }, Abort { transfer } }
    ErrorKind {
        TimedOut, Deleted, Lost, StoreFull, AlreadyExists, Mismatch, BadArgument, NodeUnreachable, Aborted,
        VersionMismatch, Internal, LimitReached
    }
    Scope { All, Past }
    Verdict { Accepted { 0 }, Deleted, OtherKind { 0 }, Exists { 0 }, Abandoned }
    SlotFailure { Child { 0 }, Source { 0 }, NoSpace, Taken, LetGo { 0 }, Refused { 0 } }
    Request {
        Hello { version, pid },
        Create { id, size, header, timeout_ms, keep },
        PutSmall { id, header, payload, timeout_ms },
        Progress { copy, watermark },
        Seal { copy, timeout_ms },
        Abort { copy },
        Get { id, timeout_ms, partial, fail_if_lost },
        Release { copy },
        Delete { ids, timeout_ms },
        Reduce { target, sources, num_objects, op, order, timeout_ms, to_sources },
        Wait { ids, count, timeout_ms, fail_if_lost, known_lost },
        Prefetch { ids, nodes },
        Locate { id, timeout_ms },
        Status,
        Cancel { call },
    }
    Reply {
        Welcome { version, node, arena_bytes },
        Done,
        Created { copy, offset, kept },
        View { copy, offset, size, header, sealed },
        Reduced { sources },
        Ready { ids },
        Located { size, copies },
        Status { 0 },
        Failed { 0 },
        Small { header, payload },
    }
    PeerMessage {
        Directory { origin, hops, id, request },
        Answer { id, answer },
        Pull { transfer, id, edition, offset, patient },
        CancelPull { transfer },
        PullRefused { transfer },
        AssignSlot { reduction, assignment },
        SlotFailed { reduction, slot, attempt, failure },
        SlotHeld { reduction, slot, attempt },
        RootDone { reduction, slot, attempt },
        Commit { reduction, attempt, id, edition, sources },
        ReleaseSlots { reduction },
        Prefetch { id },
        Ping { sent_ns },
        Pong { sent_ns },
        Committed { reduction, sealed },
        Check { transfer },
        Checked { transfer, watermark },
        ResyncRequest { epoch },
        DeletionAck { id },
        BackupIds { ids },
        InventoryRequest { round, scope, shards, from, fresh, clock },
        SlotNeedsSpace { reduction, slot, attempt },
        Preempt { reduction, slot, attempt },
        ReleaseSlot { reduction, slot, attempt },
        Goodbye,
        Inventory { round, since, page, unchanged, next, clock },
        MembersRequest,
        Members { members, partial },
    }
    DirectoryRequest {
        Announce { report, payload, wants_verdict },
        Withdraw { seq, edition },
        Ask { ask, have, failed },
        CancelAsk { ask },
        Subscribe { bytes_max },
        Unsubscribe,
        Delete { token },
        Locate { token },
        Claim { seq, claim },
        ReleaseClaim { claim, made },
        MarkLost { claim },
        Bring { nodes },
        PinRefused,
    }
    DirectoryAnswer {
        Verdict { edition, verdict },
        Lend { ask, sender, edition, size, header, stamp },
        Inline { ask, edition, header, payload, stamp },
        Deleted { deletion },
        Lost,
        Copy { node, report, payload },
        CopyGone { node },
        DeleteDone { token, deletion },
        Located { token, size, copies, deleted },
        Pin,
        AskAgain { edition, sender },
        NotYet { ask, copies },
        Holders { nodes },
        ClaimVerdict { claim, verdict },
    }
}
