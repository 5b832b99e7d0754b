"""Analysis of trained models: distance to full attention, learned attention graphs, energy distances of weights."""
