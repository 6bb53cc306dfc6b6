//! Chooses the address that a node announces to the others. The first that applies:
//!
//! 1. an explicit address
//! 2. a specific address that it listens on
//! 3. for a wildcard (`0.0.0.0`), which cannot be dialled: the source address of packets to a seed
//! 4. the source address of packets along the default route
//! 5. the same for the networks that this host is directly on ([`crate::networks`]): a cluster's own network or a
//!    lab may have no default route
//! 6. loopback, where there is no route at all
//!
//! To find a source address, a UDP socket is "connected" and the kernel is asked for it. No packet is sent.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::networks;

/// Documentation addresses (RFC 5737, RFC 3849): always routed by the default route, never contacted.
const FAR_AWAY: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];

/// The rule that chose an announced address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    Explicit,
    Listening,
    RouteToSeed(SocketAddr),
    DefaultRoute,
    DirectlyOn(IpAddr),
    NoRoute,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Explicit => f.write_str("it was given explicitly"),
            Reason::Listening => f.write_str("it is the address listened on"),
            Reason::RouteToSeed(seed) => write!(f, "packets to the seed {seed} leave from it"),
            Reason::DefaultRoute => f.write_str("packets along the default route leave from it"),
            Reason::DirectlyOn(network) => {
                write!(f, "there is no default route, and this host is directly on the network {network}")
            }
            Reason::NoRoute => f.write_str("this host has no route, so only itself can be a peer"),
        }
    }
}

/// Chooses the address to announce for a socket bound to `bound` (its real port included).
pub fn choose(explicit: Option<SocketAddr>, bound: SocketAddr, seeds: &[SocketAddr]) -> (SocketAddr, Reason) {
    if let Some(addr) = explicit {
        return (addr, Reason::Explicit);
    }
    if !bound.ip().is_unspecified() {
        return (bound, Reason::Listening);
    }
    let announced = |ip| SocketAddr::new(ip, bound.port());
    for &seed in seeds {
        if let Some(ip) = source_towards(seed, bound) {
            return (announced(ip), Reason::RouteToSeed(seed));
        }
    }
    for ip in FAR_AWAY {
        if let Some(ip) = source_towards(SocketAddr::new(ip, 1), bound) {
            return (announced(ip), Reason::DefaultRoute);
        }
    }
    for network in networks::directly_on() {
        if let Some(ip) = source_towards(SocketAddr::new(network.into(), 1), bound) {
            return (announced(ip), Reason::DirectlyOn(network.into()));
        }
    }
    let loopback = match bound {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    (announced(loopback), Reason::NoRoute)
}

/// The source address of packets to `target`, if the socket bound to `bound` can be reached at it.
fn source_towards(target: SocketAddr, bound: SocketAddr) -> Option<IpAddr> {
    if bound.is_ipv4() && target.is_ipv6() {
        return None;
    }
    let wildcard: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((wildcard, 0)).ok()?;
    socket.connect(target).ok()?;
    let source = socket.local_addr().ok()?.ip();
    (!source.is_unspecified()).then_some(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_explicit_address_wins() {
        let (chosen, reason) = choose(Some(addr("10.9.8.7:1")), addr("127.0.0.1:2"), &[addr("127.0.0.1:3")]);
        assert_eq!((chosen, reason), (addr("10.9.8.7:1"), Reason::Explicit));
    }

    #[test]
    fn a_specific_listening_address_is_announced_as_it_is() {
        let (chosen, reason) = choose(None, addr("127.0.0.2:7420"), &[addr("127.0.0.1:3")]);
        assert_eq!((chosen, reason), (addr("127.0.0.2:7420"), Reason::Listening));
    }

    #[test]
    fn a_wildcard_takes_the_source_address_towards_the_first_seed() {
        let seed = addr("127.0.0.1:9");
        let (chosen, reason) = choose(None, addr("0.0.0.0:7420"), &[seed]);
        assert_eq!((chosen, reason), (addr("127.0.0.1:7420"), Reason::RouteToSeed(seed)));
    }

    #[test]
    fn a_seed_of_the_other_family_is_passed_over() {
        let v4 = addr("127.0.0.1:9");
        let (chosen, reason) = choose(None, addr("0.0.0.0:7420"), &[addr("[::1]:9"), v4]);
        assert_eq!((chosen, reason), (addr("127.0.0.1:7420"), Reason::RouteToSeed(v4)));
    }

    #[test]
    fn a_wildcard_without_seeds_still_gives_an_address_to_dial() {
        let (chosen, reason) = choose(None, addr("0.0.0.0:7420"), &[]);
        assert!(!chosen.ip().is_unspecified());
        assert_eq!(chosen.port(), 7420);
        assert_eq!(reason == Reason::NoRoute, chosen.ip().is_loopback(), "{chosen} because {reason}");
    }
}
