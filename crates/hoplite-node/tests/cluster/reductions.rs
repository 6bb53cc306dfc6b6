//! Reductions over several nodes.

use hoplite_types::client::{Reply, Request};
use hoplite_types::{Dtype, FoldOrder, Header, ObjectId, Op};

use crate::node::cluster;

const ELEMENTS: usize = 3_000_000;

fn source(n: u64) -> (ObjectId, Vec<f32>) {
    let values = (0..ELEMENTS).map(|i| (n as f32 + 1.0) * ((i % 1000) as f32)).collect();
    (ObjectId::from_name(&format!("source {n}")), values)
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn reduce(op: Op, order: FoldOrder, source_count: u64, node_count: usize) {
    let nodes = cluster(node_count);
    let target = ObjectId::from_name("target");
    let sources: Vec<_> = (0..source_count).map(source).collect();
    let mut caller = nodes[0].client();
    let call = caller.start(Request::Reduce {
        target,
        sources: sources.iter().map(|(id, _)| *id).collect(),
        num_objects: source_count as u32,
        op,
        order,
        timeout_ms: None,
        to_sources: false,
    });
    let mut reader = nodes[node_count - 1].client();
    let reading = reader.start_get(target);
    let header = Header::array(Dtype::F32, ELEMENTS as u64);
    for (n, (id, values)) in sources.iter().enumerate() {
        nodes[n % node_count].client().put(*id, header.clone(), &bytes(values));
    }
    match caller.finish(call) {
        Reply::Reduced { sources } => assert_eq!(sources.len(), source_count as usize),
        other => panic!("{other:?}"),
    }
    // Small whole numbers: every order gives the same sum.
    let factor = (source_count * (source_count + 1) / 2) as f32;
    let divisor = if op == Op::Mean { source_count as f32 } else { 1.0 };
    let expected: Vec<_> = (0..ELEMENTS).map(|i| factor * ((i % 1000) as f32) / divisor).collect();
    assert!(reader.finish_get(reading) == bytes(&expected), "{op} {order:?}");
}

#[test]
fn a_sum_over_four_nodes() {
    reduce(Op::Sum, FoldOrder::Arrival, 4, 4);
}

#[test]
fn a_mean_of_more_sources_than_nodes() {
    reduce(Op::Mean, FoldOrder::Arrival, 7, 3);
}

#[test]
fn a_sum_in_fixed_order() {
    reduce(Op::Sum, FoldOrder::Fixed, 5, 3);
}
