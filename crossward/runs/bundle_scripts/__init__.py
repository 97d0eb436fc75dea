"""What a MONAI bundle of crossward runs. These files are copied into the bundle, with the modules of crossward.data
that decoded the training images. There they need Pillow, numpy, torch and monai, and nothing of crossward."""
