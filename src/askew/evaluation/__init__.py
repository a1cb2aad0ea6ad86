"""How well a detector does, measured as the paper measures it."""

from askew.evaluation.metrics import aupr_in, aupr_out, auroc, average_precision, fpr_at_95_tpr

__all__ = ["aupr_in", "aupr_out", "auroc", "average_precision", "fpr_at_95_tpr"]
