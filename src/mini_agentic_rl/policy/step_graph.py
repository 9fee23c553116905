"""Recording a step over fixed buffers, so that a GPU repeats it without Python: CUDA graphs.

A decode step is some hundreds of small kernels, and launching them one by one from Python takes longer than running
them. A graph holds the launches with the addresses that they were recorded with, so it is right as long as everything
that it reads and writes stays where it is: weights and adapters are updated in place, inputs are copied into buffers.
This file is all that is CUDA's about it; whatever can run a step plainly can stand in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Call = Callable[[], None]


class Recorder(Protocol):
    """Something that records a call for repeating it."""

    def record(self, call: Call) -> Call:
        """Run `call`, and return what repeats it; raises what the recording meets."""


class CudaGraphs:
    """Records calls as CUDA graphs. They share their scratch memory, so only one may run at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch
            self._pool = torch.cuda.graph_pool_handle()

    def record(self, call: Call) -> Call:
        """Run `call` once and record it; return what launches the recording on the current stream.

        Raises:
            RuntimeError: something in the call cannot be recorded, such as waiting for a result.
        """
        with torch.cuda.device(self._device):
            before = torch.cuda.current_stream()
            try:
                # On the stream of the recording, because libraries prepare their workspace for each stream apart.
                self._stream.wait_stream(before)
                with torch.cuda.stream(self._stream):
                    call()
                graph = torch.cuda.CUDAGraph()
                # The thread's own errors alone: another one may be copying to the device meanwhile.
                mode = "thread_local"
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode):
                    call()
            finally:
                # A recording that fails leaves its stream the current one.
                torch.cuda.set_stream(before)
            before.wait_stream(self._stream)
        return graph.replay


class PlainCalls:
    """Repeats a call by calling it: the stand-in where there are no graphs, for tests and benchmarks."""

    def record(self, call: Call) -> Call:
        """Run `call`, and return it."""
        call()
        return call
