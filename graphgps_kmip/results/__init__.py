"""Results on disk: layout of a run folder, record.json, stats.json, best epoch; below training, reports and GraphGym.

Nothing here imports torch: a table of results must not need what trained the models.
"""
