"""The doctor looks at a folder of images before anybody trains on it."""
