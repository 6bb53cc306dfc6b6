//! Integers: sums and products wrap.

use crate::lane::Lane;

macro_rules! integers {
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
                a.wrapping_add(b)
            }
            #[inline(always)]
            fn prod(a: $type, b: $type) -> $type {
                a.wrapping_mul(b)
            }
            #[inline(always)]
            fn min(a: $type, b: $type) -> $type {
                Ord::min(a, b)
            }
            #[inline(always)]
            fn max(a: $type, b: $type) -> $type {
                Ord::max(a, b)
            }
        }
    )*};
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);
