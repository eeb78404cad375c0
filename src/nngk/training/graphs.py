"""A network's training step as CUDA graphs: captured once, then replayed with two calls.

A small network spends a step waiting for the host, which launches hundreds of kernels one by one. The forward and the
backward pass are recorded here on the first batch; what lies between and around them (the loss, the optimiser) stays
ordinary code, so that any loss can be used.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nngk.accel import capturing
from nngk.errors import InputError
from nngk.networks.recorded import WARM_UP


class Graphed:
    """Calls like the network in training mode. Batches of another shape than the first go through the network itself.

    The embeddings that come back are a leaf; once the loss's gradient has reached it, the backward graph runs and
    leaves each parameter's gradient in its ``grad``. So there is one backward pass for one call, and
    ``zero_grad(set_to_none=True)`` before it.
    """

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        if device.type != "cuda":
            raise InputError(f"CUDA graphs need a CUDA device, not {device}. Leave the setting 'compile' at 'auto'.")
        self.network = network
        self.captured: _Capture | None = None

    def __call__(self, images: Tensor) -> Tensor:
        if self.captured is None:
            try:
                with torch.random.fork_rng([images.device]):  # the step draws its dropout as if uncaptured
                    self.captured = _Capture(self.network, images)
            except RuntimeError as error:  # such as a network that asks the GPU for a value in between
                raise InputError(
                    f"The network's step cannot be captured as a CUDA graph ({str(error).splitlines()[0]}). "
                    "Train it with --compile off."
                ) from error
        if images.shape != self.captured.images.shape:
            return self.network(images)
        return self.captured.replay(images)


class _Capture:
    def __init__(self, network: nn.Module, images: Tensor) -> None:
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        self.images = images.clone(memory_format=torch.channels_last)
        before = {name: b.clone() for name, b in network.named_buffers()}  # warming up must leave no trace in them
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                out = self._embed(network)
                self._differentiate(out, torch.zeros_like(out))
        del out  # with it goes what autograd remembers of that stream
        torch.cuda.current_stream().wait_stream(side)
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # A graph's kernels keep the priority of the stream they are captured on: those of a refresh in the background
        # come second. Other threads may use the GPU during the capture: a loader, a refresh.
        how: dict[str, Any] = {"stream": torch.cuda.Stream(priority=-1), "capture_error_mode": "thread_local"}
        with torch.cuda.graph(self.forward, **how):
            out = self._embed(network)
        self.embeddings, self.gradient = out.detach(), torch.zeros_like(out)
        with torch.cuda.graph(self.backward, pool=self.forward.pool(), **how):
            self.gradients = self._differentiate(out, self.gradient)
        for name, buffer in network.named_buffers():
            buffer.copy_(before[name])

    def _embed(self, network: nn.Module) -> Tensor:
        # No cache of cast weights: a captured pass must cast them anew each time it is replayed.
        amp = torch.is_autocast_enabled("cuda")
        with capturing(), torch.autocast("cuda", torch.bfloat16, enabled=amp, cache_enabled=False):
            return network(self.images)

    def _differentiate(self, out: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        found = torch.autograd.grad(out, self.parameters, gradient, allow_unused=True)
        return own_gradients(found, self.parameters)

    def replay(self, images: Tensor) -> Tensor:
        self.images.copy_(images)
        self.forward.replay()
        # A copy: the loss may keep what it is given, and the next replay writes over its own result.
        leaf = self.embeddings.clone().requires_grad_()
        leaf.register_post_accumulate_grad_hook(self._replay_backward)
        return leaf

    def _replay_backward(self, leaf: Tensor) -> None:
        assert leaf.grad is not None
        self.gradient.copy_(leaf.grad)
        self.backward.replay()
        for parameter, gradient in zip(self.parameters, self.gradients):
            parameter.grad = gradient


def own_gradients(found: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Return each parameter's gradient in memory of its own, as ``backward`` would leave it.

    Parameters that are only added to each other have one and the same: clipping it in place would clip it twice.
    """
    out: list[Tensor | None] = []
    seen: set[int] = set()
    for gradient, parameter in zip(found, parameters):
        if gradient is not None:
            gradient = laid_out(gradient, parameter)
            gradient = gradient.clone() if gradient.data_ptr() in seen else gradient
            seen.add(gradient.data_ptr())
        out.append(gradient)
    return tuple(out)


def laid_out(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return the gradient in its parameter's layout, which fused optimisers ask for and backward may have changed.

    >>> laid_out(torch.zeros(2, 3), torch.zeros(3, 2).T).stride()
    (1, 2)
    """
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient)
