"""
What a row of the table of statistics holds: ten float64 of one measured value.

Count, extremes, mean, spread and L2 norm are of the finite elements; of a complex value they are of the magnitudes. The
spread is the root of the centred sum of squares: the sum itself leaves the range of float64 where elements are beyond 1e154.
Mean and centred sum merge as in Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm
for computing sample variances" (1979).
"""

from __future__ import annotations

COUNT, MIN, MAX, MEAN, SPREAD, NORM, NAN, INF, POSINF, ZERO = range(10)
TOTALS = 10
