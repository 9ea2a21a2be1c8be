"""Whose memory is on a GPU, and whether an ended engine's is back."""

from collections.abc import Collection

from llmgw.core.gpu_reading import Sample

TOLERANCE_MIB = 256  # what a driver keeps of one engine's work for the next


def unattributed_mib(sample: Sample) -> int | None:
    """Used, and by no process that is listed: the driver's part, or processes of another name space.

    None when it can't be told: a process is listed without a number.
    """
    if sample.used_mib is None or any(one.mib is None for one in sample.holders):
        return None
    return max(0, sample.used_mib - sum(one.mib or 0 for one in sample.holders))


def why_not_back(sample: Sample, pids: Collection[int], before_mib: int | None) -> str | None:
    """Why memory on this GPU may still be an ended engine's; None: it is back.

    ``before_mib``: what was unattributed before the engine started. An engine in a container may never be
    listed, and the driver frees memory after the process has gone: both show as unattributed memory that rose.
    """
    if holding := [one for one in sample.holders if one.pid in pids]:
        mib = sum(one.mib or 0 for one in holding)
        return f"{_gib(mib)} on {sample.uuid} held by {', '.join(str(one.pid) for one in holding)}"
    now_mib = unattributed_mib(sample)
    if before_mib is not None and now_mib is not None and now_mib > before_mib + TOLERANCE_MIB:
        return f"{_gib(now_mib)} on {sample.uuid} held by nobody who is listed, {_gib(before_mib)} before its start"
    return None


def _gib(mib: int) -> str:
    return f"{mib / 1024:.1f} GiB"
