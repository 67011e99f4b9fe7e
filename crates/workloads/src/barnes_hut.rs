//! Barnes-Hut: HPBD's second program. Bodies attract one another; distant groups are taken as one body.
//!
//! Each step builds an octree, then walks it for each body. The bodies lie along a Morton curve, as the partitions of
//! SPLASH-2's Barnes do, so that consecutive walks share most of what they visit; what is near along two axes and far
//! along the curve is still visited, which is the poor locality that HPBD saw. (In random order nearly every visit to
//! a leaf would fault under paging, and no swap device would tell from another.)
//!
//! Invariants: each body is in exactly one leaf, so the root's mass is the sum of all; each body's acceleration is
//! computed by one thread in one order, so the result does not depend on the number of threads.

use super::phase::PhaseClock;
use super::{Workload, WorkloadError, WorkloadSettings, part_length, wrong};
use crate::checksum::{Checksum, Ordered};
use crate::random::Random;
use crate::size::PAGE_SIZE_BYTES;

/// A group is taken as one body when its width over its distance is below this; 1.0 is the value of SPLASH-2, whose
/// Barnes HPBD ran.
const OPENING_ANGLE: f64 = 1.0;

/// Keeps the force of very close bodies finite; squared.
const SOFTENING_SQUARED: f64 = 1e-4;

/// Length of a step in time units.
const STEP: f64 = 0.025;

/// Steps; two, so that the second works on what the first has written.
const STEPS: usize = 2;

/// Cells deeper than this hold several bodies (of the same place, for all practical purposes) as a chain.
const DEPTH_MAX: usize = 48;

/// Inner nodes for each body, for random bodies: measured 0.53 at 10^3 to 10^6 bodies, rounded up.
const NODES_PER_BODY: f64 = 0.6;

/// Bodies whose acceleration is checked against the direct sum.
const CHECKED_BODIES: usize = 4;

/// Largest deviation of an acceleration from the direct sum, relative to the sum of the forces' magnitudes. One near
/// light body in a heavy group loses its whole force, and more than that is a damaged tree. Measured at this opening
/// angle in 12 million accelerations among 2 to 400 bodies: 5 above 0.5, 0.71 at most. A damaged low bit is found by
/// comparing checksums.
const DEVIATION_MAX: f64 = 1.0;

/// Bits of each coordinate along the Morton curve: as many as three coordinates leave room for.
const MORTON_BITS: u32 = 21;

/// No body or node.
const NONE: u32 = u32::MAX;

/// Simulates bodies that attract one another.
#[derive(Clone, Copy, Debug)]
pub struct BarnesHut;

/// A place, velocity or acceleration.
type Vector = [f64; 3];

/// A body.
#[derive(Clone, Copy, Debug)]
struct Body {
    place: Vector,
    velocity: Vector,
    acceleration: Vector,
    mass: f64,
    /// The next body in the same leaf, at the deepest level only.
    next: u32,
}

/// What hangs below a node in one octant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Child {
    Empty,
    Body(u32),
    Node(u32),
}

/// A cube with at least two bodies.
#[derive(Clone, Debug)]
struct Node {
    children: [Child; 8],
    /// Centre of mass, once summed up.
    centre: Vector,
    mass: f64,
}

/// The octree over a cube around all bodies.
#[derive(Debug)]
struct Tree {
    nodes: Vec<Node>,
    middle: Vector,
    half_width: f64,
}

fn difference(one: Vector, other: Vector) -> Vector {
    std::array::from_fn(|axis| one[axis] - other[axis])
}

fn square(vector: Vector) -> f64 {
    vector.iter().map(|part| part * part).sum()
}

/// Adds `factor` times `vector` to `sum`.
fn add_scaled(sum: &mut Vector, vector: Vector, factor: f64) {
    sum.iter_mut().zip(vector).for_each(|(sum, part)| *sum += part * factor);
}

/// Adds to `sum` the acceleration at `place` by `mass` at `other`.
fn attract(sum: &mut Vector, place: Vector, other: Vector, mass: f64) {
    let apart = difference(other, place);
    let distance_squared = square(apart) + SOFTENING_SQUARED;
    add_scaled(sum, apart, mass / (distance_squared * distance_squared.sqrt()));
}

/// Which octant around `middle` holds `place`, and the middle of that octant.
fn octant(place: Vector, middle: Vector, quarter: f64) -> (usize, Vector) {
    let above: [bool; 3] = std::array::from_fn(|axis| place[axis] >= middle[axis]);
    let index = (0..3).map(|axis| usize::from(above[axis]) << axis).sum();
    (index, std::array::from_fn(|axis| middle[axis] + signed(quarter, above[axis])))
}

/// `length` upwards or downwards.
fn signed(length: f64, upwards: bool) -> f64 {
    if upwards { length } else { -length }
}

impl Node {
    const EMPTY: Self = Self { children: [Child::Empty; 8], centre: [0.0; 3], mass: 0.0 };
}

impl Tree {
    /// The tree over `bodies`, in the arena `nodes`, which is emptied first and keeps its memory.
    fn build(bodies: &mut [Body], mut nodes: Vec<Node>) -> Self {
        nodes.clear();
        nodes.push(Node::EMPTY);
        let extreme =
            |start: f64, choose: fn(f64, f64) -> f64| bodies.iter().flat_map(|body| body.place).fold(start, choose);
        let (low, high) = (extreme(f64::INFINITY, f64::min), extreme(f64::NEG_INFINITY, f64::max));
        let half_width = ((high - low) / 2.0).max(f64::MIN_POSITIVE) * (1.0 + 1e-9);
        let mut tree = Self { nodes, middle: [f64::midpoint(low, high); 3], half_width };
        for index in 0..bodies.len() {
            bodies[index].next = NONE;
            tree.insert(bodies, index as u32);
        }
        tree.sum_up(bodies, 0);
        tree
    }

    fn insert(&mut self, bodies: &mut [Body], index: u32) {
        let place = bodies[index as usize].place;
        let (mut node, mut middle, mut quarter) = (0, self.middle, self.half_width / 2.0);
        for _ in 0..DEPTH_MAX {
            let (child, below) = octant(place, middle, quarter);
            match self.nodes[node].children[child] {
                Child::Empty => return self.nodes[node].children[child] = Child::Body(index),
                Child::Node(next) => node = next as usize,
                Child::Body(other) => {
                    let (other_child, _) = octant(bodies[other as usize].place, below, quarter / 2.0);
                    let fresh = self.nodes.len();
                    self.nodes.push(Node::EMPTY);
                    self.nodes[fresh].children[other_child] = Child::Body(other);
                    self.nodes[node].children[child] = Child::Node(fresh as u32);
                    node = fresh;
                }
            }
            (middle, quarter) = (below, quarter / 2.0);
        }
        self.chain(bodies, node, octant(place, middle, quarter).0, index);
    }

    /// At the deepest level: puts the body in front of those that are there already.
    fn chain(&mut self, bodies: &mut [Body], node: usize, child: usize, index: u32) {
        if let Child::Body(first) = self.nodes[node].children[child] {
            bodies[index as usize].next = first;
        }
        self.nodes[node].children[child] = Child::Body(index);
    }

    /// Fills in masses and centres from the leaves up; at most [`DEPTH_MAX`] levels of recursion.
    fn sum_up(&mut self, bodies: &[Body], node: usize) {
        let (mut mass, mut moment) = (0.0, [0.0; 3]);
        for child in self.nodes[node].children {
            match child {
                Child::Empty => {}
                Child::Body(first) => for_chain(bodies, first, |body| {
                    mass += body.mass;
                    add_scaled(&mut moment, body.place, body.mass);
                }),
                Child::Node(next) => {
                    self.sum_up(bodies, next as usize);
                    let below = &self.nodes[next as usize];
                    mass += below.mass;
                    add_scaled(&mut moment, below.centre, below.mass);
                }
            }
        }
        self.nodes[node].mass = mass;
        self.nodes[node].centre = moment.map(|part| part / mass);
    }

    fn acceleration(&self, bodies: &[Body], place: Vector) -> Vector {
        let mut sum = [0.0; 3];
        self.walk(bodies, 0, (self.middle, self.half_width), place, &mut sum);
        sum
    }

    /// Adds the attraction of all below `node`, whose cube has the given middle and half width. A cube around the place
    /// itself is always opened: taken as one body it would make a body attract itself.
    fn walk(&self, bodies: &[Body], node: usize, cube: (Vector, f64), place: Vector, sum: &mut Vector) {
        let (node, (middle, half_width)) = (&self.nodes[node], cube);
        let reach = OPENING_ANGLE * OPENING_ANGLE * square(difference(node.centre, place));
        let outside = difference(place, middle).iter().any(|apart| apart.abs() > half_width);
        if outside && 4.0 * half_width * half_width < reach {
            return attract(sum, place, node.centre, node.mass);
        }
        let quarter = half_width / 2.0;
        for (index, child) in node.children.into_iter().enumerate() {
            match child {
                Child::Empty => {}
                Child::Body(first) => {
                    for_chain(bodies, first, |body| attract(sum, place, body.place, body.mass));
                }
                Child::Node(next) => {
                    let below = std::array::from_fn(|axis| middle[axis] + signed(quarter, index >> axis & 1 == 1));
                    self.walk(bodies, next as usize, (below, quarter), place, sum);
                }
            }
        }
    }
}

fn for_chain(bodies: &[Body], first: u32, mut visit: impl FnMut(&Body)) {
    let mut next = first;
    while next != NONE {
        let body = &bodies[next as usize];
        visit(body);
        next = body.next;
    }
}

/// Where `place`, in the unit cube, lies along the Morton curve: the bits of its coordinates in turn.
fn morton(place: Vector) -> u64 {
    let bits: [u64; 3] = place.map(|part| (part * f64::from(1 << MORTON_BITS)) as u64);
    (0..MORTON_BITS).rev().fold(0, |key, bit| bits.iter().fold(key, |key, part| key << 1 | (part >> bit & 1)))
}

/// Bodies at random in the unit cube, denser towards its middle, at rest, along the Morton curve.
fn scatter(count: usize, seed: u64) -> Vec<Body> {
    let mut random = Random::new(seed);
    let mut coordinate = || (random.unit() + random.unit() + random.unit()) / 3.0;
    let mut body = || Body {
        place: std::array::from_fn(|_| coordinate()),
        velocity: [0.0; 3],
        acceleration: [0.0; 3],
        mass: 1.0 / count as f64,
        next: NONE,
    };
    let mut bodies: Vec<Body> = (0..count).map(|_| body()).collect();
    bodies.sort_unstable_by_key(|body| (morton(body.place), body.place[0].to_bits()));
    bodies
}

fn accelerate(bodies: &mut [Body], accelerations: &mut [Vector], tree: &Tree, threads: usize) {
    let each = part_length(bodies.len(), threads);
    std::thread::scope(|scope| {
        let shared = &*bodies;
        for (places, results) in shared.chunks(each).zip(accelerations.chunks_mut(each)) {
            scope.spawn(move || {
                for (body, result) in places.iter().zip(results) {
                    *result = tree.acceleration(shared, body.place);
                }
            });
        }
    });
    for (body, acceleration) in bodies.iter_mut().zip(accelerations) {
        body.acceleration = *acceleration;
    }
}

fn advance(bodies: &mut [Body]) {
    for body in bodies {
        add_scaled(&mut body.velocity, body.acceleration, STEP);
        add_scaled(&mut body.place, body.velocity, STEP);
    }
}

/// How far the acceleration of body `index` is from the direct sum, relative to the sum of the forces' magnitudes.
fn deviation(bodies: &[Body], index: usize) -> f64 {
    let (mut direct, mut magnitude) = ([0.0; 3], 0.0);
    for body in bodies {
        let mut one = [0.0; 3];
        attract(&mut one, bodies[index].place, body.place, body.mass);
        magnitude += square(one).sqrt();
        add_scaled(&mut direct, one, 1.0);
    }
    square(difference(bodies[index].acceleration, direct)).sqrt() / magnitude.max(f64::MIN_POSITIVE)
}

impl Workload for BarnesHut {
    fn name(&self) -> &'static str {
        "barnes-hut"
    }

    fn run(&self, settings: &WorkloadSettings, clock: &mut PhaseClock) -> Result<Checksum, WorkloadError> {
        let body_bytes = (size_of::<Body>() + size_of::<Vector>()) as f64 + NODES_PER_BODY * size_of::<Node>() as f64;
        let count = (settings.size.0 as f64 / body_bytes) as usize;
        let body_pages = (count * size_of::<Body>()) as u64 / PAGE_SIZE_BYTES;
        let mut bodies = clock.measure("scatter", body_pages, || scatter(count, settings.seed));
        let mut accelerations = vec![[0.0; 3]; count];
        let mut nodes = Vec::with_capacity((count as f64 * NODES_PER_BODY) as usize);
        for _ in 0..STEPS {
            let tree = clock.measure("build", settings.size.pages(), || Tree::build(&mut bodies, nodes));
            self.check_mass(&tree)?;
            let threads = settings.threads;
            clock.measure("walk", settings.size.pages(), || {
                accelerate(&mut bodies, &mut accelerations, &tree, threads);
            });
            self.check_accelerations(&bodies)?;
            clock.measure("advance", body_pages, || advance(&mut bodies));
            nodes = tree.nodes;
        }
        let mut checksum = Ordered::default();
        bodies.iter().flat_map(|body| body.place).for_each(|part| checksum.add(part.to_bits()));
        Ok(checksum.finish())
    }
}

impl BarnesHut {
    fn check_mass(&self, tree: &Tree) -> Result<(), WorkloadError> {
        let mass = tree.nodes[0].mass;
        if (mass - 1.0).abs() < 1e-6 { Ok(()) } else { Err(wrong(self, format!("the tree's mass is {mass}, not 1"))) }
    }

    fn check_accelerations(&self, bodies: &[Body]) -> Result<(), WorkloadError> {
        for index in (0..bodies.len()).step_by(part_length(bodies.len(), CHECKED_BODIES)) {
            let deviation = deviation(bodies, index);
            // Written so that a NaN is refused too.
            if !matches!(deviation.partial_cmp(&DEVIATION_MAX), Some(std::cmp::Ordering::Less)) {
                return Err(wrong(self, format!("the acceleration of body {index} is off by {deviation}")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn settled(count: usize, seed: u64) -> (Vec<Body>, Tree) {
        let mut bodies = scatter(count, seed);
        let tree = Tree::build(&mut bodies, Vec::new());
        accelerate(&mut bodies, &mut vec![[0.0; 3]; count], &tree, 2);
        (bodies, tree)
    }

    fn bodies_below(tree: &Tree, bodies: &[Body], node: usize, found: &mut Vec<f64>) {
        for child in tree.nodes[node].children {
            match child {
                Child::Empty => {}
                Child::Body(first) => for_chain(bodies, first, |body| found.push(body.place[0])),
                Child::Node(next) => bodies_below(tree, bodies, next as usize, found),
            }
        }
    }

    #[test]
    fn the_morton_curve_goes_through_octants_in_turn() {
        assert_eq!(morton([0.0; 3]), 0);
        assert_eq!(morton([0.5; 3]), 7 << (3 * (MORTON_BITS - 1)));
        let corners = [[0.0, 0.0, 0.5], [0.0, 0.5, 0.0], [0.5, 0.0, 0.0]].map(morton);
        assert!(corners.is_sorted() && corners.iter().all(|key| key.count_ones() == 1));
        let bodies = scatter(100, 1);
        assert!(bodies.windows(2).all(|pair| morton(pair[0].place) <= morton(pair[1].place)));
    }

    #[test]
    fn two_bodies_attract_each_other() {
        let mut bodies = scatter(2, 0);
        bodies[0].place = [0.0; 3];
        bodies[1].place = [2.0, 0.0, 0.0];
        let tree = Tree::build(&mut bodies, Vec::new());
        accelerate(&mut bodies, &mut [[0.0; 3]; 2], &tree, 1);
        // Half the mass at distance 2: 0.5 / 4 = 0.125, but for the softening.
        assert!((bodies[0].acceleration[0] - 0.125).abs() < 1e-4, "{:?}", bodies[0]);
        assert!((bodies[0].acceleration[0] + bodies[1].acceleration[0]).abs() < 1e-12);
        assert!(bodies[0].acceleration[1].abs() < 1e-12);
    }

    #[test]
    fn the_arena_is_large_enough_for_random_bodies() {
        let mut bodies = scatter(20_000, 3);
        let nodes = Tree::build(&mut bodies, Vec::new()).nodes.len();
        assert!((nodes as f64) < NODES_PER_BODY * 20_000.0, "{nodes} nodes for 20000 bodies");
    }

    #[test]
    fn bodies_drift_towards_their_centre() {
        let (mut bodies, _) = settled(300, 2);
        let spread = |bodies: &[Body]| bodies.iter().map(|body| square(difference(body.place, [0.5; 3]))).sum::<f64>();
        let before = spread(&bodies);
        advance(&mut bodies);
        assert!(spread(&bodies) < before, "bodies at rest that attract one another come closer");
    }

    #[test]
    fn bodies_in_one_place_share_a_leaf() {
        let mut bodies = scatter(5, 0);
        bodies.iter_mut().for_each(|body| body.place = [0.25; 3]);
        bodies[4].place = [0.75; 3];
        let tree = Tree::build(&mut bodies, Vec::new());
        assert!((tree.nodes[0].mass - 1.0).abs() < 1e-12);
        assert!(tree.nodes.len() <= DEPTH_MAX + 1);
    }

    #[test]
    fn a_wrong_acceleration_is_found() {
        let (mut bodies, mut tree) = settled(200, 1);
        assert!(BarnesHut.check_accelerations(&bodies).is_ok());
        bodies[0].acceleration[1] += 500.0;
        assert!(BarnesHut.check_accelerations(&bodies).is_err());
        bodies[0].acceleration[1] = f64::NAN;
        assert!(BarnesHut.check_accelerations(&bodies).is_err());
        tree.nodes[0].mass = 0.9;
        assert!(BarnesHut.check_mass(&tree).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn every_body_is_in_one_leaf(count in 1_usize..300, seed: u64) {
            let (bodies, tree) = settled(count, seed);
            let mut found = Vec::new();
            bodies_below(&tree, &bodies, 0, &mut found);
            let mut expected: Vec<f64> = bodies.iter().map(|body| body.place[0]).collect();
            found.sort_by(f64::total_cmp);
            expected.sort_by(f64::total_cmp);
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn every_body_lies_in_its_octants_down_to_its_leaf(count in 1_usize..200, seed: u64) {
            let mut bodies = scatter(count, seed);
            let tree = Tree::build(&mut bodies, Vec::new());
            for body in &bodies {
                let (mut node, mut middle, mut quarter) = (0, tree.middle, tree.half_width / 2.0);
                let leaf = loop {
                    let (child, below) = octant(body.place, middle, quarter);
                    match tree.nodes[node].children[child] {
                        Child::Node(next) => node = next as usize,
                        Child::Body(first) => break first,
                        Child::Empty => return Err(TestCaseError::fail("a body is not where its place leads")),
                    }
                    (middle, quarter) = (below, quarter / 2.0);
                };
                let mut found = false;
                for_chain(&bodies, leaf, |other| found |= other.place == body.place);
                prop_assert!(found);
            }
        }

        #[test]
        fn the_root_is_the_centre_of_all(count in 1_usize..200, seed: u64) {
            let mut bodies = scatter(count, seed);
            let tree = Tree::build(&mut bodies, Vec::new());
            for axis in 0..3 {
                let mean: f64 = bodies.iter().map(|body| body.place[axis]).sum::<f64>() / count as f64;
                prop_assert!((tree.nodes[0].centre[axis] - mean).abs() < 1e-9);
            }
        }

        #[test]
        fn an_arena_that_is_used_again_changes_nothing(count in 2_usize..200, seed: u64) {
            let mut bodies = scatter(count, seed);
            let fresh = Tree::build(&mut bodies, Vec::new());
            let (mass, nodes) = (fresh.nodes[0].mass, fresh.nodes.len());
            let again = Tree::build(&mut bodies, fresh.nodes);
            prop_assert_eq!((again.nodes[0].mass.to_bits(), again.nodes.len()), (mass.to_bits(), nodes));
        }

        #[test]
        fn walking_is_close_to_the_direct_sum(count in 2_usize..400, seed: u64) {
            let (bodies, _) = settled(count, seed);
            for index in 0..count.min(20) {
                prop_assert!(deviation(&bodies, index) < DEVIATION_MAX);
            }
        }
    }
}
