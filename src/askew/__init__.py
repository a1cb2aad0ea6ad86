"""Find the images that do not belong, having seen only ones that do."""

__version__ = "0.1.0.dev0"
