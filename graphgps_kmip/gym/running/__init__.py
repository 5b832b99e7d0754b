"""Runs: data, train modes, one experiment of several seeds, finished runs as models."""
