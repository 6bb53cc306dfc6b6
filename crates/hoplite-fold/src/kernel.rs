//! The loops. Each is a struct, because `pulp` compiles its `call` once per instruction set.

use std::marker::PhantomData;
use std::ops::Div;

use hoplite_types::Op;
use pulp::{Arch, NullaryFnOnce};

use crate::lane::Lane;

/// Slices to combine, before their dtype is known to the compiler.
pub(crate) enum Job<'a> {
    InPlace { op: Op, acc: &'a mut [u8], other: &'a [u8] },
    Into { op: Op, out: &'a mut [u8], a: &'a [u8], b: &'a [u8] },
}

impl Job<'_> {
    pub(crate) fn run<L: Lane>(self) {
        let op = match &self {
            Job::InPlace { op, .. } | Job::Into { op, .. } => *op,
        };
        match op {
            Op::Sum | Op::Mean => self.run_with::<L, _>(L::sum),
            Op::Prod => self.run_with::<L, _>(L::prod),
            Op::Min => self.run_with::<L, _>(L::min),
            Op::Max => self.run_with::<L, _>(L::max),
        }
    }

    fn run_with<L: Lane, F: Combine<L>>(self, combine: F) {
        match self {
            Job::InPlace { acc, other, .. } => {
                assert_eq!(acc.len(), other.len(), "only arrays of one length can be folded");
                let (acc, other) = (bytemuck::cast_slice_mut(acc), bytemuck::cast_slice(other));
                L::fold(InPlace { acc, other, combine });
            }
            Job::Into { out, a, b, .. } => {
                assert_eq!(
                    (out.len(), out.len()),
                    (a.len(), b.len()),
                    "only arrays of one length can be folded"
                );
                let out = bytemuck::cast_slice_mut(out);
                let (a, b) = (bytemuck::cast_slice(a), bytemuck::cast_slice(b));
                L::fold_into(Into { out, a, b, combine });
            }
        }
    }
}

pub(crate) fn divide<L: Lane<Value: Div<Output = L::Value>>>(acc: &mut [u8], by: L::Value) {
    Arch::new().dispatch(Divide::<L> { acc: bytemuck::cast_slice_mut(acc), by, lane: PhantomData });
}

/// One of a lane's operations.
pub(crate) trait Combine<L: Lane>: Fn(L::Value, L::Value) -> L::Value {}
impl<L: Lane, F: Fn(L::Value, L::Value) -> L::Value> Combine<L> for F {}

pub(crate) struct InPlace<'a, L: Lane, F> {
    pub acc: &'a mut [L::Bytes],
    pub other: &'a [L::Bytes],
    pub combine: F,
}

impl<L: Lane, F: Combine<L>> NullaryFnOnce for InPlace<'_, L, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (acc, other) in self.acc.iter_mut().zip(self.other) {
            *acc = L::store((self.combine)(L::load(*acc), L::load(*other)));
        }
    }
}

pub(crate) struct Into<'a, L: Lane, F> {
    pub out: &'a mut [L::Bytes],
    pub a: &'a [L::Bytes],
    pub b: &'a [L::Bytes],
    pub combine: F,
}

impl<L: Lane, F: Combine<L>> NullaryFnOnce for Into<'_, L, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for ((out, a), b) in self.out.iter_mut().zip(self.a).zip(self.b) {
            *out = L::store((self.combine)(L::load(*a), L::load(*b)));
        }
    }
}

struct Divide<'a, L: Lane> {
    acc: &'a mut [L::Bytes],
    by: L::Value,
    lane: PhantomData<L>,
}

impl<L: Lane<Value: Div<Output = L::Value>>> NullaryFnOnce for Divide<'_, L> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for acc in self.acc {
            *acc = L::store(L::load(*acc) / self.by);
        }
    }
}
