//! float32 and float64.

use crate::lane::Lane;

/// `np.minimum`: NaN if either is NaN; of two zeros the second, whatever their signs. `f32::min` would drop the NaN.
macro_rules! minimum {
    ($a:expr, $b:expr) => {
        if $a < $b || $a.is_nan() {
            $a
        } else {
            $b
        }
    };
}
pub(crate) use minimum;

/// `np.maximum`, by the same rules.
macro_rules! maximum {
    ($a:expr, $b:expr) => {
        if $a > $b || $a.is_nan() {
            $a
        } else {
            $b
        }
    };
}
pub(crate) use maximum;

macro_rules! floats {
    ($($type:ty),*) => {$(
        impl Lane for $type {
            type Bytes = [u8; size_of::<$type>()];
            type Value = $type;

            #[inline(always)]
            fn load(bytes: Self::Bytes) -> $type {
                <$type>::from_le_bytes(bytes)
            }
            #[inline(always)]
            fn store(value: $type) -> Self::Bytes {
                value.to_le_bytes()
            }
            #[inline(always)]
            fn sum(a: $type, b: $type) -> $type {
                a + b
            }
            #[inline(always)]
            fn prod(a: $type, b: $type) -> $type {
                a * b
            }
            #[inline(always)]
            fn min(a: $type, b: $type) -> $type {
                minimum!(a, b)
            }
            #[inline(always)]
            fn max(a: $type, b: $type) -> $type {
                maximum!(a, b)
            }
        }
    )*};
}
floats!(f32, f64);
