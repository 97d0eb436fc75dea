"""stub"""

CLASSES = ("background", "polyp")
