"""How ogb counts the features of atoms and bonds: the number of values of each integer column."""

from __future__ import annotations

# Constants, for importing ogb takes a second; a test compares them with ogb's own functions.
ATOM = (119, 5, 12, 12, 10, 6, 6, 2, 2)  # element, chirality, degree, charge, hydrogens, radicals, hybridisation, ...
BOND = (5, 6, 2)  # type, stereo, conjugated
