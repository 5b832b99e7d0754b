"""Public codes (GraphGPS, Exphormer, low-width, LRGB, k-MIP, GRIT, PPGT): keys, dialects, parameter names, faults."""
