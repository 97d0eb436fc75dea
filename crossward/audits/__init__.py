"""Attacks as measurements: what each was able to find out of a site's images, with its interval."""
