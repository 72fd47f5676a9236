#!/usr/bin/env python3
"""The functions of the device by the words of `docs/spec/device.md` ("Functions"), in Python's integers.

It prints a digest of each function's results, which `stages/simulate/tests/functions.rs` and the manual hold: so the
simulator's bits are those that the manual defines, and not only its own. Takes some seconds, needs nothing but Python.

  device_functions.py
"""
import math
import struct

NAN, INF = 0x7FC00000, 0x7F800000
ONE = 1 << 62


def mul(a, b, n=62):
    return (a * b) >> n


LN2 = (sum((1 << (100 - k)) // k for k in range(1, 101)) + (1 << 37)) >> 38
LOG2E = (1 << 124) // LN2
C1 = LN2
C2 = mul(LN2, LN2) // 2
C3 = mul(mul(LN2, LN2), LN2) // 6


def exponential_series(x):
    total, term, k = ONE, ONE, 1
    while term > 0:
        term = mul(term, x) // k
        total, k = total + term, k + 1
    return total


def logarithm_series(i):
    z = (i << 62) // (256 + i)
    square, total, power, k = mul(z, z), 0, z, 1
    while power > 0:
        total, power, k = total + power // k, mul(power, square), k + 2
    return 2 * total


POWERS = [exponential_series(LN2 * i >> 6) for i in range(64)]
LOGARITHMS = [logarithm_series(i) for i in range(129)]
INVERSES = [(128 << 62) // (128 + i) for i in range(129)]
SEEDS = [(math.isqrt((1 << 71) // (2 * j + 1)) + 2) // 4 for j in range(64, 256)]
FACTORIALS = [(ONE + math.factorial(k) // 2) // math.factorial(k) for k in range(14)]
TURNS = 0xA2F9836E4E441529FC2757D1
TAU = 0x6487ED5110B4611A


def value(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def parts(bits):
    field, fraction = bits >> 23 & 0xFF, bits & 0x7FFFFF
    return bits >> 31, *((fraction, -149) if field == 0 else (fraction | 1 << 23, field - 150))


def shifted(a, n):
    return a << n if n >= 0 else a >> -n


def rounded(sign, m, e):
    """±m · 2^e as the bits of an f32: to nearest, ties to even."""
    if m == 0:
        return sign << 31
    last = max(m.bit_length() - 1 + e - 23, -149)
    drop = last - e
    if drop <= 0:
        kept = m << -drop
    else:
        kept, rest, half = m >> drop, m & (1 << drop) - 1, 1 << drop - 1
        kept += rest > half or (rest == half and kept & 1)
    return sign << 31 | min(((last + 149) << 23) + kept, INF)


def power(negative, m, e):
    y = mul(shifted(m, e + 40), LOG2E)
    y = -y if negative else y
    n, i, d = y >> 40, y >> 34 & 63, y & (1 << 34) - 1
    p = mul(d, C1 + mul(d, C2 + mul(d, C3, 40), 40), 40)
    return POWERS[i] + mul(POWERS[i], p), n


def exp(bits):
    x = value(bits)
    if x > 89 or x < -104:
        return INF if x > 0 else 0
    m, n = power(*parts(bits))
    return rounded(0, m, n - 62)


def logistic(bits):
    sign, m, e = parts(bits)
    m, n = power(1, m, e)
    m >>= 31
    below = (1 << 31) + (m >> -n)
    above = m << 31 if sign else ONE
    return (above + below // 2) // below, n - 31 if sign else -31


def sigmoid(bits):
    x = value(bits)
    if x > 104 or x < -104:
        return 0x3F800000 if x > 0 else 0
    return rounded(0, *logistic(bits))


def silu(bits):
    x = value(bits)
    if x > 104:
        return bits
    if x < -110:
        return 1 << 31
    (q, n), (sign, m, e) = logistic(bits), parts(bits)
    return rounded(sign, m * q, e + n)


def softplus(bits):
    x = value(bits)
    if x > 20:
        return bits
    if x < -104:
        return 0
    sign, mantissa, e = parts(bits)
    m, n = power(1, mantissa, e)
    if n < -30:
        return rounded(0, m, n - 62)
    t = m >> -n
    i = t >> 55
    u = mul(t - (i << 55), INVERSES[i])
    log = LOGARITHMS[i] + mul(u, ONE - mul(u, ONE // 2 - mul(u, ONE // 3 - mul(u, ONE // 4))))
    if sign:
        return rounded(0, log, -62)
    return rounded(0, shifted(mantissa, e + 57) + (log >> 5), -57)


def rsqrt(bits):
    x = value(bits)
    if x == 0 or x < 0 or x == math.inf:
        return INF if x == 0 else NAN if x < 0 else 0
    _, a, e = parts(bits)
    h = e + 30
    # from 2^30 to below 2^32, and e even
    while a < 1 << 30:
        a, h = a << 1, h - 1
    if h & 1:
        a, h = a << 1, h - 1
    near = lambda v, n: (v + (1 << n - 1)) >> n
    y = SEEDS[(a >> 24) - 64]
    for _ in range(2):
        y = near(y * ((3 << 30) - near(a * near(y * y, 30), 30)), 31)
    return rounded(0, y, -30 - h // 2)


def sincos(bits):
    x = value(bits)
    if abs(x) >= 2**31:
        return NAN, NAN
    if abs(x) < 2**-13:
        return bits, 0x3F800000
    sign, m, e = parts(bits)
    turn = shifted(m * TURNS, e - 34) % 2**64
    turn = -turn % 2**64 if sign else turn
    quarter = (turn + (1 << 61)) % 2**64 >> 62
    rest = (turn - (quarter << 62)) % 2**64
    a = mul(rest - 2**64 if rest >> 63 else rest, TAU)
    z = mul(a, a)

    def series(last):
        total = FACTORIALS[last]
        for k in range(last - 2, -1, -2):
            total = FACTORIALS[k] - mul(total, z)
        return total

    s, c = mul(a, series(13)), series(12)
    s, c = [(s, c), (c, -s), (-s, -c), (-c, s)][quarter]
    return tuple(rounded(v < 0, abs(v), -62) for v in (s, c))


def inputs():
    """Bits of f32 values: every 64,013th, then those of all f16 values."""
    yield from range(0, 1 << 32, 64013)
    for h in range(1 << 16):
        v = struct.unpack("<e", struct.pack("<H", h))[0]
        yield NAN if math.isnan(v) else struct.unpack("<I", struct.pack("<f", v))[0]


def digest(results):
    """FNV-1a, 64 bits, over the results' bytes."""
    state = 0xCBF29CE484222325
    for bits in results:
        for byte in bits.to_bytes(4, "little"):
            state = (state ^ byte) * 0x100000001B3 % 2**64
    return f"{state:016x}"


def main():
    both = [(NAN, NAN) if math.isnan(value(b)) else sincos(b) for b in inputs()]
    for f in (exp, sigmoid, silu, softplus, rsqrt):
        print(f"{f.__name__:9} {digest(NAN if math.isnan(value(b)) else f(b) for b in inputs())}")
    print(f"{'sin':9} {digest(s for s, _ in both)}\n{'cos':9} {digest(c for _, c in both)}")


if __name__ == "__main__":
    main()
