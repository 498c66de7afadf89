"""What tracing imports of torch takes two seconds; it is done here, so that no test's own time has it."""

from __future__ import annotations

import torch.fx.experimental.proxy_tensor
import torch.fx.experimental.symbolic_shapes  # noqa: F401
