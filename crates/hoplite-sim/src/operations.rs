//! Measures each operation on a large cluster or beside many objects, and the longest turns of a core in that time. It
//! checks no rules. `bare` explains what is simulated.

use std::fmt;
use std::time::Duration;

use hoplite_types::client::Request;
use hoplite_types::{limits, Blob, Dtype, FoldOrder, Header, ObjectId, Op, Shard};

pub use crate::bare::Links;
use crate::bare::{least, Bare, Turn};

/// Size of the many small objects.
const SMALL_BYTES: usize = 100;

/// Size of the objects that are timed one after the other.
const TIMED_BYTES: usize = 1 << 10;

/// Number of objects that are timed one after the other.
const TIMED: usize = 50;

/// Puts that each filling client has under way at a time.
const UNDER_WAY: usize = 64;

/// Most clients that fill the cluster.
const FILLERS: usize = 16;

/// Nodes that start at the same time while the cluster forms.
const START_TOGETHER: usize = 32;

/// Longest time until all nodes know each other, and the time to settle after an event.
const FORM_WITHIN: Duration = Duration::from_secs(600);
const REST: Duration = Duration::from_secs(3);

/// How long round trips are measured after a death.
const WATCH: Duration = Duration::from_secs(1);

/// A round trip is normal again if it takes at most so many times the earlier median.
const NORMAL: u32 = 2;

/// Longest promised turn of a control loop.
const TURN_PROMISED: Duration = Duration::from_millis(10);

/// The cluster, and what to measure on it.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub nodes: usize,
    /// Number of small objects in the cluster.
    pub objects: usize,
    /// Size of the object that is broadcast and reduced. 0: neither is measured.
    pub collective_bytes: u64,
    pub links: Links,
    /// How often all is repeated. The shortest time of each turn counts.
    pub repeats: usize,
}

/// The times of one operation.
#[derive(Clone, Debug)]
pub struct Took {
    operation: &'static str,
    /// Time on the simulated clock.
    time: Duration,
    /// For a death: the longest round trip.
    worst: Duration,
    /// Processor time of all cores together on this machine.
    cores: Duration,
    turns: Vec<Turn>,
}

impl fmt::Display for Took {
    fn fmt(&self, line: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [time, worst, cores] = [self.time, self.worst, self.cores].map(|time| time.as_secs_f64());
        let longest = self.turns.iter().max_by_key(|turn| turn.took);
        let (turn, during) = longest.map_or((0.0, "nothing"), |turn| (turn.took.as_secs_f64(), turn.during));
        let passed = self.turns.iter().map(|turn| turn.passed).max().unwrap_or_default().as_secs_f64();
        let late = self.turns.iter().filter(|turn| turn.took > TURN_PROMISED).count();
        write!(
            line,
            "operation={} seconds={time:.9} worst={worst:.9} cores={cores:.6} turn={turn:.6} during={during} \
             wall_turn={passed:.6} turns={} late_turns={late}",
            self.operation,
            self.turns.len()
        )
    }
}

/// Measures all operations. An error if one of them fails.
pub fn measure(setting: Setting) -> Result<Vec<Took>, String> {
    let mut runs = (0..setting.repeats.max(1)).map(|_| once(setting)).collect::<Result<Vec<_>, _>>()?;
    let mut all = runs.pop().expect("one at least");
    for (index, took) in all.iter_mut().enumerate() {
        let mut turns = vec![std::mem::take(&mut took.turns)];
        turns.extend(runs.iter_mut().map(|run| std::mem::take(&mut run[index].turns)));
        took.turns = least(turns)?;
    }
    Ok(all)
}

fn once(setting: Setting) -> Result<Vec<Took>, String> {
    let mut bench = Bench { bare: Bare::new(setting.links), setting, took: Vec::new(), busy: Duration::ZERO };
    bench.form()?;
    bench.fill()?;
    bench.put_get_delete()?;
    if setting.collective_bytes > 0 {
        bench.broadcast()?;
        bench.reduce()?;
    }
    bench.join()?;
    bench.death()?;
    bench.clear()?;
    Ok(bench.took)
}

struct Bench {
    bare: Bare,
    setting: Setting,
    took: Vec<Took>,
    busy: Duration,
}

impl Bench {
    /// Records an operation and the turns since the last call of this.
    fn note(&mut self, operation: &'static str, time: Duration, worst: Duration) {
        let cores = self.bare.busy - self.busy;
        self.busy = self.bare.busy;
        let turns = self.bare.take_turns();
        self.took.push(Took { operation, time, worst, cores, turns });
    }

    fn form(&mut self) -> Result<(), String> {
        let mut left = self.setting.nodes;
        let mut together = 1;
        while left > 0 {
            let now = together.min(left);
            (0..now).for_each(|_| {
                self.bare.start();
            });
            left -= now;
            together = START_TOGETHER;
            self.become_whole()?;
        }
        let took = self.bare.now();
        self.rest()?;
        self.note("form", took, Duration::ZERO);
        Ok(())
    }

    fn become_whole(&mut self) -> Result<(), String> {
        let until = self.bare.now() + FORM_WITHIN;
        while !self.bare.is_whole() {
            self.bare.run_for(Duration::from_millis(20))?;
            if self.bare.now() > until {
                return Err(format!("{} nodes do not find each other", self.bare.living().len()));
            }
        }
        Ok(())
    }

    fn rest(&mut self) -> Result<(), String> {
        self.bare.run_for(REST)
    }

    /// Puts all small objects. The time is one object's share.
    fn fill(&mut self) -> Result<(), String> {
        let fillers = self.setting.nodes.min(FILLERS);
        let began = self.bare.now();
        let mut put = 0;
        while put < self.setting.objects {
            let now = (fillers * UNDER_WAY).min(self.setting.objects - put);
            let calls: Vec<_> = (put..put + now)
                .map(|number| self.bare.ask(number % fillers, small(&object(number), SMALL_BYTES)))
                .collect();
            self.bare.finish(&calls)?;
            put += now;
        }
        let share = (self.bare.now() - began) / self.setting.objects.max(1) as u32;
        self.rest()?;
        self.note("fill", share, Duration::ZERO);
        Ok(())
    }

    /// Measures medians over objects that are put on one node and got on another.
    fn put_get_delete(&mut self) -> Result<(), String> {
        let names: Vec<_> = (0..TIMED).map(|number| format!("timed-{number}")).collect();
        let mut times = Vec::new();
        for name in &names {
            times.push(self.bare.call(0, small(name, TIMED_BYTES))?);
        }
        self.note("put", median(times), Duration::ZERO);
        let mut times = Vec::new();
        for name in &names {
            times.push(self.bare.call(1, get(name))?);
        }
        self.note("get", median(times), Duration::ZERO);
        let mut times = Vec::new();
        for name in &names {
            times.push(self.bare.call(0, delete(name))?);
        }
        self.note("delete", median(times), Duration::ZERO);
        Ok(())
    }

    fn broadcast(&mut self) -> Result<(), String> {
        self.put_large(0, "broadcast")?;
        let began = self.bare.now();
        let calls: Vec<_> =
            (1..self.setting.nodes).map(|host| self.bare.ask(host, get("broadcast"))).collect();
        self.bare.finish(&calls)?;
        let took = self.bare.now() - began;
        self.bare.call(0, delete("broadcast"))?;
        self.note("broadcast", took, Duration::ZERO);
        Ok(())
    }

    fn reduce(&mut self) -> Result<(), String> {
        let names: Vec<_> = (0..self.setting.nodes).map(|host| format!("source-{host}")).collect();
        for (host, name) in names.iter().enumerate() {
            self.put_large(host, name)?;
        }
        let began = self.bare.now();
        let reduction = Request::Reduce {
            target: ObjectId::from_name("sum"),
            sources: names.iter().map(|name| ObjectId::from_name(name)).collect(),
            num_objects: names.len() as u32,
            op: Op::Sum,
            order: FoldOrder::Arrival,
            timeout_ms: None,
            to_sources: false,
        };
        let calls = [self.bare.ask(0, reduction), self.bare.ask(0, get("sum"))];
        self.bare.finish(&calls)?;
        let took = self.bare.now() - began;
        self.note("reduce", took, Duration::ZERO);
        Ok(())
    }

    fn put_large(&mut self, host: usize, name: &str) -> Result<(), String> {
        let (id, size) = (ObjectId::from_name(name), self.setting.collective_bytes);
        let header = Header::array(Dtype::F32, size / Dtype::F32.size() as u64);
        let create = self.bare.ask(host, Request::Create { id, size, header, timeout_ms: None, keep: false });
        let (_, copy) = self.bare.finish(&[create])?[0];
        let copy = copy.ok_or("what is to be new is there")?;
        self.bare.call(host, Request::Seal { copy, timeout_ms: None })?;
        Ok(())
    }

    /// Measures the time until a new node serves a get, and then lets the cluster settle.
    fn join(&mut self) -> Result<(), String> {
        self.bare.call(0, small("for the newcomer", TIMED_BYTES))?;
        self.note("before the join", Duration::ZERO, Duration::ZERO);
        self.took.pop();
        let newcomer = self.bare.start();
        let took = self.bare.call(newcomer, get("for the newcomer"))?;
        self.become_whole()?;
        self.rest()?;
        self.note("join", took, Duration::ZERO);
        Ok(())
    }

    /// Measures round trips after a death, of objects in a shard of the dead node and in other shards.
    fn death(&mut self) -> Result<(), String> {
        let (victim, shard) = self.victim()?;
        let mut names = (0..).map(|number| format!("trip-{number}")).filter(|name| {
            let id = ObjectId::from_name(name);
            id.shard() == shard
        });
        let mut trips = Vec::new();
        for number in 0..TIMED {
            let name = if number % 2 == 0 { names.next().expect("endless") } else { format!("any-{number}") };
            trips.push(self.trip([0, 1], &name)?);
        }
        let usual = median(trips);
        self.note("before the death", Duration::ZERO, Duration::ZERO);
        self.took.pop();
        let died = self.bare.now();
        self.bare.kill(victim);
        let (mut normal, mut worst) = (died, Duration::ZERO);
        for number in 0.. {
            if self.bare.now() > died + WATCH {
                break;
            }
            let name =
                if number % 2 == 0 { names.next().expect("endless") } else { format!("later-{number}") };
            let took = self.trip([0, 1], &name)?;
            worst = worst.max(took);
            if took > usual * NORMAL {
                normal = self.bare.now();
            }
        }
        self.become_whole()?;
        self.rest()?;
        self.note("death", normal - died, worst);
        Ok(())
    }

    /// Deletes all small objects, as many per call as a call allows. The time is one object's share.
    fn clear(&mut self) -> Result<(), String> {
        let began = self.bare.now();
        let ids: Vec<_> =
            (0..self.setting.objects).map(|number| ObjectId::from_name(&object(number))).collect();
        for some in ids.chunks(limits::IDS_MAX) {
            self.bare.call(0, Request::Delete { ids: some.to_vec(), timeout_ms: None })?;
        }
        let share = (self.bare.now() - began) / ids.len().max(1) as u32;
        self.rest()?;
        self.note("clear", share, Duration::ZERO);
        Ok(())
    }

    /// A node that owns a shard and takes no part in the round trips.
    fn victim(&mut self) -> Result<(usize, Shard), String> {
        for number in 0..1000 {
            let name = format!("sought-{number}");
            self.bare.call(0, small(&name, TIMED_BYTES))?;
            let shard = ObjectId::from_name(&name).shard();
            if let Some(owner) = self.bare.owner(shard).filter(|owner| *owner > 1) {
                return Ok((owner, shard));
            }
        }
        Err("nobody but two nodes owns anything".to_owned())
    }

    fn trip(&mut self, [from, to]: [usize; 2], name: &str) -> Result<Duration, String> {
        Ok(self.bare.call(from, small(name, TIMED_BYTES))? + self.bare.call(to, get(name))?)
    }
}

fn object(number: usize) -> String {
    format!("object-{number}")
}

fn small(name: &str, bytes: usize) -> Request {
    let id = ObjectId::from_name(name);
    Request::PutSmall { id, header: Header::default(), payload: Blob(vec![0; bytes]), timeout_ms: None }
}

fn get(name: &str) -> Request {
    let id = ObjectId::from_name(name);
    Request::Get { id, timeout_ms: None, partial: false, fail_if_lost: false }
}

fn delete(name: &str) -> Request {
    Request::Delete { ids: vec![ObjectId::from_name(name)], timeout_ms: None }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_measured_and_a_chain_takes_the_time_of_the_wire() {
        let links = Links { latency: Duration::from_micros(100), bytes_per_s: 1 << 20 };
        let setting = Setting { nodes: 5, objects: 300, collective_bytes: 1 << 20, links, repeats: 2 };
        let all = measure(setting).unwrap();
        let names: Vec<_> = all.iter().map(|took| took.operation).collect();
        let expected =
            ["form", "fill", "put", "get", "delete", "broadcast", "reduce", "join", "death", "clear"];
        assert_eq!(names, expected);
        let seconds =
            |operation| all.iter().find(|took| took.operation == operation).unwrap().time.as_secs_f64();
        for collective in ["broadcast", "reduce"] {
            assert!((1.0..1.5).contains(&seconds(collective)), "{}", seconds(collective));
        }
        assert!(seconds("put") < 0.01 && seconds("get") < 0.01 && seconds("death") < 1.0);
        assert!(all.iter().all(|took| !took.turns.is_empty()));
    }
}
