"""Records NumPy's own answers: python tests/record_numpy.py > tests/numpy.txt (needs numpy, ml_dtypes).

One line: dtype, a, b, then their sum, product, minimum and maximum; elements as hexadecimal bit patterns.
"""

import itertools

import ml_dtypes
import numpy as np

OPS = [np.add, np.multiply, np.minimum, np.maximum]
DTYPES = ["float16", "bfloat16", "float32", "float64"] + [
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
]


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def interesting(dtype):
    """Corners of the type and a few values whose results must be rounded or wrap."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        values = {info.min, info.min + 1, 0, 1, 3, 7, info.max // 2 + 1, info.max - 1, info.max}
        if dtype.kind == "i":
            values |= {-1, -7}
        return [np.array(value).astype(dtype) for value in sorted(values)]
    info = ml_dtypes.finfo(dtype)
    positive = [0.0, 1.0, 1.0 / 3.0, 3.0, float(info.eps), 1.0 + float(info.eps), float(info.tiny)]
    positive += [float(info.smallest_subnormal), float(info.max), np.inf, np.nan]
    return [np.array(sign * value).astype(dtype) for value in positive for sign in (1, -1)]


def hexadecimal(value, dtype):
    return f"{int(np.asarray(value, dtype).view(f'u{dtype.itemsize}')):0{2 * dtype.itemsize}x}"


np.seterr(all="ignore")
for name in DTYPES:
    dtype = dtype_of(name)
    for a, b in itertools.product(interesting(dtype), repeat=2):
        # Arrays, not scalars: NumPy's loops and its scalar paths are not the same code.
        results = [op(np.full(33, a), np.full(33, b))[5] for op in OPS]
        print(name, *(hexadecimal(value, dtype) for value in (a, b, *results)))
