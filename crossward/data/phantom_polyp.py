"""stub"""
CLASSES=("background","polyp")
