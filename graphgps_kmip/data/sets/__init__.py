"""Records of the built-in data sets, one family per file, each as ``RECORDS``."""
