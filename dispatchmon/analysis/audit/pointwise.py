"""
Operators whose kernel reads each element before it writes that one: an operand may be exactly what they write.

Torch says it with a tag (`torch.Tag.pointwise`); a trace is read without torch, so the names of those that write stand here.
A test compares them with torch.
"""

from __future__ import annotations

POINTWISE = frozenset(
    (
        "__ilshift__ __ixor__ abs acos acos_ acosh acosh_ add add_ addcdiv addcdiv_ addcmul addcmul_ angle asin asin_ "
        "asinh asinh_ atan atan2 atan2_ atan_ atanh atanh_ bitwise_and bitwise_and_ bitwise_left_shift "
        "bitwise_left_shift_ bitwise_not bitwise_not_ bitwise_or bitwise_or_ bitwise_right_shift bitwise_right_shift_ "
        "bitwise_xor bitwise_xor_ ceil ceil_ celu_ clamp clamp_ clamp_max clamp_max_ clamp_min clamp_min_ clip clip_ "
        "conj_physical conj_physical_ copy copy_ copysign cos cos_ cosh cosh_ deg2rad deg2rad_ digamma digamma_ div "
        "div_ elu_ eq erf erf_ erfc erfc_ erfinv erfinv_ exp exp2 exp2_ exp_ expm1 expm1_ float_power float_power_ "
        "floor floor_ fmax fmin fmod fmod_ frac frac_ frexp gcd ge gt hardsigmoid_ hardtanh_ heaviside hypot hypot_ i0 "
        "i0_ igamma igamma_ igammac igammac_ isneginf isposinf lcm ldexp ldexp_ le leaky_relu_ lerp lerp_ lgamma "
        "lgamma_ log log10 log10_ log1p log1p_ log2 log2_ log_ logaddexp logaddexp2 logical_and logical_and_ "
        "logical_not logical_not_ logical_or logical_or_ logical_xor logical_xor_ logit logit_ logit_backward lt "
        "maximum minimum mul mul_ mvlgamma mvlgamma_ nan_to_num nan_to_num_ ne neg neg_ nextafter nextafter_ polygamma "
        "polygamma_ pow pow_ rad2deg rad2deg_ reciprocal reciprocal_ relu_ remainder remainder_ round round_ rsqrt "
        "rsqrt_ selu_ sgn sgn_ sigmoid sigmoid_ sigmoid_backward sign sign_ signbit silu silu_ silu_backward sin sin_ "
        "sinc sinc_ sinh sinh_ special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 "
        "special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v "
        "special_chebyshev_polynomial_w special_entr special_erfcx special_hermite_polynomial_h "
        "special_hermite_polynomial_he special_i0e special_i1 special_i1e special_laguerre_polynomial_l "
        "special_legendre_polynomial_p special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1 "
        "special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0 "
        "special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t "
        "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v "
        "special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 special_xlog1py special_zeta sqrt sqrt_ "
        "square square_ sub sub_ tan tan_ tanh tanh_ tanh_backward trunc trunc_ xlogy xlogy_ "
    ).split()
)


def is_pointwise(op: str) -> bool:
    """Whether `aten.add_.Tensor` and its like are pointwise."""
    parts = op.split(".")
    return parts[0] == "aten" and len(parts) > 1 and (parts[1] in POINTWISE or op in ("aten.max.out", "aten.min.out"))
