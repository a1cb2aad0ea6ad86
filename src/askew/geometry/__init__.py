"""The paper's mathematics: known transforms of an image, and how likely a classifier's answers to them are."""

from askew.geometry.dirichlet import fit_dirichlet, fit_dirichlet_moments
from askew.geometry.normality import dirichlet_normality, simplified_normality
from askew.geometry.transforms import Transform, TransformSet

__all__ = [
    "Transform",
    "TransformSet",
    "dirichlet_normality",
    "fit_dirichlet",
    "fit_dirichlet_moments",
    "simplified_normality",
]
