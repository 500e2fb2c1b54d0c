"""Coefficients of elementary functions, for every code generator that writes them out.

Coefficients: minimax fits by Remez exchange in 150 bits or more, made for this file, rounded to
the format. Each table says the interval, the function fitted and the largest relative error after
rounding, relative to the elementary function that the table serves. Lowest power first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ftuner.core.frozen import dataclass


def _table(text: str) -> tuple[float, ...]:
    return tuple(float.fromhex(word) for word in text.split())


@dataclass(frozen=True)
class Format:
    """One IEEE 754 binary format and the constants that the functions need in it."""

    bits: int
    fraction_bits: int
    bias: int
    exp_low: float
    """exp rounds to zero below; derived: less than ln of half the smallest subnormal."""
    exp_high: float
    """exp overflows above; derived: more than (bias + 1) ln 2, by less than ln 2 / 2."""
    tanh_high: float
    """tanh rounds to one above; derived: more than atanh(1 - 2**-(fraction_bits + 2))."""
    erfc_high: float
    """erfc rounds to zero above; derived: solves erfc(x) < half the smallest subnormal."""
    silu_low: float
    """silu and mish round to zero below; derived: |x| e^x < half the smallest subnormal."""
    swish_low: float
    """x sigmoid(slope x) rounds to zero where slope x is less, for slopes of 2^-10 or more; derived
    as `silu_low` with 2^10 |x|."""
    gelu_high: float
    """gelu of what is less than minus this rounds to zero; derived: e^(-x^2 / 2) / sqrt(2 pi) <
    half the smallest subnormal."""
    gelu_tanh_low: float
    """gelu_tanh rounds to zero below; derived as `silu_low`."""
    ln2_high: float
    """ln 2 cut so that its product with any exponent of the format is exact."""
    ln2_low: float
    """ln 2 - ln2_high."""
    half_pi: tuple[float, ...]
    """pi / 2 in parts that are summed. All but the last are cut to 33 bits, so that their products
    with the multiples of pi / 2 below `sine_high` are exact in float64; float32 reduces in it."""
    sine_high: float
    """Up to here sin and cos are computed from `half_pi`. Derived: the multiple of pi / 2 then has
    at most 20 bits, and in float32 a rounding error below 2^-6."""
    erfcx_scale: float
    erfcx_shift: float
    """The argument of the fit of erfcx is (shift - scale a) / (shift + scale a). Chosen for little
    error among those where its first coefficient is one."""
    gelu_scale: float
    gelu_shift: float
    gelu_factor: float
    """Those of erfcx with a / sqrt 2 for a, and scale and shift multiplied by the factor: chosen so
    that rounding changes none of the three by more than 2^-32 (2^-61) of it."""
    gelu_tanh: tuple[float, ...]
    """2 sqrt(2 / pi), as a multiple of 2^-20 (2^-47) and the rest, and 0.044715 times that, rounded
    and the rest."""
    exp_table: tuple[float, ...]
    exp2_table: tuple[float, ...]
    log_table: tuple[float, ...]
    atanh_table: tuple[float, ...]
    erf_table: tuple[float, ...]
    erfcx_table: tuple[float, ...]
    tanh_table: tuple[float, ...]
    """For |x| below `TANH_SMALL`."""
    sin_table: tuple[float, ...]
    cos_table: tuple[float, ...]
    atan_table: tuple[float, ...]


FLOAT32 = Format(
    bits=32,
    fraction_bits=23,
    bias=127,
    exp_low=-104.5,
    exp_high=89.0,
    tanh_high=9.25,
    erfc_high=10.265625,
    silu_low=-109.0,
    swish_low=-116.0,
    gelu_high=14.5,
    gelu_tanh_low=-10.875,
    ln2_high=float.fromhex("0x1.62e4p-1"),
    ln2_low=float.fromhex("0x1.7f7d1cp-20"),
    half_pi=_table("0x1.921fb54400000p+0 0x1.0b4611a626331p-34"),
    sine_high=2.0**17,
    erfcx_scale=float.fromhex("0x1.00aa6ap+0"),
    erfcx_shift=float.fromhex("0x1.c12c5ap+0"),
    gelu_scale=float.fromhex("0x1.6a23c8p-1"),
    gelu_shift=float.fromhex("0x1.c02226p+0"),
    gelu_factor=float.fromhex("0x1.fed09p-1"),
    gelu_tanh=_table("0x1.98845p+0 0x1.9ea1b2p-23 0x1.2444f2p-4 0x1.49b16ap-29"),
    # (expm1(r) - r) / r^2 on |r| <= 0.35: expm1 to 2^-28.7
    exp_table=_table("""
        0x1.000000p-1 0x1.555554p-3 0x1.5554aap-5 0x1.11118ep-7 0x1.6d78d8p-10 0x1.a0332ep-13"""),
    # (2^r - 1) / r on |r| <= 0.5: 2^r to 2^-27.5
    exp2_table=_table("""
        0x1.62e430p-1 0x1.ebfbdap-3 0x1.c6af2cp-5 0x1.3b2e28p-7 0x1.5f3ef2p-10 0x1.41fca6p-13"""),
    # (log((1 + s) / (1 - s)) / s - 2) / z, z = s^2, on z <= 0.02947: log to 2^-30.1
    log_table=_table("0x1.55557ap-1 0x1.995eb0p-2 0x1.31e464p-2"),
    # (2 atanh(s) / s - 2) / z, z = s^2, on z <= 1/9: atanh to 2^-27.7
    atanh_table=_table("0x1.555502p-1 0x1.99d1ccp-2 0x1.1ec040p-2 0x1.1eca24p-2"),
    # erf(x) / x - 1 in z = x^2 on z <= 1: erf to 2^-28.6
    erf_table=_table("""
        0x1.06eba8p-3 -0x1.81273ep-2 0x1.ce2cf8p-4 -0x1.b7f90ep-6 0x1.5405b2p-8 -0x1.a3f702p-11
        0x1.496a3ap-14"""),
    # ((shift + scale a) erfcx(a) - 1) / q on 0 <= a <= 10.2: erfcx to 2^-27.4
    erfcx_table=_table("""
        0x1.37a0a4p-1 0x1.704986p-3 -0x1.0a78f8p-6 -0x1.74e88cp-6 0x1.8537c4p-9 0x1.c5ef2ep-9
        -0x1.352738p-10 -0x1.aed55ep-12 0x1.559364p-12 -0x1.2e4bd8p-18 -0x1.064958p-15"""),
    # (tanh(x) / x - 1) / z in z = x^2 on z <= 0.3026: tanh to 2^-24.6
    tanh_table=_table("-0x1.555452p-2 0x1.10cee8p-3 -0x1.af7b38p-5 0x1.0d49fep-6"),
    # (sin(x) / x - 1) / z in z = x^2 on |x| <= 0.8: sin to 2^-27.7
    sin_table=_table("-0x1.555544p-3 0x1.1106aep-7 -0x1.990f92p-13"),
    # (cos(x) - 1) / z in z = x^2 on |x| <= 0.8: cos to 2^-31.9
    cos_table=_table("-0x1.000000p-1 0x1.55554ep-5 -0x1.6c0df4p-10 0x1.9a4b6ap-16"),
    # (atan(x) / x - 1) / z in z = x^2 on |x| <= tan(pi / 8): atan to 2^-30.3
    atan_table=_table("""
        -0x1.55554cp-2 0x1.99929ap-3 -0x1.23c4b6p-3 0x1.b2b070p-4 -0x1.f5576ap-5"""),
)

FLOAT64 = Format(
    bits=64,
    fraction_bits=52,
    bias=1023,
    exp_low=-746.0,
    exp_high=710.0,
    tanh_high=19.25,
    erfc_high=27.34375,
    silu_low=-752.0,
    swish_low=-759.0,
    gelu_high=38.65625,
    gelu_tanh_low=-21.625,
    ln2_high=float.fromhex("0x1.62e42fefa3p-1"),
    ln2_low=float.fromhex("0x1.3de6af278ece6p-42"),
    half_pi=_table("""
        0x1.921fb54400000p+0 0x1.0b4611a600000p-34
        0x1.3198a2e000000p-69 0x1.b839a252049c1p-104"""),
    sine_high=2.0**20,
    erfcx_scale=float.fromhex("0x1.ec5bc7235ed3cp-1"),
    erfcx_shift=float.fromhex("0x1.14f3a003e5574p+1"),
    gelu_scale=float.fromhex("0x1.5c2668fa2a9f5p-1"),
    gelu_shift=float.fromhex("0x1.14f3a003de4c9p+1"),
    gelu_factor=float.fromhex("0x1.fffffffff2fb6p-1"),
    gelu_tanh=_table("""
        0x1.9884533d43660p+0 -0x1.ee5e069875fe9p-49 0x1.2444f2a4d8b4bp-4 -0x1.6c843a29d1c70p-61"""),
    # As for float32: expm1 to 2^-59.4
    exp_table=_table("""
        0x1.0000000000000p-1 0x1.5555555555559p-3 0x1.555555555553cp-5 0x1.111111110f4b4p-7
        0x1.6c16c16c1fb4bp-10 0x1.a01a01b0c8c9fp-13 0x1.a01a017992632p-16 0x1.71ddf5d9b3a96p-19
        0x1.27e538842ca0ep-22 0x1.af636ef8a86bcp-26 0x1.1ee873df96857p-29"""),
    # As for float32: 2^r to 2^-56.4
    exp2_table=_table("""
        0x1.62e42fefa39efp-1 0x1.ebfbdff82c5a4p-3 0x1.c6b08d704a002p-5 0x1.3b2ab6fba011ap-7
        0x1.5d87fe78cd725p-10 0x1.4309130ed9966p-13 0x1.ffcbfba96e3b9p-17 0x1.62bfc79b91b93p-20
        0x1.b5267d0291420p-24 0x1.e61b5243174dep-28 0x1.e79b878fcb7a5p-32"""),
    # As for float32: log to 2^-58.8
    log_table=_table("""
        0x1.5555555555593p-1 0x1.999999997fc66p-2 0x1.249249420718bp-2 0x1.c71c51f50117ap-3
        0x1.746643932cbf3p-3 0x1.39a1364384c03p-3 0x1.2f0b0df67e727p-3"""),
    # As for float32: atanh to 2^-59.4
    atanh_table=_table("""
        0x1.5555555555535p-1 0x1.99999999a074ep-2 0x1.249249208c70bp-2 0x1.c71c741c67430p-3
        0x1.745cb401b9d77p-3 0x1.3b1ddb5155943p-3 0x1.1067c69152b9dp-3 0x1.efd8394fc7501p-4
        0x1.55b140f9b74efp-4 0x1.5c78d971a032bp-3"""),
    # As for float32: erf to 2^-54.8
    erf_table=_table("""
        0x1.06eba8214db68p-3 -0x1.812746b0379bdp-2 0x1.ce2f21a040d16p-4 -0x1.b82ce311fa948p-6
        0x1.565bccf92b40cp-8 -0x1.c02db03dd9404p-11 0x1.f9a2baa92930bp-14 -0x1.f4ca4d7157c71p-17
        0x1.b97fd3eaabcc5p-20 -0x1.5c07274683743p-23 0x1.d71b11045784bp-27 -0x1.abae4dc4327cdp-31
        """),
    # As for float32, on 0 <= a <= 27.3: erfcx to 2^-54.9
    erfcx_table=_table("""
        0x1.723bc16147c33p-1 0x1.6dd6ee88f3c9fp-2 0x1.8ea7880422788p-4 -0x1.c72202d7a5521p-9
        -0x1.6f60488269858p-7 -0x1.91dfabcae5c5bp-11 0x1.9c54e680e0210p-10 0x1.459d1deb766c5p-14
        -0x1.201a48e05cbd5p-12 0x1.7d3e3e1dffddfp-16 0x1.9c7372272dd0bp-15 -0x1.0537151d03fe8p-16
        -0x1.b14fcf749172ap-18 0x1.69ca68548c109p-18 -0x1.2e2b5f501a1d3p-22 -0x1.433320d1b6bbfp-20
        0x1.213fe48d66ef3p-21 0x1.bb3f5220fd57dp-24 -0x1.9429e3c6cc897p-23 0x1.535b6b98a3d8fp-25
        0x1.27da06e35e153p-25 -0x1.1685a44abbfb0p-26 -0x1.5f937ab6e2873p-29 0x1.098e9d3f2798fp-29
        """),
    # As for float32: tanh to 2^-60.0
    tanh_table=_table("""
        -0x1.555555555554fp-2 0x1.1111111110797p-3 -0x1.ba1ba1b97d17ep-5 0x1.664f485956a8ep-6
        -0x1.226e2f11104edp-7 0x1.d6d29b092de6fp-9 -0x1.7d8fcc5cd0cf5p-10 0x1.348370d715431p-11
        -0x1.e96d4214b0d9bp-13 0x1.5d6cf7fa692aep-14 -0x1.46fe60cfd9aa5p-16"""),
    # As for float32, on |x| <= 0.78541: sin to 2^-57.7
    sin_table=_table("""
        -0x1.555555555554dp-3 0x1.111111110fd03p-7 -0x1.a01a019c823b5p-13 0x1.71de35c7f2e03p-19
        -0x1.ae5e9bc7973d6p-26 0x1.5da0961082f6ap-33"""),
    # As for float32, on |x| <= 0.78541: cos to 2^-63.2
    cos_table=_table("""
        -0x1.0000000000000p-1 0x1.5555555555553p-5 -0x1.6c16c16c15eb2p-10 0x1.a01a019dcd394p-16
        -0x1.27e4f8be3d48cp-22 0x1.1eea59c8163c5p-29 -0x1.8fe253247aee8p-37"""),
    # As for float32: atan to 2^-59.3
    atan_table=_table("""
        -0x1.555555555554ap-2 0x1.9999999996e41p-3 -0x1.249249231c40dp-3 0x1.c71c710aaa6e2p-4
        -0x1.745cfc717db5ep-4 0x1.3b1151d152f48p-4 -0x1.10edfef4b3034p-4 0x1.df2d98cc9327cp-5
        -0x1.9d50d8f754936p-5 0x1.38ffdbcd727b1p-5 -0x1.27ce268d0e6acp-6"""),
)

FORMATS: Mapping[str, Format] = {"float32": FLOAT32, "float64": FLOAT64}
"""By the name of the dtype."""
ERF_SMALL = 1.0
"""Above, erf is 1 - erfc. Derived: erfc is under 0.16 there, so that its error hardly counts."""
TANH_SMALL = 0.55
"""Above, tanh is 1 - 2 / (1 + exp(2x)). Derived: the quotient is at most 1/2 there, so that its
error counts no more than that of the difference."""
ATAN_SMALL, ATAN_LARGE = math.tan(math.pi / 8), math.tan(3 * math.pi / 8)
"""atan(x) is pi/4 + atan((x - 1) / (x + 1)) between these, and pi/2 + atan(-1 / x) above: the
argument of the fit is at most the smaller one. Rounded to float32 they serve as well."""
