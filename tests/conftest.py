"""One thread per test process: pytest-xdist already uses all cores, and pools of threads fight for them."""

import torch

torch.set_num_threads(1)
