"""
What a row of the table of statistics holds: ten float64 of one measured value.

Count, extremes, mean, centred sum of squares and L2 norm are of the finite elements; of a complex value they are of the
magnitudes. The mean and the centred sum merge as in Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm
for computing sample variances" (1979).
"""

from __future__ import annotations

COUNT, MIN, MAX, MEAN, M2, NORM, NAN, INF, POSINF, ZERO = range(10)
TOTALS = 10
