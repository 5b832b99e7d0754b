"""k-MIP search: the k largest inner products, exactly, in batches of graphs of different sizes, by several backends."""

from graphgps_kmip.search.dispatch import check_backend_name, choose, explain_choice, topk_inner_product
from graphgps_kmip.search.problem import SearchProblem

__all__ = ["SearchProblem", "check_backend_name", "choose", "explain_choice", "topk_inner_product"]
