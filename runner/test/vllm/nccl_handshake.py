"""vLLM's own code joins a weight transfer group, as far as that needs no GPU: prints what it would start NCCL with.

    PYTHON nccl_handshake.py WORKER INIT_INFO

WORKER: the engine process's rank among its own. INIT_INFO: the JSON that its route is given.
"""

import contextlib
import json
import sys
from types import SimpleNamespace
from unittest.mock import patch

from vllm.distributed.device_communicators import pynccl
from vllm.distributed.device_communicators.pynccl_wrapper import ncclUniqueId
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_process_group


class Started(Exception):
    pass


class Library:
    """In place of libnccl, which starts nothing without a GPU."""

    def __init__(self, path=None):
        pass

    def ncclGetRawVersion(self):
        return 23007

    def ncclCommInitRank(self, world_size, unique_id, rank):
        assert isinstance(unique_id, ncclUniqueId)
        print(json.dumps({"world_size": world_size, "rank": rank, "unique_id": bytes(unique_id).hex()}))
        raise Started


worker, init_info = int(sys.argv[1]), json.loads(sys.argv[2])
parallel = SimpleNamespace(data_parallel_index=0, world_size=int(init_info["world_size"]) - 1, rank=worker)
device = {"current_device_index": lambda: 0, "device_index": lambda index: contextlib.nullcontext()}
with patch.object(pynccl, "NCCLLibrary", Library), patch.multiple("torch.accelerator", **device):
    with contextlib.suppress(Started):
        worker_init_process_group(NCCLWeightTransferInitInfo(**init_info), parallel)
