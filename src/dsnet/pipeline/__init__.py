"""What is done with finished runs: latency and reports."""
