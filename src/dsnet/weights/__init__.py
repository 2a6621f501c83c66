"""Weights that other programs or other runs of dsnet wrote, mapped by name onto dsnet's networks."""
