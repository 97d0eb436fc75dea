"""Everything that imports flwr, and the processes of Flower that a federation consists of. Nothing else in the package
imports flwr."""
