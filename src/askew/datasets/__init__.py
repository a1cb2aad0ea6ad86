"""The named sets of images, one file each, and `bundled.py`: the small real sample that comes with the package."""
