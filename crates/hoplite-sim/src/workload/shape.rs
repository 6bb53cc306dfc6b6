//! The shape of a world, which a seed draws first: its nodes, network, stores and amount of work.

use std::fmt;
use std::time::Duration;

use hoplite_types::limits::INLINE_BYTES_MAX;

use crate::fault::{Class, FaultSwitches};
use crate::masses::Mass;
use crate::net::NetPlan;
use crate::rng::SimRng;
use crate::world::{Clocks, Means, Plan, WALL_MS};

/// Sizes of a grain. Even the smallest bulk object has several grains.
const GRAINS: [u64; 3] = [8 << 10, 16 << 10, 32 << 10];

/// Bytes of the largest object. It is only a few times the inline limit, so that runs stay quick.
pub const OBJECT_BYTES_MAX: u64 = 4 * INLINE_BYTES_MAX;

/// Bytes of a large store. All objects and partial sums of a world fit into it several times.
const PLENTY_BYTES: u64 = 32 << 20;

/// One of so many worlds has a mass of small objects. `MASSES` are the sizes of a mass to draw from.
const MASS_OF: usize = 40;
const MASSES: [u64; 5] = [1_000, 1_000, 1_000, 2_000, 10_000];

/// With `--masses` every world has ten thousand small objects or more. One of so many worlds has the most.
const MASSES_LARGE_OF: usize = 40;

/// Messages that an outbox holds for each member of a mass, at least.
const OUTBOX_PER_MEMBER: usize = 4;

/// Changes a seed, so that the mass has random choices of its own.
const MASS_DICE: u64 = 0x6d61_7373_6573_2121;

/// How much space a store has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreSpace {
    /// All objects fit into every store at once.
    Plenty,
    /// A few large objects fill a store, which leads to evictions and full stores.
    Tight,
}

/// The drawn properties of a run, before names and times.
#[derive(Clone, Debug)]
pub struct Shape {
    pub nodes: usize,
    pub clients: usize,
    /// Number of plain objects.
    pub objects: usize,
    /// Number of groups of arrays of one size and dtype, with reductions over them.
    pub groups: usize,
    /// Number of levels of reductions over results of reductions.
    pub levels: usize,
    pub space: StoreSpace,
    /// Tasks start within this time.
    pub span: Duration,
    /// Whether tasks start while nodes still join.
    pub early: bool,
    pub faults: FaultSwitches,
    pub clocks: Clocks,
    /// A mass of small objects, if there is one.
    pub mass: Option<Mass>,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} nodes, {} clients, {} objects, {} groups to reduce, {} levels, {:?} space, within {:?}{}, faults: {}",
            self.nodes,
            self.clients,
            self.objects,
            self.groups,
            self.levels,
            self.space,
            self.span,
            if self.early { ", while joining" } else { "" },
            self.faults
        )?;
        self.mass.map_or(Ok(()), |Mass { count, size, .. }| write!(f, ", {count} more of {size} B"))
    }
}

impl Shape {
    pub fn draw(rng: &mut SimRng, faults: FaultSwitches) -> Self {
        let nodes = match rng.between(0, 99) {
            0..=4 => rng.between(1, 2),
            5..=79 => rng.between(3, 8),
            80..=94 => rng.between(9, 16),
            95..=98 => rng.between(17, 32),
            _ => rng.between(33, 64),
        } as usize;
        Shape {
            nodes,
            clients: nodes + rng.between(0, nodes as u64 + 2) as usize,
            objects: rng.between(0, 6) as usize,
            groups: rng.between(0, 2) as usize,
            levels: if rng.percent(30) { rng.between(2, 4) as usize } else { 0 },
            space: if rng.percent(25) { StoreSpace::Tight } else { StoreSpace::Plenty },
            span: *rng.pick(&[1, 10, 100, 600].map(Duration::from_millis)),
            early: rng.percent(15),
            faults,
            clocks: draw_clocks(rng, nodes, faults),
            mass: None,
        }
    }

    /// Gives a few worlds (with `always`: every world) a mass of small objects, and few nodes.
    pub fn draw_mass(&mut self, seed: u64, always: bool) {
        // A separate random generator, so that all other worlds are the same as without masses.
        let rng = &mut SimRng::new(seed ^ MASS_DICE);
        if rng.index(MASS_OF) > 0 && !always {
            return;
        }
        let count = match always {
            true => match rng.index(MASSES_LARGE_OF) {
                0 => 90_000,
                1..=3 => 30_000,
                _ => 10_000,
            },
            false => *rng.pick(&MASSES),
        };
        let count = (count + rng.between(0, count / 10)) as u32;
        let size = if count > 20_000 { 64 } else { *rng.pick(&[0, 1, 64, 64, 64, 300]) };
        self.mass = Some(Mass { number: 0, count, size });
        self.nodes = rng.between(2, 6) as usize;
        self.clients = self.nodes + rng.between(0, 4) as usize;
        self.space = StoreSpace::Plenty;
        self.clocks.wall_ms.resize(self.nodes, WALL_MS);
    }

    /// Bytes of the largest object. It is smaller in a world with many nodes.
    pub fn object_bytes_max(&self) -> u64 {
        match self.nodes {
            0..=16 => OBJECT_BYTES_MAX,
            _ => INLINE_BYTES_MAX + OBJECT_BYTES_MAX / 8,
        }
    }

    /// The plan of a world of this shape.
    pub fn plan(&self, rng: &mut SimRng) -> Plan {
        let store_bytes = match self.space {
            StoreSpace::Plenty => PLENTY_BYTES,
            StoreSpace::Tight => rng.between(OBJECT_BYTES_MAX, 4 * OBJECT_BYTES_MAX),
        };
        let grain_bytes = *rng.pick(&GRAINS);
        let window_bytes = grain_bytes * rng.between(1, 8);
        let in_step = rng.percent(50);
        let net = self.draw_net(rng);
        let slowest = net.bytes_per_s.iter().min().expect("there are nodes");
        // A stream may have to wait for a window of each other object on its sender's link.
        let queue_ms =
            window_bytes * (self.objects + self.groups * 10 + self.levels * 4) as u64 * 1000 / slowest;
        Plan {
            nodes: self.nodes,
            store_bytes,
            net,
            grain_bytes,
            window_bytes,
            fold_ahead_bytes: if in_step { window_bytes } else { u64::MAX },
            stall_after: Duration::from_millis(*rng.pick(&[100, 300, 1000]) + queue_ms),
            clocks: self.clocks.clone(),
            means: self.draw_means(rng),
            start_spread: Duration::from_millis(rng.between(0, 50)),
            striped_bytes_min: Some(if rng.percent(80) { INLINE_BYTES_MAX } else { OBJECT_BYTES_MAX / 2 }),
            has_space: self.space == StoreSpace::Plenty,
            calm: !self.faults.any() && !self.early && self.space == StoreSpace::Plenty,
            tail_lines: None,
            keep_talk: false,
        }
    }

    fn draw_means(&self, rng: &mut SimRng) -> Means {
        let us = Duration::from_micros;
        let (input_time, message_time) =
            *rng.pick(&[(us(0), us(0)), (us(5), us(2)), (us(5), us(2)), (us(60), us(20))]);
        let scarce = self.faults.has(Class::Shortage) && rng.percent(25);
        // Control connections to and from all others, and clients. The rest is left for streams.
        let steady = 2 * self.nodes + 2 * self.clients / self.nodes;
        Means {
            input_time,
            message_time,
            outbox_max: if self.faults.has(Class::Control) && rng.percent(15) {
                // In proportion to the number of messages. A real outbox holds some hundred thousand.
                let members = self.mass.map_or(0, |mass| mass.count as usize);
                rng.between(200, 2000) as usize + OUTBOX_PER_MEMBER * members
            } else {
                usize::MAX
            },
            descriptors_max: if scarce { steady + rng.between(0, 8) as usize } else { usize::MAX },
            failing_dials: if self.faults.has(Class::Dial) { *rng.pick(&[0, 5, 20]) } else { 0 },
        }
    }

    fn draw_net(&self, rng: &mut SimRng) -> NetPlan {
        let us = Duration::from_micros;
        let base = *rng.pick(&[us(20), us(200), us(3000)]);
        let uneven = rng.percent(50);
        let mut plan = NetPlan::uniform(
            self.nodes,
            base,
            *rng.pick(&[2_000_000, 20_000_000, 200_000_000, 2_000_000_000]),
        );
        if uneven {
            for row in &mut plan.latency {
                row.iter_mut().for_each(|latency| *latency = rng.time(base / 4, base * 4));
            }
            for rate in &mut plan.bytes_per_s {
                *rate = rng.between(*rate / 4, *rate * 2);
            }
        }
        plan.jitter = rng.time(Duration::ZERO, base * 2);
        if self.faults.has(Class::Datagram) {
            plan.datagram_loss_percent = rng.between(0, 3);
        }
        plan
    }
}

/// Clocks that are mostly in step, else seconds or hours apart.
fn draw_clocks(rng: &mut SimRng, nodes: usize, faults: FaultSwitches) -> Clocks {
    let apart_ms = *rng.pick(&[0, 20, 20, 5_000, 3_600_000]);
    let wall_ms = (0..nodes).map(|_| WALL_MS + rng.between(0, apart_ms)).collect();
    let steps = faults.has(Class::Restart) && rng.percent(30);
    Clocks { wall_ms, steps_ms: if steps { *rng.pick(&[1_000, 3_600_000]) } else { 0 } }
}
