# SPDX-License-Identifier: Apache-2.0
"""Figures in documents that nobody measured, by page: settings, sizes, rules and examples. A key is the figure with as many of the
words around it as tell it from a measured one; the value says what it is. test_documents.py wants a source of all others."""

CONSTANTS = {
    "docs/ci.md": {"twice the rounds": "a setting", "used 1 % or more": "a setting", "four times as long": "four children instead of one"},
    "docs/counters.md": {"together they are 100 %": "by definition"},
    "docs/method.md": {
        # Settings of the harness.
        "2 s after": "a setting", "twice the rounds": "a setting", "twice the size": "a setting", "fit into 0.3 s": "a setting",
        "1 % wide": "a setting", "budget (3 s)": "a setting",
        "limit (15 s)": "a setting", "at least 1 % away": "a setting", "Differences below 1 %": "a setting", "used 1 % or more": "a setting",
        "every 10 ms": "a setting", "30 % of the stage's": "a setting", "two seconds": "settings", "3.5 ms before": "a setting",
        "0.75 ms": "a setting", "or 0.02 ms": "a setting", "0.005 ms": "a setting", "has 0.2 ms": "a setting",
        "in the 2 ms": "a setting", "Up to 0.5 ms": "a setting", "and 0.03 ms": "a setting", "takes 3 s": "a setting", "twice as long": "a setting", "at most 32 times": "a setting", "every 5 ms": "a setting",
        "over four times the shortest": "a setting", "40 ms of work": "a setting", "windows of 0.1 s": "a setting", "windows of 0.2 s": "a setting",
        "80 % of": "settings", "60 % of": "a setting", "within ten seconds": "a limit", "four times the size": "a setting",
        "alone it is 0.5 %": "a setting", "it is 2 %": "a setting", "holds 99 % of": "a setting", "instead of 95 %": "a setting",
        "where 95 % of": "a setting", "memory within 5 %": "a setting", "threshold (5 %)": "a setting", "differ by at least 1 %": "a setting",
        "and 1 % more": "a setting", "within 1 %": "a setting", "with 2 % between": "a setting", "1 % of the level": "a setting",
        # Limits of errors, and what follows from them and from statistics.
        "three times the": "a limit", "16 times": "a limit", "three times as far": "a limit", "the 5 %)": "the complement of 95 %",
        "0.2 us only": "asserted by tests/measure/agreement_gpu_test.cu", "to 0.5 us": "a setting", "(1 us by": "five times 0.2 us",
        "with 97 %": "of six values, by counting", "one sample in ten 20 % slower": "what is simulated",
        # Examples and what is simulated.
        "10 us against 2 us": "an example", "rounds of 3 ms": "what is simulated", "take 15 ms": "20 rounds in the least time",
        "2.00x": "an example", "1.94x": "an example", "1.96x": "an example", "differ by 3 %": "an example", "is 4 %": "an example",
        "plus 1 %": "a setting", "reaches 5 %": "a setting", "only 3 %": "an example",
        "fewer than 0.1 % of": "asserted by tests/evidence/change_test.cpp", "to 0.5 % with": "what is simulated", "and 1 % with": "what is simulated",
        "of up to 2 %": "what is simulated", "(at 5 %": "what is simulated", "than 0.3 % of": "asserted by tests/evidence/change_test.cpp",
        "at 10 % in": "what is simulated", "than 0.8 %)": "asserted by tests/evidence/change_test.cpp", "loss of 5 %": "what is simulated",
        "at 0.25 %": "what is simulated", "at 0.5 %": "what is simulated", "at 1 %.": "what is simulated", "with 5 % added": "what is simulated",
    },
    "chapters/ch01/README.md": {"12 bytes": "of an addition: two floats in, one out", "hundred times below": "FLOP per byte and ridge",
                                "forty times the": "columns of the batch",
                                "twice the": "glibc's threshold", "fifty microseconds": "of work, set in the pair"},
    "chapters/ch02/README.md": {"two microseconds": "a round trip, in the pair's lower bound",
                                "twice as": "the rate of FP64 tensor cores, by data sheet", "24 MiB": "ranges, set in the pair",
                                "60 MB": "the L2 of an H200"},
    "chapters/ch02/machine.svg": {"60 MB": "the L2 of an H200"},
    "chapters/ch05/README.md": {"8191 bytes": "the buffer of libstdc++"},
    "chapters/ch06/README.md": {"four times the bytes in flight": "loads of 16 bytes", "four times the threads": "of the launches",
                                "four times the loads": "as many as threads", "sixteen times the bytes": "four loads of 16 bytes"},
    "chapters/ch07/README.md": {"twice the bytes behind each load": "two elements"},
    "chapters/ch08/README.md": {"four times as many loads": "1024 threads for 256"},
    "chapters/ch09/README.md": {"200 KiB": "of shared memory, set in the pair"},
    "chapters/ch10/README.md": {"above 60 %": "advice", "below 90 %": "advice"},
    "chapters/ch11/README.md": {"253 MiB": "eight frames of 3840 x 2160 pixels"},
    "chapters/ch18/README.md": {"instead of 64 times": "the requests", "648 TFLOP/s at": "published",
                                "542 TFLOP/s without": "published", "up to 31x": "published", "up to 1.59x, 1.28x": "published",
                                "up to 660 TFLOP/s": "published", "up to 7.03x": "published"},
    "chapters/ch19/README.md": {"45 % of the bytes": "counted from the sizes", "22 bytes a": "of the types", "14 bytes": "of the types",
                                "4096 times smaller": "by the exponents' biases"},
}
