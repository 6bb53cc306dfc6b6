//! Resolves the names of seeds to addresses.

use std::net::SocketAddr;

use hoplite_types::limits::DEFAULT_PORT;
use tracing::warn;

use super::StartError;

/// Resolves `HOST` or `HOST:PORT`. All addresses of a name are used.
///
/// # Errors
/// If there are seeds and none can be resolved: the node would form a cluster of its own.
pub(crate) async fn resolve(seeds: &[String]) -> Result<Vec<SocketAddr>, StartError> {
    let mut resolved = Vec::new();
    for seed in seeds.iter().map(|seed| seed.trim()).filter(|seed| !seed.is_empty()) {
        match tokio::net::lookup_host(with_port(seed)).await {
            Ok(addrs) => resolved.extend(addrs),
            Err(error) => warn!(seed, %error, "cannot resolve the seed"),
        }
    }
    if resolved.is_empty() && !seeds.is_empty() {
        return Err(StartError::NoSeed { seeds: seeds.to_vec() });
    }
    Ok(resolved)
}

fn with_port(seed: &str) -> String {
    let has_port = match seed.rsplit_once(':') {
        // A colon inside brackets, or one of several outside, belongs to an IPv6 address.
        Some((host, port)) => !port.ends_with(']') && (!host.contains(':') || host.ends_with(']')),
        None => false,
    };
    match (has_port, seed.parse::<std::net::Ipv6Addr>()) {
        (true, _) => seed.to_owned(),
        (false, Ok(_)) => format!("[{seed}]:{DEFAULT_PORT}"),
        (false, Err(_)) => format!("{seed}:{DEFAULT_PORT}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_may_be_left_out() {
        assert_eq!(with_port("host"), "host:7420");
        assert_eq!(with_port("host:1"), "host:1");
        assert_eq!(with_port("10.0.0.1"), "10.0.0.1:7420");
        assert_eq!(with_port("::1"), "[::1]:7420");
        assert_eq!(with_port("[::1]"), "[::1]:7420");
        assert_eq!(with_port("[::1]:5"), "[::1]:5");
    }

    #[tokio::test]
    async fn seeds_that_name_nothing_are_an_error_only_if_all_do() {
        let bad = "256.256.256.256".to_owned();
        assert!(resolve(std::slice::from_ref(&bad)).await.is_err());
        let addrs = resolve(&[bad, "127.0.0.1:9".to_owned()]).await.unwrap();
        assert_eq!(addrs, ["127.0.0.1:9".parse().unwrap()]);
        assert_eq!(resolve(&[]).await.unwrap(), []);
    }
}
