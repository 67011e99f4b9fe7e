//! PageRank on a generated power-law graph (the kind of PowerGraph's and GraphX's runs in the Infiniswap paper).
//!
//! Ranks are pulled along incoming edges: the edges are read in sequence, the ranks at random with few hot vertices,
//! as the sources follow a power law. The graph is made vertex by vertex, so that making it under paging writes each
//! page once: placing random edges instead would cost a fault for nearly every edge.
//!
//! Invariants: the ranks sum to one (vertices without outgoing edges share theirs among all); each vertex is computed
//! by one thread in one order, so the result does not depend on the number of threads.

use super::phase::PhaseClock;
use super::{Workload, WorkloadError, WorkloadSettings, part_length, wrong};
use crate::checksum::{Checksum, Ordered};
use crate::permutation::Permutation;
use crate::random::Random;
use crate::size::PAGE_SIZE_BYTES;

/// The chance to follow an edge rather than jump anywhere (Brin and Page 1998).
const DAMPING: f64 = 0.85;

/// Rounds; the usual number of published comparisons.
const ROUNDS: usize = 10;

/// Edges for each vertex: that of the Twitter graph used by PowerGraph (1.5 billion edges, 42 million vertices)
/// halved, so that the ranks weigh more.
const EDGES_PER_VERTEX: usize = 16;

/// Largest deviation of the ranks' sum from one, for rounding errors of 10^8 additions.
const SUM_DEVIATION_MAX: f64 = 1e-6;

/// Ranks the vertices of a random graph.
#[derive(Clone, Copy, Debug)]
pub struct PageRank;

/// A directed graph by incoming edges.
#[derive(Debug, PartialEq, Eq)]
struct Graph {
    /// The edges into vertex v are `sources[starts[v]..starts[v + 1]]`.
    starts: Vec<u64>,
    sources: Vec<u32>,
    outgoing: Vec<u32>,
}

/// Edges into the `rank` most popular vertices: the fourth root of their share, a density of x^(-3/4), close to natural
/// graphs. By square roots, which are exact on every machine, while the library's powers may round differently.
fn edges_up_to(rank: u64, vertices: u64, edges: u64) -> u64 {
    ((rank as f64 / vertices as f64).sqrt().sqrt() * edges as f64).round() as u64
}

/// A popular vertex's rank: the inverse of [`edges_up_to`] for a random number from 0 to 1.
fn popular_rank(unit: f64, vertices: u64) -> u64 {
    let square = unit * unit;
    ((square * square * vertices as f64) as u64).min(vertices - 1)
}

impl Graph {
    /// A random graph. Which vertices are popular, as targets and as sources, is scattered over the whole range.
    fn generate(vertices: usize, edges: usize, seed: u64) -> Self {
        let (count, edges) = (vertices as u64, edges as u64);
        let (target_ranks, source_places) = (Permutation::new(count, seed), Permutation::new(count, !seed));
        let mut random = Random::new(seed);
        let mut starts = Vec::with_capacity(vertices + 1);
        let mut sources = Vec::with_capacity(edges as usize);
        for vertex in 0..count {
            starts.push(sources.len() as u64);
            let rank = target_ranks.at(vertex);
            for _ in edges_up_to(rank, count, edges)..edges_up_to(rank + 1, count, edges) {
                sources.push(source_places.at(popular_rank(random.unit(), count)) as u32);
            }
        }
        starts.push(sources.len() as u64);
        Self::new(starts, sources)
    }

    fn new(starts: Vec<u64>, sources: Vec<u32>) -> Self {
        let mut outgoing = vec![0; starts.len() - 1];
        for source in &sources {
            outgoing[*source as usize] += 1;
        }
        Self { starts, sources, outgoing }
    }

    fn vertices(&self) -> usize {
        self.outgoing.len()
    }

    fn sources_of(&self, vertex: usize) -> &[u32] {
        &self.sources[self.starts[vertex] as usize..self.starts[vertex + 1] as usize]
    }

    /// One round: from `ranks` to `next`. `shares` is room for each vertex's rank per outgoing edge.
    fn round(&self, ranks: &[f64], shares: &mut [f64], next: &mut [f64], threads: usize) {
        let mut stranded = 0.0;
        for ((share, rank), outgoing) in shares.iter_mut().zip(ranks).zip(&self.outgoing) {
            *share = if *outgoing == 0 { 0.0 } else { rank / f64::from(*outgoing) };
            stranded += if *outgoing == 0 { *rank } else { 0.0 };
        }
        let base = (1.0 - DAMPING + DAMPING * stranded) / self.vertices() as f64;
        let (each, shares) = (part_length(self.vertices(), threads), &*shares);
        std::thread::scope(|scope| {
            for (part, ranks) in next.chunks_mut(each).enumerate() {
                scope.spawn(move || self.pull((part * each, ranks), shares, base));
            }
        });
    }

    /// Computes the ranks from vertex `first` on that `ranks` holds.
    fn pull(&self, (first, ranks): (usize, &mut [f64]), shares: &[f64], base: f64) {
        for (offset, rank) in ranks.iter_mut().enumerate() {
            let share = |source: &u32| shares[*source as usize];
            let incoming: f64 = self.sources_of(first + offset).iter().map(share).sum();
            *rank = base + DAMPING * incoming;
        }
    }
}

impl Workload for PageRank {
    fn name(&self) -> &'static str {
        "page-rank"
    }

    fn run(&self, settings: &WorkloadSettings, clock: &mut PhaseClock) -> Result<Checksum, WorkloadError> {
        // Per vertex: its edges, their start, the number of outgoing ones, and three arrays of numbers.
        let vertex_bytes =
            EDGES_PER_VERTEX * size_of::<u32>() + size_of::<u64>() + size_of::<u32>() + 3 * size_of::<f64>();
        let vertices = settings.size.0 as usize / vertex_bytes;
        let count = vertices * EDGES_PER_VERTEX;
        let edge_pages = (count * size_of::<u32>()) as u64 / PAGE_SIZE_BYTES;
        let graph = clock.measure("build", edge_pages, || Graph::generate(vertices, count, settings.seed));
        let mut ranks = vec![1.0 / vertices as f64; vertices];
        let (mut shares, mut next) = (vec![0.0; vertices], vec![0.0; vertices]);
        clock.measure("rank", ROUNDS as u64 * edge_pages, || {
            for _ in 0..ROUNDS {
                graph.round(&ranks, &mut shares, &mut next, settings.threads);
                std::mem::swap(&mut ranks, &mut next);
            }
        });
        self.check(&graph, count, &ranks)
    }
}

impl PageRank {
    fn check(&self, graph: &Graph, edges: usize, ranks: &[f64]) -> Result<Checksum, WorkloadError> {
        let outgoing: u64 = graph.outgoing.iter().map(|count| u64::from(*count)).sum();
        if outgoing != edges as u64 {
            return Err(wrong(self, format!("{outgoing} of {edges} edges are there")));
        }
        let sum: f64 = ranks.iter().sum();
        // Written so that a NaN is refused too.
        if !matches!((sum - 1.0).abs().partial_cmp(&SUM_DEVIATION_MAX), Some(std::cmp::Ordering::Less)) {
            return Err(wrong(self, format!("the ranks sum to {sum}, not 1")));
        }
        let mut checksum = Ordered::default();
        graph.sources.iter().for_each(|source| checksum.add(u64::from(*source)));
        ranks.iter().for_each(|rank| checksum.add(rank.to_bits()));
        Ok(checksum.finish())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn graph(vertices: usize, list: &[(u32, u32)]) -> Graph {
        let into = |target: usize| list.iter().filter(move |edge| edge.1 as usize == target).map(|edge| edge.0);
        let (mut starts, mut sources) = (Vec::new(), Vec::new());
        for target in 0..vertices {
            starts.push(sources.len() as u64);
            sources.extend(into(target));
        }
        starts.push(sources.len() as u64);
        Graph::new(starts, sources)
    }

    fn rank(vertices: usize, list: &[(u32, u32)], threads: usize) -> Vec<f64> {
        let graph = graph(vertices, list);
        let mut ranks = vec![1.0 / vertices as f64; vertices];
        let (mut shares, mut next) = (vec![0.0; vertices], vec![0.0; vertices]);
        for _ in 0..200 {
            graph.round(&ranks, &mut shares, &mut next, threads);
            std::mem::swap(&mut ranks, &mut next);
        }
        ranks
    }

    fn close(found: &[f64], expected: &[f64]) -> bool {
        found.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-3)
    }

    #[test]
    fn a_ring_is_even() {
        assert!(close(&rank(4, &[(0, 1), (1, 2), (2, 3), (3, 0)], 2), &[0.25; 4]));
    }

    #[test]
    fn the_textbook_graph_has_its_ranks() {
        // Wikipedia's "PageRank" figure: A is a sink (here: shares with all), B 38.4 %, C 34.3 %, E 8.1 %, D and F
        // 3.9 %, A 3.3 %, and 1.6 % for each of the five others.
        let (a, b, c, d, e, f) = (0, 1, 2, 3, 4, 5);
        let mut list = vec![(b, c), (c, b), (d, a), (d, b), (e, b), (e, d), (e, f), (f, b), (f, e)];
        list.extend([6, 7, 8].iter().flat_map(|other| [(*other, b), (*other, e)]));
        list.extend([(9, e), (10, e)]);
        let ranks = rank(11, &list, 3);
        let expected = [0.033, 0.384, 0.343, 0.039, 0.081, 0.039, 0.016, 0.016, 0.016, 0.016, 0.016];
        assert!(close(&ranks, &expected), "{ranks:?}");
    }

    #[test]
    fn generated_graphs_are_skewed_both_ways() {
        let (vertices, edges) = (1000, 16_000);
        let graph = Graph::generate(vertices, edges, 1);
        let incoming = (0..vertices).map(|vertex| graph.sources_of(vertex).len() as u32).collect();
        for mut degrees in [incoming, graph.outgoing] {
            degrees.sort_unstable_by(|one: &u32, other| other.cmp(one));
            let hot: u32 = degrees[..10].iter().sum();
            assert!(hot as usize > edges / 4, "1 % of the vertices have {hot} of {edges} edges");
        }
    }

    #[test]
    fn lost_edges_and_ranks_are_found() {
        let graph = graph(2, &[(0, 1), (1, 0)]);
        assert!(PageRank.check(&graph, 2, &[0.5, 0.5]).is_ok());
        assert!(PageRank.check(&graph, 3, &[0.5, 0.5]).unwrap_err().to_string().contains("2 of 3 edges"));
        assert!(PageRank.check(&graph, 2, &[0.5, 0.4]).unwrap_err().to_string().contains("sum to"));
        assert!(PageRank.check(&graph, 2, &[f64::NAN, 0.5]).is_err());
    }

    /// The same by the textbook: a dense matrix of transition chances, multiplied again and again.
    fn rank_densely(vertices: usize, list: &[(u32, u32)]) -> Vec<f64> {
        let outgoing = |vertex: usize| list.iter().filter(|(source, _)| *source as usize == vertex).count() as f64;
        let edges =
            |from: usize, to: usize| list.iter().filter(|edge| **edge == (from as u32, to as u32)).count() as f64;
        let chance = |from: usize, to: usize| match outgoing(from) {
            0.0 => 1.0 / vertices as f64,
            count => edges(from, to) / count,
        };
        let step = |from: usize, to: usize| (1.0 - DAMPING) / vertices as f64 + DAMPING * chance(from, to);
        let matrix: Vec<Vec<f64>> =
            (0..vertices).map(|to| (0..vertices).map(|from| step(from, to)).collect()).collect();
        let mut ranks = vec![1.0 / vertices as f64; vertices];
        for _ in 0..200 {
            let next = |row: &Vec<f64>| row.iter().zip(&ranks).map(|(chance, rank)| chance * rank).sum();
            ranks = matrix.iter().map(next).collect();
        }
        ranks
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn ranks_are_those_of_the_dense_matrix(
            list in proptest::collection::vec((0_u32..8, 0_u32..8), 0..40), threads in 1_usize..4
        ) {
            let (sparse, dense) = (rank(8, &list, threads), rank_densely(8, &list));
            prop_assert!(sparse.iter().zip(&dense).all(|(one, other)| (one - other).abs() < 1e-9));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_generated_graph_has_all_its_edges(vertices in 1_usize..500, edges in 0_usize..4000, seed: u64) {
            let graph = Graph::generate(vertices, edges, seed);
            prop_assert_eq!(graph.sources.len(), edges);
            prop_assert_eq!(graph.vertices(), vertices);
            prop_assert!(graph.starts.is_sorted() && graph.starts.last() == Some(&(edges as u64)));
            prop_assert!(graph.sources.iter().all(|source| (*source as usize) < vertices));
        }

        #[test]
        fn ranks_and_their_edges_are_inverse(unit in 0.0_f64..1.0, vertices in 1_u64..100_000) {
            let rank = popular_rank(unit, vertices);
            prop_assert!(rank < vertices);
            let edges = 1 << 40;
            let place = (unit * edges as f64) as u64;
            // To within a rank, as both are rounded.
            prop_assert!(edges_up_to(rank.saturating_sub(1), vertices, edges) <= place);
            prop_assert!(place <= edges_up_to(rank + 2, vertices, edges));
        }

        #[test]
        fn ranks_sum_to_one(list in proptest::collection::vec((0_u32..20, 0_u32..20), 0..200), threads in 1_usize..4) {
            let sum: f64 = rank(20, &list, threads).iter().sum();
            prop_assert!((sum - 1.0).abs() < 1e-9);
        }
    }
}
