//! Flags and environment of `hoplited`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Parser;
use hoplite_core::{Config, Degree};
use hoplite_types::limits::{CONNECTIONS_MAX, DEFAULT_PORT};
use hoplite_types::{Connections, NodeId};
use tracing::info;

use crate::clients::CLIENTS_MAX;
use crate::polling::Polling;

/// One node of Hoplite: stores objects in shared memory for the processes of this host, and moves them between hosts.
#[derive(Clone, Debug, Parser)]
#[command(name = "hoplited", version)]
pub struct Options {
    /// Address and port to listen on, TCP and UDP. Port 0 takes any free port.
    #[arg(long, env = "HOPLITE_LISTEN", default_value_t = SocketAddr::from(([0, 0, 0, 0], DEFAULT_PORT)))]
    pub listen: SocketAddr,

    /// Address to announce to the other nodes, IP or IP:PORT. Default: the address listened on; for a wildcard, the
    /// source address of packets to the first seed (without seeds: along the default route).
    #[arg(long, env = "HOPLITE_ANNOUNCE")]
    pub announce: Option<Announce>,

    /// HOST or HOST:PORT of members to join through. Repeat the option, or separate values with commas. A node
    /// ignores its own address here, so that all nodes can get the same list.
    #[arg(long = "seed", env = "HOPLITE_SEED", value_delimiter = ',')]
    pub seeds: Vec<String>,

    /// Bytes of shared memory for objects: 2GiB, 512MiB or plain bytes. Default: a quarter of the memory that this
    /// process may use (the host's, or its control group's limit).
    #[arg(long, env = "HOPLITE_STORE_SIZE", value_parser = parse_bytes)]
    pub store_size: Option<u64>,

    /// Path of the clients' Unix socket. Default: hoplite-UID/PORT.sock in $XDG_RUNTIME_DIR or /tmp.
    #[arg(long, env = "HOPLITE_SOCKET")]
    pub socket: Option<PathBuf>,

    /// Limit on the clients at a time; further ones are refused (LimitReached). At most a quarter of the descriptors
    /// that the process may have open (`ulimit -Hn`): a client takes two, and the other half is for peers.
    #[arg(long, env = "HOPLITE_CLIENTS_MAX", default_value_t = CLIENTS_MAX as u64, value_parser = clap::value_parser!(u64).range(1..))]
    pub clients_max: u64,

    /// Number of threads that move and fold bytes.
    #[arg(long, env = "HOPLITE_DATA_THREADS", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub data_threads: u16,

    /// Microseconds to poll for the next call or message, if they follow each other closely; 0 never polls. Polling
    /// yields the processor to other threads, and an idle node sleeps.
    #[arg(long, env = "HOPLITE_POLL_US", default_value_t = 200, value_parser = clap::value_parser!(u64).range(..=POLL_US_MAX))]
    pub poll_us: u64,

    /// Milliseconds between two probes of a random member.
    #[arg(long, env = "HOPLITE_PROBE_PERIOD_MS", default_value_t = default_ms(|config| config.probe_period), value_parser = positive())]
    pub probe_period_ms: u64,

    /// Milliseconds that a member has to answer a probe, before other members are asked to probe it.
    #[arg(long, env = "HOPLITE_PROBE_TIMEOUT_MS", default_value_t = default_ms(|config| config.probe_timeout), value_parser = positive())]
    pub probe_timeout_ms: u64,

    /// Milliseconds that a suspected member has to show that it is alive.
    #[arg(long, env = "HOPLITE_SUSPICION_MS", default_value_t = default_ms(|config| config.suspicion), value_parser = positive())]
    pub suspicion_ms: u64,

    /// Milliseconds that an incoming stream may bring no bytes before its sender is asked what it has. After the same
    /// time again, the sender is given up.
    #[arg(long, env = "HOPLITE_STALL_AFTER_MS", default_value_t = default_ms(|config| config.stall_after), value_parser = positive())]
    pub stall_after_ms: u64,

    /// Connections of each transfer: a number up to 8, or auto, which uses more where they prove to be faster. In
    /// many networks, one flow gets only a part of the link.
    #[arg(long, env = "HOPLITE_CONNECTIONS", default_value = "auto", value_name = "auto|N")]
    pub connections: ConnectionsOption,

    /// Shape of every reduction's tree: chain, binary or star. Replaces the choice by the measured costs, for
    /// benchmarks of that choice.
    #[arg(long, env = "HOPLITE_REDUCE_DEGREE", hide = true, value_parser = parse_degree)]
    pub reduce_degree: Option<Degree>,

    /// Milliseconds to hand over objects that only this node holds, when it is asked to end (SIGTERM, SIGINT); 0 says
    /// goodbye at once. A second signal ends it at once.
    #[arg(long, env = "HOPLITE_DRAIN_MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=MS_MAX))]
    pub drain_ms: u64,

    /// Niceness to run at, if this user may choose it. Otherwise, and by default, the niceness that it was started
    /// with.
    #[arg(long, env = "HOPLITE_NICENESS", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-20..=19))]
    pub niceness: Option<i32>,

    /// Level to log to stderr, or a filter in tracing's syntax (hoplite_net=debug).
    #[arg(long, env = "HOPLITE_LOG", default_value = "info")]
    pub log: String,

    /// End when the thread that started this process ends (PR_SET_PDEATHSIG).
    #[arg(long, env = "HOPLITE_DIE_WITH_PARENT")]
    pub die_with_parent: bool,
}

impl Options {
    pub(crate) fn polling(&self) -> Polling {
        Polling::new(Duration::from_micros(self.poll_us))
    }

    /// As many as the option allows, and as a process with `descriptors` descriptors can serve.
    pub(crate) fn clients_max(&self, descriptors: u64) -> usize {
        let room = (descriptors / DESCRIPTORS_PER_CLIENT).max(1);
        if room < self.clients_max {
            info!(
                descriptors,
                clients_max = room,
                "fewer clients than asked for: the limit of descriptors is low"
            );
        }
        usize::try_from(self.clients_max.min(room)).unwrap_or(usize::MAX)
    }

    pub(crate) fn probe_period(&self) -> Duration {
        Duration::from_millis(self.probe_period_ms)
    }

    pub(crate) fn probe_timeout(&self) -> Duration {
        Duration::from_millis(self.probe_timeout_ms)
    }

    pub(crate) fn suspicion(&self) -> Duration {
        Duration::from_millis(self.suspicion_ms)
    }

    pub(crate) fn stall_after(&self) -> Duration {
        Duration::from_millis(self.stall_after_ms)
    }

    pub(crate) fn drain(&self) -> Duration {
        Duration::from_millis(self.drain_ms)
    }
}

/// Two for the connection and the process of a client, and two for connections to peers on its behalf.
const DESCRIPTORS_PER_CLIENT: u64 = 4;

/// Longest time to poll. A later event does not count as following closely.
const POLL_US_MAX: u64 = 100_000;

/// Longest time that can be set. An hour is as good as for ever, and sums of such times do not overflow.
const MS_MAX: u64 = 3_600_000;

/// The core's default, in milliseconds.
fn default_ms(pick: fn(&Config) -> Duration) -> u64 {
    let nobody = NodeId { addr: ([0, 0, 0, 0], 0).into(), incarnation: 0 };
    u64::try_from(pick(&Config::new(nobody, 0, 0)).as_millis()).unwrap_or(MS_MAX)
}

fn positive() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..=MS_MAX)
}

/// An address to announce. Without a port it takes the port that the node listens on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Announce {
    Ip(IpAddr),
    Addr(SocketAddr),
}

impl Announce {
    pub(crate) fn with_port(self, port: u16) -> SocketAddr {
        match self {
            Announce::Ip(ip) => SocketAddr::new(ip, port),
            Announce::Addr(addr) => addr,
        }
    }
}

impl FromStr for Announce {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.parse().map(Announce::Addr).or_else(|_| text.parse().map(Announce::Ip));
        match parsed {
            Ok(Announce::Addr(addr)) if addr.ip().is_unspecified() || addr.port() == 0 => {
                Err(format!("nobody can dial {addr}"))
            }
            Ok(Announce::Ip(ip)) if ip.is_unspecified() => Err(format!("nobody can dial {ip}")),
            parsed => parsed.map_err(|_| format!("{text:?} is neither IP nor IP:PORT")),
        }
    }
}

/// The number of connections of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectionsOption {
    Auto,
    Fixed(Connections),
}

impl ConnectionsOption {
    pub(crate) fn fixed(self) -> Option<Connections> {
        match self {
            ConnectionsOption::Auto => None,
            ConnectionsOption::Fixed(connections) => Some(connections),
        }
    }
}

impl FromStr for ConnectionsOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(ConnectionsOption::Auto);
        }
        let fixed = text.parse().ok().and_then(Connections::new);
        let fixed =
            fixed.ok_or_else(|| format!("{text:?} is neither auto nor a number up to {CONNECTIONS_MAX}"));
        fixed.map(ConnectionsOption::Fixed)
    }
}

/// Parses "1073741824", "1GiB", "1G" or "512 MiB" as bytes.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is no size; write 2GiB, 512MiB or plain bytes");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return Err(bad()),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    match number.checked_mul(1 << shift) {
        Some(bytes) if bytes > 0 => Ok(bytes),
        _ => Err(bad()),
    }
}

fn parse_degree(text: &str) -> Result<Degree, String> {
    match text {
        "chain" => Ok(Degree::Chain),
        "binary" => Ok(Degree::Binary),
        "star" => Ok(Degree::Star),
        _ => Err(format!("{text:?} is no shape; write chain, binary or star")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_bytes("2GiB"), Ok(2 << 30));
        assert_eq!(parse_bytes("512 MiB"), Ok(512 << 20));
        assert_eq!(parse_bytes("1048576"), Ok(1 << 20));
        for bad in ["", "GiB", "0", "12 parsecs", "-1", "99999999999T"] {
            assert!(parse_bytes(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn addresses_that_cannot_be_dialled_are_refused() {
        assert_eq!("10.0.0.1:5".parse(), Ok(Announce::Addr("10.0.0.1:5".parse().unwrap())));
        assert_eq!("10.0.0.1".parse(), Ok(Announce::Ip("10.0.0.1".parse().unwrap())));
        for bad in ["0.0.0.0", "0.0.0.0:7420", "10.0.0.1:0", "here"] {
            assert!(bad.parse::<Announce>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Options::command().debug_assert();
        let options = Options::parse_from(["hoplited", "--seed", "a,b:1", "--seed", "c"]);
        assert_eq!(options.seeds, ["a", "b:1", "c"]);
        assert_eq!((options.stall_after_ms, options.drain_ms), (1000, 0));
        assert!(Options::try_parse_from(["hoplited", "--stall-after-ms=0"]).is_err());
        assert_eq!(options.connections.fixed(), None);
        assert_eq!((options.clients_max(1 << 20), options.clients_max(1024)), (4096, 256));
        assert!(Options::try_parse_from(["hoplited", "--clients-max=0"]).is_err());
        let options = Options::parse_from(["hoplited", "--connections", "3"]);
        assert_eq!(options.connections.fixed(), Connections::new(3));
        for bad in ["0", "9", "-1", "many"] {
            assert!(Options::try_parse_from(["hoplited".into(), format!("--connections={bad}")]).is_err());
        }
        let options = Options::parse_from(["hoplited", "--reduce-degree", "star"]);
        assert_eq!(options.reduce_degree, Some(Degree::Star));
        assert!(Options::try_parse_from(["hoplited", "--reduce-degree=3"]).is_err());
    }
}
