"""How well a detector does, measured as the paper measures it."""

from askew.evaluation.metrics import aupr_in, aupr_out, auroc

__all__ = ["aupr_in", "aupr_out", "auroc"]
