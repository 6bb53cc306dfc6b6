//! The IPv4 networks that this host is directly on; those most likely to carry a cluster's traffic first.

use std::net::Ipv4Addr;
use std::path::Path;

/// The kernel's routing table, one route per line: interface, destination and gateway in hexadecimal.
const ROUTES: &str = "/proc/net/route";

/// An address in each network that is reached without a gateway. Real network cards come before bridges of containers
/// and virtual machines. Empty if the routing table cannot be read.
pub(crate) fn directly_on() -> Vec<Ipv4Addr> {
    let table = std::fs::read_to_string(ROUTES).unwrap_or_default();
    let mut routes: Vec<_> = table.lines().filter_map(direct_route).collect();
    routes.sort_by_key(|&(interface, _)| unlikeliness(interface));
    routes.into_iter().map(|(_, network)| network).collect()
}

fn direct_route(line: &str) -> Option<(&str, Ipv4Addr)> {
    let mut fields = line.split_whitespace();
    let interface = fields.next()?;
    let destination = u32::from_str_radix(fields.next()?, 16).ok()?;
    let gateway = u32::from_str_radix(fields.next()?, 16).ok()?;
    // The table shows the network's bytes as a number in this machine's byte order.
    let network = Ipv4Addr::from(destination.to_ne_bytes());
    if gateway != 0 || destination == 0 || network.is_loopback() {
        return None;
    }
    // The network's own address may mean "broadcast", which sockets refuse. The address of its first host does not.
    Some((interface, Ipv4Addr::from(u32::from(network) | 1)))
}

fn unlikeliness(interface: &str) -> u8 {
    let known = Path::new("/sys/class/net").join(interface);
    match (known.join("device").exists(), known.join("bridge").exists()) {
        (true, _) => 0,
        (false, false) => 1,
        (false, true) => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn a_route_without_a_gateway_is_a_network_of_ours() {
        let line = "eth0\t00004D0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0";
        assert_eq!(direct_route(line), Some(("eth0", Ipv4Addr::new(10, 77, 0, 1))));
    }

    #[test]
    fn gateways_default_routes_and_the_heading_are_passed_over() {
        assert_eq!(direct_route("Iface\tDestination\tGateway \tFlags"), None);
        assert_eq!(direct_route("eth0\t00000000\t0100000A\t0003"), None);
        assert_eq!(direct_route("eth0\t0000100A\t0100000A\t0003"), None);
        assert_eq!(direct_route(""), None);
    }
}
