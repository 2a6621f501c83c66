"""A server for everything that dsnet wrote: under load it answers with narrower networks before it refuses."""
