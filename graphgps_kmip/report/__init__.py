"""Tables, figures and pages from results on disk; nothing here trains.

`draw_attention` and `draw_curves` are loaded when they are first used, for matplotlib takes a second to import.
"""

from __future__ import annotations

from graphgps_kmip.common.lazy_names import lazy_names
from graphgps_kmip.report.aggregate import Spread, Summary, aggregate, check_results
from graphgps_kmip.results.best_epoch import best_epoch
from graphgps_kmip.results.run_stats import read_run

# Name -> module that has it.
_LAZY = {
    "draw_attention": "graphgps_kmip.report.figures.attention_graphs",
    "draw_curves": "graphgps_kmip.report.learning_curves",
}
__all__ = ["Spread", "Summary", "aggregate", "best_epoch", "check_results", "read_run", *_LAZY]
__getattr__, __dir__ = lazy_names(__name__, _LAZY)
