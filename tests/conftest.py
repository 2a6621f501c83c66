"""One thread per test process: pytest-xdist already uses all cores, and pools of threads fight for them.

Runs and evaluations draw no figures, except inside of `drawing`.
"""

import os

import torch

from dsnet.report.figures import SWITCH

torch.set_num_threads(1)
os.environ[SWITCH] = "off"
