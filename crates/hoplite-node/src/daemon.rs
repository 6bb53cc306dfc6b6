//! One node, from its start to its end.

use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hoplite_core::io::Input;
use hoplite_core::{Config, Core};
use hoplite_net::{announce, ControlEvent, ControlLinks, ControlReaders, Listener};
use hoplite_store::Arena;
use hoplite_types::NodeId;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::clients;
use crate::clock::Clock;
use crate::data_plane::DataPlane;
use crate::event_loop::{reached, Sources};
use crate::gauges::Doors;
use crate::node::Node;
use crate::options::Options;
use crate::polling::Polling;
use crate::startup::{self, StartError};

/// Limit on the queued events of one kind. When it is reached, their sources stop reading.
const EVENTS_MAX: usize = 1024;

/// Extra time for the core to leave, beyond the time that it was given. The core leaves as soon as its time is over,
/// but a starved process may be late.
const LEAVE_MARGIN: Duration = Duration::from_millis(500);

/// Longest time to send the last messages. A peer that does not read them learns of the end by gossip.
const FLUSH_MAX: Duration = Duration::from_millis(500);

/// The default store size is the usable memory divided by this.
const STORE_SHARE: u64 = 4;

/// Store size if the system does not tell how much memory there is.
const STORE_BYTES_FALLBACK: u64 = 1 << 30;

/// A node that listens. `run` makes it work.
pub struct Daemon {
    node: Node,
    listener: Listener,
    clients: UnixListener,
    socket: PathBuf,
    arena: Arc<Arena>,
    reports: mpsc::UnboundedReceiver<Input>,
    control: mpsc::Receiver<ControlEvent>,
    polling: Polling,
    drain: Duration,
}

impl Daemon {
    /// Raises this process's limit of descriptors, binds sockets, creates the store and starts the data threads. Must
    /// be called inside a current-thread runtime.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(options: &Options) -> Result<Daemon, StartError> {
        let descriptors = startup::raise_limit();
        let seeds = startup::resolve(&options.seeds).await?;
        let (listener, gossip) = Listener::bind(options.listen).await.map_err(StartError::Network)?;
        let bound = listener.addr();
        let explicit = options.announce.map(|announce| announce.with_port(bound.port()));
        let (addr, reason) = announce::choose(explicit, bound, &seeds);
        info!(%addr, %reason, "announcing this address");

        let bytes = options.store_size.unwrap_or_else(default_store_bytes);
        let arena = Arena::create(bytes).map_err(|error| StartError::Store { bytes, error })?;
        let arena = Arc::new(arena);
        let socket = match &options.socket {
            Some(path) => path.clone(),
            None => startup::default_path(bound.port())?,
        };
        let clients = startup::bind(&socket)?;
        // No daemon starts again at a port that the system chose, with a socket named after that port.
        let comes_back = options.socket.is_some() || options.listen.port() != 0;
        let id = NodeId { addr, incarnation: startup::next_incarnation(comes_back.then_some(&socket)) };
        // The core counts the cluster's time from the incarnation on. It lags behind by the time between these two
        // lines.
        let clock = Clock::new();

        let mut config = Config::new(id, arena.bytes(), random_seed());
        config.seeds = seeds;
        config.probe_period = options.probe_period();
        config.probe_timeout = options.probe_timeout();
        config.suspicion = options.suspicion();
        config.stall_after = options.stall_after();
        config.connections = options.connections.fixed();
        config.reduce_degree = options.reduce_degree;

        let (inputs, reports) = mpsc::unbounded_channel();
        let data_plane = DataPlane::start(id, options.data_threads.into(), config.stall_after, inputs)
            .map_err(StartError::Threads)?;
        let (events, control) = mpsc::channel(EVENTS_MAX);
        let links = ControlLinks::new(id, events.clone()).sharing(data_plane.shortage());
        let connections = (links, ControlReaders::new(events));
        let listener = listener.sharing(data_plane.shortage());
        let mut node =
            Node::new(id, (Core::new(config), clock), data_plane, connections, gossip, arena.clone());
        let clients_max = options.clients_max(descriptors);
        node.doors =
            Doors { clients: clients::Meters::new(clients_max), peers: listener.meters(), calls: None };
        let (polling, drain) = (options.polling(), options.drain());
        Ok(Daemon { node, listener, clients, socket, arena, reports, control, polling, drain })
    }

    /// This node's id.
    pub fn id(&self) -> NodeId {
        self.node.id
    }

    /// The path of the clients' socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Size of the store in bytes.
    pub fn store_bytes(&self) -> u64 {
        self.arena.bytes()
    }

    /// Works until it is stopped. The first message asks it to leave: to hand over objects that only it holds, if it
    /// has time to drain, and to send goodbye. A second one, or the end of `stop`, ends it at once, as a crash would.
    /// In either case it closes everything and removes the socket file. This takes no longer than the time to drain
    /// plus [`LEAVE_MARGIN`], [`FLUSH_MAX`] and the limit of the data threads: three seconds in all.
    pub async fn run(self, mut stop: mpsc::Receiver<()>) {
        let Daemon { mut node, listener, clients, socket, arena, reports, control, polling, drain } = self;
        let id = node.id;
        let (clients_tx, client_events) = mpsc::channel(EVENTS_MAX);
        node.doors.calls = Some(clients_tx.downgrade());
        let (meters, shortage) = (node.doors.clients.clone(), node.data_plane.shortage());
        let host = clients::Host { node: id, arena, events: clients_tx, meters, shortage };
        let (arrivals_tx, arrivals) = mpsc::unbounded_channel();
        let tasks = [
            tokio::spawn(clients::serve(clients, host)),
            // The queue ends with the loop that reads it; then connections are closed.
            tokio::spawn(listener.run(id, move |arrival| drop(arrivals_tx.send(arrival)))),
        ];
        let mut sources =
            Sources::new(reports, control, client_events, arrivals, node.gossip.clone(), polling);
        work(&mut node, &mut sources, &mut stop, drain).await;
        info!("stopping");
        // The receivers are gone, so that no sender waits for them.
        drop(sources);
        // First, so that a new daemon may take the path as soon as this one has left it.
        if let Err(error) = std::fs::remove_file(&socket) {
            warn!(%error, path = %socket.display(), "cannot remove the socket");
        }
        // Before connections are closed: a client that connects again must find no daemon.
        for task in tasks {
            task.abort();
            let _ = task.await;
        }
        if node.has_left() && tokio::time::timeout(FLUSH_MAX, node.flush()).await.is_err() {
            warn!("not everyone took our last messages within {FLUSH_MAX:?}");
        }
        node.stop();
    }
}

/// The control loop. It runs until the node has left, or must end at once.
async fn work(node: &mut Node, sources: &mut Sources, stop: &mut mpsc::Receiver<()>, drain: Duration) {
    let mut leave_by = None;
    node.on_time();
    while !node.has_left() {
        let deadline = node.next_deadline();
        let happened = tokio::select! {
            asked = stop.recv() => {
                if asked.is_none() || leave_by.is_some() {
                    return;
                }
                info!(?drain, "leaving");
                leave_by = Some(Instant::now() + drain + LEAVE_MARGIN);
                node.leave(drain);
                continue;
            }
            () = reached(leave_by) => {
                warn!("could not leave within {drain:?} and {LEAVE_MARGIN:?}");
                return;
            }
            happened = sources.next(deadline) => happened,
        };
        sources.tell(node, happened).await;
    }
}

fn default_store_bytes() -> u64 {
    startup::usable_bytes().map_or(STORE_BYTES_FALLBACK, |bytes| bytes / STORE_SHARE)
}

/// The standard library keys its hash maps with random bits of the system. The core needs no more than that.
fn random_seed() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}
