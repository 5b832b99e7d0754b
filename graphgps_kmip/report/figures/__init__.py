"""Figures of the experiments, one module for each kind; `graphgps_kmip.report.draw_figure` has their names."""
