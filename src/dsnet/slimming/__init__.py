"""Any CNN becomes a supernet: its layers as a graph, its channels in groups, a gate behind a shared front."""
