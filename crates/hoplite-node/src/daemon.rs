//! The control loop: everything that happens goes to the core, one thing at a time, and what it
//! decides is carried out before the next.

use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use hoplite_core::io::Input;
use hoplite_core::{Config, Core};
use hoplite_net::{announce, read_control, Arrival, ControlEvent, ControlLinks, Listener};
use hoplite_store::Arena;
use hoplite_words::peer::Purpose;
use hoplite_words::NodeId;
use tokio::net::{UdpSocket, UnixListener};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::carry::Carriers;
use crate::clients;
use crate::copies::Copies;
use crate::effects::Node;
use crate::options::Options;
use crate::startup::{self, StartError};

/// Events of one kind that may wait for the control loop; their sources stop reading meanwhile.
const EVENTS_MAX: usize = 1024;

/// How many events are taken at a go before timers and the other sources are looked at again.
const EVENTS_PER_TURN: usize = 64;

/// The longest datagram that UDP can carry.
const DATAGRAM_BYTES_MAX: usize = 64 << 10;

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
    carried: mpsc::UnboundedReceiver<Input>,
    control: (mpsc::Sender<ControlEvent>, mpsc::Receiver<ControlEvent>),
}

impl Daemon {
    /// Binds sockets, makes the store and starts the carry threads. Must be called inside a
    /// current-thread runtime.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(options: &Options) -> Result<Daemon, StartError> {
        let seeds = startup::resolve(&options.seeds).await?;
        let (listener, udp) = Listener::bind(options.listen).await.map_err(StartError::Network)?;
        let bound = listener.addr();
        let explicit = options.announce.map(|announce| announce.with_port(bound.port()));
        let (addr, reason) = announce::choose(explicit, bound, &seeds);
        info!(%addr, %reason, "announcing this address");
        let id = NodeId { addr, incarnation: incarnation() };

        let bytes = options.store_size.unwrap_or_else(default_store_bytes);
        let arena = Arena::create(bytes).map_err(|error| StartError::Store { bytes, error })?;
        let arena = Arc::new(arena);
        let socket = match &options.socket {
            Some(path) => path.clone(),
            None => startup::default_path(bound.port())?,
        };
        let clients = startup::bind(&socket)?;

        let mut config = Config::new(id, arena.bytes(), random_seed());
        config.seeds = seeds;
        config.probe_period = options.probe_period();
        config.probe_timeout = options.probe_timeout();
        config.suspicion = options.suspicion();

        let (inputs, carried) = mpsc::unbounded_channel();
        let carriers =
            Carriers::start(id, options.carry_threads.into(), inputs).map_err(StartError::Threads)?;
        let control = mpsc::channel(EVENTS_MAX);
        let links = ControlLinks::new(id, control.0.clone());
        let copies = Copies::new(arena.mapping());
        let node = Node::new(id, Core::new(config), copies, carriers, links, udp, arena.clone());
        Ok(Daemon { node, listener, clients, socket, arena, carried, control })
    }

    /// Who this node is to the others.
    pub fn id(&self) -> NodeId {
        self.node.id()
    }

    /// Where clients find it.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Size of the store, bytes.
    pub fn store_bytes(&self) -> u64 {
        self.arena.bytes()
    }

    /// Works until `stop` is done; then closes everything and removes the socket file. Ends within
    /// seconds whatever the jobs are at.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Daemon { mut node, listener, clients, socket, arena, mut carried, control } = self;
        let (control_tx, mut control) = control;
        let id = node.id();
        let (clients_tx, mut client_events) = mpsc::channel(EVENTS_MAX);
        let (bulk_tx, mut bulk) = mpsc::unbounded_channel();
        let tasks = [
            tokio::spawn(clients::serve(clients, id, arena, clients_tx)),
            tokio::spawn(listener.run(id, move |arrival| admit(arrival, &control_tx, &bulk_tx))),
        ];
        let udp = node.udp();
        let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
        let started = Instant::now();
        let mut stop = std::pin::pin!(stop);
        node.on_input(started.elapsed(), Input::Tick);
        loop {
            let deadline = node.next_deadline().map(|at| tokio::time::Instant::from_std(started + at));
            tokio::select! {
                () = &mut stop => break,
                Some(input) = carried.recv() => {
                    turn(input, &mut carried, |input| node.on_carried(started.elapsed(), input));
                }
                Some(event) = control.recv() => {
                    turn(event, &mut control, |event| node.on_control(started.elapsed(), event));
                }
                Some(event) = client_events.recv() => {
                    turn(event, &mut client_events, |event| node.on_client(started.elapsed(), event));
                }
                Some(arrival) = bulk.recv() => node.on_bulk(arrival),
                received = receive(&udp, &mut datagram) => {
                    node.on_input(started.elapsed(), Input::Datagram { bytes: datagram[..received].to_vec() });
                }
                () = sleep_until(deadline) => node.on_input(started.elapsed(), Input::Tick),
            }
        }
        info!("stopping");
        // First, so that a new daemon may take the path as soon as this one lets go of it.
        if let Err(error) = std::fs::remove_file(&socket) {
            warn!(%error, path = %socket.display(), "cannot remove the socket");
        }
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        node.stop();
    }
}

/// Has `handle` take `first` and what waits behind it, up to [`EVENTS_PER_TURN`].
fn turn<T>(first: T, queue: &mut impl TryRecv<T>, mut handle: impl FnMut(T)) {
    handle(first);
    for _ in 1..EVENTS_PER_TURN {
        match queue.try_next() {
            Some(next) => handle(next),
            None => return,
        }
    }
}

/// What both kinds of queue can do.
trait TryRecv<T> {
    fn try_next(&mut self) -> Option<T>;
}

impl<T> TryRecv<T> for mpsc::Receiver<T> {
    fn try_next(&mut self) -> Option<T> {
        self.try_recv().ok()
    }
}

impl<T> TryRecv<T> for mpsc::UnboundedReceiver<T> {
    fn try_next(&mut self) -> Option<T> {
        self.try_recv().ok()
    }
}

/// Control connections are read on this thread, bulk ones go to a carry thread.
fn admit(arrival: Arrival, control: &mpsc::Sender<ControlEvent>, bulk: &mpsc::UnboundedSender<Arrival>) {
    match arrival.purpose {
        Purpose::Control => {
            tokio::spawn(read_control(arrival.stream, arrival.from, control.clone()));
        }
        // The queue ends with the loop that reads it; then the connection is closed.
        Purpose::Bulk => drop(bulk.send(arrival)),
    }
}

/// The next datagram's length.
async fn receive(udp: &UdpSocket, buffer: &mut [u8]) -> usize {
    loop {
        match udp.recv_from(buffer).await {
            Ok((bytes, _)) => return bytes,
            // An earlier datagram of ours met a closed port: gossip will find out by itself.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => warn!(%error, "cannot receive gossip"),
        }
    }
}

async fn sleep_until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn default_store_bytes() -> u64 {
    startup::usable_bytes().map_or(STORE_BYTES_FALLBACK, |bytes| bytes / STORE_SHARE)
}

/// Milliseconds since the epoch: grows with every start at the same address.
fn incarnation() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// The standard library keys its hash maps from the system's randomness: all the core needs.
fn random_seed() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}
