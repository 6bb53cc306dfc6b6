//! Preemption between reductions, in worlds drawn at random. Their stores hold the sources and targets, and the partial
//! sums of any one of the reductions, but not of several. All reductions must finish.

use rand_pcg::rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// About one world in seven hangs if nothing is preempted.
const WORLDS: u64 = 100;

/// Of each object: large enough for a tree, small enough for many.
const KIB: usize = 200;

struct SimRng(Pcg64Mcg);

impl SimRng {
    fn below(&mut self, end: usize) -> usize {
        (self.0.next_u64() % end as u64) as usize
    }

    fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }
}

/// One reduction, in fixed order: its sources with their nodes.
struct Reduction {
    target: String,
    caller: usize,
    sources: Vec<(String, usize)>,
}

impl Reduction {
    /// Where its target will be.
    fn root(&self) -> usize {
        self.sources.last().expect("it has sources").1
    }

    /// How many partial sums each node holds for it: neighbours on one node share one, unless one of them
    /// is the target of another reduction and comes later. The first alone needs none, the last is the root.
    fn sums(&self, nodes: usize) -> Vec<usize> {
        let is_target = |name: &str| name.starts_with('t');
        let mut runs: Vec<(usize, usize)> = Vec::new();
        let mut before = "t";
        for (name, node) in &self.sources {
            match runs.last_mut() {
                Some((at, count)) if at == node && !is_target(name) && !is_target(before) => *count += 1,
                _ => runs.push((*node, 1)),
            }
            before = name;
        }
        let mut sums = vec![0; nodes];
        for (position, (node, count)) in runs[..runs.len() - 1].iter().enumerate() {
            sums[*node] += usize::from(position > 0 || *count > 1);
        }
        sums
    }
}

/// The commands of a scenario, with how many reductions there are.
fn draw(seed: u64) -> (String, usize) {
    let mut rng = SimRng(Pcg64Mcg::seed_from_u64(seed));
    let nodes = 2 + rng.below(5);
    let mut reductions: Vec<Reduction> = Vec::new();
    for number in 0..2 + rng.below(5) {
        let names = (0..3 + rng.below(4)).map(|source| format!("s{number}x{source}"));
        let mut sources: Vec<_> = names.map(|name| (name, rng.below(nodes))).collect();
        if number > 0 && rng.percent(35) {
            let other = &reductions[rng.below(number)];
            let place = rng.below(sources.len() + 1);
            sources.insert(place, (other.target.clone(), other.root()));
        }
        reductions.push(Reduction { target: format!("t{number}"), caller: rng.below(nodes), sources });
    }
    let mut puts: Vec<(String, usize)> = reductions.iter().flat_map(|r| r.sources.clone()).collect();
    puts.retain(|(name, _)| name.starts_with('s'));
    let needs = |at: usize| {
        let here = puts.iter().filter(|(_, node)| *node == at).count();
        let targets = reductions.iter().filter(|reduction| reduction.root() == at).count();
        here + targets + reductions.iter().map(|reduction| reduction.sums(nodes)[at]).max().unwrap_or(0)
    };
    let needs: Vec<_> = (0..nodes).map(needs).collect();
    let store = *needs.iter().max().expect("there are nodes");
    for (node, need) in needs.iter().enumerate() {
        // All stores have one size. Fillers take the space that a node does not need.
        puts.extend((*need..store).map(|number| (format!("f{node}x{number}"), node)));
    }
    let mut text = format!("world nodes={nodes} store={}KiB\n----\n\n", store * KIB + KIB / 2);
    for (name, node) in puts {
        text += &format!("n{} put {name} {KIB}KiB int32\n", node + 1);
    }
    text += "----\n\n";
    let count = reductions.len();
    while !reductions.is_empty() {
        let Reduction { target, caller, sources } = reductions.remove(rng.below(reductions.len()));
        let names: Vec<_> = sources.into_iter().map(|(name, _)| name).collect();
        let (caller, of) = (caller + 1, names.len());
        text += &format!("n{caller} reduce {target} sum {of} {} within=50s fixed\n", names.join(" "));
        if rng.percent(70) {
            let pause = [1, 2, 3, 5, 10, 30, 1500][rng.below(7)];
            text += &format!("run {pause}ms\n----\n\n");
        }
    }
    (text + "run 55s\n----\n", count)
}

#[test]
fn reductions_that_need_each_others_space_all_end() {
    let mut preempted = 0;
    for seed in 0..WORLDS {
        let (commands, count) = draw(seed);
        let account =
            hoplite_sim::scenario::replay(&commands).unwrap_or_else(|why| panic!("world {seed}: {why}"));
        let ended = account.lines().filter(|line| line.contains(" < reduced over ")).count();
        assert_eq!(ended, count, "world {seed}:\n{commands}");
        preempted += usize::from(account.contains("LetGo"));
    }
    assert!(preempted > 0, "no slot was preempted in any world");
}
