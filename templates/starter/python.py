# SPDX-License-Identifier: Apache-2.0
"""Say here what this is about: what the baseline waits for, and what the other functions do about that."""
import aisp
import numpy

ROWS, COLUMNS = 512, 2048


def inputs(seed):
    """New ones for every seed. Where they are tensors or arrays on a GPU, the work is done and timed there."""
    random = numpy.random.default_rng(seed)
    return {"values": random.uniform(-1, 1, (ROWS, COLUMNS)).astype(numpy.float32)}


def row_by_row(values):
    return numpy.array([row.sum() for row in values])


def all_at_once(values):
    return values.sum(axis=1)


def reference(values):
    """The same in float64, in the plainest way."""
    return values.astype(numpy.float64).sum(axis=1)


def measure():
    return aisp.bench("starter", inputs=inputs, baseline=row_by_row, optimized={"all_at_once": all_at_once}, reference=reference,
                      tolerance=aisp.sum_of(COLUMNS), teaches="say here in one sentence what it shows")


def test_all_at_once_is_faster():
    assert measure().speedup().low > 1


if __name__ == "__main__":
    aisp.main(measure)
