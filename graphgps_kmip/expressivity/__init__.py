"""What models can tell apart: colourings (1-WL, SEG-WL), pairs of graphs, and the theorems of the k-MIP documents."""
