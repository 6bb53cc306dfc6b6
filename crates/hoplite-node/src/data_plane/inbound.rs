//! Serves a bundle from a peer: transfer after transfer, until it ends or one breaks.

use std::pin::pin;
use std::sync::Arc;

use hoplite_core::io::Broken;
use hoplite_net::{read_frame, Bundle, Detached, FrameError};
use hoplite_types::peer::BulkFrame;
use hoplite_types::NodeId;
use tokio::sync::futures::OwnedNotified;
use tracing::{debug, warn};

use super::arrivals::Expected;
use super::fold::Command;
use super::multiplex::Incoming;
use super::thread::Load;
use super::Shared;

/// As [`serve`], for a bundle that comes from another thread's poller.
pub(super) async fn serve_handed_over(
    load: Load,
    shared: Arc<Shared>,
    from: NodeId,
    disconnected: OwnedNotified,
    bundle: Detached,
) {
    match bundle.attach() {
        Ok(bundle) => serve(load, shared, from, disconnected, bundle).await,
        Err(error) => warn!(peer = %from, %error, "cannot poll bulk connections; closed"),
    }
}

/// Serves the bundle until it ends, or until the peer is `disconnected`. After any failure the bundle is dropped,
/// which tells the sender.
pub(super) async fn serve(
    load: Load,
    shared: Arc<Shared>,
    from: NodeId,
    disconnected: OwnedNotified,
    mut bundle: Bundle,
) {
    let mut disconnected = pin!(disconnected);
    loop {
        let frame = tokio::select! {
            biased;
            () = &mut disconnected => return,
            frame = read_frame::<BulkFrame>(&mut bundle) => frame,
        };
        let head = match frame {
            Ok(BulkFrame::Whole(head)) => head,
            Ok(BulkFrame::Begin(head)) => {
                let _busy = load.busy();
                let sharing = Incoming::new(from, &shared, &mut bundle);
                match sharing.run(head, disconnected.as_mut()).await {
                    Ok(()) => continue,
                    Err(Broken) => return,
                }
            }
            Ok(frame) => {
                warn!(peer = %from, ?frame, "nothing has begun of this; connection closed");
                return;
            }
            Err(FrameError::Closed) => return,
            Err(error) => {
                debug!(peer = %from, %error, "bulk connection ended between transfers");
                return;
            }
        };
        match shared.arrivals.claim(head.transfer, from) {
            Some(Expected::Receive(receive)) => {
                let _busy = load.busy();
                if receive.run(head, &mut bundle, &shared).await.is_err() {
                    return;
                }
            }
            Some(Expected::FoldStream { orders: fold, .. }) => {
                // The fold polls all of its streams on one thread, which may be another one.
                match bundle.detach() {
                    Ok(bundle) => drop(fold.send(Command::Arrived { head, bundle })),
                    Err(error) => {
                        warn!(peer = %from, %error, "cannot hand over bulk connections");
                        let _ = fold.send(Command::Failed { transfer: head.transfer });
                    }
                }
                return;
            }
            None => {
                debug!(peer = %from, transfer = head.transfer.0, "nobody waits for this transfer; connection closed");
                return;
            }
        }
    }
}
