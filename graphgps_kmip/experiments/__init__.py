"""Experiments as data: manifests, jobs and their runner, run status, progress, clusters, hyper-parameter searches."""
