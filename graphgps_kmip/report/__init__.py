"""Tables, figures and pages from results on disk; nothing here trains."""

from graphgps_kmip.report.aggregate import Spread, Summary, aggregate, check_results
from graphgps_kmip.report.figures.attention_graphs import draw_attention
from graphgps_kmip.report.learning_curves import draw_curves
from graphgps_kmip.results.best_epoch import best_epoch
from graphgps_kmip.results.run_stats import read_run

__all__ = ["Spread", "Summary", "aggregate", "best_epoch", "check_results", "draw_attention", "draw_curves", "read_run"]
