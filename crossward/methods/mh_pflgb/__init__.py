"""MH-pFLGB: the method in method.py, and the modules that only it uses."""
