"""The tasks: what a network is trained for, one folder or file for each."""
