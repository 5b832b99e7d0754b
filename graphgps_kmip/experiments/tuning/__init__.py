"""Searches of hyper-parameters: their ranges, engines (linear, TPE), journal and final seeds."""
