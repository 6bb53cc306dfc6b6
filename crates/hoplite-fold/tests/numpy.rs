//! Compares results with NumPy's own (`tests/numpy.txt`, recorded by `tests/record_numpy.py`).

use hoplite_fold::{fold, fold_into};
use hoplite_types::{Dtype, Op};

/// In the order of the columns.
const OPS: [Op; 4] = [Op::Sum, Op::Prod, Op::Min, Op::Max];

/// Longer than any vector register, and odd.
const REPEATS: usize = 131;

/// Whether the bits are a NaN of `dtype`: its sign and payload mean nothing.
fn is_nan(dtype: Dtype, bits: u64) -> bool {
    match dtype {
        Dtype::F16 => half::f16::from_bits(bits as u16).is_nan(),
        Dtype::Bf16 => half::bf16::from_bits(bits as u16).is_nan(),
        Dtype::F32 => f32::from_bits(bits as u32).is_nan(),
        Dtype::F64 => f64::from_bits(bits).is_nan(),
        _ => false,
    }
}

fn elements(dtype: Dtype, bits: u64) -> Vec<u8> {
    bits.to_le_bytes()[..dtype.size()].repeat(REPEATS)
}

fn bits(element: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..element.len()].copy_from_slice(element);
    u64::from_le_bytes(bytes)
}

#[test]
fn answers_are_numpys() {
    let mut checked = [0; Dtype::ALL.len()];
    for line in include_str!("numpy.txt").lines() {
        let mut columns = line.split(' ');
        let dtype: Dtype = columns.next().expect("a dtype").parse().expect("a known dtype");
        let numbers: Vec<u64> =
            columns.map(|column| u64::from_str_radix(column, 16).expect("hexadecimal")).collect();
        let [a, b, results @ ..] = &numbers[..] else { panic!("a short line: {line}") };
        assert_eq!(results.len(), OPS.len());
        for (op, &expected) in OPS.into_iter().zip(results) {
            let (a, b) = (elements(dtype, *a), elements(dtype, *b));
            let mut into = vec![0xaa; a.len()];
            fold_into(op, dtype, &mut into, &a, &b);
            let mut acc = a;
            fold(op, dtype, &mut acc, &b);
            for element in acc.chunks(dtype.size()).chain(into.chunks(dtype.size())) {
                let got = bits(element);
                let same = got == expected || is_nan(dtype, got) && is_nan(dtype, expected);
                assert!(same, "{op} in {line}: {got:x}, not {expected:x}");
            }
        }
        checked[dtype as usize] += 1;
    }
    assert!(checked.iter().all(|&lines| lines >= 49), "{checked:?} lines per dtype");
}
