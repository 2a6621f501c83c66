"""Loading of weights that other programs or other runs of dsnet wrote into dsnet's networks, by name."""
