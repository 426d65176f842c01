"""Seconds of a broadcast of BYTES from rank 0 to PEERS over Gloo, in pieces of 16 MiB: what c10d itself reaches.

    PYTHON runner/bench/gloo.py BYTES PEERS PORT
"""

import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

PIECE = 16 * 2**20


def rank_main(rank, store_port, total, world):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{store_port}", rank=rank, world_size=world)
    pieces = [torch.ones(PIECE // 4) for _ in range(2)]
    seconds = []
    for _ in range(3):
        dist.barrier()
        start = time.perf_counter()
        works = []
        for index in range(total // PIECE):
            works.append(dist.broadcast(pieces[index % 2], 0, async_op=True))
            if len(works) > 1:
                works.pop(0).wait()
        for work in works:
            work.wait()
        dist.barrier()
        seconds.append(time.perf_counter() - start)
    if rank == 0:
        print(sorted(seconds)[1])


if __name__ == "__main__":
    total, peers, port = (int(word) for word in sys.argv[1:])
    mp.spawn(rank_main, args=(port, total, peers + 1), nprocs=peers + 1)
