//! Element types and operations of reductions.

use std::fmt;
use std::str::FromStr;

use minicbor::{Decode, Encode};

/// Element type of a reducible array, little-endian as in memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum Dtype {
    #[n(0)]
    F16,
    #[n(1)]
    Bf16,
    #[n(2)]
    F32,
    #[n(3)]
    F64,
    #[n(4)]
    I8,
    #[n(5)]
    I16,
    #[n(6)]
    I32,
    #[n(7)]
    I64,
    #[n(8)]
    U8,
    #[n(9)]
    U16,
    #[n(10)]
    U32,
    #[n(11)]
    U64,
}

impl Dtype {
    pub const ALL: [Dtype; 12] = [
        Dtype::F16,
        Dtype::Bf16,
        Dtype::F32,
        Dtype::F64,
        Dtype::I8,
        Dtype::I16,
        Dtype::I32,
        Dtype::I64,
        Dtype::U8,
        Dtype::U16,
        Dtype::U32,
        Dtype::U64,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Dtype::I8 | Dtype::U8 => 1,
            Dtype::F16 | Dtype::Bf16 | Dtype::I16 | Dtype::U16 => 2,
            Dtype::F32 | Dtype::I32 | Dtype::U32 => 4,
            Dtype::F64 | Dtype::I64 | Dtype::U64 => 8,
        }
    }

    pub const fn is_float(self) -> bool {
        matches!(self, Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64)
    }

    /// NumPy's name of the type (for `bfloat16`, the name in ml_dtypes and PyTorch).
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F16 => "float16",
            Dtype::Bf16 => "bfloat16",
            Dtype::F32 => "float32",
            Dtype::F64 => "float64",
            Dtype::I8 => "int8",
            Dtype::I16 => "int16",
            Dtype::I32 => "int32",
            Dtype::I64 => "int64",
            Dtype::U8 => "uint8",
            Dtype::U16 => "uint16",
            Dtype::U32 => "uint32",
            Dtype::U64 => "uint64",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dtype {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Dtype::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| {
            let all: Vec<_> = Dtype::ALL.iter().map(|dtype| dtype.name()).collect();
            format!("{name:?} cannot be reduced; these can: {}", all.join(", "))
        })
    }
}

/// How two elements are combined. Integers wrap and NaN propagates, as in NumPy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum Op {
    #[n(0)]
    Sum,
    #[n(1)]
    Prod,
    #[n(2)]
    Min,
    #[n(3)]
    Max,
    /// The sum, divided by the number of sources at the end; floats only.
    #[n(4)]
    Mean,
}

impl Op {
    pub const ALL: [Op; 5] = [Op::Sum, Op::Prod, Op::Min, Op::Max, Op::Mean];

    pub const fn name(self) -> &'static str {
        match self {
            Op::Sum => "sum",
            Op::Prod => "prod",
            Op::Min => "min",
            Op::Max => "max",
            Op::Mean => "mean",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Op::ALL
            .into_iter()
            .find(|op| op.name() == name)
            .ok_or_else(|| format!("unknown op {name:?}; there are sum, prod, min, max and mean"))
    }
}

/// The order in which a reduction folds its sources.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Encode, Decode)]
#[cbor(index_only)]
pub enum FoldOrder {
    /// In order of arrival: fastest.
    #[default]
    #[n(0)]
    Arrival,
    /// By position in the source list, one after the other: every run gives the same bits.
    #[n(1)]
    Fixed,
}
