//! Finds how much memory this process may use.

use std::fs;
use std::path::Path;

/// The host's memory, or the smallest limit of this process's control groups. `None` if `/proc` does not tell.
pub(crate) fn usable_bytes() -> Option<u64> {
    let host = host_bytes(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = group_paths(&groups).into_iter().filter_map(|path| limit_bytes(Path::new(&path)));
    Some(limits.fold(host, u64::min))
}

fn host_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// The files that may hold a limit: those of the group and of all groups above it, for both versions of control
/// groups.
fn group_paths(groups: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            list if list.split(',').any(|controller| controller == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        for group in Path::new(path).ancestors() {
            let group = group.to_string_lossy();
            paths.push(format!("{root}{}/{file}", group.trim_end_matches('/')));
        }
    }
    paths
}

/// `None` for `max` (no limit) and for missing files.
fn limit_bytes(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_memory_is_read() {
        assert_eq!(host_bytes("MemTotal:       24690128 kB\nMemFree: 1 kB\n"), Some(24_690_128 << 10));
        assert!(usable_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn every_group_above_is_looked_at() {
        assert_eq!(
            group_paths("0::/a/b\n5:cpu,memory:/c\n3:cpu:/d\n"),
            [
                "/sys/fs/cgroup/a/b/memory.max",
                "/sys/fs/cgroup/a/memory.max",
                "/sys/fs/cgroup/memory.max",
                "/sys/fs/cgroup/memory/c/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            ]
        );
    }
}
