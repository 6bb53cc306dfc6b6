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

/// Events of one kind that may wait for the control loop; their sources stop reading meanwhile.
const EVENTS_MAX: usize = 1024;

/// How much longer than it was given the core may take to say goodbye. It does so at once when its time is
/// over, but a starved process may be late itself.
const LEAVE_MARGIN: Duration = Duration::from_millis(500);

/// How long last messages may take to leave. A peer that does not take them has gossip to go by.
const FLUSH_MAX: Duration = Duration::from_millis(500);

/// Share of the usable memory that the store takes unless told otherwise.
const STORE_SHARE: u64 = 4;

/// Store size where the system does not tell how much memory there is.
const STORE_BYTES_FALLBACK: u64 = 1 << 30;

/// A node that is listening. `run` makes it work.
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
    /// Raises this process's limit of descriptors, binds sockets, makes the store and starts the data threads.
    /// Must be called inside a current-thread runtime.
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
        // At a port that the system chose, and a socket named after it, nobody starts again.
        let comes_back = options.socket.is_some() || options.listen.port() != 0;
        let id = NodeId { addr, incarnation: startup::next_incarnation(comes_back.then_some(&socket)) };
        // The core counts the cluster's time on from the incarnation: what lies between is how far it lags behind.
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

    /// Who this node is to the others.
    pub fn id(&self) -> NodeId {
        self.node.id
    }

    /// Where clients find it.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Size of the store, bytes.
    pub fn store_bytes(&self) -> u64 {
        self.arena.bytes()
    }

    /// Works until it is told to stop. The first message asks it to leave: to hand over what only it holds,
    /// if it has time to drain, and to say goodbye. A second one, or the end of `stop`, ends it at once, as a
    /// crash would. Either way everything is closed and the socket file removed, within the time to drain
    /// and [`LEAVE_MARGIN`], [`FLUSH_MAX`] and the data threads' own limit: three seconds in all.
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
        // Nobody listens any more, and nobody is kept waiting for it.
        drop(sources);
        // First, so that a new daemon may take the path as soon as this one lets go of it.
        if let Err(error) = std::fs::remove_file(&socket) {
            warn!(%error, path = %socket.display(), "cannot remove the socket");
        }
        // Before connections are closed: who dials again at once must find nobody.
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

/// The control loop: until the node has left, or must end at once.
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

/// The standard library keys its hash maps from the system's randomness: all the core needs.
fn random_seed() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}
