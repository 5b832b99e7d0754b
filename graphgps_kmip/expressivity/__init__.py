"""Expressivity: colour refinement (1-WL, SEG-WL), pairs of graphs, and the theorems of the k-MIP documents."""
