"""The part of gpu_check with two ranks: data parallelism over NCCL, on a single GPU if need be, and the reports about
ranks that fail. The bundle's `launch` starts the ranks and makes sure that they end."""
import os
import re
import signal
import time

from runner import SMALL, TINY, Failed, Skip, losses, weights

# NCCL refuses two ranks on a GPU unless they are on different hosts: so each claims its own host,
# and they communicate through local sockets. That is slow, about 10 ms per call, but exercises NCCL
# from end to end.
ONE_GPU = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
RANK_ON_ONE_GPU = 'export LOCAL_RANK=0 NCCL_HOSTID=rank$RANK; echo process $$; exec "$@"'

HEARTBEAT = 5  # seconds
MAX_SECONDS = 20  # from a rank's death (or the heartbeat's limit) to the end of all ranks


def shape_of(runner):
    return TINY if runner.simulated else SMALL


def bits(runner):
    shape = shape_of(runner)
    same_as_accumulation(runner, shape, "fp32", "fast")
    same_as_accumulation(runner, shape, "bf16", "ordered")
    return {"steps": shape.steps}, "2 ranks on a GPU are accumulation over 2 to the bit"


def failures(runner):
    shape = shape_of(runner)
    # A collective without its peer hangs on the GPU until NCCL's communicator is aborted.
    killed = name_the_failed(runner, shape, signal.SIGKILL, "rank 1 is gone", 0)
    stalled = name_the_failed(runner, shape, signal.SIGSTOP, "rank 1 is stalled", HEARTBEAT)
    # The GPU must still work as before.
    same_as_accumulation(runner, shape, "fp32", "fast")
    return ({"seconds_to_end_after_kill": killed, "seconds_to_end_after_stop": stalled},
            f"all end {killed} s after a kill, {stalled} s after a stop (limit {HEARTBEAT} s), and name the rank")


def two_gpus(runner):
    if runner.machine["gpus"] < 2:
        raise Skip("there is one GPU")
    same_as_accumulation(runner, shape_of(runner), "fp32", "fast", one_gpu=False)
    return {}, "the same bits on a GPU each"


def launch(runner, one_gpu):
    """The command that precedes train_gpt's, and its environment."""
    command = [runner.program("launch"), "--nproc=2", "--grace=10", "--"]
    environment = dict(runner.environment, NCCL_DEBUG="WARN")
    if one_gpu:
        command += ["sh", "-c", RANK_ON_ONE_GPU, "rank"]
        environment.update(ONE_GPU)
    return command, environment


def same_as_accumulation(runner, shape, precision, reduction, one_gpu=True):
    """Compares two ranks with one process that accumulates over two micro-steps in a fixed order: a sum of two numbers
    has only one order, so NCCL must give the same bits."""
    command, environment = launch(runner, one_gpu)
    # A tied weight has two gradients, which only ordered sums keep apart.
    untied = ["--model.tie_embeddings=false"] if reduction == "fast" else []
    try:
        two = runner.train(shape, precision, f"--dist.reduction={reduction}", "--dist.check_every=1", *untied,
                           before=command, environment=environment)
    except Failed as error:
        missing = re.search("NCCL, which .* cannot be loaded.*", error.log)
        if missing:
            raise Skip(missing[0]) from None
        fix = None
        if "Duplicate GPU" in error.log:
            fix = "this NCCL does not let two ranks share a GPU, whatever NCCL_HOSTID says: install NCCL 2.20 or later"
        first = re.search("launch: the first failure: (.*)", error.log)
        raise Failed(first[1] if first else str(error), error.log, fix) from None
    one = runner.train(shape, precision, "--dist.reduction=ordered", "--train.grad_accum=2", *untied)
    where = f"{precision}, dist.reduction={reduction}, " + ("on one GPU" if one_gpu else "on a GPU each")
    if losses(two) != losses(one):
        raise Failed(f"{where}: losses of 2 ranks are {losses(two)}, those of accumulation {losses(one)}")
    if weights(two) != weights(one):
        raise Failed(f"{where}: the losses of 2 ranks equal those of accumulation, but the last weights differ")


def name_the_failed(runner, shape, number, words, limit):
    """Sends rank 1 the signal during training: rank 0 must report it and end by itself. Returns after how many seconds
    all had ended."""
    out = runner.new_out()
    command, environment = launch(runner, one_gpu=True)
    options = ["--train.steps=1000000", "--train.log_every=1", "--checkpoint.every=0",
               f"--dist.heartbeat={HEARTBEAT}", "--dist.timeout=120"]
    train = [c for c in runner.train_command(shape, "fp32", out) if not str(c).startswith("--train.steps=")]
    with runner.start(*command, *train, *options, environment=environment) as running:
        victim = int(running.wait_for(r"\[1\] process (\d+)")[1])
        running.wait_for(r"\[0\] step +5/")
        os.kill(victim, number)
        begin = time.monotonic()
        running.end()
        seconds = time.monotonic() - begin
        what = f"rank 1 got {number.name}"
        for said in (rf"rank 0.*{words}", "rank 0 ended with exit code 1"):
            if not re.search(said, running.error()):
                raise running.failed(f"{what}, but nobody said '{said}': {running.last_line()}")
        if seconds > limit + MAX_SECONDS:
            raise running.failed(f"{what}, but all had ended only {seconds:.0f} s later")
    verdict = runner.run(runner.program("flight"), out)
    if not re.search(r"verdict: rank 1.*\n", verdict):
        raise Failed(f"{what}, but the flight records do not say so: {verdict.splitlines()[:2]}", verdict)
    return round(seconds, 1)
